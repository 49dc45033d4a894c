package reconcile

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/redistest"
)

// world is a database and what tests do in it beside the passes.
type world struct {
	t      testing.TB
	pool   *pgxpool.Pool
	redis  *redistest.Server
	buffer *buffer.Buffer
}

func newWorld(t testing.TB) *world {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(dbtest.NewURL(t))
	require.NoError(t, err)
	cfg.MaxConns = 24 // three for each pass, and the test's own
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	redis := redistest.Start(t)
	return &world{t: t, pool: pool, redis: redis, buffer: buffer.New(redis.Client(t), buffer.Config{TTL: time.Hour, LeaseTTL: time.Minute})}
}

// in is the same database, for a subtest, which keeps to namespaces of its own.
func (w *world) in(t testing.TB) *world {
	t.Helper()
	return &world{t: t, pool: w.pool, redis: w.redis, buffer: w.buffer}
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

// chunkSize is small, so that few rows make several chunks.
const chunkSize = 10

func testConfig() Config {
	return Config{MaxInFlight: 4, ChunkSize: chunkSize, Staleness: time.Hour, Timeout: time.Minute, TriggerInterval: 10 * time.Second, Guard: DefaultGuard()}
}

func (w *world) deps(pool *pgxpool.Pool) Deps {
	return Deps{Pool: pool, Buffer: w.buffer, Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler)}
}

// reconciler is a worker as a process has it, on the given pool.
func (w *world) reconciler(pool *pgxpool.Pool) *Namespace {
	return NewNamespace(w.deps(pool), testConfig())
}

func (w *world) exec(sql string, args ...any) {
	w.t.Helper()
	_, err := w.pool.Exec(context.Background(), sql, args...)
	require.NoError(w.t, err)
}

func (w *world) namespace() uuid.UUID {
	w.t.Helper()
	id := newID()
	w.exec(`INSERT INTO namespaces (id, slug) VALUES ($1, $2)`, id, id.String())
	return id
}

func (w *world) namespaces(n int) {
	w.t.Helper()
	w.exec(`INSERT INTO namespaces (id, slug) SELECT id, id::text FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, $1)) AS g`, n)
}

func (w *world) repository(namespace uuid.UUID, format schematype.Format, kind schematype.Kind) uuid.UUID {
	w.t.Helper()
	id := newID()
	w.exec(`INSERT INTO repositories (id, namespace_id, name, format, kind) VALUES ($1, $2, $3, $4, $5)`,
		id, namespace, id.String(), format, kind)
	return id
}

// hosted is a hosted npm repository.
func (w *world) hosted(namespace uuid.UUID) uuid.UUID {
	w.t.Helper()
	return w.repository(namespace, schematype.FormatNPM, schematype.KindHosted)
}

// publish adds a version of the given size, and one blob as large, without
// counting them.
func (w *world) publish(namespace, repository uuid.UUID, format schematype.Format, size int64) {
	w.t.Helper()
	require.NoError(w.t, pgx.BeginFunc(context.Background(), w.pool, func(tx pgx.Tx) error {
		return publish(context.Background(), tx, namespace, repository, format, size)
	}))
}

func publish(ctx context.Context, tx pgx.Tx, namespace, repository uuid.UUID, format schematype.Format, size int64) error {
	table := map[schematype.Format]string{
		schematype.FormatContainer: "container_manifests (id, namespace_id, repository_id, name, digest, size_bytes) VALUES ($1, $2, $3, 'x', uuid_send($1), $4)",
		schematype.FormatMaven:     "maven_versions (id, namespace_id, repository_id, name, version, size_bytes) VALUES ($1, $2, $3, 'x', gen_random_uuid()::text, $4)",
		schematype.FormatNPM:       "npm_versions (id, namespace_id, repository_id, name, version, size_bytes) VALUES ($1, $2, $3, 'x', gen_random_uuid()::text, $4)",
	}[format]
	if _, err := tx.Exec(ctx, "INSERT INTO "+table, newID(), namespace, repository, size); err != nil {
		return err
	}
	digest := make([]byte, 32)
	_, _ = rand.Read(digest)
	_, err := tx.Exec(ctx, `INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) VALUES ($1, $2, $3)`, namespace, digest, size)
	return err
}

