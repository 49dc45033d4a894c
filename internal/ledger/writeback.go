package ledger

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/requests"
)

// Pass identifies a reconciliation pass of one namespace.
type Pass struct {
	// Namespace is what is reconciled.
	Namespace uuid.UUID
	// Marker is the pass's R: the scan's snapshot holds every delta with a
	// smaller marker and none with this one.
	Marker accounting.Marker
	// Batch is a UUIDv7 of the pass's own; its corrections are recorded under it.
	Batch uuid.UUID
	// Review, if set, sees what each write-back is about to write, while the rows
	// are locked, in its transaction: nothing is applied to them meanwhile. The
	// scopes that it returns are held: their rows stay as they are.
	Review func(ctx context.Context, tx pgx.Tx, corrections []Correction) (held map[uuid.UUID]bool, err error)
}

// Value is what the scan counted for a scope.
type Value struct {
	Scope accounting.Scope
	accounting.Counters
}

// Correction is how far a row is off: Value minus Old, signed, and at most what an
// int64 holds; zero when the row is right.
type Correction struct {
	Scope accounting.Scope
	accounting.Counters
	// Value is what the row shall hold, and Old what it holds.
	Value, Old accounting.Counters
	// Since is the marker of the pass that wrote the row before: the old value
	// holds no delta with a smaller marker that is still to come. Zero for a row
	// that no pass has written.
	Since accounting.Marker
}

// WriteBack is what became of the values of one write-back. Values that stood
// in the row already are in none of its fields.
type WriteBack struct {
	// Corrections are the rows that were off and have been corrected.
	Corrections []Correction
	// Held is how many rows were left as they are, because Review said so.
	Held int
	// Fenced is how many rows a newer pass had written already; they stay.
	Fenced int
	// Gone is how many scopes have no row any more.
	Gone int
}

// WriteBackRepositories writes the counted values of repositories into their
// rows, plus what was applied since the snapshot, in one transaction. Keep it
// to some hundreds of values. A repository that was made after the snapshot
// needs no value: all of its deltas have markers that are not smaller.
func WriteBackRepositories(ctx context.Context, db DB, pass Pass, values []Value) (WriteBack, error) {
	var result WriteBack
	err := inLedger(ctx, db, ids{pass.Batch}, func(tx pgx.Tx) error {
		var err error
		result, err = writeBack(ctx, tx, repositoryRows(), pass, values)
		return err
	})
	if err != nil {
		return WriteBack{}, fmt.Errorf("write back %d repositories: %w", len(values), err)
	}
	return result, failpoint.Hit(ctx, failpoint.PassChunk)
}

// WriteBackNamespace writes the counted value of the namespace into its row,
// which stamps it as reconciled, and closes its request if that is older than
// the pass [R8]. Call it after every repository of the namespace is written. If
// it is held, it is not stamped and its request stays open.
func WriteBackNamespace(ctx context.Context, db DB, pass Pass, value accounting.Counters) (WriteBack, error) {
	values := []Value{{Scope: accounting.NamespaceScope(pass.Namespace), Counters: value}}
	var result WriteBack
	err := inLedger(ctx, db, ids{pass.Batch}, func(tx pgx.Tx) error {
		var err error
		if result, err = writeBack(ctx, tx, namespaceRows(), pass, values); err != nil || result.Fenced > 0 || result.Held > 0 {
			return err
		}
		if err := requests.Close(ctx, tx, pass.Namespace, pass.Marker); err != nil {
			return err
		}
		return failpoint.Hit(ctx, failpoint.PassClosed)
	})
	if err != nil {
		return WriteBack{}, fmt.Errorf("write back namespace: %w", err)
	}
	return result, failpoint.Hit(ctx, failpoint.PassStamped)
}

// rows are the rows of one kind of scope: how to lock them, and their columns.
type rows struct {
	lock                          string
	table, key, bytes, components string
	kind                          accounting.ScopeKind
}

func repositoryRows() rows {
	return rows{lockRepositories, "repositories", "id", "size_bytes", "artifacts_count", accounting.KindRepository}
}

func namespaceRows() rows {
	return rows{lockNamespaces, "namespace_statistics", "namespace_id", "deduplicated_size_bytes", "components_count", accounting.KindNamespace}
}

// compareSQL reads what to write: value + what was applied with a marker that the
// snapshot cannot contain [R6], of the rows that no newer pass has written [R7].
// Corrections are a kind of their own and never in that sum. The rows are locked,
// so no flush is between its ledger row and its addition, or will be before the
// commit, and what is read here is still true when it is written. %[1]s to %[4]s:
// table, key, bytes, components.
const compareSQL = `
WITH value AS (
	SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS v (scope_id, bytes, components)
), since AS (
	SELECT scope_id, sum(bytes)::bigint AS bytes, sum(components)::bigint AS components
	FROM storage_ledger
	WHERE scope_id = ANY ($1) AND marker >= stowage_marker_time($4) AND outcome = 1
	GROUP BY scope_id
)
SELECT scope_id, v.bytes + coalesce(s.bytes, 0), v.components + coalesce(s.components, 0),
       t.%[3]s, t.%[4]s, stowage_marker_micros(t.last_reconciled_at)
FROM value v
LEFT JOIN since s USING (scope_id)
JOIN %[1]s t ON t.%[2]s = scope_id
WHERE t.last_reconciled_at < stowage_marker_time($4)`

