package buffer

import (
	"cmp"
	"context"
	"net"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/redistest"
)

func do(t *testing.T, client rueidis.Client, words ...string) rueidis.RedisMessage {
	t.Helper()
	reply, err := client.Do(context.WithoutCancel(t.Context()), client.B().Arbitrary(words...).Build()).ToMessage()
	require.NoError(t, err)
	return reply
}

// myID is how the other nodes call a node.
func myID(t *testing.T, node rueidis.Client) string {
	t.Helper()
	reply := do(t, node, "CLUSTER", "MYID")
	id, err := reply.ToString()
	require.NoError(t, err)
	return id
}

// rank puts the keys that a claim names before those that it finds in the sets.
func rank(key string) int {
	if _, ok := parseScopeKey(key); ok {
		return 1
	}
	return 0
}

func TestCluster(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	client := open(t, c.Reach())
	t.Cleanup(client.Close)
	b := New(client, Config{TTL: time.Hour, LeaseTTL: time.Minute})
	var nodes []rueidis.Client
	for _, node := range c.Nodes {
		nodes = append(nodes, node.Client(t))
	}
	scopes := manyScopes(600)
	drain := func(t *testing.T) (sum accounting.Counters) {
		t.Helper()
		for bucket := range accounting.Buckets {
			claim, err := b.Claim(t.Context(), bucket, "holder", uuid.Must(uuid.NewV7()), 500)
			require.NoError(t, err)
			require.Empty(t, claim.Expired)
			for _, f := range claim.Flushes {
				sum = sum.Plus(f.Counters)
			}
			require.NoError(t, b.Finish(t.Context(), bucket, claim.Flushes))
			require.NoError(t, b.Release(t.Context(), bucket, "holder"))
		}
		return sum
	}

	t.Run("scripts keep to one slot, whichever node has it", func(t *testing.T) {
		for i := 0; i < len(scopes); i += 2 {
			failed, err := b.Emit(t.Context(), scopes[i].ID, 0, []accounting.Delta{delta(scopes[i], 1, 1), delta(scopes[i+1], 2, 1)})
			require.NoError(t, err)
			require.Empty(t, failed)
		}
		all, err := b.Pending(t.Context(), scopes)
		require.NoError(t, err)
		require.Len(t, all, len(scopes))
		for _, s := range scopes {
			require.Len(t, all[s].Buffered, 1)
		}
		sizes, err := b.Sizes(t.Context())
		require.NoError(t, err)
		var sum int64
		for _, s := range sizes {
			sum += s.Namespaces + s.Repositories
		}
		require.EqualValues(t, len(scopes), sum)
		require.Equal(t, accounting.Counters{Bytes: 900, Components: 600}, drain(t))
	})

	t.Run("a bucket has the run id of its node", func(t *testing.T) {
		for bucket := range accounting.Buckets {
			require.NoError(t, b.SetIdentity(t.Context(), bucket, uuid.Must(uuid.NewV7())))
		}
		ids, err := b.Identities(t.Context())
		require.NoError(t, err)
		for bucket, id := range ids {
			require.NotEqual(t, uuid.Nil, id.ID)
			_, node := c.Slot(bucketPrefix(bucket))
			reply := do(t, nodes[node], "INFO", "server")
			info, err := reply.ToString()
			require.NoError(t, err)
			require.Contains(t, info, "run_id:"+id.RunID)
		}
	})

	t.Run("every primary is checked", func(t *testing.T) {
		require.NoError(t, b.Check(t.Context()))
		for _, node := range nodes {
			do(t, node, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
			require.ErrorContains(t, b.Check(t.Context()), "noeviction")
			do(t, node, "CONFIG", "SET", "maxmemory-policy", "noeviction")
		}
	})

	t.Run("a slot that moves key by key loses nothing and reports no loss", func(t *testing.T) {
		n, r := scopes[0], scopes[1]
		bucket := accounting.Bucket(n.Namespace)
		slot, from := c.Slot(bucketPrefix(bucket))
		to := (from + 1) % len(nodes)
		var emitted int64
		emit := func(s accounting.Scope) {
			if failed, err := b.Emit(t.Context(), s.Namespace, 0, []accounting.Delta{delta(s, 1, 1)}); err == nil && len(failed) == 0 {
				emitted++
			}
		}
		alarms := 0
		claim := func() error {
			claim, err := b.Claim(t.Context(), bucket, "holder", uuid.Must(uuid.NewV7()), 10)
			require.Empty(t, claim.Corrupt)
			if alarms += len(claim.Expired); len(claim.Expired) > 0 {
				require.ErrorContains(t, b.Forget(t.Context(), bucket, claim.Expired), "TRYAGAIN")
			}
			return err
		}
		// All keys that a claim names are there, so that it begins while the slot
		// moves; the flush of the second repository is not.
		emit(n)
		emit(r)
		require.NoError(t, claim())
		emit(n)
		emit(accounting.RepositoryScope(n.Namespace, uuid.Must(uuid.NewV7())))
		do(t, nodes[from], "SADD", bucketPrefix(bucket)+quarantineName, "text")
		do(t, nodes[to], "CLUSTER", "SETSLOT", strconv.Itoa(slot), "IMPORTING", myID(t, nodes[from]))
		do(t, nodes[from], "CLUSTER", "SETSLOT", strconv.Itoa(slot), "MIGRATING", myID(t, nodes[to]))
		require.ErrorContains(t, claim(), "non local key")
		emit(r)

		reply := do(t, nodes[from], "CLUSTER", "GETKEYSINSLOT", strconv.Itoa(slot), "100")
		keys, err := reply.AsStrSlice()
		require.NoError(t, err)
		host, port, err := net.SplitHostPort(c.Nodes[to].Addr)
		require.NoError(t, err)
		slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
		for _, key := range keys {
			do(t, nodes[from], "MIGRATE", host, port, key, "0", "5000")
			_ = claim() // most are refused
			emit(r)
		}
		require.Positive(t, alarms, "the new node had the sets before it had the flushes")
		do(t, nodes[to], "CLUSTER", "SETSLOT", strconv.Itoa(slot), "NODE", myID(t, nodes[to]))
		do(t, nodes[from], "CLUSTER", "SETSLOT", strconv.Itoa(slot), "NODE", myID(t, nodes[to]))
		sum := drain(t).Bytes
		require.Equal(t, emitted, sum+drain(t).Bytes, "the second drain is for what was emitted behind a flush")
	})
}

func TestClusterNodeDies(t *testing.T) {
	t.Parallel()
	c := redistest.StartCluster(t)
	client := open(t, c.Reach())
	t.Cleanup(client.Close)
	const dead = 1
	lost := make(map[int]bool) // buckets of the node that dies
	b := map[bool]*bundle{}    // by whether its bucket is one of them
	for bucket := range accounting.Buckets {
		_, node := c.Slot(bucketPrefix(bucket))
		lost[bucket] = node == dead
	}
	for len(b) < 2 {
		some := newBundle(client)
		b[lost[some.bucket]] = some
	}
	for bucket := range accounting.Buckets {
		require.NoError(t, b[true].SetIdentity(t.Context(), bucket, uuid.New()))
	}
	for _, some := range b {
		some.emit(t, 0, delta(some.namespace, 1, 1), delta(some.repository, 1, 1))
	}
	before, err := b[true].Identities(t.Context())
	require.NoError(t, err)
	c.Nodes[dead].Stop()

	t.Run("E2 the buckets of the other nodes are seen", func(t *testing.T) {
		sizes, err := b[true].Sizes(t.Context())
		require.Error(t, err)
		require.Equal(t, Size{Namespaces: 1, Repositories: 1}, sizes[b[false].bucket])
		require.Zero(t, sizes[b[true].bucket])
		ids, err := b[true].Identities(t.Context())
		require.Error(t, err)
		for bucket, id := range ids {
			if lost[bucket] {
				require.Zero(t, id)
			} else {
				require.Equal(t, before[bucket], id)
			}
		}
		require.Error(t, b[true].Check(t.Context()))
		_, err = b[true].Sweep(t.Context())
		require.Error(t, err)
	})
	t.Run("they are emitted to and drained", func(t *testing.T) {
		other := b[false]
		for range 100 {
			other.emit(t, 0, delta(other.namespace, 1, 1))
		}
		claim := other.claim(t)
		require.Len(t, claim.Flushes, 2)
		other.finish(t, claim.Flushes)
		require.NoError(t, other.Release(t.Context(), other.bucket, "holder"))
	})
	t.Run("AC7 its own fail in no more time than the context allows", func(t *testing.T) {
		for range 10 {
			ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
			start := time.Now()
			_, err := b[true].Emit(ctx, b[true].namespace.ID, 0, []accounting.Delta{delta(b[true].namespace, 1, 1)})
			require.Error(t, err)
			require.Less(t, time.Since(start), patience)
			_, err = b[true].Claim(ctx, b[true].bucket, "holder", uuid.Must(uuid.NewV7()), 10)
			require.Error(t, err)
			cancel()
		}
	})
	t.Run("AC36 an empty node in its place has other run ids and no identities, for its buckets only", func(t *testing.T) {
		c.Restart(dead)
		after := awaitIdentities(t, b[true].Buffer)
		for bucket, id := range after {
			if lost[bucket] {
				require.Equal(t, uuid.Nil, id.ID)
				require.NotEqual(t, before[bucket].RunID, id.RunID)
			} else {
				require.Equal(t, before[bucket], id)
			}
		}
		for _, some := range b {
			some.emit(t, 0, delta(some.namespace, 1, 1))
			require.Len(t, some.claim(t).Flushes, 1)
		}
	})
}