// writer is a counted transaction of a registry, in steps: it publishes one
// version.
type writer struct {
	tx     pgx.Tx
	deltas []accounting.Delta
	marker accounting.Marker
}

func (w *world) writer(ctx context.Context, namespace, repository uuid.UUID, size int64) (*writer, error) {
	tx, err := w.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	if err != nil {
		return nil, err
	}
	// A test that fails half-way must not leave a lock that the others wait for.
	w.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if err := publish(ctx, tx, namespace, repository, schematype.FormatNPM, size); err != nil {
		return nil, err
	}
	change := accounting.Counters{Bytes: size, Components: 1}
	return &writer{tx: tx, deltas: []accounting.Delta{
		{Scope: accounting.RepositoryScope(namespace, repository), Counters: change},
		{Scope: accounting.NamespaceScope(namespace), Counters: change},
	}}, nil
}

// lock takes the marker's lock, which a pass may hold up.
func (w *writer) lock(ctx context.Context) error {
	// Only for a mark that never ends, so that its test fails instead.
	if _, err := w.tx.Exec(ctx, `SET LOCAL lock_timeout = '20s'`); err != nil {
		return err
	}
	var micros int64
	err := w.tx.QueryRow(ctx, `SELECT marker FROM stowage_lock_markers(ARRAY[$1::uuid])`, w.deltas[0].Scope.Namespace).Scan(&micros)
	w.marker = accounting.Marker(micros)
	return err
}

// commit returns what the transaction's emission becomes when it is claimed.
func (w *writer) commit(ctx context.Context) ([]accounting.Flush, error) {
	if err := w.tx.Commit(ctx); err != nil {
		return nil, err
	}
	batch := newID()
	flushes := make([]accounting.Flush, len(w.deltas))
	for i, d := range w.deltas {
		flushes[i] = accounting.Flush{Scope: d.Scope, BatchID: batch, Marker: w.marker, Counters: d.Counters, Emissions: 1}
	}
	return flushes, nil
}

// tryWrite is a whole counted transaction, for goroutines.
func (w *world) tryWrite(ctx context.Context, namespace, repository uuid.UUID, size int64) ([]accounting.Flush, error) {
	tx, err := w.writer(ctx, namespace, repository, size)
	if err != nil {
		return nil, err
	}
	if err := tx.lock(ctx); err != nil {
		return nil, err
	}
	return tx.commit(ctx)
}

// write is a whole counted transaction.
func (w *world) write(namespace, repository uuid.UUID, size int64) []accounting.Flush {
	w.t.Helper()
	flushes, err := w.tryWrite(context.Background(), namespace, repository, size)
	require.NoError(w.t, err)
	return flushes
}

// drain applies flushes as a drain does.
func (w *world) drain(flushes []accounting.Flush) []ledger.Verdict {
	w.t.Helper()
	results, err := ledger.Apply(context.Background(), w.pool, flushes)
	require.NoError(w.t, err)
	verdicts := make([]ledger.Verdict, len(results))
	for i, r := range results {
		verdicts[i] = r.Verdict
	}
	return verdicts
}

// row is a scope's counters and its last_reconciled_at.
type row struct {
	accounting.Counters
	L accounting.Marker
}

func (w *world) statistics(namespace uuid.UUID) row {
	w.t.Helper()
	return w.row(`SELECT deduplicated_size_bytes, components_count, stowage_marker_micros(last_reconciled_at) FROM namespace_statistics WHERE namespace_id = $1`, namespace)
}

func (w *world) repositoryRow(repository uuid.UUID) row {
	w.t.Helper()
	return w.row(`SELECT size_bytes, artifacts_count, stowage_marker_micros(last_reconciled_at) FROM repositories WHERE id = $1`, repository)
}

func (w *world) row(sql string, id uuid.UUID) (r row) {
	w.t.Helper()
	require.NoError(w.t, w.pool.QueryRow(context.Background(), sql, id).Scan(&r.Bytes, &r.Components, &r.L))
	return r
}

