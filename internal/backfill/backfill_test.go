package backfill_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/backfill"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/reconcile"
	"github.com/stowage-dev/stowage/internal/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// bundle is a database and what a worker of it works with.
type bundle struct {
	t    *testing.T
	pool *pgxpool.Pool
	deps backfill.Deps
}

func setup(t *testing.T) *bundle {
	t.Helper()
	pool := dbtest.New(t)
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	db, err := entdb.New(entdb.Config{Pool: pool, Emitter: &entdb.Recorder{}, Logger: log, Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	return &bundle{t: t, pool: pool, deps: backfill.Deps{
		Pool: pool, DB: db, Metrics: metrics.NewUpkeep(prometheus.NewRegistry()), Log: log, Clock: quartz.NewReal(),
	}}
}

// bare makes namespaces without statistics rows.
func (b *bundle) bare(n int) {
	b.t.Helper()
	for _, sql := range []string{
		`ALTER TABLE namespaces DISABLE TRIGGER trg_namespaces_create_statistics`,
		fmt.Sprintf(`INSERT INTO namespaces (id, slug) SELECT gen_random_uuid(), n::text FROM generate_series(1, %d) AS n`, n),
		`ALTER TABLE namespaces ENABLE TRIGGER trg_namespaces_create_statistics`,
		`ANALYZE namespaces`,
	} {
		_, err := b.pool.Exec(b.t.Context(), sql)
		require.NoError(b.t, err)
	}
}

func (b *bundle) count(sql string, args ...any) (n int64) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), sql, args...).Scan(&n))
	return n
}

func (b *bundle) read(name string) backfill.Progress {
	b.t.Helper()
	p, err := backfill.Read(b.t.Context(), b.pool, name)
	require.NoError(b.t, err)
	return p
}

// finish runs a worker until the backfill has ended.
func (b *bundle) finish(one backfill.Backfill) {
	b.t.Helper()
	worker := backfill.NewWorker(b.deps, []backfill.Backfill{one})
	for b.read(one.Name).State == backfill.Running {
		require.NoError(b.t, worker.Run(b.t.Context()))
	}
	require.Equal(b.t, backfill.Finished, b.read(one.Name).State)
}

const zeroed = `SELECT count(*) FROM namespace_statistics
	WHERE (deduplicated_size_bytes, components_count, last_reconciled_at, reconciliation_marker) = (0, 0, 'epoch', 'epoch')`

func TestAC16StatisticsOfRestoredNamespaces(t *testing.T) {
	t.Parallel()
	const namespaces = 50_000
	b := setup(t)
	_, err := b.pool.Exec(t.Context(), `INSERT INTO namespaces (id, slug) VALUES (gen_random_uuid(), 'has one')`)
	require.NoError(t, err)
	_, err = b.pool.Exec(t.Context(), `UPDATE namespace_statistics SET components_count = 7`)
	require.NoError(t, err)
	b.bare(namespaces)

	require.NoError(t, backfill.Start(t.Context(), b.pool, backfill.Statistics()))
	p := b.read("namespace_statistics")
	require.Equal(t, backfill.Running, p.State)
	require.EqualValues(t, namespaces+1, p.RowsExpected)
	b.finish(backfill.Statistics())

	require.EqualValues(t, namespaces, b.count(zeroed))
	require.EqualValues(t, 1, b.count(`SELECT count(*) FROM namespace_statistics WHERE components_count = 7`))
	p = b.read("namespace_statistics")
	require.EqualValues(t, namespaces+1, p.RowsSeen)
	require.EqualValues(t, namespaces, p.RowsChanged)
	require.NotNil(t, p.FinishedAt)
	require.EqualValues(t, namespaces, testutil.ToFloat64(b.deps.Metrics.BackfillRows.WithLabelValues(p.Name, metrics.RowsChanged)))

	require.NoError(t, backfill.Start(t.Context(), b.pool, backfill.Statistics()), "one that has ended may begin again")
	b.finish(backfill.Statistics())
	require.Zero(t, b.read("namespace_statistics").RowsChanged)
}

// killed is the statistics backfill, whose session is ended in the middle of every
// third batch.
func killed(batches *int) backfill.Backfill {
	b := backfill.Statistics()
	b.Limit = 50
	work := b.Batch
	b.Batch = func(ctx context.Context, tx *entdb.Tx, after string, limit int) (backfill.Page, error) {
		page, err := work(ctx, tx, after, limit)
		if *batches++; err == nil && *batches%3 == 0 {
			_, err = tx.Pgx().Exec(ctx, `SELECT pg_terminate_backend(pg_backend_pid())`)
		}
		return page, err
	}
	return b
}

