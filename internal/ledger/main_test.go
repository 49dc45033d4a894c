package ledger

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/dbtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bundle is a namespace with one repository in a database that may hold others.
type bundle struct {
	t                     testing.TB
	db                    *pgxpool.Pool
	namespace, repository accounting.Scope
}

// setup makes a bundle in a database of its own.
func setup(t testing.TB) *bundle {
	t.Helper()
	return setupIn(t, dbtest.New(t))
}

// setupIn makes a bundle in a database that parallel tests share.
func setupIn(t testing.TB, db *pgxpool.Pool) *bundle {
	t.Helper()
	b := &bundle{t: t, db: db}
	b.namespace = b.newNamespace()
	b.repository = b.newRepository()
	return b
}

func newID() uuid.UUID { return uuid.Must(uuid.NewV7()) }

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.db.Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err)
}

func (b *bundle) newNamespace() accounting.Scope {
	b.t.Helper()
	id := newID()
	b.exec(`INSERT INTO namespaces (id, slug) VALUES ($1, $2)`, id, id.String())
	return accounting.NamespaceScope(id)
}

func (b *bundle) newRepository() accounting.Scope {
	b.t.Helper()
	id := newID()
	b.exec(`INSERT INTO repositories (id, namespace_id, name, format, kind) VALUES ($1, $2, $3, 3, 1)`, id, b.namespace.ID, id.String())
	return accounting.RepositoryScope(b.namespace.ID, id)
}

// row is what Postgres holds for a scope.
type row struct {
	accounting.Counters
	reconciled accounting.Marker
}

const rowSQL = `
SELECT %[2]s, %[3]s, stowage_marker_micros(last_reconciled_at) FROM %[1]s WHERE %[4]s = $1`

func (b *bundle) row(scope accounting.Scope) row {
	b.t.Helper()
	kind := namespaceRows()
	if scope.Kind == accounting.KindRepository {
		kind = repositoryRows()
	}
	var r row
	require.NoError(b.t, b.db.QueryRow(b.t.Context(), fmt.Sprintf(rowSQL, kind.table, kind.bytes, kind.components, kind.key), scope.ID).
		Scan(&r.Bytes, &r.Components, (*int64)(&r.reconciled)))
	return r
}

// entryOf is the ledger row of a flush.
type entryOf struct {
	Kind                         accounting.ScopeKind
	Namespace                    uuid.UUID
	Marker                       int64
	Bytes, Components, Emissions int64
	Outcome                      accounting.Outcome
}

// entries are the ledger rows of a scope in the order of their batches.
func (b *bundle) entries(scope accounting.Scope) []entryOf {
	b.t.Helper()
	rows, err := b.db.Query(b.t.Context(), `
		SELECT scope_kind, namespace_id, stowage_marker_micros(marker), bytes, components, emissions, outcome
		FROM storage_ledger WHERE scope_id = $1 ORDER BY batch_id`, scope.ID)
	require.NoError(b.t, err)
	entries, err := pgx.CollectRows(rows, pgx.RowToStructByPos[entryOf])
	require.NoError(b.t, err)
	return entries
}

func flushOf(scope accounting.Scope, marker accounting.Marker, bytes, components int64) accounting.Flush {
	return accounting.Flush{
		Scope: scope, BatchID: newID(), Marker: marker, Emissions: 1,
		Counters: accounting.Counters{Bytes: bytes, Components: components},
	}
}

func (b *bundle) apply(flushes ...accounting.Flush) []Verdict {
	b.t.Helper()
	results, err := Apply(b.t.Context(), b.db, flushes)
	require.NoError(b.t, err)
	verdicts := make([]Verdict, len(results))
	for i, r := range results {
		require.Equal(b.t, flushes[i], r.Flush)
		verdicts[i] = r.Verdict
	}
	return verdicts
}

func (b *bundle) pass(marker accounting.Marker) Pass {
	return Pass{Namespace: b.namespace.ID, Marker: marker, Batch: newID()}
}

func valueOf(scope accounting.Scope, bytes, components int64) Value {
	return Value{Scope: scope, Counters: accounting.Counters{Bytes: bytes, Components: components}}
}

func (b *bundle) writeBack(pass Pass, values ...Value) WriteBack {
	b.t.Helper()
	back, err := WriteBackRepositories(b.t.Context(), b.db, pass, values)
	require.NoError(b.t, err)
	return back
}

// held is a transaction that has done its work and is not committed yet.
type held struct {
	b  *bundle
	tx pgx.Tx
}

// hold opens a transaction and leaves it open after fn.
func (b *bundle) hold(fn func(tx pgx.Tx) error) *held {
	b.t.Helper()
	tx, err := b.db.BeginTx(b.t.Context(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	require.NoError(b.t, fn(tx))
	return &held{b: b, tx: tx}
}

// during starts fn, commits the held transaction when something waits for it,
// and returns after fn has.
func (h *held) during(fn func() error) {
	h.b.t.Helper()
	done := make(chan error, 1)
	go func() { done <- fn() }()
	h.waitUntilBlocking()
	require.NoError(h.b.t, h.tx.Commit(h.b.t.Context()))
	require.NoError(h.b.t, <-done)
}

func (h *held) waitUntilBlocking() {
	h.b.t.Helper()
	require.Eventually(h.b.t, func() bool {
		var blocked bool
		err := h.b.db.QueryRow(h.b.t.Context(), `
			SELECT EXISTS (SELECT FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid)))`,
			int32(h.tx.Conn().PgConn().PID())).Scan(&blocked)
		return err == nil && blocked
	}, time.Minute, time.Millisecond, "nothing waits for the open transaction")
}
