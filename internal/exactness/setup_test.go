package exactness

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/drain"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/reconcile"
	"github.com/stowage-dev/stowage/internal/redistest"
	"github.com/stowage-dev/stowage/internal/requests"
)

// patience is for what another goroutine, process or server is about to do.
const (
	patience = time.Minute
	often    = 5 * time.Millisecond
)

// TestMain runs an actor instead of the tests in a child process.
func TestMain(m *testing.M) {
	if os.Getenv(actorVariable) != "" {
		runActor()
		return
	}
	if err := fewHistories(); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// servers are a migrated database and a Redis. Tests that share them keep to
// namespaces in buckets of their own.
type servers struct {
	databaseURL, redisAddress string

	pool  *pgxpool.Pool
	redis rueidis.Client

	mu    sync.Mutex
	taken map[int]bool
	// idle are pools of processes that have ended. A new connection costs more
	// than most tests: it must learn of hundreds of partitions first.
	idle []*namedPool
}

// namedPool is a pool whose connections carry its name.
type namedPool struct {
	*pgxpool.Pool
	name string
}

func newServers(t testing.TB) *servers {
	t.Helper()
	redis := redistest.Start(t)
	s := &servers{databaseURL: dbtest.NewURL(t), redisAddress: redis.Addr, redis: redis.Client(t), taken: map[int]bool{}}
	s.pool = dbtest.Open(t, s.databaseURL)
	t.Cleanup(s.closeIdle)
	return s
}

func (s *servers) closeIdle() {
	for _, pool := range s.idle {
		pool.Close()
	}
}

// takePool takes an idle pool, or makes one.
func (s *servers) takePool() (*namedPool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if last := len(s.idle) - 1; last >= 0 {
		pool := s.idle[last]
		s.idle = s.idle[:last]
		return pool, nil
	}
	return connect(context.Background(), uuid.NewString(), s.databaseURL)
}

func (s *servers) putPool(pool *namedPool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, pool)
}

// namespaceID is one in a bucket that nobody else has.
func (s *servers) namespaceID() uuid.UUID {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		id := uuid.Must(uuid.NewV7())
		if bucket := accounting.Bucket(id); !s.taken[bucket] {
			s.taken[bucket] = true
			return id
		}
	}
}

// process is what one process of a registry and one worker hold: every
// connection in its pool carries its name.
type process struct {
	pool    *namedPool
	redis   rueidis.Client
	db      *entdb.Client
	buffer  *buffer.Buffer
	metrics *metrics.Metrics
	drains  *drain.BucketWorker
	ticks   *drain.TickWorker
	passes  *reconcile.Namespace
}

// chunk is small, so that a few scopes make several chunks.
const chunk = 2

func connect(ctx context.Context, name, databaseURL string) (*namedPool, error) {
	u, err := url.Parse(databaseURL)
	if err != nil {
		return nil, err
	}
	query := u.Query()
	query.Set("application_name", name)
	query.Set("pool_max_conns", "30")
	u.RawQuery = query.Encode()
	pool, err := pgxpool.New(ctx, u.String())
	return &namedPool{Pool: pool, name: name}, err
}

func openProcess(pool *namedPool, redis rueidis.Client) (*process, error) {
	db, err := entdb.New(entdb.Config{
		Pool: pool.Pool, Redis: redis, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		EmitTimeout: patience,
	})
	if err != nil {
		return nil, err
	}
	p := &process{
		pool: pool, redis: redis, db: db,
		buffer:  buffer.New(redis, buffer.Config{TTL: time.Hour, LeaseTTL: time.Minute}),
		metrics: metrics.New(prometheus.NewRegistry()),
	}
	log := slog.New(slog.DiscardHandler)
	cfg := drain.DefaultConfig()
	cfg.ChunkSize = chunk
	deps := drain.Dependencies{Pool: pool.Pool, Buffer: p.buffer, Metrics: p.metrics, Log: log, Clock: quartz.NewReal()}
	p.drains, p.ticks = drain.NewBucketWorker(cfg, deps), drain.NewTickWorker(cfg, deps)
	p.passes = reconcile.NewNamespace(reconcile.Deps{Pool: pool.Pool, Buffer: p.buffer, Metrics: p.metrics, Log: log}, reconcile.Config{
		MaxInFlight: 64, ChunkSize: chunk, Staleness: time.Hour, Timeout: time.Minute, TriggerInterval: time.Minute,
		Guard: reconcile.DefaultGuard(),
	})
	return p, nil
}

