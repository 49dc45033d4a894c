package buffer

import (
	"cmp"
	"context"
	"fmt"
	"net"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
)

const slots = 16384

// cluster is a Redis Cluster of three primaries, each with a third of the slots.
type cluster struct {
	addrs   []string
	nodes   []rueidis.Client
	ids     []string
	servers []*exec.Cmd
	client  rueidis.Client
}

func startCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{}
	for range 3 {
		c.startNode(t)
	}
	for i, node := range c.nodes {
		from, to := i*slots/3, (i+1)*slots/3-1
		do(t, node, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(from), strconv.Itoa(to))
		reply := do(t, node, "CLUSTER", "MYID")
		id, err := reply.ToString()
		require.NoError(t, err)
		c.ids = append(c.ids, id)
	}
	for i, node := range c.nodes {
		require.Eventually(t, func() bool {
			reply := do(t, node, "CLUSTER", "INFO")
			info, err := reply.ToString()
			require.NoError(t, err)
			// The state alone is ok as soon as a node knows its own slots.
			return strings.Contains(info, "cluster_state:ok") && strings.Contains(info, fmt.Sprintf("cluster_slots_assigned:%d", slots))
		}, wait, tick, "node %d", i)
	}
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: c.addrs, DisableCache: true, DisableRetry: true})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	c.client = client
	return c
}

func (c *cluster) startNode(t *testing.T) {
	t.Helper()
	port, bus := freePort(t), freePort(t)
	server := exec.Command("redis-server", "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", t.TempDir(),
		"--save", "", "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus), "--cluster-require-full-coverage", "no")
	require.NoError(t, server.Start(), "install the Debian package redis-server")
	t.Cleanup(func() {
		_ = server.Process.Kill()
		_ = server.Wait()
	})
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
	var node rueidis.Client
	require.Eventually(t, func() bool {
		var err error
		node, err = rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true, DisableCache: true, DisableRetry: true})
		return err == nil
	}, wait, tick)
	t.Cleanup(node.Close)
	if len(c.nodes) > 0 {
		host, first, err := net.SplitHostPort(c.addrs[0])
		require.NoError(t, err)
		reply := do(t, c.nodes[0], "CONFIG", "GET", "cluster-port")
		config, err := reply.AsStrMap()
		require.NoError(t, err)
		do(t, node, "CLUSTER", "MEET", host, first, config["cluster-port"])
	}
	c.addrs, c.nodes, c.servers = append(c.addrs, addr), append(c.nodes, node), append(c.servers, server)
}

func freePort(t *testing.T) int {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

func do(t *testing.T, client rueidis.Client, words ...string) rueidis.RedisMessage {
	t.Helper()
	reply, err := client.Do(context.WithoutCancel(t.Context()), client.B().Arbitrary(words...).Build()).ToMessage()
	require.NoError(t, err)
	return reply
}

// slot of a bucket's keys, and the node that has it at first.
func (c *cluster) slot(t *testing.T, bucket int) (slot, node int) {
	t.Helper()
	reply := do(t, c.nodes[0], "CLUSTER", "KEYSLOT", bucketPrefix(bucket))
	n, err := reply.AsInt64()
	require.NoError(t, err)
	for node = range c.nodes {
		if int(n) < (node+1)*slots/3 {
			break
		}
	}
	return int(n), node
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
	c := startCluster(t)
	b := New(c.client, Config{TTL: time.Hour, LeaseTTL: time.Minute})
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
			_, node := c.slot(t, bucket)
			reply := do(t, c.nodes[node], "INFO", "server")
			info, err := reply.ToString()
			require.NoError(t, err)
			require.Contains(t, info, "run_id:"+id.RunID)
		}
	})

	t.Run("every primary is checked", func(t *testing.T) {
		require.NoError(t, b.Check(t.Context()))
		for _, node := range c.nodes {
			do(t, node, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
			require.ErrorContains(t, b.Check(t.Context()), "noeviction")
			do(t, node, "CONFIG", "SET", "maxmemory-policy", "noeviction")
		}
	})

	t.Run("AC12 every primary is swept", func(t *testing.T) {
		for _, s := range scopes {
			key := bufferKey(accounting.Bucket(s.Namespace), member(s))
			require.NoError(t, c.client.Do(t.Context(), c.client.B().Hset().Key(key).FieldValue().FieldValue("0:bytes", "1").Build()).Error())
		}
		found, err := b.Sweep(t.Context())
		require.NoError(t, err)
		require.Equal(t, len(scopes), found)
		require.EqualValues(t, len(scopes), drain(t).Bytes)
	})

	t.Run("a slot that moves key by key loses nothing and reports no loss", func(t *testing.T) {
		n, r := scopes[0], scopes[1]
		bucket := accounting.Bucket(n.Namespace)
		slot, from := c.slot(t, bucket)
		to := (from + 1) % len(c.nodes)
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
		do(t, c.nodes[from], "SADD", bucketPrefix(bucket)+quarantineName, "text")
		do(t, c.nodes[to], "CLUSTER", "SETSLOT", strconv.Itoa(slot), "IMPORTING", c.ids[from])
		do(t, c.nodes[from], "CLUSTER", "SETSLOT", strconv.Itoa(slot), "MIGRATING", c.ids[to])
		require.ErrorContains(t, claim(), "non local key")
		emit(r)

		reply := do(t, c.nodes[from], "CLUSTER", "GETKEYSINSLOT", strconv.Itoa(slot), "100")
		keys, err := reply.AsStrSlice()
		require.NoError(t, err)
		host, port, err := net.SplitHostPort(c.addrs[to])
		require.NoError(t, err)
		slices.SortFunc(keys, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
		for _, key := range keys {
			do(t, c.nodes[from], "MIGRATE", host, port, key, "0", "5000")
			_ = claim() // most are refused
			emit(r)
		}
		require.Positive(t, alarms, "the new node had the sets before it had the flushes")
		do(t, c.nodes[to], "CLUSTER", "SETSLOT", strconv.Itoa(slot), "NODE", c.ids[to])
		do(t, c.nodes[from], "CLUSTER", "SETSLOT", strconv.Itoa(slot), "NODE", c.ids[to])
		sum := drain(t).Bytes
		require.Equal(t, emitted, sum+drain(t).Bytes, "the second drain is for what was emitted behind a flush")
	})

	t.Run("a node that is down takes only its buckets with it", func(t *testing.T) {
		before, err := b.Identities(t.Context())
		require.NoError(t, err)
		reply := do(t, c.nodes[2], "INFO", "server")
		info, err := reply.ToString()
		require.NoError(t, err)
		require.NoError(t, c.servers[2].Process.Kill())
		_ = c.servers[2].Wait() // it answers nothing any more
		after, err := b.Identities(t.Context())
		require.Error(t, err)
		read := 0
		for bucket, id := range after {
			if strings.Contains(info, "run_id:"+before[bucket].RunID) {
				require.Zero(t, id)
			} else if id == before[bucket] {
				read++
			}
		}
		require.Greater(t, read, accounting.Buckets/2)
		require.Error(t, b.Check(t.Context()))
		_, err = b.Sweep(t.Context())
		require.Error(t, err)
	})
}
