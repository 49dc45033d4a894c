package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/ledger"
)

// pendingTimeout bounds the question to Redis: rows are locked meanwhile.
const pendingTimeout = 200 * time.Millisecond

// drift is a row that is wrong, and not only behind.
type drift struct {
	scope accounting.Scope
	// off is what is wrong: signed, negative when the row shows too much.
	off accounting.Counters
	// expected is what the row holds with all that is on its way to it.
	expected accounting.Counters
	// reconciled says that a pass has written the row before.
	reconciled bool
}

// review tells the corrections of rows that are wrong from those of rows that are
// only behind, before they are written, and has the guard hold some of them.
func (r *run) review(ctx context.Context, tx pgx.Tx, due []ledger.Correction) (map[uuid.UUID]bool, error) {
	drifts, err := r.measureDrift(ctx, tx, due)
	if err != nil {
		return nil, err
	}
	held, err := r.guard(ctx, tx, due, drifts)
	if err != nil {
		return nil, err
	}
	r.drifts = slices.DeleteFunc(drifts, func(d drift) bool { return held[d.scope.ID] })
	return held, nil
}

// measureDrift finds the rows that are wrong. A delta that the scan has seen, and
// that is still on its way through Redis, is part of the correction; its drain will
// find it counted. What is left of a correction without these was missing, or too
// much.
//
// The rows are locked, so no flush of theirs is entered meanwhile. When Redis
// does not answer, the whole correction passes for drift, and so does what the
// pass corrects from then on: asking again would keep rows locked for nothing.
func (r *run) measureDrift(ctx context.Context, tx pgx.Tx, due []ledger.Correction) ([]drift, error) {
	var scopes []accounting.Scope
	for _, c := range due {
		if !c.IsZero() {
			scopes = append(scopes, c.Scope)
		}
	}
	if len(scopes) == 0 {
		return nil, nil
	}
	pending := r.pending(ctx, scopes)
	entered, err := enteredFlushes(ctx, tx, pending)
	if err != nil {
		return nil, err
	}
	var drifts []drift
	for _, c := range due {
		if c.IsZero() {
			continue
		}
		behind := r.behind(c, pending[c.Scope], entered)
		if off := c.Minus(behind); !off.IsZero() {
			drifts = append(drifts, drift{scope: c.Scope, off: off, expected: c.Old.Plus(behind), reconciled: c.Since > 0})
		}
	}
	return drifts, nil
}

func (r *run) pending(ctx context.Context, scopes []accounting.Scope) map[accounting.Scope]buffer.Pending {
	if r.unanswered {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, pendingTimeout)
	defer cancel()
	pending, err := r.Buffer.Pending(ctx, scopes)
	if err != nil {
		r.unanswered = true
		r.Log.WarnContext(ctx, "cannot tell drift from what is buffered: all that was corrected is reported as drift",
			"namespace_id", r.id.Namespace, "batch_id", r.id.Batch, "error", err)
	}
	return pending
}

// enteredFlushes are the flushes that are applied and only not yet deleted.
func enteredFlushes(ctx context.Context, tx pgx.Tx, pending map[accounting.Scope]buffer.Pending) (map[uuid.UUID]bool, error) {
	var batches, scopes []uuid.UUID
	for scope, p := range pending {
		if p.Flush != nil {
			batches, scopes = append(batches, p.Flush.BatchID), append(scopes, scope.ID)
		}
	}
	entered := map[uuid.UUID]bool{}
	if len(batches) == 0 {
		return entered, nil
	}
	rows, err := tx.Query(ctx, `
		SELECT scope_id FROM storage_ledger
		JOIN unnest($1::uuid[], $2::uuid[]) AS f (batch_id, scope_id) USING (batch_id, scope_id)`, batches, scopes)
	if err != nil {
		return nil, fmt.Errorf("look for applied flushes: %w", err)
	}
	var scope uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&scope}, func() error {
		entered[scope] = true
		return nil
	})
	return entered, err
}

// behind is what of the correction is on its way: markers that the last pass had
// not seen and this one has.
func (r *run) behind(c ledger.Correction, p buffer.Pending, entered map[uuid.UUID]bool) accounting.Counters {
	var sum accounting.Counters
	seen := func(m accounting.Marker) bool { return m >= c.Since && m < r.id.Marker }
	for _, b := range p.Buffered {
		if seen(b.Marker) {
			sum = sum.Plus(b.Counters)
		}
	}
	if f := p.Flush; f != nil && seen(f.Marker) && !entered[c.Scope.ID] {
		sum = sum.Plus(f.Counters)
	}
	return sum
}
