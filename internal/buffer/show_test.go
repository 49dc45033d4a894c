package buffer

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
)

func TestStates(t *testing.T) {
	t.Parallel()

	t.Run("says what a bucket holds, and how old that is at least", everywhere(func(t *testing.T, b *bundle) {
		states, err := b.States(t.Context())
		require.NoError(t, err)
		require.Zero(t, states)

		b.emit(t, 1, delta(b.namespace, 1, 1), delta(b.repository, 1, 1))
		claim := b.claim(t)
		later := b.newRepository()
		b.emit(t, 1, delta(later, 1, 1), delta(b.namespace, 1, 1))
		b.do(t, "PEXPIRE", bufferKey(b.bucket, member(later)), "600000") // as if its last emission were 50 minutes ago
		require.NoError(t, b.Quarantine(t.Context(), b.bucket, []accounting.Scope{later}))

		states, err = b.States(t.Context())
		require.NoError(t, err)
		got := states[b.bucket]
		require.Equal(t, Size{Namespaces: 1, Repositories: 1, InFlight: 2}, got.Size)
		require.EqualValues(t, 1, got.Quarantined)
		require.Equal(t, claim.Flushes[0].BatchID, got.OldestFlush)
		require.InDelta(t, 50*time.Minute, got.QuietFor, float64(time.Minute))
		require.NotEmpty(t, got.Holder)
		require.InDelta(t, time.Minute, got.LeaseLeft, float64(30*time.Second))
		states[b.bucket] = State{}
		require.Zero(t, states, "no other bucket")
	}))

	t.Run("how long the oldest has waited, and how many emissions are pending", everywhere(func(t *testing.T, b *bundle) {
		state := func() State {
			states, err := b.States(t.Context())
			require.NoError(t, err)
			return states[b.bucket]
		}
		since := bucketPrefix(b.bucket) + sinceName
		ago := func(d time.Duration) string { return strconv.FormatInt(time.Now().Add(-d).UnixMilli(), 10) }
		for range 3 {
			b.emit(t, 1, delta(b.namespace, 1, 1))
		}
		b.emit(t, 2, delta(b.namespace, 1, 1), delta(b.repository, 1, 1))
		require.EqualValues(t, 5, state().Emissions)
		b.do(t, "ZADD", since, ago(time.Hour), member(b.namespace))
		b.do(t, "ZADD", since, ago(time.Minute), member(b.repository))
		b.do(t, "ZADD", since, ago(24*time.Hour), member(b.newRepository()))
		b.emit(t, 2, delta(b.namespace, 1, 1))
		require.InDelta(t, time.Hour, state().DirtyFor, float64(30*time.Second), "a later emission makes it no younger")
		require.EqualValues(t, 6, state().Emissions)

		claim := b.claim(t)
		require.EqualValues(t, 6, state().Emissions, "flushes are pending")
		require.InDelta(t, time.Hour, state().DirtyFor, float64(30*time.Second), "the other marker waits")
		b.finish(t, claim.Flushes)
		require.EqualValues(t, 2, state().Emissions)
		b.finish(t, b.claim(t).Flushes)
		require.Zero(t, state().DirtyFor)
		require.Zero(t, state().Emissions)
		require.Len(t, b.dump(t), 2, "the lease is left, and in since what is dirty no more by an older build's claim")
		b.do(t, "DEL", since)
		b.emit(t, 2, delta(b.namespace, 1, 1))
		b.claim(t)
		require.False(t, b.exists(t, since))

		b.emit(t, 2, delta(b.namespace, 1, 1))
		require.Less(t, state().DirtyFor, time.Minute, "dirty anew")
		b.do(t, "DEL", since)
		b.do(t, "SET", since, "x")
		b.emit(t, 2, delta(b.repository, 1, 1))
		require.Len(t, b.claim(t).Flushes, 2, "nothing fails for it")
		b.do(t, "DEL", since)
	}))

	t.Run("more members than are looked at are counted by a sample", everywhere(func(t *testing.T, b *bundle) {
		for range sampledBuffers + 50 {
			b.emit(t, 1, delta(b.newRepository(), 1, 1))
		}
		states, err := b.States(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, sampledBuffers+50, states[b.bucket].Emissions)
	}))

	t.Run("a bucket that cannot be read does not hide the others", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 1, delta(b.namespace, 1, 1))
		other := (b.bucket + 1) % accounting.Buckets
		b.do(t, "SET", bucketPrefix(other)+leaseName, "x")
		b.do(t, "SET", bucketPrefix(other)+inFlightName, "x")
		states, err := b.States(t.Context())
		require.ErrorContains(t, err, inFlightName+" is a string")
		require.EqualValues(t, 1, states[b.bucket].Namespaces)
		require.Zero(t, states[other])
	}))
}

func TestMembers(t *testing.T) {
	t.Parallel()

	t.Run("each once, with the sets that it is in", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 1, delta(b.namespace, 1, 1), delta(b.repository, 1, 1))
		b.emit(t, 2, delta(b.namespace, 1, 1))
		b.claim(t)
		b.do(t, "SADD", b.set(quarantineName), "foreign")
		members, more, err := b.Members(t.Context(), b.bucket, 10)
		require.NoError(t, err)
		require.False(t, more)
		slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
		for i := range members {
			require.Less(t, members[i].QuietFor, time.Minute)
			members[i].QuietFor = 0
		}
		require.Equal(t, []Member{
			{Name: "foreign", Quarantined: true},
			{Name: member(b.namespace), Scope: b.namespace, Dirty: true, InFlight: true},
			{Name: member(b.repository), Scope: b.repository, InFlight: true},
		}, members)
	}))

	t.Run("no more than asked for of each set, and says that there are more", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 1, delta(b.namespace, 1, 1), delta(b.repository, 1, 1), delta(b.newRepository(), 1, 1))
		members, more, err := b.Members(t.Context(), b.bucket, 1)
		require.NoError(t, err)
		require.True(t, more)
		require.Len(t, members, 2)
		_, more, err = b.Members(t.Context(), b.bucket, 2)
		require.NoError(t, err)
		require.False(t, more)
	}))
}

func TestPendingKnowsTheQuarantine(t *testing.T) {
	t.Parallel()

	t.Run("in quarantine or not", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 1, delta(b.namespace, 1, 1), delta(b.repository, 1, 1))
		require.NoError(t, b.Quarantine(t.Context(), b.bucket, []accounting.Scope{b.repository}))
		never := accounting.RepositoryScope(b.namespace.ID, uuid.New())
		pending, err := b.Pending(t.Context(), []accounting.Scope{b.namespace, b.repository, never})
		require.NoError(t, err)
		require.False(t, pending[b.namespace].Quarantined)
		require.True(t, pending[b.repository].Quarantined)
		require.Len(t, pending[b.repository].Buffered, 1)
		require.Equal(t, Pending{}, pending[never])
	}))

	t.Run("where it cannot be read, nothing is known", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 1, delta(b.namespace, 1, 1))
		b.do(t, "SET", b.set(quarantineName), "x")
		pending, err := b.Pending(t.Context(), []accounting.Scope{b.namespace})
		require.NoError(t, err)
		require.Empty(t, pending)
	}))
}
