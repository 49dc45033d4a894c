package buffer

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
)

func TestSweep(t *testing.T) {
	t.Parallel()

	sweep := func(t *testing.T, b *bundle) int {
		t.Helper()
		found, err := b.Sweep(t.Context())
		require.NoError(t, err)
		return found
	}

	t.Run("AC12 a buffer and a flush that stand in neither set are put back", everywhere(func(t *testing.T, b *bundle) {
		batch := uuid.Must(uuid.NewV7())
		flushed := b.newRepository()
		for _, s := range []accounting.Scope{b.namespace, b.repository} {
			b.do(t, "HSET", bufferKey(b.bucket, member(s)), "3:bytes", "7", "3:components", "1", "3:emissions", "1")
		}
		b.do(t, "HSET", flushKey(b.bucket, member(flushed)), "batch", batch.String(), "marker", "5", "bytes", "8", "components", "2", "emissions", "4")
		require.Empty(t, b.claim(t).Flushes)

		require.Equal(t, 3, sweep(t, b))
		claim := b.claim(t)
		require.ElementsMatch(t, []accounting.Scope{b.namespace, b.repository, flushed}, scopesOf(claim.Flushes))
		require.Contains(t, claim.Flushes, accounting.Flush{
			Scope: flushed, BatchID: batch, Marker: 5, Counters: accounting.Counters{Bytes: 8, Components: 2}, Emissions: 4,
		})
		require.Zero(t, sweep(t, b))
	}))

	t.Run("AC12 what the scripts left is all right", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.namespace, 1, 1), delta(b.repository, 1, 1))
		b.emit(t, 5, delta(b.namespace, 1, 1), delta(b.repository, 1, 1))
		require.Zero(t, sweep(t, b))
		claim := b.claim(t)
		require.Zero(t, sweep(t, b))
		b.finish(t, claim.Flushes)
		require.Zero(t, sweep(t, b))
	}))

	t.Run("AC12 many buckets, over many pages", everywhere(func(t *testing.T, b *bundle) {
		scopes := manyScopes(3000)
		for i := 0; i < len(scopes); i += 2 {
			_, err := b.Emit(t.Context(), scopes[i].ID, 0, []accounting.Delta{delta(scopes[i], 1, 1), delta(scopes[i+1], 1, 1)})
			require.NoError(t, err)
		}
		for bucket := range accounting.Buckets {
			b.do(t, "DEL", bucketPrefix(bucket)+dirtyNamespaceName, bucketPrefix(bucket)+dirtyRepositoryName)
		}
		require.Equal(t, len(scopes), sweep(t, b))
		sizes, err := b.Sizes(t.Context())
		require.NoError(t, err)
		var sum Size
		for _, s := range sizes {
			sum.Namespaces, sum.Repositories = sum.Namespaces+s.Namespaces, sum.Repositories+s.Repositories
		}
		require.Equal(t, Size{Namespaces: 1500, Repositories: 1500}, sum)
	}))

	t.Run("a scope in quarantine stays there, and comes back when it is taken out", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.repository, 1, 1))
		require.NoError(t, b.Quarantine(t.Context(), b.bucket, []accounting.Scope{b.repository}))
		require.NoError(t, b.Forget(t.Context(), b.bucket, []accounting.Scope{b.repository}))
		require.Zero(t, sweep(t, b))
		b.do(t, "SREM", b.set(quarantineName), member(b.repository))
		require.Equal(t, 1, sweep(t, b))
		require.Len(t, b.claim(t).Flushes, 1)
	}))

	t.Run("keys that name no scope are left alone", everywhere(func(t *testing.T, b *bundle) {
		m := member(b.repository)
		for _, key := range []string{
			"buf:" + m, "stowage:2:{0}:buf:" + m, b.set("buf:text"), b.set("buf:"), b.set("else:" + m),
			"stowage:1:{999}:buf:" + m, "stowage:1:{x}:buf:" + m, "stowage:1:buf:" + m,
			bufferKey((b.bucket+1)%accounting.Buckets, m),
		} {
			b.do(t, "HSET", key, "0:bytes", "1")
		}
		before := b.dump(t)
		require.Zero(t, sweep(t, b))
		require.Equal(t, before, b.dump(t))
	}))

	t.Run("a bucket that refuses does not stop the others", everywhere(func(t *testing.T, b *bundle) {
		other := accounting.NamespaceScope(uuid.MustParse(someNamespace))
		bucket := accounting.Bucket(other.ID)
		b.do(t, "HSET", bufferKey(bucket, member(other)), "0:bytes", "1")
		b.do(t, "SET", bucketPrefix(bucket)+dirtyNamespaceName, "text")
		b.do(t, "HSET", bufferKey(b.bucket, member(b.repository)), "0:bytes", "1")
		found, err := b.Sweep(t.Context())
		require.ErrorContains(t, err, "dirty:namespace is a string, not a set")
		require.Equal(t, 1, found)
	}))

	t.Run("what went since the scan saw it is left alone", everywhere(func(t *testing.T, b *bundle) {
		m := member(b.repository)
		found, err := b.restore(t.Context(), []string{bufferKey(b.bucket, m), flushKey(b.bucket, m)})
		require.NoError(t, err)
		require.Zero(t, found)
		require.Empty(t, b.dump(t))
	}))

	t.Run("replicas are not swept", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.do(t, "HSET", bufferKey(b.bucket, member(b.repository)), "0:bytes", "1")
		b.do(t, "REPLICAOF", "127.0.0.1", "1")
		require.Zero(t, sweep(t, b))
	})

	t.Run("ends with its context", everywhere(func(t *testing.T, b *bundle) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := b.Sweep(ctx)
		require.ErrorIs(t, err, context.Canceled)
	}))
}
