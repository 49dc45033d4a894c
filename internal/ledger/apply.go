package ledger

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

// Verdict is what became of a flush.
type Verdict int

// The verdicts of Apply. After Applied, Counted, Gone and Replayed the flush is
// done with and can be deleted.
const (
	// Applied: the delta was added to its row.
	Applied Verdict = iota + 1
	// Counted: a reconciliation had counted the delta already, so nothing was added.
	Counted
	// Gone: the scope has no row.
	Gone
	// Replayed: the ledger knew the flush, so nothing changed.
	Replayed
	// Poisoned: the delta cannot be added, whoever tries: the sum does not fit
	// its column. Nothing was recorded.
	Poisoned
)

// String is the verdict's name as metrics and logs show it.
func (v Verdict) String() string {
	switch v {
	case Applied:
		return "applied"
	case Counted:
		return "counted"
	case Gone:
		return "gone"
	case Replayed:
		return "replayed"
	case Poisoned:
		return "poisoned"
	default:
		return fmt.Sprintf("verdict(%d)", int(v))
	}
}

// Result is a flush and what became of it.
type Result struct {
	Flush   accounting.Flush
	Verdict Verdict
}

// Apply adds the flushes to the rows of their scopes, each exactly once however
// often and by however many callers it is applied, and returns one result for
// each flush in the order given. They are one transaction, so keep them to some
// hundreds. An error means that nothing was applied, or, when the answer to
// COMMIT was lost or some flush is poisoned, that some of it may have been:
// apply the same flushes again.
func Apply(ctx context.Context, db DB, flushes []accounting.Flush) ([]Result, error) {
	if len(flushes) == 0 {
		return nil, nil
	}
	results, err := applyTogether(ctx, db, flushes)
	switch {
	case err == nil:
		return results, nil
	case !pgdb.IsDataException(err):
		return nil, fmt.Errorf("apply %d flushes: %w", len(flushes), err)
	case len(flushes) == 1:
		return []Result{{Flush: flushes[0], Verdict: Poisoned}}, nil
	}
	return applyHalves(ctx, db, flushes)
}

// applyHalves finds the poisoned flushes by halving, so that they stop nobody
// else.
func applyHalves(ctx context.Context, db DB, flushes []accounting.Flush) ([]Result, error) {
	half := len(flushes) / 2
	first, err := Apply(ctx, db, flushes[:half])
	if err != nil {
		return nil, err
	}
	second, err := Apply(ctx, db, flushes[half:])
	if err != nil {
		return nil, err
	}
	return append(first, second...), nil
}

