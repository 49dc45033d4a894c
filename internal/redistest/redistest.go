// Package redistest gives a test a Redis of its own, one server, a cluster or a
// primary with a replica: real, empty, on free loopback ports, gone when the
// test ends. It never skips: a machine without redis-server fails the test with
// the package to install.
package redistest

import (
	"testing"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/devstack"
)

// Server is the Redis of one test. Its methods fail that test when they cannot
// do what they say; they must be called from the test's own goroutine.
type Server struct {
	// Addr is host:port, the same after Restart.
	Addr string

	t     testing.TB
	redis *devstack.Redis
}

// Start starts a Redis that forgets everything when it is stopped.
func Start(t testing.TB) *Server {
	t.Helper()
	return start(t, devstack.RedisOptions{})
}

// StartAppendOnly starts a Redis that has its data again after Restart.
func StartAppendOnly(t testing.TB) *Server {
	t.Helper()
	return start(t, devstack.RedisOptions{AppendOnly: true})
}

func start(t testing.TB, opts devstack.RedisOptions) *Server {
	t.Helper()
	redis, err := devstack.StartRedis(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, redis.Close()) })
	return &Server{Addr: redis.Addr(), t: t, redis: redis}
}

// Client is a new client of the server, closed when t ends. The server must be
// running. It has one connection, so that what it sends to a paused server is
// received there: another connection would still wait to be greeted.
func (s *Server) Client(t testing.TB) rueidis.Client {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{s.Addr}, ForceSingleClient: true, DisableCache: true, PipelineMultiplex: -1,
	})
	require.NoError(t, err)
	t.Cleanup(client.Close)
	return client
}

// Stop kills the server: connections break and new ones are refused.
func (s *Server) Stop() {
	s.t.Helper()
	require.NoError(s.t, s.redis.Stop())
}

// Restart stops the server if it runs and starts it on the same address. It has
// a new run id, and its data only if it was started with StartAppendOnly.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	require.NoError(s.t, s.redis.Start(s.t.Context()))
}

// Pause freezes the server: connections stay open and nothing answers.
func (s *Server) Pause() {
	s.t.Helper()
	require.NoError(s.t, s.redis.Pause())
}

// Resume lets a paused server go on.
func (s *Server) Resume() {
	s.t.Helper()
	require.NoError(s.t, s.redis.Resume())
}
