package drain

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/rueidis"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertest"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/redistest"
	"github.com/stowage-dev/stowage/internal/requests"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

// world is a database and a Redis that keeps its data over a restart.
type world struct {
	pool  *pgxpool.Pool
	redis *redistest.Server
	raw   rueidis.Client

	mu    sync.Mutex
	taken map[int]bool
}

func newWorld(t testing.TB) *world {
	t.Helper()
	redis := redistest.StartAppendOnly(t)
	return &world{pool: dbtest.New(t), redis: redis, raw: redis.Client(t), taken: map[int]bool{}}
}

// take reports whether the bucket was free, and takes it.
func (w *world) take(bucket int) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	free := !w.taken[bucket]
	w.taken[bucket] = true
	return free
}

// bundle is a worker process, and one namespace with a repository in a bucket
// that no other bundle of the world has.
type bundle struct {
	*world
	t    testing.TB
	deps Dependencies
	cfg  Config

	namespace, repository accounting.Scope
	bucket                int
}

// setup makes a bundle in a world of its own.
func setup(t testing.TB) *bundle {
	t.Helper()
	return newWorld(t).bundle(t, quartz.NewReal(), time.Minute)
}

func (w *world) setup(t testing.TB) *bundle {
	t.Helper()
	return w.bundle(t, quartz.NewReal(), time.Minute)
}

func (w *world) bundle(t testing.TB, clock quartz.Clock, lease time.Duration) *bundle {
	t.Helper()
	b := &bundle{world: w, t: t, cfg: DefaultConfig()}
	b.deps = Dependencies{
		Pool:    w.pool,
		Buffer:  buffer.New(w.raw, buffer.Config{TTL: time.Hour, LeaseTTL: lease}),
		Metrics: metrics.New(prometheus.NewRegistry()),
		Log:     slog.New(slog.DiscardHandler),
		Clock:   clock,
	}
	b.namespace = b.newNamespace()
	b.bucket = accounting.Bucket(b.namespace.ID)
	b.repository = b.newRepository(b.namespace)
	return b
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err)
}

// newNamespace is in a bucket that no other namespace of the world has: a loss of the
// bucket would request that one too.
func (b *bundle) newNamespace() accounting.Scope {
	b.t.Helper()
	id := uuid.Must(uuid.NewV7())
	for !b.take(accounting.Bucket(id)) {
		id = uuid.Must(uuid.NewV7())
	}
	b.exec(`INSERT INTO namespaces (id, slug) VALUES ($1, $2)`, id, id.String())
	return accounting.NamespaceScope(id)
}

func (b *bundle) newRepository(namespace accounting.Scope) accounting.Scope {
	b.t.Helper()
	id := uuid.Must(uuid.NewV7())
	b.exec(`INSERT INTO repositories (id, namespace_id, name, format, kind) VALUES ($1, $2, $3, 3, 1)`, id, namespace.ID, id.String())
	return accounting.RepositoryScope(namespace.ID, id)
}

// emit adds a delta of as many bytes, and one component, to a scope.
func (b *bundle) emit(scope accounting.Scope, bytes int64) {
	b.t.Helper()
	require.NoError(b.t, b.tryEmit(b.t.Context(), scope, bytes))
}

func (b *bundle) tryEmit(ctx context.Context, scope accounting.Scope, bytes int64) error {
	failed, err := b.deps.Buffer.Emit(ctx, scope.Namespace, 0, []accounting.Delta{{Scope: scope, Counters: accounting.Counters{Bytes: bytes, Components: 1}}})
	if err == nil && len(failed) > 0 {
		return errors.New("the scope is refused")
	}
	return err
}

// row is what Postgres holds for a scope.
func (b *bundle) row(scope accounting.Scope) accounting.Counters {
	b.t.Helper()
	sql := `SELECT deduplicated_size_bytes, components_count FROM namespace_statistics WHERE namespace_id = $1`
	if scope.Kind == accounting.KindRepository {
		sql = `SELECT size_bytes, artifacts_count FROM repositories WHERE id = $1`
	}
	var c accounting.Counters
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), sql, scope.ID).Scan(&c.Bytes, &c.Components))
	return c
}

func counters(bytes, components int64) accounting.Counters {
	return accounting.Counters{Bytes: bytes, Components: components}
}

// requested are the namespaces of the bundle's bucket with an open request.
func (b *bundle) requested() []uuid.UUID {
	b.t.Helper()
	page, err := requests.Open(b.t.Context(), b.pool, requests.Request{}, 10_000)
	require.NoError(b.t, err)
	ids := []uuid.UUID{}
	for _, r := range page {
		if accounting.Bucket(r.Namespace) == b.bucket {
			ids = append(ids, r.Namespace)
		}
	}
	return ids
}

