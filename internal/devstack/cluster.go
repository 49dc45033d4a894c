package devstack

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

const (
	clusterNodes = 3
	clusterSlots = 16384
)

// RedisCluster is a throw-away Redis Cluster of three primaries without
// replicas. Its methods are not safe for concurrent use.
type RedisCluster struct {
	nodes []*Redis
	buses []*port
}

// StartRedisCluster starts the nodes, gives a third of the slots to each, in
// their order, and returns when every node knows every slot. That takes more
// than two seconds: a node that starts does not serve for so long.
//
// A node that is down takes only its own slots with it
// (cluster-require-full-coverage no).
func StartRedisCluster(ctx context.Context) (*RedisCluster, error) {
	c := &RedisCluster{}
	if err := c.start(ctx); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}

func (c *RedisCluster) start(ctx context.Context) error {
	for i := range clusterNodes {
		if err := c.startNode(ctx); err != nil {
			return err
		}
		if _, err := c.nodes[i].ask(ctx, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(firstSlot(i)), strconv.Itoa(firstSlot(i+1)-1)); err != nil {
			return fmt.Errorf("give node %d its slots: %w", i, err)
		}
		first := c.nodes[0].port.number
		if _, err := c.nodes[i].ask(ctx, "CLUSTER", "MEET", loopback, strconv.Itoa(first), strconv.Itoa(c.buses[0].number)); err != nil {
			return fmt.Errorf("make node %d meet the first: %w", i, err)
		}
	}
	return c.Ready(ctx)
}

func firstSlot(node int) int { return node * clusterSlots / clusterNodes }

func (c *RedisCluster) startNode(ctx context.Context) error {
	// By default the nodes talk to each other 10000 above the port, which may be
	// no port at all, or another's.
	bus, err := reservePort()
	if err != nil {
		return err
	}
	c.buses = append(c.buses, bus)
	node, err := startRedis(ctx, append(forgetful(), "--cluster-enabled", "yes", "--cluster-port", strconv.Itoa(bus.number),
		"--cluster-require-full-coverage", "no")...)
	if err != nil {
		return err
	}
	c.nodes = append(c.nodes, node)
	return nil
}

// Nodes are the three servers. After Stop and Start a node is empty and has the
// same slots; Ready waits until it serves them.
func (c *RedisCluster) Nodes() []*Redis { return c.nodes }

// Reach is what a user would configure: the addresses of all nodes.
func (c *RedisCluster) Reach() rueidis.ClientOption {
	var reach rueidis.ClientOption
	for _, node := range c.nodes {
		reach.InitAddress = append(reach.InitAddress, node.Addr())
	}
	return reach
}

// Ready returns when every node serves, and knows every slot.
func (c *RedisCluster) Ready(ctx context.Context) error {
	for _, node := range c.nodes {
		err := node.await(ctx, func(ctx context.Context) error {
			reply, err := node.ask(ctx, "CLUSTER", "INFO")
			if err != nil {
				return err
			}
			// The state alone is ok as soon as a node knows its own slots.
			info, err := reply.ToString()
			if !strings.Contains(info, "cluster_state:ok") || !strings.Contains(info, fmt.Sprintf("cluster_slots_ok:%d", clusterSlots)) {
				return errors.Join(err, fmt.Errorf("the cluster is not whole:\n%s", info))
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// Node is the index of the node that has the slot, unless it was moved.
func (c *RedisCluster) Node(slot int) int {
	node := 0
	for slot >= firstSlot(node+1) {
		node++
	}
	return node
}

// Close kills the nodes and removes all that they left.
func (c *RedisCluster) Close() error {
	var err error
	for _, node := range c.nodes {
		err = errors.Join(err, node.Close())
	}
	for _, bus := range c.buses {
		err = errors.Join(err, bus.release())
	}
	return err
}
