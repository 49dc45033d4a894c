package buffer

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/devstack"
)

// everywhere is a test that runs on every topology.
func everywhere(test func(t *testing.T, b *bundle)) func(t *testing.T) {
	return func(t *testing.T) {
		for _, where := range topologies {
			t.Run(where.name, func(t *testing.T) {
				t.Parallel()
				test(t, newBundle(where.take(t).client))
			})
		}
	}
}

// topology is a way to run Redis. Its servers are shared by all tests, of which
// each has them for itself and empty, because a cluster takes seconds to start.
type topology struct {
	name  string
	start func(t *testing.T) *servers

	mu   sync.Mutex
	all  []*servers
	idle []*servers
}

var topologies = []*topology{
	{name: "single", start: func(t *testing.T) *servers {
		t.Helper()
		redis, err := devstack.StartRedis(t.Context(), devstack.RedisOptions{})
		return lend(t, redis, err)
	}},
	{name: "cluster", start: func(t *testing.T) *servers {
		t.Helper()
		redis, err := devstack.StartRedisCluster(t.Context())
		return lend(t, redis, err)
	}},
	// A replica that was promoted, under a client that knew the primary.
	{name: "failover", start: func(t *testing.T) *servers {
		t.Helper()
		redis, err := devstack.StartReplicatedRedis(t.Context())
		s := lend(t, redis, err)
		require.NoError(t, redis.Cut(t.Context()))
		require.NoError(t, redis.FailOver(t.Context()))
		awaitIdentities(t, New(s.client, Config{}))
		return s
	}},
}

// servers run one Redis.
type servers struct {
	redis  devstackRedis
	client rueidis.Client
}

type devstackRedis interface {
	Reach() rueidis.ClientOption
	Close() error
}

func lend(t *testing.T, redis devstackRedis, err error) *servers {
	t.Helper()
	require.NoError(t, err)
	return &servers{redis: redis, client: open(t, redis.Reach())}
}

// open is a client like the worker's, but for its patience, which a test on a
// loaded machine needs.
func open(t *testing.T, reach rueidis.ClientOption) rueidis.Client {
	t.Helper()
	reach.DisableRetry, reach.DisableCache = true, true
	reach.ConnWriteTimeout = wait
	client, err := rueidis.NewClient(reach)
	require.NoError(t, err)
	return client
}

// awaitIdentities returns what Redis says when all of it answers again. The
// first call of each connection that has broken fails, and the connection
// depends on the bucket.
func awaitIdentities(t *testing.T, b *Buffer) (ids [accounting.Buckets]Identity) {
	t.Helper()
	require.Eventually(t, func() bool {
		var err error
		ids, err = b.Identities(t.Context())
		return err == nil
	}, wait, tick)
	return ids
}

// take lends servers to the test until it ends.
func (where *topology) take(t *testing.T) *servers {
	t.Helper()
	s := where.borrow()
	if s == nil {
		s = where.start(t)
		where.add(s)
	}
	t.Cleanup(func() {
		s.reset(t)
		where.giveBack(s)
	})
	return s
}

func (where *topology) borrow() *servers {
	where.mu.Lock()
	defer where.mu.Unlock()
	n := len(where.idle)
	if n == 0 {
		return nil
	}
	s := where.idle[n-1]
	where.idle = where.idle[:n-1]
	return s
}

func (where *topology) add(s *servers) {
	where.mu.Lock()
	defer where.mu.Unlock()
	where.all = append(where.all, s)
}

func (where *topology) giveBack(s *servers) {
	where.mu.Lock()
	defer where.mu.Unlock()
	where.idle = append(where.idle, s)
}

// reset undoes what a test did to the servers.
func (s *servers) reset(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, node := range s.client.Nodes() {
		for _, words := range [][]string{
			{"ACL", "SETUSER", "default", "+@all"},
			{"CONFIG", "SET", "maxmemory", "0", "maxmemory-policy", "noeviction"},
			{"FLUSHALL"},
		} {
			require.NoError(t, node.Do(ctx, node.B().Arbitrary(words...).Build()).Error())
		}
	}
}

// sharing is a run of all tests that ends with closing what they shared.
type sharing struct{ *testing.M }

func (s sharing) Run() int {
	code := s.M.Run()
	for _, where := range topologies {
		for _, servers := range where.all {
			servers.client.Close()
			if err := servers.redis.Close(); err != nil {
				fmt.Fprintln(os.Stderr, "close the servers of the tests:", err)
				code = 1
			}
		}
	}
	return code
}
