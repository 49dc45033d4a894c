package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/drain"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
)

const (
	dirtyScopes = 100_000
	// updateBatch is what the bare UPDATE was quickest with, of 1,000, 5,000 and 10,000.
	updateBatch = 10_000
	// workerConnections is what a worker takes by default.
	workerConnections = 27
	tickQueue         = "tick"
)

// delta is what each scope has to be drained of.
var delta = accounting.Counters{Bytes: 4096, Components: 1}

func drainMeasures() []measure {
	return []measure{
		{
			ID:      "P4-update",
			What:    "scopes drained of 100,000 dirty ones, one worker, from the tick on",
			Against: "one bare batched UPDATE of the same rows",
			Unit:    "scopes/s", Want: atLeast(0.15),
			prepare: func(ctx context.Context, l *lab) (sides, error) {
				d, err := prepareDrain(ctx, l)
				if err != nil {
					return sides{}, err
				}
				return sides{ours: d.drain, peer: d.update}, nil
			},
		},
		{
			ID:      "P4-asynq",
			What:    "scopes drained of 100,000 dirty ones, one worker, from the tick on",
			Against: "an asynq task per scope: lease, read, transaction, delete",
			Unit:    "scopes/s", Want: atLeast(10),
			prepare: func(ctx context.Context, l *lab) (sides, error) {
				d, err := prepareDrain(ctx, l)
				if err != nil {
					return sides{}, err
				}
				q, err := prepareTasks(ctx, l, d)
				return sides{ours: d.drain, peer: q.round}, err
			},
		},
	}
}

// drained is a worker that drains, and what there is to drain.
type drained struct {
	pool   *pgxpool.Pool
	redis  rueidis.Client
	buffer *buffer.Buffer
	client *river.Client[pgx.Tx]
	// ended gets the outcome of each drain of a bucket, when it returns.
	ended chan error
	// scopes are namespaces and their repositories, as many of the one as of the
	// other, in no order.
	scopes []accounting.Scope
	marker accounting.Marker
}

func prepareDrain(ctx context.Context, l *lab) (*drained, error) {
	cfg := config.Default()
	d := &drained{ended: make(chan error, accounting.Buckets), marker: accounting.MarkerOf(time.Now())}
	var err error
	if d.pool, err = l.newDatabase(ctx, workerConnections); err != nil {
		return nil, err
	}
	if d.redis, err = l.redis(ctx); err != nil {
		return nil, err
	}
	d.buffer = newBuffer(d.redis)
	if err := d.fill(ctx, l.size(dirtyScopes/2)); err != nil {
		return nil, err
	}
	if err := ledger.EnsurePartitions(ctx, d.pool, time.Now(), time.Now().AddDate(0, 0, 1)); err != nil {
		return nil, err
	}
	return d, d.work(ctx, l, cfg)
}

// fill makes namespaces with one repository each, all reconciled at the marker.
func (d *drained) fill(ctx context.Context, namespaces int) error {
	var owners, repositories []uuid.UUID
	for range namespaces {
		namespace, repository := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
		owners, repositories = append(owners, namespace), append(repositories, repository)
		d.scopes = append(d.scopes, accounting.NamespaceScope(namespace), accounting.RepositoryScope(namespace, repository))
	}
	rand.Shuffle(len(d.scopes), func(i, j int) { d.scopes[i], d.scopes[j] = d.scopes[j], d.scopes[i] })
	for _, made := range []struct {
		sql  string
		args []any
	}{
		{`INSERT INTO namespaces (id, slug) SELECT id, id FROM unnest($1::uuid[]) AS n (id)`, []any{owners}},
		{`INSERT INTO repositories (id, namespace_id, name, format, kind)
		  SELECT id, namespace, id, 3, 1 FROM unnest($1::uuid[], $2::uuid[]) AS r (id, namespace)`, []any{repositories, owners}},
		{`UPDATE namespace_statistics SET last_reconciled_at = $1, reconciliation_marker = $1`, []any{d.marker.Time()}},
		{`UPDATE repositories SET last_reconciled_at = $1`, []any{d.marker.Time()}},
		{`VACUUM (ANALYZE) namespaces, repositories, namespace_statistics`, nil},
	} {
		if _, err := d.pool.Exec(ctx, made.sql, made.args...); err != nil {
			return err
		}
	}
	return nil
}

// work starts a worker as `stowage worker` does, with what it sets by default, but
// with no other jobs: those come in their own time.
func (d *drained) work(ctx context.Context, l *lab, cfg *config.Config) error {
	draining := drain.DefaultConfig()
	deps := drain.Dependencies{
		Pool: d.pool, Buffer: d.buffer, Metrics: metrics.New(prometheus.NewRegistry()), Log: l.progress, Clock: quartz.NewReal(),
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, drain.NewTickWorker(draining, deps))
	river.AddWorker(workers, drain.NewBucketWorker(draining, deps))
	var err error
	d.client, err = river.NewClient(riverpgxv5.New(d.pool), &river.Config{
		Schema: "river", Logger: slog.New(slog.DiscardHandler), Workers: workers,
		Queues:     map[string]river.QueueConfig{tickQueue: {MaxWorkers: 1}, drain.Queue: drain.QueueConfig(cfg.Drain.Workers)},
		Middleware: []rivertype.Middleware{river.WorkerMiddlewareFunc(d.tell)},
	})
	if err != nil {
		return err
	}
	l.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return d.client.Stop(ctx)
	})
	return d.client.Start(context.WithoutCancel(ctx))
}

