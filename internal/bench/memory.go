package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/devstack"
)

const (
	// workerProgram is as seen from this folder.
	workerProgram = "../../bin/stowage"
	// idleFor lets a worker take the lead, which takes five seconds, and then look for
	// work several times and find none.
	idleFor = 10 * time.Second
	// looks is how often it is asked whether the worker has finished.
	looks = 100 * time.Millisecond

	drainedScopes      = 1_000_000
	scopesPerNamespace = 20 // the namespace itself, and 19 repositories
	emitters           = 64

	scannedBlobs        = 5_000_000
	scannedNamespaces   = 20
	scannedRepositories = 100 // of each
	scannedVersions     = 100 // of each repository
)

func memoryMeasures() []measure {
	measures := []measure{
		{ID: "P8-drain", What: "peak memory of a worker that drains 1,000,000 dirty scopes", prepare: prepareDrained},
		{ID: "P8-reconcile", What: "peak memory of a worker that reconciles 20 namespaces with 5,000,000 blobs and 200,000 versions", prepare: prepareScanned},
	}
	for i := range measures {
		measures[i].fresh = true
		measures[i].Against, measures[i].Unit, measures[i].Want = "that of one that has nothing to do", "MiB", excessOf(64)
	}
	return measures
}

// workplace is where workers work.
type workplace struct {
	*lab
	database string
	pool     *pgxpool.Pool
	buffer   *buffer.Buffer
}

func (l *lab) workplace(ctx context.Context) (*workplace, error) {
	if _, err := os.Stat(workerProgram); err != nil {
		return nil, fmt.Errorf("the worker's program: %w: run make build", err)
	}
	database, err := l.database(ctx)
	if err != nil {
		return nil, err
	}
	pool, err := l.pool(ctx, database, 4)
	if err != nil {
		return nil, err
	}
	redis, err := l.redis(ctx)
	if err != nil {
		return nil, err
	}
	return &workplace{lab: l, database: database, pool: pool, buffer: newBuffer(redis)}, nil
}

// peak is the most memory, in MiB, that a worker had from its start until done.
func (w *workplace) peak(ctx context.Context, done func(ctx context.Context) (bool, error)) (mib float64, err error) {
	cmd := exec.Command(workerProgram, "worker", "--admin-listen", "127.0.0.1:0", "--drain-interval", "500ms", "--reconciliation-interval", "500ms")
	cmd.Env = append(os.Environ(), "STOWAGE_DATABASE__URL="+w.database, "STOWAGE_REDIS__ADDRESSES="+w.server.Addr())
	worker, err := devstack.StartProgram("stowage worker", cmd)
	if err != nil {
		return 0, err
	}
	defer func() {
		if closed := worker.Close(); err == nil {
			err = closed
		}
	}()
	began := time.Now()
	look := time.NewTicker(looks)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-worker.Done():
			return 0, worker.Err()
		case <-look.C:
		}
		if finished, err := done(ctx); err != nil || finished {
			mib = highWater(cmd.Process.Pid)
			w.progress.InfoContext(ctx, "a worker has finished", "peak_mib", number(mib), "took", time.Since(began).Round(time.Second))
			return mib, err
		}
	}
}

// highWater is how much of a process was in memory at most, as the kernel knows it.
func highWater(pid int) float64 {
	var kib float64
	_, _ = fmt.Sscanf(fieldOf(fmt.Sprintf("/proc/%d/status", pid), "VmHWM"), "%f kB", &kib)
	return kib / 1024
}

// idle is the peak of a worker that has nothing to do.
func (w *workplace) idle(ctx context.Context) (float64, error) {
	until := time.Now().Add(idleFor)
	return w.peak(ctx, func(context.Context) (bool, error) { return time.Now().After(until), nil })
}

// prepareDrained makes namespaces of which none is due for a reconciliation. Each
// round makes all scopes dirty, and then starts a worker with its usual settings,
// but for a tick that comes sooner.
func prepareDrained(ctx context.Context, l *lab) (sides, error) {
	w, err := l.workplace(ctx)
	if err != nil {
		return sides{}, err
	}
	l.progress.InfoContext(ctx, "making the scopes that are drained")
	err = statements(ctx, w.pool,
		fmt.Sprintf(`INSERT INTO namespaces (id, slug) SELECT gen_random_uuid(), 'n' || n FROM generate_series(1, %d) AS n`, l.size(drainedScopes/scopesPerNamespace)),
		fmt.Sprintf(`INSERT INTO repositories (id, namespace_id, name, format, kind)
			SELECT gen_random_uuid(), id, 'r' || r, 3, 1 FROM namespaces, generate_series(2, %d) AS r`, scopesPerNamespace),
		`UPDATE namespace_statistics SET last_reconciled_at = now(), reconciliation_marker = now()`,
		`VACUUM ANALYZE`)
	if err != nil {
		return sides{}, err
	}
	transactions, err := w.transactions(ctx)
	if err != nil {
		return sides{}, err
	}
	rounds := 0
	return sides{
		ours: func(ctx context.Context) (float64, error) {
			if err := w.emit(ctx, transactions); err != nil {
				return 0, err
			}
			rounds++
			mib, err := w.peak(ctx, w.drained)
			if err != nil {
				return 0, err
			}
			return mib, w.counted(ctx, rounds)
		},
		peer: w.idle,
	}, nil
}