func applyTogether(ctx context.Context, db DB, flushes []accounting.Flush) ([]Result, error) {
	c := columnsOf(flushes)
	var entered map[entry]accounting.Outcome
	err := inLedger(ctx, db, c.batches, func(tx pgx.Tx) (err error) {
		entered, err = lockAndEnter(ctx, tx, c)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := failpoint.Hit(ctx, failpoint.DrainCommitted); err != nil {
		return nil, err
	}
	return judge(flushes, entered), nil
}

func lockAndEnter(ctx context.Context, tx pgx.Tx, c columns) (map[entry]accounting.Outcome, error) {
	if _, err := lock(ctx, tx, lockRepositories, c.repositories); err != nil {
		return nil, err
	}
	if _, err := lock(ctx, tx, lockNamespaces, c.namespaces); err != nil {
		return nil, err
	}
	if err := failpoint.Hit(ctx, failpoint.DrainLocked); err != nil {
		return nil, err
	}
	entered, err := enter(ctx, tx, c)
	if err != nil {
		return nil, err
	}
	return entered, failpoint.Hit(ctx, failpoint.DrainEntered)
}

// entry is the key of a ledger row.
type entry struct{ batch, scope uuid.UUID }

// enterSQL writes the ledger and, from the rows that it took, the counters, so
// that both are there or neither [R3]. The rows are locked, so the
// last_reconciled_at that it reads stays true until the commit [R4]. One scope
// may have several flushes here, but an UPDATE would add only one of them:
// hence the sums. Scopes without a row are not locked, and two callers that
// enter the same flushes of them wait for each other's keys: hence the order.
const enterSQL = `
WITH flush AS (
	SELECT * FROM unnest($1::uuid[], $2::smallint[], $3::uuid[], $4::uuid[], $5::bigint[], $6::bigint[], $7::bigint[], $8::bigint[])
		AS f (batch_id, scope_kind, scope_id, namespace_id, marker, bytes, components, emissions)
), scope AS (
	SELECT 2 AS scope_kind, id AS scope_id, last_reconciled_at FROM repositories WHERE id = ANY ($9)
	UNION ALL
	SELECT 1, namespace_id, last_reconciled_at FROM namespace_statistics WHERE namespace_id = ANY ($10)
), entered AS (
	INSERT INTO storage_ledger (batch_id, scope_id, scope_kind, namespace_id, marker, bytes, components, emissions, outcome)
	SELECT f.batch_id, f.scope_id, f.scope_kind, f.namespace_id, stowage_marker_time(f.marker), f.bytes, f.components, f.emissions,
	       CASE WHEN s.scope_id IS NULL THEN 3
	            WHEN stowage_marker_time(f.marker) >= s.last_reconciled_at THEN 1
	            ELSE 2 END
	FROM flush f LEFT JOIN scope s USING (scope_kind, scope_id)
	ORDER BY f.scope_id, f.batch_id
	ON CONFLICT DO NOTHING
	RETURNING batch_id, scope_id, scope_kind, bytes, components, outcome
), delta AS (
	SELECT scope_kind, scope_id, sum(bytes)::bigint AS bytes, sum(components)::bigint AS components
	FROM entered WHERE outcome = 1
	GROUP BY scope_kind, scope_id
), repository AS (
	UPDATE repositories r
	SET size_bytes = r.size_bytes + d.bytes, artifacts_count = r.artifacts_count + d.components
	FROM delta d WHERE d.scope_kind = 2 AND d.scope_id = r.id
), namespace AS (
	UPDATE namespace_statistics n
	SET deduplicated_size_bytes = n.deduplicated_size_bytes + d.bytes, components_count = n.components_count + d.components
	FROM delta d WHERE d.scope_kind = 1 AND d.scope_id = n.namespace_id
)
SELECT batch_id, scope_id, outcome FROM entered`

func enter(ctx context.Context, tx pgx.Tx, c columns) (map[entry]accounting.Outcome, error) {
	rows, err := tx.Query(ctx, enterSQL, c.batches, c.kinds, c.scopes, c.owners, c.markers, c.bytes, c.components, c.emissions, c.repositories, c.namespaces)
	if err != nil {
		return nil, err
	}
	entered := map[entry]accounting.Outcome{}
	var e entry
	var outcome accounting.Outcome
	_, err = pgx.ForEachRow(rows, []any{(*[16]byte)(&e.batch), (*[16]byte)(&e.scope), &outcome}, func() error {
		entered[e] = outcome
		return nil
	})
	return entered, err
}

// judge says what became of each flush: the ledger did not take those that it
// knew.
func judge(flushes []accounting.Flush, entered map[entry]accounting.Outcome) []Result {
	verdicts := map[accounting.Outcome]Verdict{
		accounting.OutcomeApplied: Applied,
		accounting.OutcomeCounted: Counted,
		accounting.OutcomeGone:    Gone,
	}
	results := make([]Result, len(flushes))
	for i, f := range flushes {
		verdict := Replayed
		if outcome, ok := entered[entry{f.BatchID, f.Scope.ID}]; ok {
			verdict = verdicts[outcome]
		}
		results[i] = Result{Flush: f, Verdict: verdict}
	}
	return results
}

// columns are flushes turned by a quarter, as the statement takes them, and the
// ids of the rows to lock.
type columns struct {
	batches, scopes, owners               ids
	kinds                                 []int16
	markers, bytes, components, emissions []int64
	repositories, namespaces              ids
}

func columnsOf(flushes []accounting.Flush) columns {
	var c columns
	for _, f := range flushes {
		c.batches = append(c.batches, f.BatchID)
		c.scopes = append(c.scopes, f.Scope.ID)
		c.owners = append(c.owners, f.Scope.Namespace)
		c.kinds = append(c.kinds, int16(f.Scope.Kind))
		c.markers = append(c.markers, int64(f.Marker))
		c.bytes = append(c.bytes, f.Bytes)
		c.components = append(c.components, f.Components)
		c.emissions = append(c.emissions, f.Emissions)
		if f.Scope.Kind == accounting.KindRepository {
			c.repositories = append(c.repositories, f.Scope.ID)
		} else {
			c.namespaces = append(c.namespaces, f.Scope.ID)
		}
	}
	return c
}
