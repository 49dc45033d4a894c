package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

// Held is a correction that the guard holds. The scope's row stands, and deltas
// are added to it as ever.
type Held struct {
	Scope accounting.Scope
	// Seen is the marker of the first pass that found it.
	Seen accounting.Marker
	// Expected is what the row held then, with all that was on its way to it.
	// Counted is what that pass would have written.
	Expected, Counted accounting.Counters
	// NextPass is when the namespace gets its next pass.
	NextPass time.Time
	// ApprovedAt is nil, or when somebody approved it, and ApprovedBy who.
	ApprovedAt *time.Time
	ApprovedBy string
}

const heldSQL = `
SELECT scope_kind, scope_id, namespace_id, stowage_marker_micros(seen), expected_bytes, expected_components,
       counted_bytes, counted_components, next_pass, approved_at, coalesce(approved_by, '')
FROM held_corrections
WHERE `

// HeldOf lists the held corrections of a namespace: its own first, then those of
// its repositories by id.
func HeldOf(ctx context.Context, db pgdb.DB, namespace uuid.UUID) ([]Held, error) {
	held, err := queryHeld(ctx, db, `namespace_id = $1 ORDER BY scope_kind, scope_id`, namespace)
	if err != nil {
		return nil, fmt.Errorf("list held corrections: %w", err)
	}
	return held, nil
}

func queryHeld(ctx context.Context, db pgdb.DB, where string, args ...any) ([]Held, error) {
	rows, err := db.Query(ctx, heldSQL+where, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (h Held, err error) {
		err = row.Scan(&h.Scope.Kind, &h.Scope.ID, &h.Scope.Namespace, &h.Seen, &h.Expected.Bytes, &h.Expected.Components,
			&h.Counted.Bytes, &h.Counted.Components, &h.NextPass, &h.ApprovedAt, &h.ApprovedBy)
		return h, err
	})
}

// Approve lets the next passes write the corrections, and has those passes come at
// once. by is who says so. It returns how many of them are still held as they were
// read; one that has grown by much since is another, and stays held.
func Approve(ctx context.Context, db pgdb.DB, held []Held, by string) (int, error) {
	scopes := make([]uuid.UUID, len(held))
	seen := make([]int64, len(held))
	for i, h := range held {
		scopes[i], seen[i] = h.Scope.ID, int64(h.Seen)
	}
	tag, err := db.Exec(ctx, `
		UPDATE held_corrections h
		SET approved_at = now(), approved_by = $3, next_pass = now()
		FROM unnest($1::uuid[], $2::bigint[]) AS a (scope_id, seen)
		WHERE h.scope_id = a.scope_id AND h.seen = stowage_marker_time(a.seen)`, scopes, seen, by)
	if err != nil {
		return 0, fmt.Errorf("approve held corrections: %w", err)
	}
	return int(tag.RowsAffected()), nil
}

func anyHeld(ctx context.Context, db pgdb.DB, namespace uuid.UUID) (held bool, err error) {
	err = db.QueryRow(ctx, `SELECT EXISTS (SELECT FROM held_corrections WHERE namespace_id = $1)`, namespace).Scan(&held)
	if err != nil {
		return false, fmt.Errorf("look for held corrections: %w", err)
	}
	return held, nil
}

// lockHeld reads what is held of the scopes, and locks it: what is being approved
// now is approved as it is read here, or waits and is another by then.
func lockHeld(ctx context.Context, tx pgx.Tx, due []ledger.Correction) (map[uuid.UUID]Held, error) {
	ids := make([]uuid.UUID, len(due))
	for i, c := range due {
		ids[i] = c.Scope.ID
	}
	held, err := queryHeld(ctx, tx, `scope_id = ANY ($1) ORDER BY scope_id FOR UPDATE`, ids)
	if err != nil {
		return nil, err
	}
	byScope := make(map[uuid.UUID]Held, len(held))
	for _, h := range held {
		byScope[h.Scope.ID] = h
	}
	return byScope, nil
}

// forget drops the records of what is held no more: it is about to be written.
func forget(ctx context.Context, tx pgx.Tx, known map[uuid.UUID]Held, held map[uuid.UUID]bool) error {
	var written []uuid.UUID
	for id := range known {
		if !held[id] {
			written = append(written, id)
		}
	}
	if len(written) == 0 {
		return nil
	}
	_, err := tx.Exec(ctx, `DELETE FROM held_corrections WHERE scope_id = ANY ($1)`, written)
	return err
}

// forgetNamespace drops the records that are left when a pass has written every
// row of the namespace: those of repositories that are gone. A later pass's stay.
func forgetNamespace(ctx context.Context, tx pgx.Tx, pass ledger.Pass) error {
	_, err := tx.Exec(ctx, `DELETE FROM held_corrections WHERE namespace_id = $1 AND seen < stowage_marker_time($2)`, pass.Namespace, int64(pass.Marker))
	return err
}

// waiting are the namespaces whose next pass waits, with what is held of them.
func waiting(ctx context.Context, db pgdb.DB) ([]uuid.UUID, error) {
	rows, err := db.Query(ctx, waitingSQL)
	if err != nil {
		return nil, fmt.Errorf("namespaces with held corrections: %w", err)
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

const waitingSQL = `SELECT namespace_id FROM held_corrections GROUP BY namespace_id HAVING min(next_pass) > now()`

// keep writes the records, with the pause until the namespace's next pass.
func keep(ctx context.Context, tx pgx.Tx, hold []Held, pause time.Duration) error {
	batch := &pgx.Batch{}
	for _, h := range hold {
		batch.Queue(`
			INSERT INTO held_corrections AS h (scope_id, scope_kind, namespace_id, seen, expected_bytes, expected_components,
				counted_bytes, counted_components, next_pass)
			VALUES ($1, $2, $3, stowage_marker_time($4), $5, $6, $7, $8, now() + $9::interval)
			ON CONFLICT (scope_id) DO UPDATE
			SET seen = excluded.seen, expected_bytes = excluded.expected_bytes, expected_components = excluded.expected_components,
				counted_bytes = excluded.counted_bytes, counted_components = excluded.counted_components,
				next_pass = excluded.next_pass, approved_at = NULL, approved_by = NULL`,
			h.Scope.ID, h.Scope.Kind, h.Scope.Namespace, int64(h.Seen), h.Expected.Bytes, h.Expected.Components,
			h.Counted.Bytes, h.Counted.Components, pause)
	}
	return tx.SendBatch(ctx, batch).Close()
}
