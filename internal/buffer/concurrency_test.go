package buffer

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// ledger stands in for Postgres: it applies a batch of a scope once, and checks
// that a batch is always the same.
type ledger struct {
	mu      sync.Mutex
	applied map[uuid.UUID]map[accounting.Scope]accounting.Flush
	rows    map[accounting.Scope]accounting.Flush // sums of counters and emissions
	changed []accounting.Flush                    // batches seen with two contents
}

func newLedger() *ledger {
	return &ledger{
		applied: make(map[uuid.UUID]map[accounting.Scope]accounting.Flush),
		rows:    make(map[accounting.Scope]accounting.Flush),
	}
}

func (l *ledger) apply(flushes []accounting.Flush) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, f := range flushes {
		batch := l.applied[f.BatchID]
		if batch == nil {
			batch = make(map[accounting.Scope]accounting.Flush)
			l.applied[f.BatchID] = batch
		}
		if known, ok := batch[f.Scope]; ok {
			if known != f {
				l.changed = append(l.changed, f)
			}
			continue
		}
		batch[f.Scope] = f
		row := l.rows[f.Scope]
		row.Counters = row.Plus(f.Counters)
		row.Emissions += f.Emissions
		l.rows[f.Scope] = row
	}
}

// TestConcurrentEmittersAndClaimers: many emitters, two drains that both believe
// to have the lease, and that now and then die between any two steps.
func TestConcurrentEmittersAndClaimers(t *testing.T) {
	t.Parallel()
	everywhere(func(t *testing.T, b *bundle) {
		const emitters, rounds = 16, 150
		var scopes []accounting.Scope
		for len(scopes) < 6 {
			scopes = append(scopes, b.newRepository())
		}
		scopes[0] = b.namespace

		emitting, stop := context.WithCancel(t.Context())
		defer stop()
		l := newLedger()
		var drains errgroup.Group
		for _, holder := range []string{"a", "b"} {
			drains.Go(func() error {
				for emitting.Err() == nil {
					if err := b.drainOnce(t.Context(), l, holder); err != nil {
						return err
					}
				}
				return nil
			})
		}

		var mu sync.Mutex
		want := make(map[accounting.Scope]accounting.Flush)
		var emits errgroup.Group
		for range emitters {
			emits.Go(func() error {
				for range rounds {
					s := scopes[rand.IntN(len(scopes))]
					d := delta(s, rand.Int64N(2001)-1000, rand.Int64N(3)-1)
					if _, err := b.Emit(t.Context(), b.namespace.ID, accounting.Marker(rand.IntN(3)), []accounting.Delta{d}); err != nil {
						return err
					}
					mu.Lock()
					sum := want[s]
					sum.Counters = sum.Plus(d.Counters)
					sum.Emissions++
					want[s] = sum
					mu.Unlock()
				}
				return nil
			})
		}
		require.NoError(t, emits.Wait())
		stop()
		require.NoError(t, drains.Wait())

		require.Eventually(t, func() bool {
			require.NoError(t, b.drainOnce(t.Context(), l, "last"))
			sizes, err := b.Sizes(t.Context())
			require.NoError(t, err)
			return sizes[b.bucket] == Size{}
		}, wait, tick)
		require.Equal(t, want, l.rows)
		require.Empty(t, l.changed, "a frozen flush changed")
		require.NoError(t, b.Release(t.Context(), b.bucket, "last"))
		require.Empty(t, b.dump(t))
	})(t)
}

// drainOnce takes the lease by force, claims, applies and finishes, and dies
// between two of these steps once in a while.
func (b *bundle) drainOnce(ctx context.Context, l *ledger, holder string) error {
	lease := b.client.B().Del().Key(b.set(leaseName)).Build()
	if err := b.client.Do(ctx, lease).Error(); err != nil {
		return err
	}
	claim, err := b.Claim(ctx, b.bucket, holder, uuid.Must(uuid.NewV7()), 3)
	if err != nil || rand.IntN(5) == 0 {
		return err
	}
	l.apply(claim.Flushes)
	if rand.IntN(5) == 0 {
		return nil
	}
	return b.Finish(ctx, b.bucket, claim.Flushes)
}
