// Package history keeps what each namespace stored, hour by hour, for billing: it
// rolls the ledger up, each entry exactly once, and closes hours for good.
// README.md beside this file says how, and what is not guaranteed.
package history

import (
	"fmt"
	"math/big"
	"time"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

// DB is what this package needs of a pool.
type DB interface {
	pgdb.DB
	pgdb.Beginner
}

// Hour is the usage of a namespace in one hour.
type Hour struct {
	// Start is the hour's first instant, in UTC.
	Start time.Time
	// End is what is stored at its end.
	End accounting.Counters
	// ByteSeconds is the integral of the stored bytes over the hour: exact, with at
	// most six decimals.
	ByteSeconds *big.Rat
	// PeakBytes is the most that was stored after any change, or at the start.
	PeakBytes int64
	// Adjustments are the changes that no traffic of the hour explains. The figures
	// above contain them.
	Adjustments []Adjustment
}

// Adjustment is a change that was applied in an hour and does not belong to the
// traffic of it.
type Adjustment struct {
	AppliedAt time.Time
	Kind      Kind
	// BatchID is that of the ledger's entry; zero for the kinds that have none there.
	BatchID uuid.UUID
	// Counters is what was added, signed.
	accounting.Counters
}

// Kind is why an adjustment was made.
type Kind int

// The kinds, as usage_adjustments holds them.
const (
	// Correction: a reconciliation found the counters off.
	Correction Kind = iota + 1
	// Late: a flush that was frozen in an earlier hour than it was applied in.
	Late
	// Closed: the namespace was deleted with what it still stored.
	Closed
	// Unexplained: the counters were changed, and the ledger does not say by whom.
	Unexplained
)

// String is the kind's name in results and logs.
func (k Kind) String() string {
	switch k {
	case Correction:
		return "correction"
	case Late:
		return "late"
	case Closed:
		return "closed"
	case Unexplained:
		return "unexplained"
	default:
		return fmt.Sprintf("kind(%d)", int(k))
	}
}
