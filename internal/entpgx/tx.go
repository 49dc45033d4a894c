package entpgx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"entgo.io/ent/dialect"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
)

// Change is what one committed transaction changed in one namespace.
type Change struct {
	Namespace uuid.UUID
	// Marker is what the transaction saw under the namespace's lock.
	Marker accounting.Marker
	// HasRow is false when the namespace has no statistics row.
	HasRow bool
	Deltas []accounting.Delta
}

// Observer hears of counted commits, in the goroutine that committed. The
// context it gets is not cancelled with the transaction's.
type Observer interface {
	// Committed is called after the COMMIT of a transaction that changed
	// counters, once.
	Committed(ctx context.Context, changes []Change)
	// Undecided is called when the answer to such a COMMIT was lost: the
	// changes may or may not be in the database.
	Undecided(ctx context.Context, namespaces []uuid.UUID)
}

// Errors of a transaction's end.
var (
	// ErrUndecided says that the answer to a COMMIT was lost.
	ErrUndecided = errors.New("the answer to COMMIT was lost, so the transaction may or may not be committed")
	// ErrEnded says that the transaction was committed or rolled back already.
	ErrEnded = errors.New("the transaction has ended")
)

// Repository is what writers must know of a repository; the numbers are those
// of schematype.Format and schematype.Kind.
type Repository struct {
	Namespace    uuid.UUID
	Format, Kind int16
	// SoftDeleted is true when the repository or its namespace is.
	SoftDeleted bool
	// Deleting says that its deletion, or that of its namespace, was asked for,
	// which cannot be taken back.
	Deleting bool
}

// Tx is a transaction that collects the changes of counters and emits them
// after its COMMIT. Like the pgx transaction in it, it serves one goroutine.
type Tx struct {
	driver *Driver
	ctx    context.Context //nolint:containedctx // dialect.Tx.Commit takes no context
	conn   *pgxpool.Conn
	tx     pgx.Tx

	tally        map[accounting.Scope]accounting.Counters
	repositories map[uuid.UUID]Repository
	refused      error
	ended        bool
}

var _ dialect.Tx = (*Tx)(nil)

// Of finds the transaction under whatever Ent has wrapped around it; ok is
// false for a client in autocommit.
func Of(driver any) (tx *Tx, ok bool) {
	for {
		switch d := driver.(type) {
		case *Tx:
			return d, true
		case *dialect.DebugTx:
			driver = d.Tx
		case *dialect.DebugDriver:
			driver = d.Driver
		case interface{ Unwrap() dialect.Tx }:
			driver = d.Unwrap()
		default:
			return nil, false
		}
	}
}

// Exec runs a statement; v is nil or a *database/sql.Result.
func (t *Tx) Exec(ctx context.Context, query string, args, v any) error {
	return exec(ctx, t.Pgx(), query, args, v)
}

// Query runs a query; v is an Ent *sql.Rows.
func (t *Tx) Query(ctx context.Context, query string, args, v any) error {
	return runQuery(ctx, t.Pgx(), query, args, v)
}

// Add notes that the transaction changed the scope's counters.
func (t *Tx) Add(scope accounting.Scope, change accounting.Counters) {
	if t.tally == nil {
		t.tally = make(map[accounting.Scope]accounting.Counters)
	}
	t.tally[scope] = t.tally[scope].Plus(change)
}

// Refuse makes the COMMIT fail with err: what the transaction did can no
// longer be counted. The first refusal stands.
func (t *Tx) Refuse(err error) {
	if t.refused == nil {
		t.refused = err
	}
}

