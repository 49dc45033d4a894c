package buffer

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
)

func TestSizes(t *testing.T) {
	t.Parallel()

	t.Run("counts the scopes of every bucket", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
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
	})

	t.Run("E2 one bad bucket does not hide the others, Redis that is down hides all", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(t, 0, delta(b.namespace, 1, 1))
		bad, worse := (b.bucket+1)%accounting.Buckets, (b.bucket+2)%accounting.Buckets
		b.do(t, "SET", bucketPrefix(bad)+inFlightName, "text")
		b.do(t, "SET", bucketPrefix(worse)+inFlightName, "text")
		sizes, err := b.Sizes(t.Context())
		require.ErrorContains(t, err, "inflight is a string, not a set")
		require.ErrorContains(t, err, "(and 1 more)")
		require.EqualValues(t, 1, sizes[b.bucket].Namespaces)

		b.server.Stop()
		_, err = b.Sizes(t.Context())
		require.ErrorContains(t, err, "(and 255 more)")
	})
}

func TestIdentities(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ids, err := b.Identities(t.Context())
	require.NoError(t, err)
	run := ids[0].RunID
	require.Len(t, run, 40)
	for bucket := range ids {
		require.Equal(t, Identity{RunID: run}, ids[bucket])
	}

	id := uuid.Must(uuid.NewV7())
	require.NoError(t, b.SetIdentity(t.Context(), 7, id))
	b.do(t, "SET", bucketPrefix(8)+identityName, "text")
	b.do(t, "RPUSH", bucketPrefix(9)+identityName, "text")
	ids, err = b.Identities(t.Context())
	require.NoError(t, err)
	require.Equal(t, Identity{ID: id, RunID: run}, ids[7])
	for _, unreadable := range []int{8, 9} {
		require.Equal(t, Identity{RunID: run}, ids[unreadable])
		require.NoError(t, b.SetIdentity(t.Context(), unreadable, id))
	}
	ids, err = b.Identities(t.Context())
	require.NoError(t, err)
	require.Equal(t, id, ids[9].ID)
	require.ErrorContains(t, b.SetIdentity(t.Context(), 256, id), "bucket 256")

	b.server.Restart()
	require.Eventually(t, func() bool { ids, err = b.Identities(t.Context()); return err == nil }, wait, tick)
	require.Equal(t, uuid.Nil, ids[7].ID, "its data are gone")
	require.NotEqual(t, run, ids[7].RunID)

	b.server.Stop()
	ids, err = b.Identities(t.Context())
	require.Error(t, err)
	require.Zero(t, ids)
}

func TestCheck(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.Check(t.Context()))
	b.do(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	require.ErrorContains(t, b.Check(t.Context()), `maxmemory-policy is "allkeys-lru": set it to noeviction`)
	b.do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	b.do(t, "ACL", "SETUSER", "default", "-config")
	require.NoError(t, b.Check(t.Context()), "needs no CONFIG GET")
	b.do(t, "ACL", "SETUSER", "default", "-info")
	require.ErrorContains(t, b.Check(t.Context()), "the ACL user needs +info")
	b.server.Stop()
	require.ErrorContains(t, b.Check(t.Context()), "redis is not fit for use")
}
