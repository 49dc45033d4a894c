package inspect

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/reconcile"
	"github.com/stowage-dev/stowage/internal/redistest"
	"github.com/stowage-dev/stowage/internal/requests"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = time.Minute

// world is a database and a Redis that subtests share. Each keeps to namespaces of
// its own, no two of which are in one bucket.
type world struct {
	t      testing.TB
	url    string
	pool   *pgxpool.Pool
	server *redistest.Server
	client rueidis.Client
	buffer *buffer.Buffer
	taken  *buckets
}

type buckets struct {
	mu    sync.Mutex
	taken map[int]bool
}

func newWorld(t testing.TB) *world {
	t.Helper()
	w := &world{t: t, url: dbtest.NewURL(t), server: redistest.Start(t), taken: &buckets{taken: map[int]bool{}}}
	w.pool = dbtest.Open(t, w.url)
	w.client = w.server.Client(t)
	w.buffer = buffer.New(w.client, buffer.Config{TTL: time.Hour, LeaseTTL: time.Minute})
	return w
}

// in is the same world for a subtest.
func (w *world) in(t testing.TB) *world {
	t.Helper()
	subtest := *w
	subtest.t = t
	return &subtest
}

func (w *world) inspector() *Inspector { return &Inspector{Pool: w.pool, Buffer: w.buffer} }

// home is a namespace with one repository.
type home struct {
	*world
	Namespace
	repository Repository
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

func (w *world) home() *home {
	w.t.Helper()
	w.taken.mu.Lock()
	id := newID()
	for w.taken.taken[accounting.Bucket(id)] {
		id = newID()
	}
	w.taken.taken[accounting.Bucket(id)] = true
	w.taken.mu.Unlock()
	w.exec(`INSERT INTO namespaces (id, slug) VALUES ($1, $2)`, id, "slug-"+id.String())
	h := &home{world: w}
	h.addRepository(id, "r")
	var err error
	h.Namespace, err = w.inspector().Namespace(context.Background(), "slug-"+id.String())
	require.NoError(w.t, err)
	h.repository, err = w.inspector().Repository(context.Background(), id, "r")
	require.NoError(w.t, err)
	return h
}

func (w *world) addRepository(namespace uuid.UUID, name string) uuid.UUID {
	w.t.Helper()
	id := newID()
	w.exec(`INSERT INTO repositories (id, namespace_id, name, format, kind) VALUES ($1, $2, $3, 3, 1)`, id, namespace, name)
	return id
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.pool.Exec(context.Background(), sql, args...)
	require.NoError(w.t, err)
}

// commit publishes a version and a blob of that size, and returns its emission.
func (h *home) commit(ctx context.Context, size int64) (func(ctx context.Context) error, error) {
	var marker accounting.Marker
	err := pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `SET LOCAL lock_timeout = '30s'; SET LOCAL synchronous_commit = on`)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes)
			VALUES (gen_random_uuid(), $1, $2, 'x', gen_random_uuid()::text, $3)`, h.ID, h.repository.ID, size)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes)
			VALUES ($1, sha256(uuid_send(gen_random_uuid())), $2)`, h.ID, size)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT marker FROM stowage_lock_markers(ARRAY[$1::uuid])`, h.ID).Scan(&marker)
	})
	return func(ctx context.Context) error {
		change := accounting.Counters{Bytes: size, Components: 1}
		failed, err := h.buffer.Emit(ctx, h.ID, marker, []accounting.Delta{{Scope: h.own(), Counters: change}, {Scope: h.scope(), Counters: change}})
		if err == nil && len(failed) > 0 {
			err = requests.Raise(ctx, h.pool, []requests.Request{{Namespace: h.ID}})
		}
		return err
	}, err
}

func (h *home) publish(size int64) {
	h.t.Helper()
	emit, err := h.commit(context.Background(), size)
	require.NoError(h.t, err)
	require.NoError(h.t, emit(context.Background()))
}

func (h *home) own() accounting.Scope   { return accounting.NamespaceScope(h.ID) }
func (h *home) scope() accounting.Scope { return accounting.RepositoryScope(h.ID, h.repository.ID) }

func (h *home) claim(ctx context.Context) ([]accounting.Flush, error) {
	claim, err := h.buffer.Claim(ctx, h.Bucket, "test", newID(), 100)
	return claim.Flushes, err
}

func (h *home) tryDrain(ctx context.Context) error {
	for {
		flushes, err := h.claim(ctx)
		if err != nil || len(flushes) == 0 {
			return err
		}
		if _, err := ledger.Apply(ctx, h.pool, flushes); err != nil {
			return err
		}
		if err := h.buffer.Finish(ctx, h.Bucket, flushes); err != nil {
			return err
		}
	}
}

func (h *home) drain() {
	h.t.Helper()
	require.NoError(h.t, h.tryDrain(context.Background()))
}

func (w *world) worker() *reconcile.Namespace {
	return reconcile.NewNamespace(reconcile.Deps{
		Pool: w.pool, Buffer: w.buffer, Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	}, reconcile.Config{MaxInFlight: 50, ChunkSize: 10, Staleness: time.Hour, Timeout: time.Minute, TriggerInterval: time.Second, Guard: reconcile.DefaultGuard()})
}

func (h *home) reconcile() {
	h.t.Helper()
	pass, err := h.worker().Reconcile(context.Background(), h.ID)
	require.NoError(h.t, err)
	require.Contains(h.t, []string{metrics.PassDone, metrics.PassHeld}, pass.Result)
}

func (h *home) explain(repository *Repository) *Explanation {
	h.t.Helper()
	e, err := h.inspector().Explain(context.Background(), h.Namespace, repository, 10)
	require.NoError(h.t, err)
	requireConsistent(h.t, e)
	return e
}

// requireConsistent checks what the documentation of Counter says.
func requireConsistent(t testing.TB, e *Explanation) {
	t.Helper()
	for _, c := range []Counter{e.Bytes, e.Components} {
		require.Equal(t, c.Row, c.Reconciled+c.Applied)
		require.Equal(t, c.Value, c.Row+c.Buffered+c.InFlight)
		require.Equal(t, c.Recount, c.Value+c.Difference)
	}
}

func (h *home) verify() Verification {
	h.t.Helper()
	v, err := h.inspector().Verify(context.Background(), h.ID)
	require.NoError(h.t, err)
	return v
}

func (h *home) key(name string) string {
	keys, err := h.client.Do(context.Background(), h.client.B().Keys().Pattern("stowage:1:{"+itoa(h.Bucket)+"}:"+name).Build()).AsStrSlice()
	require.NoError(h.t, err)
	require.Len(h.t, keys, 1)
	return keys[0]
}

func (h *home) redis(words ...string) {
	h.t.Helper()
	require.NoError(h.t, h.client.Do(context.Background(), h.client.B().Arbitrary(words...).Build()).Error())
}

// traced is an inspector whose statements go past a hook before they are sent and
// after they are answered.
func (w *world) traced(hook *hook) *Inspector {
	w.t.Helper()
	cfg, err := pgxpool.ParseConfig(w.url)
	require.NoError(w.t, err)
	cfg.ConnConfig.Tracer = hook
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(w.t, err)
	w.t.Cleanup(pool.Close)
	return &Inspector{Pool: pool, Buffer: w.buffer}
}

// hook calls before, with the text of each statement.
type hook struct{ before func(sql string) }

func (h *hook) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	h.before(data.SQL)
	return ctx
}

func (h *hook) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}
