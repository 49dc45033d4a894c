package redistest

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) { VerifyTestMain(m) }

func TestEachCallGivesItsOwnEmptyServer(t *testing.T) {
	t.Parallel()
	a, b := Start(t), Start(t)
	require.NotEqual(t, a.Addr, b.Addr)
	ca, cb := a.Client(t), b.Client(t)
	require.NoError(t, set(t, ca, "a"))
	require.True(t, rueidis.IsRedisNil(get(t, cb)))
	require.NoError(t, get(t, ca))
}

func TestRestartKeepsTheAddress(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		start func(testing.TB) *Server
		kept  bool
	}{
		"without a file the data are gone": {Start, false},
		"append only the data are kept":    {StartAppendOnly, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := tc.start(t)
			addr := s.Addr
			require.NoError(t, set(t, s.Client(t), "x"))
			s.Restart()
			require.Equal(t, addr, s.Addr)
			require.Equal(t, tc.kept, get(t, s.Client(t)) == nil)
		})
	}
}

func TestStopRefusesConnections(t *testing.T) {
	t.Parallel()
	s := Start(t)
	client := s.Client(t)
	s.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.Error(t, client.Do(ctx, client.B().Ping().Build()).Error())
	s.Restart()
	require.NoError(t, client.Do(t.Context(), client.B().Ping().Build()).Error(), "a client gets over a restart")
}

func TestPauseAnswersNothingUntilResume(t *testing.T) {
	t.Parallel()
	s := Start(t)
	client := s.Client(t)
	s.Pause()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, client.Do(ctx, client.B().Ping().Build()).Error(), context.DeadlineExceeded)
	s.Resume()
	require.NoError(t, client.Do(t.Context(), client.B().Ping().Build()).Error())
}

func TestAPausedServerIsRemovedToo(t *testing.T) {
	t.Parallel()
	var s *Server
	t.Run("inner", func(t *testing.T) {
		s = Start(t)
		s.Pause()
	})
	require.Error(t, s.redis.Pause(), "the server is stopped")
}

func set(t *testing.T, c rueidis.Client, value string) error {
	t.Helper()
	return c.Do(t.Context(), c.B().Set().Key("k").Value(value).Build()).Error()
}

func get(t *testing.T, c rueidis.Client) error {
	t.Helper()
	return c.Do(t.Context(), c.B().Get().Key("k").Build()).Error()
}

func TestARestartedClusterNodeIsEmptyAndTheOthersAreNot(t *testing.T) {
	t.Parallel()
	c := StartCluster(t)
	client := c.Client(t)
	keys := make(map[int]string)
	for i := 0; len(keys) < len(c.Nodes); i++ {
		key := strconv.Itoa(i)
		_, node := c.Slot(key)
		keys[node] = key
		require.NoError(t, client.Do(t.Context(), client.B().Set().Key(key).Value("x").Build()).Error())
	}
	client.Close()
	c.Restart(1)
	client = c.Client(t)
	for node, key := range keys {
		err := client.Do(t.Context(), client.B().Get().Key(key).Build()).Error()
		require.Equal(t, node == 1, rueidis.IsRedisNil(err), "%v", err)
	}
}

func TestAFailOverLosesWhatFollowsTheCut(t *testing.T) {
	t.Parallel()
	r := StartReplicated(t)
	client := r.Client(t)
	require.NoError(t, set(t, client, "kept"))
	r.Cut()
	require.NoError(t, set(t, client, "lost"))
	client.Close()
	r.FailOver()
	client = r.Client(t)
	got, err := client.Do(t.Context(), client.B().Get().Key("k").Build()).ToString()
	require.NoError(t, err)
	require.Equal(t, "kept", got)
}
