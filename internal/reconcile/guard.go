package reconcile

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/requests"
)

// Guard says which corrections are too good to be true: a helper table that was
// emptied by mistake, or a bad restore, makes a recount come out far too low. A
// correction is held when it lowers one of a scope's counters by more than Percent
// of it and by more than the size. A scope that no pass has written before is never
// held, nor is a correction that raises.
type Guard struct {
	// Percent is the share of the counter; 100 holds nothing.
	Percent int
	// Bytes and Components are the sizes.
	Bytes, Components int64
	// ConfirmAfter is how long after the first pass that found it another has to
	// find it still, to write it.
	ConfirmAfter time.Duration
}

// DefaultGuard is that of a worker that sets nothing.
func DefaultGuard() Guard {
	return Guard{Percent: 50, Bytes: 1 << 30, Components: 1000, ConfirmAfter: time.Hour}
}

// passesUntilConfirmed is how many passes a held namespace gets in ConfirmAfter, so
// that it is soon right when the content is repaired.
const passesUntilConfirmed = 4

// holds reports whether a scope's counters may not be lowered from these to those
// without being confirmed.
func (g Guard) holds(from, to accounting.Counters) bool {
	return g.exceeded(from.Bytes, to.Bytes, g.Bytes) || g.exceeded(from.Components, to.Components, g.Components)
}

func (g Guard) exceeded(from, to, size int64) bool {
	lowered := float64(from) - float64(to)
	return lowered > float64(size) && lowered > float64(from)*float64(g.Percent)/100
}

// guard returns the scopes of due that are not to be written, and keeps a record
// of those whose own correction is the reason. The rows of due are locked.
//
// A held row is as after a pass that was killed before it wrote it: it keeps its
// value and its last_reconciled_at, and every delta that may still come is judged
// by those. The namespace is held with any of its repositories, or its stamp would
// vouch for them.
func (r *run) guard(ctx context.Context, tx pgx.Tx, due []ledger.Correction, drifts []drift) (map[uuid.UUID]bool, error) {
	held := map[uuid.UUID]bool{}
	suspects := slices.DeleteFunc(slices.Clone(drifts), func(d drift) bool {
		return !d.reconciled || !r.cfg.Guard.holds(d.expected, d.expected.Plus(d.off))
	})
	if len(suspects) > 0 || r.holds {
		if err := r.judge(ctx, tx, due, suspects, held); err != nil {
			return nil, fmt.Errorf("guard: %w", err)
		}
	}
	if due[0].Scope.Kind != accounting.KindNamespace {
		return held, nil
	}
	if r.done.Held > 0 {
		held[r.id.Namespace] = true
	}
	if r.holds && !held[r.id.Namespace] {
		return held, forgetNamespace(ctx, tx, r.id)
	}
	return held, nil
}

// judge adds to held the suspects that are not confirmed, records them, and forgets
// what was held of the rest of due.
func (r *run) judge(ctx context.Context, tx pgx.Tx, due []ledger.Correction, suspects []drift, held map[uuid.UUID]bool) error {
	known, err := lockHeld(ctx, tx, due)
	if err != nil {
		return err
	}
	var hold []Held
	for _, s := range suspects {
		h, seen := known[s.scope.ID]
		if !seen || r.grown(h, s) {
			h = Held{Scope: s.scope, Seen: r.id.Marker, Expected: s.expected, Counted: s.expected.Plus(s.off)}
		}
		if r.confirmed(h) {
			continue
		}
		hold = append(hold, h)
		held[s.scope.ID] = true
	}
	if err := forget(ctx, tx, known, held); err != nil {
		return err
	}
	return r.hold(ctx, tx, hold)
}

func (r *run) confirmed(h Held) bool {
	return h.ApprovedAt != nil || r.id.Marker.Time().Sub(h.Seen.Time()) >= r.cfg.Guard.ConfirmAfter
}

// grown reports that so much more is missing than when it was first seen that
// what was seen, or approved, does not cover it.
func (r *run) grown(h Held, s drift) bool {
	missing := h.Expected.Minus(h.Counted)
	return r.cfg.Guard.holds(s.expected.Minus(missing), s.expected.Plus(s.off))
}

// hold records the corrections and keeps a request open, so that the namespace
// gets another pass, and one after the time.
func (r *run) hold(ctx context.Context, tx pgx.Tx, hold []Held) error {
	if len(hold) == 0 {
		return nil
	}
	if err := keep(ctx, tx, hold, r.cfg.Guard.ConfirmAfter/passesUntilConfirmed); err != nil {
		return err
	}
	return requests.Raise(ctx, tx, []requests.Request{{Namespace: r.id.Namespace, Marker: r.id.Marker}})
}
