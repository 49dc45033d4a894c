package redistest

import (
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/devstack"
)

// Cluster is the Redis Cluster of one test: three primaries without replicas,
// of which each has a third of the slots.
type Cluster struct {
	// Nodes forget everything when they are stopped. Restart them by
	// Cluster.Restart.
	Nodes []*Server

	t       testing.TB
	cluster *devstack.RedisCluster
	first   rueidis.Client
}

// StartCluster starts a cluster, which takes more than two seconds.
func StartCluster(t testing.TB) *Cluster {
	t.Helper()
	cluster, err := devstack.StartRedisCluster(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, cluster.Close()) })
	c := &Cluster{t: t, cluster: cluster}
	for _, node := range cluster.Nodes() {
		c.Nodes = append(c.Nodes, &Server{Addr: node.Addr(), t: t, redis: node})
	}
	c.first = c.Nodes[0].Client(t)
	return c
}

// Reach is what a user would configure: the addresses of all nodes.
func (c *Cluster) Reach() rueidis.ClientOption { return c.cluster.Reach() }

// Client is a new client that repeats nothing, closed when t ends.
func (c *Cluster) Client(t testing.TB) rueidis.Client {
	t.Helper()
	return newClient(t, c.Reach())
}

// Slot is the slot of a key, and the index of the node that had it at first.
// The first node must be running.
func (c *Cluster) Slot(key string) (slot, node int) {
	c.t.Helper()
	n, err := c.first.Do(c.t.Context(), c.first.B().ClusterKeyslot().Key(key).Build()).AsInt64()
	require.NoError(c.t, err)
	return int(n), c.cluster.Node(int(n))
}

// Restart makes a node an empty one, with another run id and the same slots,
// and returns when all of the cluster serves.
func (c *Cluster) Restart(node int) {
	c.t.Helper()
	c.Nodes[node].Restart()
	require.NoError(c.t, c.cluster.Ready(c.t.Context()))
}

// Replicated is the primary, the replica and the sentinel of one test.
type Replicated struct {
	Primary, Replica *Server

	t          testing.TB
	replicated *devstack.ReplicatedRedis
}

// StartReplicated starts the three.
func StartReplicated(t testing.TB) *Replicated {
	t.Helper()
	replicated, err := devstack.StartReplicatedRedis(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, replicated.Close()) })
	server := func(r *devstack.Redis) *Server { return &Server{Addr: r.Addr(), t: t, redis: r} }
	return &Replicated{Primary: server(replicated.Primary), Replica: server(replicated.Replica), t: t, replicated: replicated}
}

// Reach is what a user would configure: the sentinel, which knows the primary.
func (r *Replicated) Reach() rueidis.ClientOption { return r.replicated.Reach() }

// Client is a new client of whichever server is the primary. It repeats
// nothing, and is closed when t ends.
func (r *Replicated) Client(t testing.TB) rueidis.Client {
	t.Helper()
	return newClient(t, r.Reach())
}

// Cut keeps from the replica what is written from now on. It has all that was
// written before.
func (r *Replicated) Cut() {
	r.t.Helper()
	require.NoError(r.t, r.replicated.Cut(r.t.Context()))
}

// FailOver kills the primary, if it runs, and makes the replica the primary.
func (r *Replicated) FailOver() {
	r.t.Helper()
	require.NoError(r.t, r.replicated.FailOver(r.t.Context()))
}

func newClient(t testing.TB, reach rueidis.ClientOption) rueidis.Client {
	t.Helper()
	reach.DisableCache, reach.DisableRetry = true, true
	client, err := rueidis.NewClient(reach)
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}