// Repository returns what writers must know of a repository, read once a
// transaction; pgx.ErrNoRows when there is none. It locks the keys of the
// repository and its namespace, as foreign keys do, so that whoever deletes or
// hides one of them waits for the transaction, and what was read stays true.
func (t *Tx) Repository(ctx context.Context, id uuid.UUID) (Repository, error) {
	if r, ok := t.repositories[id]; ok {
		return r, nil
	}
	var r Repository
	err := t.Pgx().QueryRow(ctx, `
		SELECT r.namespace_id, r.format, r.kind, (r.soft_deleted_at IS NOT NULL OR n.soft_deleted_at IS NOT NULL),
			EXISTS (SELECT FROM deletion_requests d WHERE d.scope_id IN (r.id, r.namespace_id))
		FROM repositories r JOIN namespaces n ON n.id = r.namespace_id
		WHERE r.id = $1
		FOR KEY SHARE OF r, n`, id).Scan(&r.Namespace, &r.Format, &r.Kind, &r.SoftDeleted, &r.Deleting)
	if err == nil && r.SoftDeleted && !r.Deleting {
		// The statement may have waited for whoever asked for a deletion, and then
		// sees the new row, but not the request.
		err = t.Pgx().QueryRow(ctx, `SELECT EXISTS (SELECT FROM deletion_requests WHERE scope_id IN ($1, $2))`, id, r.Namespace).Scan(&r.Deleting)
	}
	if err != nil {
		return Repository{}, err
	}
	if t.repositories == nil {
		t.repositories = make(map[uuid.UUID]Repository)
	}
	t.repositories[id] = r
	return r, nil
}

// ForgetRepositories makes Repository read again, for the transaction itself
// has changed some.
func (t *Tx) ForgetRepositories() { t.repositories = nil }

// Rollback ends the transaction without a trace. It may be called after
// Commit, and then does nothing.
func (t *Tx) Rollback() error {
	if t.ended {
		return nil
	}
	ctx, cancel := t.endContext()
	defer cancel()
	defer t.end()
	if err := t.tx.Rollback(ctx); err != nil && !errors.Is(err, pgx.ErrTxClosed) {
		return fmt.Errorf("rollback: %w", err)
	}
	return nil
}

// Commit ends the transaction. When it changed counters, the namespaces' locks
// are taken, their markers read and the transaction committed in one round
// trip, and the observer is told.
func (t *Tx) Commit() error {
	if t.ended {
		return fmt.Errorf("commit: %w", ErrEnded)
	}
	if t.refused != nil {
		return errors.Join(fmt.Errorf("commit refused, rolled back: %w", t.refused), t.Rollback())
	}
	ctx, cancel := t.endContext()
	defer cancel()
	deltas := t.deltas()
	if len(deltas) == 0 {
		defer t.end()
		return t.commitUncounted(ctx)
	}
	changes, err := t.commitCounted(ctx, deltas)
	t.end()
	switch {
	case err == nil:
		t.driver.observer.Committed(context.WithoutCancel(t.ctx), changes)
	case errors.Is(err, ErrUndecided):
		t.driver.observer.Undecided(context.WithoutCancel(t.ctx), namespacesOf(deltas))
	}
	return err
}

func (t *Tx) commitUncounted(ctx context.Context) error {
	err := t.tx.Commit(ctx)
	switch {
	case err == nil:
		return nil
	case decided(err):
		return fmt.Errorf("commit: %w", err)
	default:
		return fmt.Errorf("commit: %w: %w", ErrUndecided, err)
	}
}

