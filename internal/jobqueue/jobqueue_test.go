package jobqueue

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/collect"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/drain"
	"github.com/stowage-dev/stowage/internal/history"
	"github.com/stowage-dev/stowage/internal/lead"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/reconcile"
	"github.com/stowage-dev/stowage/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	patience = time.Minute
	often    = 5 * time.Millisecond
)

func fastConfig() Config {
	drainConfig := drain.DefaultConfig()
	drainConfig.Interval = 200 * time.Millisecond
	return Config{
		Drain:        drainConfig,
		DrainWorkers: 4,
		Reconcile: reconcile.Config{
			MaxInFlight: 2, ChunkSize: 200, Staleness: time.Hour, Timeout: time.Minute, TriggerInterval: 200 * time.Millisecond,
			Guard: reconcile.DefaultGuard(),
		},
		Partitions: ledger.PartitionsConfig{Retention: 30 * 24 * time.Hour},
		Collect:    collect.Config{Grace: time.Hour, Interval: time.Hour, BatchSize: 100},
		History:    history.Config{Late: time.Minute},
		SoftStop:   30 * time.Second,
	}
}

func fastLeadership() lead.Config {
	cfg := leadership()
	cfg.Interval = 50 * time.Millisecond
	cfg.Timeout = time.Second
	return cfg
}

// cluster is a database and a Redis.
type cluster struct {
	t     *testing.T
	url   string
	pool  *pgxpool.Pool
	redis *redistest.Server
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	url := dbtest.NewURL(t)
	return &cluster{t: t, url: url, pool: dbtest.Open(t, url), redis: redistest.Start(t)}
}

// process is a worker process, but for the process.
type process struct {
	*Queue
	registry *prometheus.Registry
	name     string
	cancel   context.CancelFunc
	done     chan struct{}
	err      error
}

func (c *cluster) process(cfg Config, tracer pgx.QueryTracer) *process {
	c.t.Helper()
	name := uuid.NewString()
	poolConfig, err := pgxpool.ParseConfig(c.url)
	require.NoError(c.t, err)
	poolConfig.MaxConns = 20
	poolConfig.ConnConfig.Tracer = tracer
	poolConfig.ConnConfig.RuntimeParams["application_name"] = name
	pool, err := pgxpool.NewWithConfig(context.Background(), poolConfig)
	require.NoError(c.t, err)
	c.t.Cleanup(pool.Close)

	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	db, err := entdb.New(entdb.Config{
		Pool: pool, Redis: c.redis.Client(c.t), Logger: slog.New(slog.DiscardHandler), Registerer: metrics.Shared{Metrics: m},
	})
	require.NoError(c.t, err)
	c.t.Cleanup(func() { require.NoError(c.t, db.Close(context.Background())) })
	deps := Deps{
		Pool: pool, DB: db, Upkeep: metrics.NewUpkeep(registry),
		Buffer:  buffer.New(c.redis.Client(c.t), buffer.Config{TTL: time.Hour, LeaseTTL: 5 * time.Second}),
		Metrics: m, Log: slog.New(slog.DiscardHandler), Clock: quartz.NewReal(),
	}
	q, err := New(deps, cfg)
	require.NoError(c.t, err)
	q.candidate = lead.New(pool, deps.Clock, deps.Log, fastLeadership())
	for i := range q.schedule {
		q.schedule[i].every = min(q.schedule[i].every, time.Second)
	}
	return &process{Queue: q, registry: registry, name: name, done: make(chan struct{})}
}

// start runs the process until stop, or the end of the test.
func (c *cluster) start(p *process) *process {
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel = cancel
	go func() {
		defer close(p.done)
		p.err = p.Run(ctx)
	}()
	c.t.Cleanup(func() { p.cancel(); <-p.done })
	return p
}

func (p *process) stop(t *testing.T) {
	t.Helper()
	p.cancel()
	<-p.done
	require.NoError(t, p.err)
}

func (c *cluster) exec(sql string, args ...any) {
	c.t.Helper()
	_, err := c.pool.Exec(context.Background(), sql, args...)
	require.NoError(c.t, err)
}

