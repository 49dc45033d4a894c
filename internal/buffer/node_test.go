package buffer

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
)

func TestSizes(t *testing.T) {
	t.Parallel()

	t.Run("counts the scopes of every bucket", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.namespace, 1, 1), delta(b.repository, 1, 1), delta(b.newRepository(), 1, 1))
		sizes, err := b.Sizes(t.Context())
		require.NoError(t, err)
		want := [accounting.Buckets]Size{}
		want[b.bucket] = Size{Namespaces: 1, Repositories: 2}
		require.Equal(t, want, sizes)

		b.claim(t)
		sizes, err = b.Sizes(t.Context())
		require.NoError(t, err)
		want[b.bucket] = Size{InFlight: 3}
		require.Equal(t, want, sizes)
	}))

	t.Run("E2 one bad bucket does not hide the others", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.namespace, 1, 1))
		bad, worse := (b.bucket+1)%accounting.Buckets, (b.bucket+2)%accounting.Buckets
		b.do(t, "SET", bucketPrefix(bad)+inFlightName, "text")
		b.do(t, "SET", bucketPrefix(worse)+inFlightName, "text")
		sizes, err := b.Sizes(t.Context())
		require.ErrorContains(t, err, "inflight is a string, not a set")
		require.ErrorContains(t, err, "(and 1 more)")
		require.EqualValues(t, 1, sizes[b.bucket].Namespaces)
	}))

	t.Run("E2 Redis that is down hides all", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.server.Stop()
		_, err := b.Sizes(t.Context())
		require.ErrorContains(t, err, "(and 255 more)")
	})
}

func TestIdentities(t *testing.T) {
	t.Parallel()

	t.Run("are read with the run ids of their nodes", everywhere(func(t *testing.T, b *bundle) {
		before, err := b.Identities(t.Context())
		require.NoError(t, err)
		for _, found := range before {
			require.Equal(t, uuid.Nil, found.ID)
			require.Len(t, found.RunID, 40)
		}
		id := uuid.Must(uuid.NewV7())
		require.NoError(t, b.SetIdentity(t.Context(), 7, id))
		b.do(t, "SET", bucketPrefix(8)+identityName, "text")
		b.do(t, "RPUSH", bucketPrefix(9)+identityName, "text")
		ids, err := b.Identities(t.Context())
		require.NoError(t, err)
		require.Equal(t, Identity{ID: id, RunID: before[7].RunID}, ids[7])
		for _, unreadable := range []int{8, 9} {
			require.Equal(t, before[unreadable], ids[unreadable])
			require.NoError(t, b.SetIdentity(t.Context(), unreadable, id))
		}
		ids, err = b.Identities(t.Context())
		require.NoError(t, err)
		require.Equal(t, id, ids[9].ID)
		require.ErrorContains(t, b.SetIdentity(t.Context(), 256, id), "bucket 256")
	}))

	t.Run("of a Redis that restarts empty, and of one that is down", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		require.NoError(t, b.SetIdentity(t.Context(), 7, uuid.New()))
		before, err := b.Identities(t.Context())
		require.NoError(t, err)
		b.server.Restart()
		after := awaitIdentities(t, b.Buffer)
		require.Equal(t, uuid.Nil, after[7].ID, "its data are gone")
		require.NotEqual(t, before[7].RunID, after[7].RunID)

		b.server.Stop()
		after, err = b.Identities(t.Context())
		require.Error(t, err)
		require.Zero(t, after)
	})
}

func TestCheck(t *testing.T) {
	t.Parallel()

	t.Run("refuses eviction, and needs no CONFIG GET", everywhere(func(t *testing.T, b *bundle) {
		require.NoError(t, b.Check(t.Context()))
		b.onEveryNode(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
		require.ErrorContains(t, b.Check(t.Context()), `maxmemory-policy is "allkeys-lru": set it to noeviction`)
		b.onEveryNode(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
		b.onEveryNode(t, "ACL", "SETUSER", "default", "-config")
		require.NoError(t, b.Check(t.Context()))
		b.onEveryNode(t, "ACL", "SETUSER", "default", "-info")
		require.ErrorContains(t, b.Check(t.Context()), "the ACL user needs +info")
	}))

	t.Run("refuses a Redis that is down", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.server.Stop()
		require.ErrorContains(t, b.Check(t.Context()), "redis is not fit for use")
	})
}
