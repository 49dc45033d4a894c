package buffer

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/redistest"
)

// TestAC36FailOverLosesTheLastWrites shows what the drain and its tick have to
// cope with. That they do, internal/drain tests.
func TestAC36FailOverLosesTheLastWrites(t *testing.T) {
	t.Parallel()
	redis := redistest.StartReplicated(t)
	client := open(t, redis.Reach())
	t.Cleanup(client.Close)
	taken := make(map[int]bool)
	setup := func(t *testing.T) *bundle {
		t.Helper()
		b := newBundle(client)
		for taken[b.bucket] {
			b = newBundle(client)
		}
		taken[b.bucket] = true
		b.emit(t, 5, delta(b.repository, 10, 1))
		return b
	}
	idle, emitted, frozen, claimed, finished, released := setup(t), setup(t), setup(t), setup(t), setup(t), setup(t)
	for _, b := range []*bundle{frozen, finished, released} {
		b.claim(t)
	}
	id := uuid.New()
	require.NoError(t, idle.SetIdentity(t.Context(), idle.bucket, id))
	before, err := idle.Identities(t.Context())
	require.NoError(t, err)
	flushOf := func(t *testing.T, b *bundle) accounting.Flush {
		t.Helper()
		p := b.pending(t, b.repository)
		require.NotNil(t, p.Flush)
		return *p.Flush
	}
	frozenFlush, finishedFlush := flushOf(t, frozen), flushOf(t, finished)

	redis.Cut()
	emitted.emit(t, 5, delta(emitted.repository, 7, 1))
	frozen.emit(t, 5, delta(frozen.repository, 7, 1))
	lostFlush := claimed.claim(t).Flushes[0]
	finished.finish(t, []accounting.Flush{finishedFlush})
	require.NoError(t, released.Release(t.Context(), released.bucket, "holder"))
	redis.Primary.Stop()

	t.Run("AC7 while the primary is down, calls fail in no more time than the context allows", func(t *testing.T) {
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			start := time.Now()
			_, err := idle.Emit(ctx, idle.namespace.ID, 5, []accounting.Delta{delta(idle.namespace, 1, 1)})
			require.Error(t, err)
			require.Less(t, time.Since(start), patience)
			cancel()
		}
	})

	redis.FailOver()
	after := awaitIdentities(t, idle.Buffer)

	t.Run("every bucket has another run id, and its identity", func(t *testing.T) {
		require.Equal(t, id, after[idle.bucket].ID)
		for bucket := range after {
			require.Equal(t, before[bucket].ID, after[bucket].ID)
			require.NotEqual(t, before[bucket].RunID, after[bucket].RunID)
		}
	})
	t.Run("an emission is lost in silence", func(t *testing.T) {
		require.Equal(t, []MarkedCounters{marked(5, 10, 1, 1)}, emitted.pending(t, emitted.repository).Buffered)
		require.Equal(t, Pending{Flush: &frozenFlush}, frozen.pending(t, frozen.repository), "behind a flush too")
		require.Empty(t, frozen.claim(t).Expired)
	})
	t.Run("E6 a finished flush comes back as it was, with its batch id", func(t *testing.T) {
		require.Equal(t, []accounting.Flush{finishedFlush}, finished.claim(t).Flushes)
	})
	t.Run("deltas whose claim is lost come back under another batch id", func(t *testing.T) {
		again := claimed.claim(t).Flushes
		require.Len(t, again, 1)
		require.NotEqual(t, lostFlush.BatchID, again[0].BatchID)
		require.Equal(t, lostFlush.Counters, again[0].Counters)
		claimed.finish(t, []accounting.Flush{lostFlush}) // the drain that had it
		require.Equal(t, again, claimed.claim(t).Flushes, "is not its to finish")
	})
	t.Run("a lease that was released is held again, until it expires", func(t *testing.T) {
		require.True(t, released.claimAs(t, "other", 10).Busy)
		require.Positive(t, released.ttl(t, released.set(leaseName)))
	})
}