func TestBackfillGoesOnAfterAKill(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.bare(1000)
	batches := 0
	one := killed(&batches)
	require.NoError(t, backfill.Start(t.Context(), b.pool, one))
	worker, failures := backfill.NewWorker(b.deps, []backfill.Backfill{one}), 0
	for b.read(one.Name).State == backfill.Running {
		if err := worker.Run(t.Context()); err != nil {
			failures++
		}
	}
	require.Positive(t, failures)
	require.EqualValues(t, 1000, b.count(zeroed))
	p := b.read(one.Name)
	require.EqualValues(t, 1000, p.RowsSeen, "no batch counts twice, and none is left out")
	require.EqualValues(t, 1000, p.RowsChanged)
}

func TestTwoWorkersTakeTurns(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.bare(2000)
	one := backfill.Statistics()
	one.Limit = 100
	require.NoError(t, backfill.Start(t.Context(), b.pool, one))
	group, ctx := errgroup.WithContext(t.Context())
	for range 4 {
		group.Go(func() error {
			for {
				if err := backfill.NewWorker(b.deps, []backfill.Backfill{one}).Run(ctx); err != nil {
					return err
				}
				if p, err := backfill.Read(ctx, b.pool, one.Name); err != nil || p.State != backfill.Running {
					return err
				}
			}
		})
	}
	require.NoError(t, group.Wait())
	require.EqualValues(t, 2000, b.read(one.Name).RowsSeen)
	require.EqualValues(t, 2000, b.count(zeroed))
}

// counting is a walk over the numbers up to 100, ten at a time.
func counting(name string, each func(first int) error) backfill.Backfill {
	return backfill.Backfill{
		Name: name, Table: "namespaces", Limit: 10,
		Batch: func(_ context.Context, _ *entdb.Tx, after string, limit int) (backfill.Page, error) {
			last := 0
			if after != "" {
				var err error
				if last, err = strconv.Atoi(after); err != nil {
					return backfill.Page{}, err
				}
			}
			err := each(last)
			return backfill.Page{Last: strconv.Itoa(last + limit), Seen: int64(limit), Done: last+limit >= 100}, err
		},
	}
}

func TestPauseResumeCancel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	halfway, fails := errors.New("halfway"), false
	one := counting("one", func(first int) error {
		if first == 50 && fails {
			return halfway
		}
		return nil
	})
	worker := backfill.NewWorker(b.deps, []backfill.Backfill{one})
	runUntil := func(state backfill.State) {
		t.Helper()
		for b.read("one").State == backfill.Running {
			require.NoError(t, worker.Run(ctx))
		}
		require.Equal(t, state, b.read("one").State)
	}

	t.Run("one that was never started can only be started", func(t *testing.T) {
		require.Equal(t, backfill.NotStarted, b.read("one").State)
		err := backfill.Pause(ctx, b.pool, "one")
		require.ErrorIs(t, err, backfill.ErrState)
		require.ErrorContains(t, err, "backfill one is not started, so it cannot be paused")
		require.ErrorIs(t, backfill.Resume(ctx, b.pool, "one"), backfill.ErrState)
		require.ErrorIs(t, backfill.Cancel(ctx, b.pool, "one"), backfill.ErrState)
	})
	t.Run("a paused one stands still until it is resumed", func(t *testing.T) {
		require.NoError(t, backfill.Start(ctx, b.pool, one))
		require.ErrorContains(t, backfill.Start(ctx, b.pool, one), "is running already")
		fails = true
		require.ErrorIs(t, worker.Run(ctx), halfway)
		fails = false
		require.NoError(t, backfill.Pause(ctx, b.pool, "one"))
		require.NoError(t, worker.Run(ctx))
		require.Equal(t, backfill.Paused, b.read("one").State)
		require.EqualValues(t, 50, b.read("one").RowsSeen)
		require.ErrorContains(t, backfill.Start(ctx, b.pool, one), "resume it, or cancel it and start it again")
		require.NoError(t, backfill.Resume(ctx, b.pool, "one"))
		runUntil(backfill.Finished)
		require.EqualValues(t, 100, b.read("one").RowsSeen)
		require.ErrorContains(t, backfill.Resume(ctx, b.pool, "one"), "is finished")
	})
	t.Run("a cancelled one begins at the first row", func(t *testing.T) {
		require.NoError(t, backfill.Start(ctx, b.pool, one))
		require.NoError(t, backfill.Pause(ctx, b.pool, "one"))
		require.NoError(t, backfill.Cancel(ctx, b.pool, "one"))
		require.NotNil(t, b.read("one").FinishedAt)
		require.NoError(t, worker.Run(ctx))
		require.Equal(t, backfill.Cancelled, b.read("one").State)
		require.NoError(t, backfill.Start(ctx, b.pool, one))
		require.Zero(t, b.read("one").RowsSeen)
		runUntil(backfill.Finished)
	})
}

