package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/drain"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/reconcile"
)

// flat is what a cost may grow by where it must not grow: the data of 100x fits in
// fewer of the caches of the machine, and trees are a level deeper.
const flat = 1.5

func series() []growing {
	return []growing{
		{
			Name: "emissions", What: "an emission of a namespace and a repository", Unit: "microseconds", Size: "dirty namespaces in Redis",
			Bound: flat, base: 1_000, prepare: growingEmissions,
		},
		{
			Name: "drain", What: "a scope, drained by one worker", Unit: "microseconds", Size: "dirty scopes of the bucket",
			Bound: flat, base: 1_000, prepare: growingDrain,
		},
		{
			Name: "recount", What: "a blob of a recounted namespace", Unit: "microseconds", Size: "blobs of the namespace",
			Bound: flat, base: 3_530, prepare: growingRecount,
		},
		{
			Name: "recount-beside", What: "a recount of a namespace with 10,000 blobs", Unit: "milliseconds", Size: "blobs of other namespaces",
			Bound: flat, base: 10_000, prepare: growingBeside,
		},
		{
			Name: "candidates", What: "1,000 candidates for reconciliation", Unit: "pages of the index", Size: "namespaces, half of them stale",
			Bound: flat, base: 5_000, prepare: growingCandidates,
		},
	}
}

// growingEmissions emits to namespaces that are all dirty already.
func growingEmissions(ctx context.Context, l *lab, size int) (cost, error) {
	e, err := newEmitter(ctx, l, size)
	if err != nil {
		return nil, err
	}
	emissions := l.size(50_000)
	emit := func(ctx context.Context, i int) error {
		n := i % size
		return e.emit(ctx, e.scopes[2*n], e.scopes[2*n+1], false)
	}
	return func(ctx context.Context) (float64, error) {
		if err := e.empty(ctx); err != nil {
			return 0, err
		}
		if _, err := perSecond(ctx, emitWriters, size, emit); err != nil {
			return 0, err
		}
		rate, err := perSecond(ctx, emitWriters, emissions, emit)
		return 1e6 / rate, err
	}, nil
}

// growingDrain drains one bucket by one worker, as often as it takes for the same
// number of scopes. Over all buckets, as P4 does it, few scopes would cost more: a
// bucket has a price of its own.
func growingDrain(ctx context.Context, l *lab, size int) (cost, error) {
	pool, err := l.newDatabase(ctx, 4)
	if err != nil {
		return nil, err
	}
	redis, err := l.redis(ctx)
	if err != nil {
		return nil, err
	}
	b := newBuffer(redis)
	scopes, err := bucketful(ctx, pool, size)
	if err != nil {
		return nil, err
	}
	worker := drain.NewBucketWorker(drain.DefaultConfig(), drain.Dependencies{
		Pool: pool, Buffer: b, Metrics: metrics.New(prometheus.NewRegistry()), Log: l.progress, Clock: quartz.NewReal(),
	})
	drains := max(1, l.size(100_000)/size)
	return func(ctx context.Context) (float64, error) {
		if err := statements(ctx, pool, `TRUNCATE storage_ledger`, `VACUUM repositories`); err != nil {
			return 0, err
		}
		var took time.Duration
		for range drains {
			if err := makeDirty(ctx, b, scopes); err != nil {
				return 0, err
			}
			began := time.Now()
			if err := drainOnce(ctx, worker, scopes); err != nil {
				return 0, err
			}
			took += time.Since(began)
		}
		return float64(took.Microseconds()) / float64(drains*size), drainedAll(ctx, pool, drains*size)
	}, nil
}

// bucketful are the repositories of one namespace.
func bucketful(ctx context.Context, pool *pgxpool.Pool, n int) ([]accounting.Scope, error) {
	namespace := uuid.Must(uuid.NewV7())
	if err := statements(ctx, pool,
		fmt.Sprintf(`INSERT INTO namespaces (id, slug) VALUES ('%s', 'growing')`, namespace),
		fmt.Sprintf(`INSERT INTO repositories (id, namespace_id, name, format, kind) SELECT uuidv7(), '%s', n, 3, 1 FROM generate_series(1, %d) AS n`, namespace, n),
	); err != nil {
		return nil, err
	}
	rows, err := pool.Query(ctx, `SELECT id FROM repositories`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (accounting.Scope, error) {
		var id uuid.UUID
		err := row.Scan(&id)
		return accounting.RepositoryScope(namespace, id), err
	})
}

func makeDirty(ctx context.Context, b *buffer.Buffer, scopes []accounting.Scope) error {
	for some := range slices.Chunk(scopes, 100) {
		deltas := make([]accounting.Delta, len(some))
		for i, scope := range some {
			deltas[i] = accounting.Delta{Scope: scope, Counters: accounting.Counters{Bytes: 1, Components: 1}}
		}
		if _, err := b.Emit(ctx, some[0].Namespace, 0, deltas); err != nil {
			return err
		}
	}
	return nil
}

func drainOnce(ctx context.Context, worker *drain.BucketWorker, scopes []accounting.Scope) error {
	return worker.Work(ctx, &river.Job[drain.BucketArgs]{
		JobRow: &rivertype.JobRow{ScheduledAt: time.Now()},
		Args:   drain.BucketArgs{Bucket: accounting.Bucket(scopes[0].Namespace), Scopes: int64(len(scopes))},
	})
}