// process is a new one, whose metrics are zero.
func (s *servers) process(t testing.TB) *process {
	t.Helper()
	p, err := s.startProcess()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.endProcess(p)) })
	return p
}

func (s *servers) startProcess() (*process, error) {
	pool, err := s.takePool()
	if err != nil {
		return nil, err
	}
	return openProcess(pool, s.redis)
}

// endProcess keeps the pool for another one.
func (s *servers) endProcess(p *process) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s.putPool(p.pool)
	return p.db.Close(ctx)
}

// drain works one job of the bucket, as large as its sets are.
func (p *process) drain(ctx context.Context, bucket int) error {
	sizes, err := p.buffer.Sizes(ctx)
	if err != nil {
		return err
	}
	size := sizes[bucket]
	args := drain.BucketArgs{Bucket: bucket, Scopes: size.Namespaces + size.Repositories + size.InFlight}
	return p.drains.Work(ctx, &river.Job[drain.BucketArgs]{JobRow: &rivertype.JobRow{ScheduledAt: time.Now()}, Args: args})
}

// reconcile runs one pass to its end; one that found the locks busy comes again.
func (p *process) reconcile(ctx context.Context, namespace uuid.UUID) error {
	for {
		pass, err := p.passes.Reconcile(ctx, namespace)
		if err != nil || (pass.Result != metrics.PassLockTimeout && pass.Result != metrics.PassSaturated) {
			return err
		}
	}
}

// publish publishes a version of npm of one blob of its own.
func (p *process) publish(ctx context.Context, repository uuid.UUID, version string, size int64) error {
	return p.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.Publish(ctx, tx, entpublish.Version{
			Ref:   entpublish.Ref{RepositoryID: repository, Name: "package", Version: version},
			Blobs: []entpublish.Blob{{Digest: digestOf(repository.String() + version), Size: size}},
		})
		return err
	})
}

// stage is one namespace with repositories of npm, and a process.
type stage struct {
	*servers
	*process
	t            testing.TB
	namespace    uuid.UUID
	repositories []uuid.UUID
	bucket       int
}

// repositoriesOfStage make, with the namespace, several chunks.
const repositoriesOfStage = 3

// stage makes a namespace whose repositories hold one version of 100 bytes
// each, counted and drained.
func (s *servers) stage(t testing.TB) *stage {
	t.Helper()
	st := s.emptyStage(t)
	for len(st.repositories) < repositoriesOfStage {
		st.repositories = append(st.repositories, st.newRepository(schematype.FormatNPM).ID)
	}
	for _, id := range st.repositories {
		require.NoError(t, st.publish(t.Context(), id, "0", 100))
	}
	require.NoError(t, st.drain(t.Context(), st.bucket))
	st.requireExact()
	return st
}

// emptyStage is a stage with one repository of npm and no content.
func (s *servers) emptyStage(t testing.TB) *stage {
	t.Helper()
	st := &stage{servers: s, process: s.process(t), t: t, namespace: s.namespaceID()}
	st.bucket = accounting.Bucket(st.namespace)
	st.exec(`INSERT INTO namespaces (id, slug) VALUES ($1, $2)`, st.namespace, st.namespace.String())
	st.repositories = append(st.repositories, st.newRepository(schematype.FormatNPM).ID)
	return st
}

func (s *stage) newRepository(format schematype.Format) accounting.Scope {
	s.t.Helper()
	id := uuid.Must(uuid.NewV7())
	s.exec(`INSERT INTO repositories (id, namespace_id, name, format, kind) VALUES ($1, $2, $3, $4, 1)`, id, s.namespace, id.String(), format)
	return accounting.RepositoryScope(s.namespace, id)
}

// repository is the one that tests write to.
func (s *stage) repository() uuid.UUID { return s.repositories[0] }

func (s *stage) exec(sql string, args ...any) {
	s.t.Helper()
	_, err := s.servers.pool.Exec(context.Background(), sql, args...)
	require.NoError(s.t, err)
}

// expireLease does what time does to the lease of a drain that went away.
func (s *stage) expireLease() {
	s.t.Helper()
	require.NoError(s.t, dropLease(s.servers.redis, s.bucket))
}

