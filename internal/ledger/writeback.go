package ledger

import (
	"context"
	"fmt"

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
	// Corrected, if set, sees the corrections of each write-back while their rows
	// are still locked, in its transaction: nothing is applied to them meanwhile.
	Corrected func(ctx context.Context, tx pgx.Tx, corrections []Correction) error
}

// Value is what the scan counted for a scope.
type Value struct {
	Scope accounting.Scope
	accounting.Counters
}

// Correction is what a write-back changed in a row: new minus old, signed.
type Correction struct {
	Scope accounting.Scope
	accounting.Counters
	// Since is the marker of the pass that wrote the row before: the old value
	// holds no delta with a smaller marker that is still to come.
	Since accounting.Marker
}

// WriteBack is what became of the values of one write-back. Values that stood
// in the row already are in none of its fields.
type WriteBack struct {
	// Corrections are the rows that were off.
	Corrections []Correction
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
	err := inLedger(ctx, db, []uuid.UUID{pass.Batch}, func(tx pgx.Tx) error {
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
// the pass [R8]. Call it after every repository of the namespace is written.
func WriteBackNamespace(ctx context.Context, db DB, pass Pass, value accounting.Counters) (WriteBack, error) {
	values := []Value{{Scope: accounting.NamespaceScope(pass.Namespace), Counters: value}}
	var result WriteBack
	err := inLedger(ctx, db, []uuid.UUID{pass.Batch}, func(tx pgx.Tx) error {
		var err error
		if result, err = writeBack(ctx, tx, namespaceRows(), pass, values); err != nil || result.Fenced > 0 {
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

// writeBackSQL sets counter = value + what was applied with a marker that the
// snapshot cannot contain [R6], unless a newer pass was here [R7]. Corrections
// are a kind of their own and never in that sum. The rows are locked, so no
// flush is between its ledger row and its addition, or will be before the
// commit. A row may be off by more than a bigint: its correction is then recorded
// as the most that fits. %[1]s to %[5]d: table, key, bytes, components, kind.
const writeBackSQL = `
WITH value AS (
	SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::bigint[]) AS v (scope_id, bytes, components)
), since AS (
	SELECT scope_id, sum(bytes)::bigint AS bytes, sum(components)::bigint AS components
	FROM storage_ledger
	WHERE scope_id = ANY ($1) AND marker >= stowage_marker_time($4) AND outcome = 1
	GROUP BY scope_id
), target AS (
	SELECT scope_id, v.bytes + coalesce(s.bytes, 0) AS bytes, v.components + coalesce(s.components, 0) AS components,
	       t.%[3]s AS old_bytes, t.%[4]s AS old_components, stowage_marker_micros(t.last_reconciled_at) AS since
	FROM value v
	LEFT JOIN since s USING (scope_id)
	JOIN %[1]s t ON t.%[2]s = scope_id
	WHERE t.last_reconciled_at < stowage_marker_time($4)
), written AS (
	UPDATE %[1]s t
	SET %[3]s = n.bytes, %[4]s = n.components, last_reconciled_at = stowage_marker_time($4)
	FROM target n WHERE n.scope_id = t.%[2]s
	RETURNING n.scope_id,
	          least(greatest(n.bytes::numeric - n.old_bytes, -9223372036854775807), 9223372036854775807)::bigint AS bytes,
	          least(greatest(n.components::numeric - n.old_components, -9223372036854775807), 9223372036854775807)::bigint AS components,
	          n.since
), corrected AS (
	INSERT INTO storage_ledger (batch_id, scope_id, scope_kind, namespace_id, marker, bytes, components, emissions, outcome)
	SELECT $5, scope_id, %[5]d, $6, stowage_marker_time($4), bytes, components, 0, 4
	FROM written WHERE bytes <> 0 OR components <> 0
)
SELECT scope_id, bytes, components, since FROM written`

func (r rows) writeBackSQL() string {
	return fmt.Sprintf(writeBackSQL, r.table, r.key, r.bytes, r.components, r.kind)
}

func writeBack(ctx context.Context, tx pgx.Tx, kind rows, pass Pass, values []Value) (WriteBack, error) {
	ids := make([]uuid.UUID, len(values))
	bytes := make([]int64, len(values))
	components := make([]int64, len(values))
	scopes := make(map[uuid.UUID]accounting.Scope, len(values))
	for i, v := range values {
		ids[i], bytes[i], components[i] = v.Scope.ID, v.Bytes, v.Components
		scopes[v.Scope.ID] = v.Scope
	}
	locked, err := lock(ctx, tx, kind.lock, ids)
	if err != nil {
		return WriteBack{}, err
	}
	if err := failpoint.Hit(ctx, failpoint.PassRowsLocked); err != nil {
		return WriteBack{}, err
	}
	result, err := tx.Query(ctx, kind.writeBackSQL(), ids, bytes, components, int64(pass.Marker), pass.Batch, pass.Namespace)
	if err != nil {
		return WriteBack{}, err
	}
	back := WriteBack{Gone: len(values) - locked, Fenced: locked}
	var id uuid.UUID
	var c Correction
	_, err = pgx.ForEachRow(result, []any{&id, &c.Bytes, &c.Components, &c.Since}, func() error {
		back.Fenced--
		if !c.IsZero() {
			c.Scope = scopes[id]
			back.Corrections = append(back.Corrections, c)
		}
		return nil
	})
	if err != nil {
		return WriteBack{}, err
	}
	return back, written(ctx, tx, pass, back)
}

// written is what follows the statement while the rows are locked.
func written(ctx context.Context, tx pgx.Tx, pass Pass, back WriteBack) error {
	if pass.Corrected != nil && len(back.Corrections) > 0 {
		if err := pass.Corrected(ctx, tx, back.Corrections); err != nil {
			return err
		}
	}
	return failpoint.Hit(ctx, failpoint.PassRowsWritten)
}