// flushes is the value of stowage_drain_flushes_total.
func (b *bundle) flushes(outcome string) float64 {
	return testutil.ToFloat64(b.deps.Metrics.DrainFlushes.WithLabelValues(outcome))
}

func (b *bundle) loss(reason string) float64 {
	return testutil.ToFloat64(b.deps.Metrics.BufferLoss.WithLabelValues(reason))
}

func (b *bundle) size() buffer.Size {
	b.t.Helper()
	sizes, err := b.deps.Buffer.Sizes(b.t.Context())
	require.NoError(b.t, err)
	return sizes[b.bucket]
}

// keys are the keys of the bundle's bucket.
func (b *bundle) keys() []string {
	b.t.Helper()
	keys, err := b.raw.Do(b.t.Context(), b.raw.B().Keys().Pattern(b.key("*")).Build()).AsStrSlice()
	require.NoError(b.t, err)
	return keys
}

func (b *bundle) command(args ...string) {
	b.t.Helper()
	require.NoError(b.t, b.raw.Do(b.t.Context(), b.raw.B().Arbitrary(args...).Build()).Error())
}

// restart kills Redis if it runs, starts it again with its data, and returns
// when the client has a new connection.
func (b *bundle) restart() {
	b.t.Helper()
	b.redis.Restart()
	eventually(b.t, func() bool {
		return b.raw.Do(b.t.Context(), b.raw.B().Ping().Build()).Error() == nil
	}, "Redis does not answer")
	// The first call of each connection that the stop has broken fails, and the
	// connection depends on the bucket.
	eventually(b.t, func() bool {
		_, err := b.deps.Buffer.Identities(b.t.Context())
		return err == nil
	}, "the buffer does not answer")
}

func (b *bundle) key(name string) string { return fmt.Sprintf("stowage:1:{%d}:%s", b.bucket, name) }

func (b *bundle) worker() *BucketWorker { return NewBucketWorker(b.cfg, b.deps) }

func bucketJob(args BucketArgs, scheduled time.Time) *river.Job[BucketArgs] {
	return &river.Job[BucketArgs]{JobRow: &rivertype.JobRow{ScheduledAt: scheduled}, Args: args}
}

// drain works one job for the bundle's bucket, as large as its sets are.
func (b *bundle) drain() error {
	b.t.Helper()
	size := b.size()
	args := BucketArgs{Bucket: b.bucket, Scopes: size.Namespaces + size.Repositories + size.InFlight}
	return b.worker().Work(b.t.Context(), bucketJob(args, b.deps.Clock.Now()))
}

// client is a River client that inserts and works nothing.
func (b *bundle) client() *river.Client[pgx.Tx] {
	b.t.Helper()
	client, err := river.NewClient(riverpgxv5.New(b.pool), &river.Config{Schema: "river", Logger: b.deps.Log})
	require.NoError(b.t, err)
	return client
}

// tick works one tick; nobody works what it inserts, see inserted.
func (b *bundle) tick() error {
	b.t.Helper()
	return b.tickAt(b.deps.Clock.Now())
}

func (b *bundle) tickAt(scheduled time.Time) error {
	b.t.Helper()
	ctx := rivertest.WorkContext(b.t.Context(), b.client())
	return NewTickWorker(b.cfg, b.deps).Work(ctx, &river.Job[TickArgs]{JobRow: &rivertype.JobRow{ScheduledAt: scheduled}})
}

// inserted takes the bucket jobs out of the queue.
func (b *bundle) inserted() []BucketArgs {
	b.t.Helper()
	rows, err := b.pool.Query(b.t.Context(), `DELETE FROM river.river_job WHERE kind = 'drain_bucket' RETURNING args`)
	require.NoError(b.t, err)
	args, err := pgx.CollectRows(rows, pgx.RowTo[BucketArgs])
	require.NoError(b.t, err)
	return args
}

// tickAndDrain is a tick and then the jobs that it inserted.
func (b *bundle) tickAndDrain() {
	b.t.Helper()
	require.NoError(b.t, b.tick())
	for _, args := range b.inserted() {
		require.NoError(b.t, b.worker().Work(b.t.Context(), bucketJob(args, b.deps.Clock.Now())))
	}
}

// expireLease does what time does to the lease of a drain that went away.
func (b *bundle) expireLease() {
	b.t.Helper()
	b.command("DEL", b.key("lease"))
}

func eventually(t testing.TB, condition func() bool, what string) {
	t.Helper()
	require.Eventually(t, condition, 30*time.Second, 5*time.Millisecond, what)
}
