package buffer

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
)

func TestSetAside(t *testing.T) {
	t.Parallel()

	setAside := func(t *testing.T, b *bundle) (uuid.UUID, Aside) {
		t.Helper()
		id := uuid.Must(uuid.NewV7())
		aside, err := b.SetAside(t.Context(), id, func(int) {})
		require.NoError(t, err)
		return id, aside
	}
	asideOf := func(b *bundle, id uuid.UUID, key string) string {
		name, _ := strings.CutPrefix(key, bucketPrefix(b.bucket))
		return b.set("aside:" + id.String() + ":" + name)
	}

	t.Run("moves buffers and flushes as they are, and nothing claims or sweeps them", everywhere(func(t *testing.T, b *bundle) {
		require.NoError(t, b.SetIdentity(t.Context(), b.bucket, uuid.New()))
		b.emit(t, 5, delta(b.namespace, 1, 1), delta(b.repository, 2, 1))
		require.Len(t, b.claim(t).Flushes, 2)
		b.emit(t, 7, delta(b.repository, 4, 1))
		buf, flush := bufferKey(b.bucket, member(b.repository)), flushKey(b.bucket, member(b.repository))
		nsFlush := flushKey(b.bucket, member(b.namespace))
		before := b.dump(t)

		id, aside := setAside(t, b)
		require.Equal(t, Aside{Scopes: 2, Markers: map[uuid.UUID]accounting.Marker{b.namespace.ID: 7}}, aside)
		after := b.dump(t)
		require.Equal(t, map[string]string{
			asideOf(b, id, buf): before[buf], asideOf(b, id, flush): before[flush], asideOf(b, id, nsFlush): before[nsFlush],
			b.set(leaseName): after[b.set(leaseName)],
		}, after, "no set and no identity is left")
		for key := range after {
			reply := b.do(t, "PTTL", key)
			ttl, err := reply.AsInt64()
			require.NoError(t, err)
			require.Positive(t, ttl)
		}
		require.Empty(t, b.claim(t).Flushes)
		found, err := b.Sweep(t.Context())
		require.NoError(t, err)
		require.Zero(t, found)
	}))

	t.Run("what is emitted afterwards is claimed", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 5, delta(b.repository, 1, 1))
		setAside(t, b)
		b.emit(t, 5, delta(b.repository, 10, 1))
		flushes := b.claim(t).Flushes
		require.Len(t, flushes, 1)
		require.Equal(t, int64(10), flushes[0].Bytes)
	}))

	t.Run("a drain that had claimed finishes nothing of what came after", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 5, delta(b.repository, 1, 1))
		claim := b.claim(t)
		setAside(t, b)
		b.emit(t, 5, delta(b.repository, 10, 1))
		require.Len(t, b.claim(t).Flushes, 1)
		b.finish(t, claim.Flushes)
		require.Len(t, b.claim(t).Flushes, 1)
	}))

	t.Run("takes what stands in no set, in quarantine, or is of a wrong type", everywhere(func(t *testing.T, b *bundle) {
		orphan, poisoned := b.newRepository(), b.newRepository()
		b.do(t, "HSET", flushKey(b.bucket, member(orphan)), "marker", "junk")
		b.do(t, "SET", bufferKey(b.bucket, member(poisoned)), "text")
		b.do(t, "HSET", bufferKey(b.bucket, member(b.repository)), "9:bytes", "1", "x:bytes", "1", "1000000000000000000:bytes", "1")
		for _, s := range []accounting.Scope{poisoned, b.repository} {
			require.NoError(t, b.Quarantine(t.Context(), b.bucket, []accounting.Scope{s}))
		}
		_, aside := setAside(t, b)
		require.Equal(t, Aside{Scopes: 3, Markers: map[uuid.UUID]accounting.Marker{b.namespace.ID: 9}}, aside)
		require.Empty(t, b.members(t, quarantineName))
		b.emit(t, 9, delta(b.repository, 1, 1), delta(poisoned, 1, 1))
	}))

	t.Run("every bucket, over many pages, and twice", everywhere(func(t *testing.T, b *bundle) {
		scopes := manyScopes(3000)
		for i := 0; i < len(scopes); i += 2 {
			_, err := b.Emit(t.Context(), scopes[i].ID, 0, []accounting.Delta{delta(scopes[i], 1, 1), delta(scopes[i+1], 1, 1)})
			require.NoError(t, err)
		}
		var last int
		aside, err := b.SetAside(t.Context(), uuid.Must(uuid.NewV7()), func(n int) { last = n })
		require.NoError(t, err)
		require.Equal(t, len(scopes), aside.Scopes)
		require.Equal(t, len(scopes), last)
		sizes, err := b.Sizes(t.Context())
		require.NoError(t, err)
		require.Equal(t, [accounting.Buckets]Size{}, sizes)
		before := b.dump(t)
		_, again := setAside(t, b)
		require.Zero(t, again.Scopes)
		require.Equal(t, before, b.dump(t))
	}))

	t.Run("a key that no scope's is stays, and a set of a wrong type is named before anything is moved", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 5, delta(b.repository, 1, 1))
		b.do(t, "SET", b.set("text"), "x")
		bad := bucketPrefix((b.bucket+1)%accounting.Buckets) + inFlightName
		b.do(t, "SET", bad, "x")
		before := b.dump(t)
		_, err := b.SetAside(t.Context(), uuid.Must(uuid.NewV7()), func(int) {})
		require.ErrorContains(t, err, bad+" is a string, not a set")
		require.Equal(t, before, b.dump(t))

		b.do(t, "DEL", bad)
		_, aside := setAside(t, b)
		require.Equal(t, 1, aside.Scopes)
		require.True(t, b.exists(t, b.set("text")))
	}))

	t.Run("ends with its context, after which every bucket lacks its identity", everywhere(func(t *testing.T, b *bundle) {
		for bucket := range accounting.Buckets {
			require.NoError(t, b.SetIdentity(t.Context(), bucket, uuid.New()))
		}
		b.emit(t, 5, delta(b.repository, 1, 1))
		ctx, cancel := context.WithCancel(t.Context())
		_, err := b.SetAside(ctx, uuid.Must(uuid.NewV7()), func(int) { cancel() })
		if err != nil { // one page may be all
			require.ErrorIs(t, err, context.Canceled)
		}
		ids, err := b.Identities(t.Context())
		require.NoError(t, err)
		for _, id := range ids {
			require.Equal(t, uuid.Nil, id.ID)
		}
		_, err = b.SetAside(ctx, uuid.Must(uuid.NewV7()), func(int) {})
		require.ErrorIs(t, err, context.Canceled)
	}))

	t.Run("without a TTL nothing is touched", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 5, delta(b.repository, 1, 1))
		before := b.dump(t)
		_, err := New(b.client, Config{LeaseTTL: time.Minute}).SetAside(t.Context(), uuid.Must(uuid.NewV7()), func(int) {})
		require.ErrorContains(t, err, "must be at least 1ms")
		require.Equal(t, before, b.dump(t))
	}))
}