func (d *drained) tell(ctx context.Context, job *rivertype.JobRow, work func(context.Context) error) error {
	err := work(ctx)
	if err != nil || job.Kind == (drain.BucketArgs{}).Kind() {
		d.ended <- err
	}
	return err
}

// drain is timed from the insertion of a tick until the last bucket is done.
func (d *drained) drain(ctx context.Context) (float64, error) {
	before, err := d.sum(ctx)
	if err != nil {
		return 0, err
	}
	buckets, err := d.emit(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if _, err := d.client.Insert(ctx, drain.TickArgs{}, &river.InsertOpts{Queue: tickQueue}); err != nil {
		return 0, err
	}
	if err := await(ctx, d.ended, buckets); err != nil {
		return 0, err
	}
	took := time.Since(began)
	return float64(len(d.scopes)) / took.Seconds(), d.check(ctx, before, len(d.scopes))
}

// await returns when n things have ended, or one has failed.
func await(ctx context.Context, ended <-chan error, n int) error {
	for range n {
		select {
		case err := <-ended:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// emit makes every scope dirty and returns in how many buckets they are.
func (d *drained) emit(ctx context.Context) (buckets int, err error) {
	if _, err := perSecond(ctx, emitWriters, len(d.scopes), func(ctx context.Context, i int) error {
		failed, err := d.buffer.Emit(ctx, d.scopes[i].Namespace, d.marker, []accounting.Delta{{Scope: d.scopes[i], Counters: delta}})
		if err == nil && len(failed) > 0 {
			err = errors.New("the scope is refused")
		}
		return err
	}); err != nil {
		return 0, err
	}
	if err := d.vacuum(ctx); err != nil {
		return 0, err
	}
	sizes, err := d.buffer.Sizes(ctx)
	for _, size := range sizes {
		if size != (buffer.Size{}) {
			buckets++
		}
	}
	return buckets, err
}

// vacuum lets each round of each side begin with the same room in the tables.
func (d *drained) vacuum(ctx context.Context) error {
	return statements(ctx, d.pool, `VACUUM namespace_statistics, repositories`)
}

// sum is that of all rows.
func (d *drained) sum(ctx context.Context) (accounting.Counters, error) {
	var c accounting.Counters
	err := d.pool.QueryRow(ctx, `
SELECT sum(bytes)::bigint, sum(components)::bigint
FROM (SELECT size_bytes, artifacts_count FROM repositories
      UNION ALL SELECT deduplicated_size_bytes, components_count FROM namespace_statistics) AS counters (bytes, components)`).
		Scan(&c.Bytes, &c.Components)
	return c, err
}

// check refuses figures of a round that did not do its work.
func (d *drained) check(ctx context.Context, before accounting.Counters, scopes int) error {
	after, err := d.sum(ctx)
	if err != nil {
		return err
	}
	want := accounting.Counters{Bytes: delta.Bytes * int64(scopes), Components: delta.Components * int64(scopes)}
	if got := after.Minus(before); got != want {
		return fmt.Errorf("the rows have grown by %v instead of %v", got, want)
	}
	sizes, err := d.buffer.Sizes(ctx)
	if err == nil && sizes != ([accounting.Buckets]buffer.Size{}) {
		err = errors.New("the buffer is not empty")
	}
	return err
}

const (
	updateRepositories = `
UPDATE repositories r SET size_bytes = r.size_bytes + d.bytes, artifacts_count = r.artifacts_count + d.components
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS d (id, bytes, components) WHERE r.id = d.id`
	updateNamespaces = `
UPDATE namespace_statistics n
SET deduplicated_size_bytes = n.deduplicated_size_bytes + d.bytes, components_count = n.components_count + d.components
FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS d (id, bytes, components) WHERE n.namespace_id = d.id`
)

// update is the least that PostgreSQL can do for the same rows: each statement is a
// transaction of its own, durable, and nothing is read, kept or made certain. Fair:
// rows come in the order in which they become dirty, which is none, as in a drain.
func (d *drained) update(ctx context.Context) (float64, error) {
	if err := d.vacuum(ctx); err != nil {
		return 0, err
	}
	before, err := d.sum(ctx)
	if err != nil {
		return 0, err
	}
	began := time.Now()
	for batch := range slices.Chunk(d.scopes, updateBatch) {
		for kind, sql := range map[accounting.ScopeKind]string{accounting.KindRepository: updateRepositories, accounting.KindNamespace: updateNamespaces} {
			if err := d.updateBatch(ctx, sql, kind, batch); err != nil {
				return 0, err
			}
		}
	}
	took := time.Since(began)
	return float64(len(d.scopes)) / took.Seconds(), d.check(ctx, before, len(d.scopes))
}

func (d *drained) updateBatch(ctx context.Context, sql string, kind accounting.ScopeKind, batch []accounting.Scope) error {
	var ids [][16]byte // as the ledger sends them: of a uuid.UUID pgx makes a text first
	var bytes, components []int64
	for _, s := range batch {
		if s.Kind == kind {
			ids, bytes, components = append(ids, s.ID), append(bytes, delta.Bytes), append(components, delta.Components)
		}
	}
	_, err := d.pool.Exec(ctx, sql, ids, bytes, components)
	return err
}