// transactions are the deltas of one in each namespace, which touches all of its
// repositories.
func (w *workplace) transactions(ctx context.Context) ([][]accounting.Delta, error) {
	rows, err := w.pool.Query(ctx, `SELECT namespace_id, array_agg(id) FROM repositories GROUP BY namespace_id`)
	if err != nil {
		return nil, err
	}
	one := accounting.Counters{Bytes: 1, Components: 1}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (deltas []accounting.Delta, err error) {
		var (
			namespace    uuid.UUID
			repositories []uuid.UUID
		)
		err = row.Scan(&namespace, &repositories)
		deltas = append(deltas, accounting.Delta{Scope: accounting.NamespaceScope(namespace), Counters: one})
		for _, r := range repositories {
			deltas = append(deltas, accounting.Delta{Scope: accounting.RepositoryScope(namespace, r), Counters: one})
		}
		return deltas, err
	})
}

func (w *workplace) emit(ctx context.Context, transactions [][]accounting.Delta) error {
	marker := accounting.MarkerOf(time.Now())
	_, err := perSecond(ctx, emitters, len(transactions), func(ctx context.Context, i int) error {
		failed, err := w.buffer.Emit(ctx, transactions[i][0].Scope.Namespace, marker, transactions[i])
		if err == nil && len(failed) > 0 {
			err = fmt.Errorf("%d scopes were not taken", len(failed))
		}
		return err
	})
	return err
}

// drained says that nothing is dirty and nothing in flight.
func (w *workplace) drained(ctx context.Context) (bool, error) {
	sizes, err := w.buffer.Sizes(ctx)
	return sizes == [accounting.Buckets]buffer.Size{}, err
}

// counted is an error unless every drain so far has added its one component to every
// counter: memory is easily saved by doing nothing.
func (w *workplace) counted(ctx context.Context, drains int) error {
	var other int
	err := w.pool.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM namespace_statistics WHERE components_count <> $1) + (SELECT count(*) FROM repositories WHERE artifacts_count <> $1)`,
		drains).Scan(&other)
	if err == nil && other > 0 {
		err = fmt.Errorf("%d counters are not at %d", other, drains)
	}
	return err
}

// prepareScanned makes namespaces that are reconciled. Each round makes them due, and
// starts a worker with its usual settings, but for a look that comes sooner.
func prepareScanned(ctx context.Context, l *lab) (sides, error) {
	w, err := l.workplace(ctx)
	if err != nil {
		return sides{}, err
	}
	l.progress.InfoContext(ctx, "making the blobs that are reconciled")
	err = statements(ctx, w.pool,
		fmt.Sprintf(`INSERT INTO namespaces (id, slug) SELECT gen_random_uuid(), n FROM generate_series(1, %d) AS n`, scannedNamespaces),
		`UPDATE namespace_statistics SET last_reconciled_at = now(), reconciliation_marker = now()`,
		fmt.Sprintf(`INSERT INTO repositories (id, namespace_id, name, format, kind)
			SELECT gen_random_uuid(), id, 'r' || r, 3, 1 FROM namespaces, generate_series(1, %d) AS r`, scannedRepositories),
		fmt.Sprintf(`INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes)
			SELECT gen_random_uuid(), namespace_id, id, 'package', v::text, 1 FROM repositories, generate_series(1, %d) AS v`, l.size(scannedVersions)),
		// A recount reads no other table of blobs.
		fmt.Sprintf(`INSERT INTO blob_storage_blobs_by_namespace (namespace_id, sha256, size_bytes)
			SELECT id, decode(lpad(to_hex(b), 64, '0'), 'hex'), 1 FROM namespaces, generate_series(1, %d) AS b`, l.size(scannedBlobs/scannedNamespaces)),
		`VACUUM ANALYZE`)
	if err != nil {
		return sides{}, err
	}
	return sides{
		ours: func(ctx context.Context) (float64, error) {
			if err := statements(ctx, w.pool, `UPDATE namespace_statistics SET last_reconciled_at = 'epoch'`); err != nil {
				return 0, err
			}
			return w.peak(ctx, w.reconciled)
		},
		peer: w.idle,
	}, nil
}

func (w *workplace) reconciled(ctx context.Context) (done bool, err error) {
	err = w.pool.QueryRow(ctx, `SELECT bool_and(last_reconciled_at > 'epoch' AND deduplicated_size_bytes > 0) FROM namespace_statistics`).Scan(&done)
	return done, err
}