// commitCounted sends the marker function and COMMIT together. A failure of
// the first keeps the server from running the second.
func (t *Tx) commitCounted(ctx context.Context, deltas []accounting.Delta) ([]Change, error) {
	if conn := t.conn.Conn(); !conn.IsClosed() && conn.PgConn().TxStatus() == 'I' {
		return nil, fmt.Errorf("commit: %w: SQL of its own ended it before WithTx did", ErrUndecided)
	}
	if err := failpoint.Hit(ctx, failpoint.WriterWrote); err != nil {
		return nil, errors.Join(fmt.Errorf("commit: rolled back: %w", err), t.tx.Rollback(ctx))
	}
	batch := &pgx.Batch{}
	batch.Queue(`SELECT namespace_id, marker FROM stowage_lock_markers($1)`, asBytes(namespacesOf(deltas)))
	batch.Queue(`COMMIT`)
	results := t.tx.SendBatch(ctx, batch)
	changes, markersErr := collectChanges(results, deltas)
	tag, commitErr := results.Exec()
	closeErr := results.Close()

	err := first(markersErr, commitErr, closeErr)
	if err == nil {
		err = failpoint.Hit(ctx, failpoint.WriterCommitted)
	}
	switch {
	case err != nil && decided(err):
		return nil, errors.Join(fmt.Errorf("commit: rolled back: %w", err), t.tx.Rollback(ctx))
	case err != nil:
		return nil, fmt.Errorf("commit: %w: %w", ErrUndecided, err)
	case tag.String() != "COMMIT":
		return nil, fmt.Errorf("commit: the server answered %q: %w", tag.String(), pgx.ErrTxCommitRollback)
	}
	return changes, nil
}

func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// decided reports whether the failed COMMIT certainly changed nothing: the
// server said so and lives on, or nothing was sent. A FATAL error ends the
// session, perhaps after the commit record was written, so it decides nothing.
func decided(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrTxClosed) {
		return true
	}
	if server, ok := errors.AsType[*pgconn.PgError](err); ok {
		return server.SeverityUnlocalized == "ERROR"
	}
	return pgconn.SafeToRetry(err)
}

// collectChanges pairs the deltas with the markers that the function returned.
func collectChanges(results pgx.BatchResults, deltas []accounting.Delta) ([]Change, error) {
	found, err := results.Query()
	if err != nil {
		return nil, err
	}
	changes, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (Change, error) {
		var c Change
		var marker *int64
		if err := row.Scan((*[16]byte)(&c.Namespace), &marker); err != nil {
			return Change{}, err
		}
		if marker != nil {
			c.HasRow, c.Marker = true, accounting.Marker(*marker)
		}
		return c, nil
	})
	if err != nil {
		return nil, err
	}
	for i := range changes {
		for _, d := range deltas {
			if d.Scope.Namespace == changes[i].Namespace {
				changes[i].Deltas = append(changes[i].Deltas, d)
			}
		}
	}
	return changes, nil
}

// deltas are the tally without what cancelled out, in a stable order.
func (t *Tx) deltas() []accounting.Delta {
	deltas := make([]accounting.Delta, 0, len(t.tally))
	for scope, change := range t.tally {
		if !change.IsZero() {
			deltas = append(deltas, accounting.Delta{Scope: scope, Counters: change})
		}
	}
	slices.SortFunc(deltas, func(a, b accounting.Delta) int {
		return cmp.Or(
			strings.Compare(a.Scope.Namespace.String(), b.Scope.Namespace.String()),
			strings.Compare(a.Scope.ID.String(), b.Scope.ID.String()),
		)
	})
	return deltas
}

// asBytes are ids as pgx sends them soonest: of a uuid.UUID it makes a text first.
func asBytes(ids []uuid.UUID) [][16]byte {
	plain := make([][16]byte, len(ids))
	for i, id := range ids {
		plain[i] = id
	}
	return plain
}

// namespacesOf are the namespaces of sorted deltas, each once.
func namespacesOf(deltas []accounting.Delta) []uuid.UUID {
	ids := make([]uuid.UUID, 0, len(deltas))
	for _, d := range deltas {
		ids = append(ids, d.Scope.Namespace)
	}
	return slices.Compact(ids)
}

// endContext outlives the cancellation of the transaction's context: a request
// that was abandoned half way must not leave the COMMIT's fate unknown.
func (t *Tx) endContext() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(t.ctx), t.driver.timeouts.Commit)
}

// end gives the connection back; the pool closes one that is not idle.
func (t *Tx) end() {
	t.ended = true
	t.conn.Release()
}