// drainedAll refuses the figure of a drain that left something.
func drainedAll(ctx context.Context, pool *pgxpool.Pool, want int) error {
	var applied int
	err := pool.QueryRow(ctx, `SELECT count(*) FROM storage_ledger WHERE outcome = $1`, accounting.OutcomeApplied).Scan(&applied)
	if err == nil && applied != want {
		err = fmt.Errorf("%d scopes were drained, not %d", applied, want)
	}
	return err
}

// growingRecount recounts the only namespace of a database, as often as it takes for
// the same number of blobs.
func growingRecount(ctx context.Context, l *lab, size int) (cost, error) {
	pool, namespace, err := recountable(ctx, l, size, 0)
	if err != nil {
		return nil, err
	}
	times := max(1, l.size(3_530_000)/size)
	return func(ctx context.Context) (float64, error) {
		rate, err := perSecond(ctx, 1, times, func(ctx context.Context, _ int) error {
			return recount(ctx, pool, namespace, accounting.Counters{Bytes: int64(size)})
		})
		return 1e6 / rate / float64(size), err
	}, nil
}

// growingBeside recounts a namespace that stays as it is.
func growingBeside(ctx context.Context, l *lab, size int) (cost, error) {
	own := l.size(10_000)
	pool, namespace, err := recountable(ctx, l, own, size)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) (float64, error) {
		rate, err := perSecond(ctx, 1, l.size(200), func(ctx context.Context, _ int) error {
			return recount(ctx, pool, namespace, accounting.Counters{Bytes: int64(own)})
		})
		return 1e3 / rate, err
	}, nil
}

// recountable makes a namespace with so many blobs of a byte, beside others with a hundred each.
func recountable(ctx context.Context, l *lab, own, others int) (*pgxpool.Pool, uuid.UUID, error) {
	namespace := uuid.Must(uuid.NewV7())
	pool, err := l.newDatabase(ctx, 2)
	if err != nil {
		return nil, namespace, err
	}
	return pool, namespace, statements(ctx, pool,
		fmt.Sprintf(`INSERT INTO blob_storage_blobs_by_namespace (namespace_id, sha256, size_bytes)
			SELECT '%s', sha256(int8send(n)), 1 FROM generate_series(1, %d) AS n`, namespace, own),
		fmt.Sprintf(`INSERT INTO blob_storage_blobs_by_namespace (namespace_id, sha256, size_bytes)
			SELECT md5((n / 100)::text)::uuid, sha256(int8send(n)), 1 FROM generate_series(1, %d) AS n`, others),
		`VACUUM (ANALYZE) blob_storage_blobs_by_namespace`)
}

// growingCandidates makes the jobs of one trigger, and counts the pages of the index
// that it read: what a trigger costs beside, the insertion of its jobs, hides them.
func growingCandidates(ctx context.Context, l *lab, size int) (cost, error) {
	const candidates = 1_000
	pool, err := l.newDatabase(ctx, 1) // statistics are told by the connection that did the work
	if err != nil {
		return nil, err
	}
	if err := halfStale(ctx, pool, size); err != nil {
		return nil, err
	}
	client, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Schema: "river"})
	if err != nil {
		return nil, err
	}
	trigger := reconcile.NewTrigger(reconcile.Deps{Pool: pool}, reconcile.Config{MaxInFlight: candidates / 10, Staleness: staleAfter})
	return func(ctx context.Context) (float64, error) {
		before, err := indexPages(ctx, pool)
		if err != nil {
			return 0, err
		}
		made, err := trigger.Run(ctx, client)
		if err != nil {
			return 0, err
		}
		if want := min(candidates, size/2); made != want {
			return 0, fmt.Errorf("the trigger made %d jobs, not %d", made, want)
		}
		after, err := indexPages(ctx, pool)
		return after - before, errors.Join(err, statements(ctx, pool, `TRUNCATE river.river_job`))
	}, nil
}

const staleAfter = 24 * time.Hour

// halfStale makes so many namespaces.
func halfStale(ctx context.Context, pool *pgxpool.Pool, namespaces int) error {
	return statements(ctx, pool,
		`ALTER TABLE namespaces DISABLE TRIGGER trg_namespaces_create_statistics`,
		fmt.Sprintf(`INSERT INTO namespaces (id, slug) SELECT gen_random_uuid(), 'n' || n FROM generate_series(1, %d) AS n`, namespaces),
		`INSERT INTO namespace_statistics (namespace_id, last_reconciled_at)
			SELECT id, now() - CASE WHEN row_number() OVER (ORDER BY id) % 2 = 0 THEN random() * interval '12 hours' ELSE (30 + random() * 30) * interval '1 day' END
			FROM namespaces`,
		// The rows came in no order: as passes write them, one after the other, the
		// index is denser.
		`REINDEX TABLE namespace_statistics`,
		`VACUUM (ANALYZE) namespace_statistics`, `VACUUM (ANALYZE) namespaces`)
}

// indexPages is how many pages of the candidates' index this database has read, of
// memory or disk.
func indexPages(ctx context.Context, pool *pgxpool.Pool) (float64, error) {
	if err := statements(ctx, pool, `SELECT pg_stat_force_next_flush()`); err != nil {
		return 0, err
	}
	var pages float64
	err := pool.QueryRow(ctx, `
		SELECT idx_blks_hit + idx_blks_read FROM pg_statio_user_indexes
		WHERE indexrelname = 'index_namespace_statistics_on_last_reconciled_at_and_ns_id'`).Scan(&pages)
	return pages, err
}