func TestOneThatFailsDoesNotHinderTheOthers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mistake := errors.New("mistake")
	bad, good := counting("bad", func(int) error { return mistake }), counting("good", func(int) error { return nil })
	for _, one := range []backfill.Backfill{bad, good} {
		require.NoError(t, backfill.Start(t.Context(), b.pool, one))
	}
	worker := backfill.NewWorker(b.deps, []backfill.Backfill{bad, good})
	for b.read("good").State == backfill.Running {
		require.ErrorIs(t, worker.Run(t.Context()), mistake)
	}
	require.Equal(t, backfill.Finished, b.read("good").State)
	require.Equal(t, backfill.Running, b.read("bad").State)
	require.Zero(t, b.read("bad").RowsSeen)
}

func TestSomeBeginAgainByThemselves(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one := counting("one", func(int) error { return nil })
	one.Every = time.Hour
	b.bare(1)
	require.NoError(t, backfill.NewWorker(b.deps, []backfill.Backfill{one}).Run(t.Context()))
	b.finish(one)
	require.NoError(t, backfill.NewWorker(b.deps, []backfill.Backfill{one}).Run(t.Context()))
	require.Equal(t, backfill.Finished, b.read("one").State, "not before its time")
	first := b.read("one").StartedAt
	_, err := b.pool.Exec(t.Context(), `UPDATE backfills SET finished_at = now() - interval '1 hour'`)
	require.NoError(t, err)
	require.NoError(t, backfill.NewWorker(b.deps, []backfill.Backfill{one}).Run(t.Context()))
	require.True(t, b.read("one").StartedAt.After(first))
}

// AC23: the first pass of a namespace makes its row too.
func TestAC23StatisticsBesideFirstPasses(t *testing.T) {
	t.Parallel()
	const namespaces = 200
	b := setup(t)
	b.bare(namespaces)
	require.NoError(t, ledger.EnsurePartitions(t.Context(), b.pool, time.Now(), time.Now()))
	_, err := b.pool.Exec(t.Context(), `
		INSERT INTO repositories (id, namespace_id, name, format, kind) SELECT gen_random_uuid(), id, 'r', 3, 1 FROM namespaces`)
	require.NoError(t, err)
	_, err = b.pool.Exec(t.Context(), `
		INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes) SELECT gen_random_uuid(), namespace_id, id, 'n', '1', 5 FROM repositories`)
	require.NoError(t, err)
	rows, err := b.pool.Query(t.Context(), `SELECT id FROM namespaces ORDER BY id`)
	require.NoError(t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	require.NoError(t, err)
	passes := reconcile.NewNamespace(reconcile.Deps{
		Pool: b.pool, Buffer: buffer.New(redistest.Start(t).Client(t), buffer.Config{TTL: time.Hour, LeaseTTL: time.Minute}),
		Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	}, reconcile.Config{
		MaxInFlight: 8, ChunkSize: 100, Staleness: time.Hour, Timeout: time.Minute, TriggerInterval: time.Minute, Guard: reconcile.DefaultGuard(),
	})
	pass := func(ctx context.Context, id uuid.UUID) error {
		for {
			p, err := passes.Reconcile(ctx, id)
			if err != nil || p.Result == metrics.PassDone {
				return err
			}
		}
	}

	one := backfill.Statistics()
	one.Limit = 5
	require.NoError(t, backfill.Start(t.Context(), b.pool, one))
	group, ctx := errgroup.WithContext(t.Context())
	for i := range 2 {
		group.Go(func() error {
			for _, id := range ids[i*namespaces/4 : (i+2)*namespaces/4] {
				if err := pass(ctx, id); err != nil {
					return err
				}
			}
			return nil
		})
	}
	b.finish(one)
	require.NoError(t, group.Wait())
	require.EqualValues(t, namespaces, b.count(`SELECT count(*) FROM namespace_statistics`))
	require.EqualValues(t, namespaces/4, b.count(zeroed), "the passes did the others")
	for _, id := range ids {
		require.NoError(t, pass(t.Context(), id))
	}
	require.EqualValues(t, namespaces, b.count(`SELECT count(*) FROM namespace_statistics WHERE components_count = 1 AND last_reconciled_at > 'epoch'`))
}
