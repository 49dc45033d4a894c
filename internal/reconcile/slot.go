package reconcile

import (
	"context"
	"math/rand/v2"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stowage-dev/stowage/internal/pgdb"
)

// takeSlot takes one of the cluster's slots without waiting; nil means that
// none is free. It begins at a random one, so that processes do not all try
// the same taken slots first.
func takeSlot(ctx context.Context, pool *pgxpool.Pool, slots int) (*pgdb.Hold, error) {
	first := rand.IntN(slots)
	for i := range slots {
		hold, held, err := pgdb.TryHold(ctx, pool, classSlot, int32((first+i)%slots))
		if err != nil || held {
			return hold, err
		}
	}
	return nil, nil
}