func (c *cluster) count(sql string, args ...any) (n int) {
	c.t.Helper()
	require.NoError(c.t, c.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

func (c *cluster) eventually(sql string, args ...any) {
	c.t.Helper()
	require.Eventually(c.t, func() bool { return c.count(sql, args...) > 0 }, patience, often, sql)
}

// namespace has one repository with one version of one byte, not counted yet.
func (c *cluster) namespace() (namespace, repository uuid.UUID) {
	c.t.Helper()
	namespace, repository = uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	c.exec(`INSERT INTO namespaces (id, slug) VALUES ($1, $2)`, namespace, namespace.String())
	c.exec(`INSERT INTO repositories (id, namespace_id, name, format, kind) VALUES ($1, $2, 'r', 3, 1)`, repository, namespace)
	c.exec(`INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes) VALUES (gen_random_uuid(), $1, $2, 'x', '1', 1)`, namespace, repository)
	return namespace, repository
}

func TestEveryScheduledJobIsRegisteredAndWorked(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.process(fastConfig(), nil)
	var kinds []string
	for _, e := range p.schedule {
		kinds = append(kinds, e.args.Kind())
		require.Positive(t, e.every, e.args.Kind())
	}
	slices.Sort(kinds)
	require.Equal(t, []string{"backfill", "buffer_sweep", "deletion", "deletion_gauges", "drain_tick", "history_rollup", "jobs_sample", "ledger_partitions", "reconcile_backlog", "reconcile_trigger"}, kinds)

	c.start(p)
	for _, kind := range kinds {
		c.eventually(`SELECT count(*) FROM river.river_job WHERE kind = $1 AND queue = 'leader' AND state = 'completed'`, kind)
	}
	p.stop(t)
	require.Zero(t, c.count(`SELECT count(*) FROM river.river_job WHERE state IN ('running', 'retryable', 'discarded')`))
}

func TestAC1AC2IncrementIsInItsRowAfterTheNextTick(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := c.start(c.process(fastConfig(), nil))
	namespace, repository := c.namespace()
	c.eventually(`SELECT count(*) FROM namespace_statistics WHERE last_reconciled_at > 'epoch'`)
	var marker accounting.Marker
	require.NoError(t, c.pool.QueryRow(t.Context(), `SELECT stowage_marker_micros(reconciliation_marker) FROM namespace_statistics`).Scan(&marker))
	change := accounting.Counters{Bytes: 10, Components: 2}
	_, err := p.deps.Buffer.Emit(t.Context(), namespace, marker, []accounting.Delta{
		{Scope: accounting.RepositoryScope(namespace, repository), Counters: change},
		{Scope: accounting.NamespaceScope(namespace), Counters: change},
	})
	require.NoError(t, err)
	c.eventually(`SELECT count(*) FROM repositories WHERE (size_bytes, artifacts_count) = (11, 3)`)
	c.eventually(`SELECT count(*) FROM namespace_statistics WHERE (deduplicated_size_bytes, components_count) = (10, 3)`)
}

// exports says whether the process exports the gauges that have one writer.
func (p *process) exports(t *testing.T) (dirty, backlog bool) {
	t.Helper()
	families, err := p.registry.Gather()
	require.NoError(t, err)
	for _, family := range families {
		switch family.GetName() {
		case "stowage_counter_dirty_set_size", "stowage_counter_pending_emissions", "stowage_counter_pending_age_seconds", "stowage_counter_quarantined_scopes":
			dirty = true
		case "stowage_reconciliation_backlog", "stowage_reconciliation_held", "stowage_jobs", "stowage_jobs_oldest_seconds":
			backlog = true
		}
	}
	return dirty, backlog
}

func (c *cluster) breakLeadership() {
	c.t.Helper()
	c.exec(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = $1::bigint::oid
		AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, leadership().Class)
}

func TestAC29GaugesHaveOneWriter(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	processes := []*process{c.start(c.process(fastConfig(), nil)), c.start(c.process(fastConfig(), nil))}
	// writer waits until one process exports both gauges, and sees at every
	// look that no two export the same.
	writer := func() (who int) {
		require.Eventually(t, func() bool {
			var dirty, backlog []int
			for i, p := range processes {
				d, b := p.exports(t)
				if d {
					dirty = append(dirty, i)
				}
				if b {
					backlog = append(backlog, i)
				}
			}
			require.LessOrEqual(t, len(dirty), 1, "two workers export the size of the dirty sets")
			require.LessOrEqual(t, len(backlog), 1, "two workers export the backlog")
			if len(dirty) == 0 || len(backlog) == 0 {
				return false
			}
			require.Equal(t, dirty, backlog)
			who = dirty[0]
			return true
		}, patience, often)
		return who
	}
	first := writer()
	for changed := false; !changed; {
		c.breakLeadership()
		require.Eventually(t, func() bool {
			dirty, backlog := processes[first].exports(t)
			return !dirty && !backlog
		}, patience, often, "a former leader withdraws the gauges")
		changed = writer() != first
	}
	processes[1-first].stop(t)
	dirty, backlog := processes[1-first].exports(t)
	require.False(t, dirty || backlog, "a process that stops withdraws the gauges")
	require.Equal(t, first, writer())
}

func TestAC29BacklogIsCountedAtMostOnceAMinute(t *testing.T) {
	t.Parallel()
	for _, e := range schedule(fastConfig()) {
		if e.args.Kind() == (reconcile.BacklogArgs{}).Kind() {
			require.GreaterOrEqual(t, e.every, time.Minute)
			require.False(t, e.atOnce, "the former leader may just have counted")
		}
	}
}

func TestLeadersJobs(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	lock, err := c.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = lock.Rollback(context.Background()) })
	_, err = lock.Exec(t.Context(), `LOCK TABLE namespace_statistics`)
	require.NoError(t, err)

	c.start(c.process(fastConfig(), nil))
	const running = `FROM river.river_job WHERE kind = 'reconcile_backlog' AND state = 'running'`
	c.eventually(`SELECT count(*) ` + running)
	job := c.count(`SELECT id ` + running)

	t.Run("one that comes while the one before it runs is over", func(t *testing.T) {
		c.eventually(`SELECT count(*) FROM river.river_job WHERE kind = 'reconcile_backlog' AND state = 'cancelled' AND errors[1] ->> 'error' LIKE '%still runs%'`)
		require.Equal(t, job, c.count(`SELECT id `+running))
	})

	t.Run("one that runs when the term ends is over, and the next term begins another", func(t *testing.T) {
		c.breakLeadership()
		c.eventually(`SELECT count(*) FROM river.river_job WHERE id = $1 AND state = 'cancelled'`, job)
		c.eventually(`SELECT count(*) `+running+` AND id <> $1`, job)
	})
}

