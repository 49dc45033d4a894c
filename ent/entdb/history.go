package entdb

import (
	"context"
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/internal/history"
)

// Errors of History.
var (
	// ErrHistoryRange says that a range is empty or not of whole hours of UTC.
	ErrHistoryRange = history.ErrRange
	// ErrNoHistory says that there is no such namespace, and no history of one.
	ErrNoHistory = history.ErrNotFound
)

// History is the usage of a namespace by the hour, for billing.
type History struct {
	// Since and Until bound the hours that history has, of any namespace, in UTC:
	// hours before Since are older than it or than the retention, and those from
	// Until on are open. Both are zero until workers have begun to keep history.
	Since, Until time.Time
	// Hours are all closed hours of the range that was asked for, in order and
	// without gaps. Before its creation and after its end a namespace has hours with
	// nothing in them.
	Hours []UsageHour
}

// UsageHour is one closed hour: it never changes.
type UsageHour struct {
	// Start is the hour's first instant, in UTC.
	Start time.Time
	// End is what was stored at its end.
	End Counters
	// ByteSeconds is the integral of the stored bytes over the hour: exact, with at
	// most six decimals.
	ByteSeconds *big.Rat
	// PeakBytes is the most that was stored in the hour.
	PeakBytes int64
	// Adjustments are the changes that no traffic of the hour explains. The figures
	// above contain them.
	Adjustments []UsageAdjustment
}

// UsageAdjustment is a change that was applied in an hour and does not belong to the
// traffic of it.
type UsageAdjustment struct {
	AppliedAt time.Time
	// Kind is "correction" (a reconciliation found the counters off), "late" (applied
	// in a later hour than it was taken from the buffer in), "closed" (the namespace
	// was deleted with what it still stored) or "unexplained" (the counters were
	// changed past the ledger).
	Kind string
	// BatchID is that of the ledger's entry; zero for the last two kinds.
	BatchID uuid.UUID
	// Change is what was added, signed.
	Change Counters
}

// History reads the closed hours of a namespace, those not before from and before to. It goes
// on when the namespace is deleted, by its id. Errors: ErrNilID, ErrHistoryRange,
// ErrNoHistory.
func (c *Client) History(ctx context.Context, id uuid.UUID, from, to time.Time) (History, error) {
	if id == uuid.Nil {
		return History{}, fmt.Errorf("usage history: %w", ErrNilID)
	}
	kept, err := history.Read(ctx, c.pool, id, from, to)
	if err != nil {
		return History{}, err
	}
	h := History{Since: kept.Since, Until: kept.Until, Hours: make([]UsageHour, len(kept.Hours))}
	for i, hour := range kept.Hours {
		h.Hours[i] = UsageHour{Start: hour.Start, End: Counters(hour.End), ByteSeconds: hour.ByteSeconds, PeakBytes: hour.PeakBytes}
		for _, a := range hour.Adjustments {
			h.Hours[i].Adjustments = append(h.Hours[i].Adjustments, UsageAdjustment{
				AppliedAt: a.AppliedAt, Kind: a.Kind.String(), BatchID: a.BatchID, Change: Counters(a.Counters),
			})
		}
	}
	return h, nil
}