func (w *world) marker(namespace uuid.UUID) (m accounting.Marker) {
	w.t.Helper()
	require.NoError(w.t, w.pool.QueryRow(context.Background(),
		`SELECT stowage_marker_micros(reconciliation_marker) FROM namespace_statistics WHERE namespace_id = $1`, namespace).Scan(&m))
	return m
}

func (w *world) count(sql string, args ...any) (n int) {
	w.t.Helper()
	require.NoError(w.t, w.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

func (w *world) requests(namespace uuid.UUID) int {
	w.t.Helper()
	return w.count(`SELECT count(*) FROM reconciliation_requests WHERE namespace_id = $1`, namespace)
}

// requireExact fails unless every counter of the namespace equals its recount.
func (w *world) requireExact(namespace uuid.UUID) {
	w.t.Helper()
	ctx := context.Background()
	tx, err := w.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	require.NoError(w.t, err)
	defer func() { require.NoError(w.t, tx.Rollback(ctx)) }()
	counted := map[uuid.UUID]accounting.Counters{}
	total, err := Recount(ctx, tx, namespace, func(id uuid.UUID, c accounting.Counters) error {
		counted[id] = c
		return nil
	})
	require.NoError(w.t, err)
	for id, c := range counted {
		require.Equal(w.t, c, w.repositoryRow(id).Counters, "repository")
	}
	require.Equal(w.t, total, w.statistics(namespace).Counters, "namespace")
}

// reconcile runs a pass that must be done.
func (w *world) reconcile(namespace uuid.UUID) Pass {
	w.t.Helper()
	pass, err := w.reconciler(w.pool).Reconcile(context.Background(), namespace)
	require.NoError(w.t, err)
	require.Equal(w.t, metrics.PassDone, pass.Result)
	return pass
}

// traced is a pool like that of the world whose statements go past the hooks.
func (w *world) traced(tr *tracer) *pgxpool.Pool {
	w.t.Helper()
	cfg := w.pool.Config().Copy()
	cfg.ConnConfig.Tracer = tr
	cfg.ConnConfig.RuntimeParams["application_name"] = tr.application()
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(w.t, err)
	w.t.Cleanup(pool.Close)
	return pool
}

// kill ends all connections of a traced pool, as a kill of its process does,
// and waits until the server has let go of their locks.
func (w *world) kill(tr *tracer) {
	const backends = `FROM pg_stat_activity WHERE datname = current_database() AND application_name = $1`
	w.exec(`SELECT pg_terminate_backend(pid) `+backends, tr.application())
	require.Eventually(w.t, func() bool { return w.count(`SELECT count(*) `+backends, tr.application()) == 0 }, time.Minute, time.Millisecond)
}

// tracer sees each statement of a pool before it is sent and after its answer.
type tracer struct {
	before, after func(sql string)
}

// application names the connections of the tracer's pool.
func (tr *tracer) application() string { return fmt.Sprintf("traced %p", tr) }

type statementKey struct{}

func (tr *tracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	if tr.before != nil {
		tr.before(data.SQL)
	}
	return context.WithValue(ctx, statementKey{}, data.SQL)
}

func (tr *tracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) {
	if sql, ok := ctx.Value(statementKey{}).(string); ok && tr.after != nil {
		tr.after(sql)
	}
}

// once calls fn before the first statement that contains the text.
func once(text string, fn func()) func(string) {
	var o sync.Once
	return func(sql string) {
		if strings.Contains(sql, text) {
			o.Do(fn)
		}
	}
}

// onceCommitted calls fn after the first COMMIT, which in a pass is the mark's.
func onceCommitted(fn func()) func(string) {
	var o sync.Once
	return func(sql string) {
		if sql == "commit" {
			o.Do(fn)
		}
	}
}

// waitBlocked waits until some backend of the database waits for a lock.
func (w *world) waitBlocked() {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		return w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	}, time.Minute, time.Millisecond, "nobody waits for a lock")
}