// stuck counts the passes of a process that wait for a repository's row.
const stuck = `SELECT count(*) FROM pg_stat_activity WHERE application_name = $1 AND wait_event_type = 'Lock' AND query LIKE '%FROM repositories%'`

// stuckPass starts a process whose only pass waits for a repository's row,
// until the returned function lets it go on.
func stuckPass(t *testing.T, c *cluster, cfg Config) (*process, func()) {
	t.Helper()
	_, repository := c.namespace()
	lock, err := c.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = lock.Rollback(context.Background()) })
	_, err = lock.Exec(t.Context(), `SELECT FROM repositories WHERE id = $1 FOR UPDATE`, repository)
	require.NoError(t, err)
	p := c.start(c.process(cfg, nil))
	c.eventually(stuck, p.name)
	return p, func() { require.NoError(t, lock.Rollback(context.Background())) }
}

func TestStop(t *testing.T) {
	t.Parallel()

	t.Run("a running job ends by itself", func(t *testing.T) {
		t.Parallel()
		c := newCluster(t)
		p, goOn := stuckPass(t, c, fastConfig())
		p.cancel()
		c.eventually(`SELECT (count(*) = 0)::int FROM pg_locks WHERE locktype = 'advisory' AND classid = $1::bigint::oid
			AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, leadership().Class)
		require.Never(t, func() bool { return c.count(stuck, p.name) == 0 }, 300*time.Millisecond, often, "the job was canceled")
		goOn()
		p.stop(t)
		require.Equal(t, 1, c.count(`SELECT count(*) FROM river.river_job WHERE kind = 'reconcile_namespace' AND state = 'completed'`))
		require.Equal(t, 1, c.count(`SELECT count(*) FROM namespace_statistics WHERE last_reconciled_at > 'epoch'`))
	})

	t.Run("a job that does not end is canceled, and free for another process at once, at no cost of an attempt", func(t *testing.T) {
		t.Parallel()
		c := newCluster(t)
		cfg := fastConfig()
		cfg.SoftStop = 100 * time.Millisecond
		p, goOn := stuckPass(t, c, cfg)
		p.stop(t)
		require.Equal(t, 1, c.count(`SELECT count(*) FROM river.river_job WHERE kind = 'reconcile_namespace' AND state = 'available' AND attempt = 0`))
		require.Zero(t, c.count(`SELECT count(*) FROM namespace_statistics WHERE last_reconciled_at > 'epoch'`))
		goOn()
		c.start(c.process(fastConfig(), nil))
		c.eventually(`SELECT count(*) FROM namespace_statistics WHERE last_reconciled_at > 'epoch'`)
	})
}

// scans counts the scans that run at once in all processes. Each stands still
// for a moment, to give others the chance to run beside it.
type scans struct{ now, most atomic.Int32 }

type scanKey struct{}

func (s *scans) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if !strings.Contains(data.SQL, "FROM repositories r\n") {
		return ctx
	}
	now := s.now.Add(1)
	for most := s.most.Load(); now > most && !s.most.CompareAndSwap(most, now); most = s.most.Load() {
	}
	<-time.After(50 * time.Millisecond)
	return context.WithValue(ctx, scanKey{}, true)
}

func (s *scans) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if ctx.Value(scanKey{}) != nil {
		s.now.Add(-1)
	}
}

func TestAC24LimitOverProcesses(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	const namespaces = 120
	for range namespaces {
		c.namespace()
	}
	var s scans
	killed := c.start(c.process(fastConfig(), &s))
	for range 2 {
		c.start(c.process(fastConfig(), &s))
	}
	const done = `SELECT count(*) FROM namespace_statistics WHERE last_reconciled_at > 'epoch'`
	require.Eventually(t, func() bool { return c.count(done) > namespaces/4 }, patience, often)
	// Killed, as the database sees it: every connection ends at once.
	c.exec(`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = $1`, killed.name)
	killed.cancel()

	// A pass that was killed is retried when its job is rescued, or by the next
	// attempt; all others go on.
	require.Eventually(t, func() bool { return c.count(done) >= namespaces-fastConfig().Reconcile.MaxInFlight }, 2*patience, often)
	limit := int32(fastConfig().Reconcile.MaxInFlight)
	require.LessOrEqual(t, s.most.Load(), limit)
	require.Equal(t, limit, s.most.Load(), "the slots were never all taken, so nothing was tested")
	require.Zero(t, c.count(`SELECT count(*) FROM (SELECT args FROM river.river_job WHERE kind = 'reconcile_namespace'
		AND state IN ('available', 'pending', 'running', 'scheduled', 'retryable') GROUP BY args HAVING count(*) > 1) AS twice`), "AC28")
}

func TestInTerm(t *testing.T) {
	t.Parallel()
	untilDone := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	leaders := &rivertype.JobRow{Queue: leaderQueue, Kind: "some"}

	t.Run("a job of the leader's queue ends with the term, and is over", func(t *testing.T) {
		t.Parallel()
		term, end := context.WithCancel(t.Context())
		q := &Queue{}
		q.term.Store(&term)
		result := make(chan error, 1)
		go func() { result <- q.inTerm(context.Background(), leaders, untilDone) }()
		end()
		select {
		case err := <-result:
			require.ErrorIs(t, err, errTermOver)
			var over *rivertype.JobCancelError
			require.ErrorAs(t, err, &over)
		case <-time.After(patience):
			require.FailNow(t, "the job outlives the term")
		}
	})

	t.Run("an error within the term is the job's own", func(t *testing.T) {
		t.Parallel()
		term := t.Context()
		q := &Queue{}
		q.term.Store(&term)
		boom := errors.New("boom")
		for range 2 {
			require.Equal(t, boom, q.inTerm(t.Context(), leaders, func(context.Context) error { return boom }))
		}
	})

	t.Run("jobs of other queues are none of its business", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		require.Equal(t, context.Canceled, new(Queue).inTerm(ctx, &rivertype.JobRow{Queue: drain.Queue}, untilDone))
	})
}

func TestErrorHandler(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	h := errorHandler{slog.New(slog.NewTextHandler(&out, nil))}
	namespace := uuid.New()
	job := &rivertype.JobRow{ID: 7, Kind: "reconcile_namespace", Queue: "reconcile", Attempt: 2, EncodedArgs: fmt.Appendf(nil, `{"namespace_id":%q,"other":"hidden"}`, namespace)}
	require.Nil(t, h.HandleError(t.Context(), job, errors.New("boom")))
	require.Nil(t, h.HandlePanic(t.Context(), &rivertype.JobRow{Kind: "drain_tick", EncodedArgs: []byte(`{}`)}, "argh", "stack"))
	log := out.String()
	for _, want := range []string{"job_id=7", "kind=reconcile_namespace", "attempt=2", "namespace_id=" + namespace.String(), "error=boom", "panic=argh", "trace=stack"} {
		require.Contains(t, log, want)
	}
	require.NotContains(t, log, "hidden", "S3: arguments are not logged")
	require.Equal(t, 1, strings.Count(log, "namespace_id="))
}