func bucketKey(bucket int, name string) string { return fmt.Sprintf("stowage:1:{%d}:%s", bucket, name) }

// drainAll drains until the bucket has nothing left.
func (s *stage) drainAll() {
	s.t.Helper()
	s.expireLease()
	for {
		require.NoError(s.t, s.drain(context.Background(), s.bucket))
		sizes, err := s.buffer.Sizes(context.Background())
		require.NoError(s.t, err)
		if sizes[s.bucket] == (buffer.Size{}) {
			return
		}
	}
}

// requested reports whether a reconciliation of the namespace is asked for.
func (s *stage) requested() bool {
	s.t.Helper()
	open, err := requests.Open(context.Background(), s.servers.pool, requests.Request{}, 10_000)
	require.NoError(s.t, err)
	for _, r := range open {
		if r.Namespace == s.namespace {
			return true
		}
	}
	return false
}

func (s *stage) pass() {
	s.t.Helper()
	require.NoError(s.t, s.reconcile(context.Background(), s.namespace))
}

// counted are the counters of every scope of a namespace.
type counted map[accounting.Scope]accounting.Counters

// rows are what the counters hold.
func (s *servers) rows(t testing.TB, namespace uuid.UUID) counted {
	t.Helper()
	return s.counters(t, namespace, `
		SELECT 1, namespace_id, deduplicated_size_bytes, components_count FROM namespace_statistics WHERE namespace_id = $1
		UNION ALL
		SELECT 2, id, size_bytes, artifacts_count FROM repositories WHERE namespace_id = $1`)
}

// ledger is what the invariant says that the rows hold: the value at the last
// reconciliation, which corrections lead to, and what was applied since. So the
// sum over all that was ever applied and corrected.
func (s *servers) ledger(t testing.TB, namespace uuid.UUID) counted {
	t.Helper()
	sums := s.counters(t, namespace, `
		SELECT scope_kind, scope_id, sum(bytes)::bigint, sum(components)::bigint
		FROM storage_ledger WHERE namespace_id = $1 AND outcome IN (1, 4) GROUP BY scope_kind, scope_id`)
	return sums
}

func (s *servers) counters(t testing.TB, namespace uuid.UUID, sql string) counted {
	t.Helper()
	rows, err := s.pool.Query(context.Background(), sql, namespace)
	require.NoError(t, err)
	all := counted{}
	var kind accounting.ScopeKind
	var id uuid.UUID
	var c accounting.Counters
	_, err = pgx.ForEachRow(rows, []any{&kind, &id, &c.Bytes, &c.Components}, func() error {
		all[accounting.Scope{Kind: kind, Namespace: namespace, ID: id}] = c
		return nil
	})
	require.NoError(t, err)
	return all
}

// truth is what the source tables hold.
func (s *servers) truth(t testing.TB, namespace uuid.UUID) counted {
	t.Helper()
	tx, err := s.pool.BeginTx(context.Background(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	require.NoError(t, err)
	defer func() { _ = tx.Rollback(context.Background()) }()
	all := counted{}
	own, err := reconcile.Recount(context.Background(), tx, namespace, func(repository uuid.UUID, c accounting.Counters) error {
		all[accounting.RepositoryScope(namespace, repository)] = c
		return nil
	})
	require.NoError(t, err)
	all[accounting.NamespaceScope(namespace)] = own
	return all
}

// requireExact compares every row with a recount and with the ledger.
func (s *stage) requireExact() {
	s.t.Helper()
	rows := s.rows(s.t, s.namespace)
	require.Equal(s.t, s.truth(s.t, s.namespace), rows, "rows against the recount")
	entered := s.ledger(s.t, s.namespace)
	for scope, c := range rows {
		require.Equal(s.t, c, entered[scope], "row of %s %s against the ledger", scope.Kind, scope.ID)
	}
}

// requireNoKeys: Redis holds nothing of the namespace's bucket but its identity.
func (s *stage) requireNoKeys() {
	s.t.Helper()
	prefix := bucketKey(s.bucket, "")
	keys, err := s.servers.redis.Do(context.Background(), s.servers.redis.B().Keys().Pattern(prefix+"*").Build()).AsStrSlice()
	require.NoError(s.t, err)
	for _, key := range keys {
		require.Contains(s.t, []string{"identity", "lease"}, strings.TrimPrefix(key, prefix))
	}
}