// writeSQL sets the counters, stamps the rows, and records how far they were off.
// %[5]d is the kind.
const writeSQL = `
WITH value AS (
	SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[])
		AS v (scope_id, bytes, components, off_bytes, off_components)
), written AS (
	UPDATE %[1]s t
	SET %[3]s = v.bytes, %[4]s = v.components, last_reconciled_at = stowage_marker_time($6)
	FROM value v WHERE v.scope_id = t.%[2]s
)
INSERT INTO storage_ledger (batch_id, scope_id, scope_kind, namespace_id, marker, bytes, components, emissions, outcome)
SELECT $7, scope_id, %[5]d, $8, stowage_marker_time($6), off_bytes, off_components, 0, 4
FROM value WHERE off_bytes <> 0 OR off_components <> 0`

func (r rows) sql(statement string) string {
	return fmt.Sprintf(statement, r.table, r.key, r.bytes, r.components, r.kind)
}

func writeBack(ctx context.Context, tx pgx.Tx, kind rows, pass Pass, values []Value) (WriteBack, error) {
	scopes := make(ids, len(values))
	for i, v := range values {
		scopes[i] = v.Scope.ID
	}
	locked, err := lock(ctx, tx, kind.lock, scopes)
	if err != nil {
		return WriteBack{}, err
	}
	if err := failpoint.Hit(ctx, failpoint.PassRowsLocked); err != nil {
		return WriteBack{}, err
	}
	due, err := compare(ctx, tx, kind, pass, values)
	if err != nil {
		return WriteBack{}, err
	}
	back := WriteBack{Gone: len(values) - locked, Fenced: locked - len(due)}
	if pass.Review != nil && len(due) > 0 {
		held, err := pass.Review(ctx, tx, due)
		if err != nil {
			return WriteBack{}, err
		}
		due = slices.DeleteFunc(due, func(c Correction) bool { return held[c.Scope.ID] })
		back.Held = locked - back.Fenced - len(due)
	}
	if err := write(ctx, tx, kind, pass, due); err != nil {
		return WriteBack{}, err
	}
	for _, c := range due {
		if !c.IsZero() {
			back.Corrections = append(back.Corrections, c)
		}
	}
	return back, failpoint.Hit(ctx, failpoint.PassRowsWritten)
}

// compare reads, of the locked rows that no newer pass has written, what they
// hold and what they should.
func compare(ctx context.Context, tx pgx.Tx, kind rows, pass Pass, values []Value) ([]Correction, error) {
	c := valueColumns(len(values))
	scopes := make(map[uuid.UUID]accounting.Scope, len(values))
	for _, v := range values {
		c.add(v.Scope.ID, v.Counters)
		scopes[v.Scope.ID] = v.Scope
	}
	result, err := tx.Query(ctx, kind.sql(compareSQL), c.ids, c.bytes, c.components, int64(pass.Marker))
	if err != nil {
		return nil, err
	}
	due := make([]Correction, 0, len(values))
	var id [16]byte
	var value, old accounting.Counters
	var since accounting.Marker
	_, err = pgx.ForEachRow(result, []any{&id, &value.Bytes, &value.Components, &old.Bytes, &old.Components, &since}, func() error {
		off := accounting.Counters{Bytes: boundedMinus(value.Bytes, old.Bytes), Components: boundedMinus(value.Components, old.Components)}
		due = append(due, Correction{Scope: scopes[id], Counters: off, Value: value, Old: old, Since: since})
		return nil
	})
	return due, err
}

// boundedMinus is a - b, or the most that fits: a row may be off by more than a
// bigint.
func boundedMinus(a, b int64) int64 {
	switch difference := a - b; {
	case a >= 0 && b < 0 && difference < 0:
		return math.MaxInt64
	case a < 0 && b > 0 && difference > 0:
		return -math.MaxInt64
	default:
		return max(difference, -math.MaxInt64)
	}
}

func write(ctx context.Context, tx pgx.Tx, kind rows, pass Pass, due []Correction) error {
	if len(due) == 0 {
		return nil
	}
	values, off := valueColumns(len(due)), valueColumns(len(due))
	for _, c := range due {
		values.add(c.Scope.ID, c.Value)
		off.add(c.Scope.ID, c.Counters)
	}
	_, err := tx.Exec(ctx, kind.sql(writeSQL), values.ids, values.bytes, values.components, off.bytes, off.components,
		int64(pass.Marker), pass.Batch, pass.Namespace)
	return err
}

// counterColumns are ids and their counters, as statements take them.
type counterColumns struct {
	ids               ids
	bytes, components []int64
}

func valueColumns(n int) *counterColumns {
	return &counterColumns{make(ids, 0, n), make([]int64, 0, n), make([]int64, 0, n)}
}

func (c *counterColumns) add(id uuid.UUID, counters accounting.Counters) {
	c.ids = append(c.ids, id)
	c.bytes = append(c.bytes, counters.Bytes)
	c.components = append(c.components, counters.Components)
}
