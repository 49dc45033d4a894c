package history

import (
	"context"
	"flag"
	"log/slog"
	"math/big"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
)

func TestMain(m *testing.M) {
	for name, value := range map[string]string{"rapid.checks": "15", "rapid.steps": "40"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	goleak.VerifyTestMain(m)
}

const (
	patience = time.Minute
	often    = 5 * time.Millisecond
	late     = 2 * time.Minute
)

// bundle is a database whose history begins at a past hour. Its time is that of the
// mock clock: the database's own is always ahead of it, so hours close by the mock.
type bundle struct {
	t        testing.TB
	db       *pgxpool.Pool
	clock    *quartz.Mock
	registry *prometheus.Registry
	worker   *RollupWorker
	// since is when history begins.
	since time.Time
}

func setup(t testing.TB, cfg Config) *bundle {
	t.Helper()
	since := time.Now().UTC().Truncate(time.Hour).Add(-72 * time.Hour)
	b := &bundle{t: t, db: dbtest.New(t), clock: quartz.NewMock(t), registry: prometheus.NewRegistry(), since: since}
	b.setClock(since.Add(-time.Minute))
	cfg.Late = late
	b.worker = NewRollupWorker(cfg, Deps{DB: b.db, Metrics: metrics.New(b.registry), Log: slog.New(slog.DiscardHandler), Clock: b.clock})
	require.NoError(t, b.worker.Run(context.Background()))
	return b
}

func (b *bundle) setClock(at time.Time) { b.clock.Set(at).MustWait(context.Background()) }

// at is the clock's time so long after history began.
func (b *bundle) at(after time.Duration) time.Time { return b.since.Add(after) }

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.db.Exec(context.Background(), sql, args...)
	require.NoError(b.t, err)
}

func (b *bundle) count(sql string, args ...any) (n int64) {
	b.t.Helper()
	require.NoError(b.t, b.db.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

func (b *bundle) namespace() uuid.UUID {
	b.t.Helper()
	id := uuid.Must(uuid.NewV7())
	b.exec(`INSERT INTO namespaces (id, slug) VALUES ($1, $2)`, id, id.String())
	return id
}

// batchAt is the id of a flush that was frozen then.
func batchAt(at time.Time) uuid.UUID {
	id := uuid.Must(uuid.NewV7())
	ms := at.UnixMilli()
	for i := 5; i >= 0; i-- {
		id[i] = byte(ms)
		ms >>= 8
	}
	return id
}

// applied applies a flush that was frozen at one time, at another.
func (b *bundle) applied(namespace uuid.UUID, frozen, at time.Time, bytes, components int64) {
	b.t.Helper()
	var marker accounting.Marker
	require.NoError(b.t, b.db.QueryRow(context.Background(), `
		SELECT stowage_marker_micros(last_reconciled_at) FROM namespace_statistics WHERE namespace_id = $1`, namespace).Scan(&marker))
	flush := accounting.Flush{
		Scope: accounting.NamespaceScope(namespace), BatchID: batchAt(frozen), Marker: marker, Emissions: 1,
		Counters: accounting.Counters{Bytes: bytes, Components: components},
	}
	results, err := ledger.Apply(context.Background(), b.db, []accounting.Flush{flush})
	require.NoError(b.t, err)
	require.Equal(b.t, ledger.Applied, results[0].Verdict)
	b.exec(`UPDATE storage_ledger SET applied_at = $1 WHERE batch_id = $2`, at, flush.BatchID)
}

// corrected writes the namespace back with another value.
func (b *bundle) corrected(namespace uuid.UUID, at time.Time, bytes, components int64) {
	b.t.Helper()
	pass := ledger.Pass{Namespace: namespace, Batch: batchAt(at), Marker: accounting.MarkerOf(time.Now())}
	_, err := ledger.WriteBackNamespace(context.Background(), b.db, pass, accounting.Counters{Bytes: bytes, Components: components})
	require.NoError(b.t, err)
	b.exec(`UPDATE storage_ledger SET applied_at = $1 WHERE batch_id = $2`, at, pass.Batch)
}

func (b *bundle) deleted(namespace uuid.UUID, at time.Time) {
	b.t.Helper()
	b.exec(`DELETE FROM namespaces WHERE id = $1`, namespace)
	b.exec(`UPDATE usage_closings SET closed_at = $1 WHERE namespace_id = $2`, at, namespace)
}

// rollUp runs at the time until all hours that are over then are closed.
func (b *bundle) rollUp(at time.Time) {
	b.t.Helper()
	b.setClock(at)
	b.finish()
}

func (b *bundle) finish() {
	b.t.Helper()
	want := b.clock.Now().Add(-settle).Truncate(time.Hour)
	require.Eventually(b.t, func() bool {
		require.NoError(b.t, b.worker.Run(context.Background()))
		return !b.closedUntil().Before(want)
	}, patience, often, "hours stay open")
}

func (b *bundle) closedUntil() (until time.Time) {
	b.t.Helper()
	require.NoError(b.t, b.db.QueryRow(context.Background(), `SELECT hour FROM usage_progress`).Scan(&until))
	return until
}

// read gives the closed hours since history began.
func (b *bundle) read(namespace uuid.UUID) []Hour {
	b.t.Helper()
	h, err := Read(context.Background(), b.db, namespace, b.since, b.since.AddDate(0, 1, 0))
	require.NoError(b.t, err)
	return h.Hours
}

// rat is a number of byte-seconds.
func rat(text string) *big.Rat {
	r, ok := new(big.Rat).SetString(text)
	if !ok {
		panic(text)
	}
	return r
}

func counters(bytes, components int64) accounting.Counters {
	return accounting.Counters{Bytes: bytes, Components: components}
}
