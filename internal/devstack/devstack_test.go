package devstack

import (
	"context"
	"net"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// As redistest.VerifyTestMain, which stands above this package.
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}

func TestPostgresStartsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	p, err := StartPostgres(t.Context(), PostgresOptions{})
	require.NoError(t, err)
	conn, err := pgx.Connect(t.Context(), p.URL())
	require.NoError(t, err)
	require.Equal(t, "off", setting(t, conn, "fsync"))
	require.Equal(t, "on", setting(t, conn, "synchronous_commit"), "commits are what protocol rule R9 is about")
	pid := p.process.cmd.Process.Pid

	start := time.Now()
	require.NoError(t, p.Close())
	require.Less(t, time.Since(start), stopTimeout, "an open session must not hold up a fast shutdown")
	requireGone(t, pid, p.scratch.dir, p.port.addr())
}

func TestPostgresDurable(t *testing.T) {
	t.Parallel()
	p, err := StartPostgres(t.Context(), PostgresOptions{Durable: true, Settings: []string{"work_mem=7MB"}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	conn, err := pgx.Connect(t.Context(), p.URL())
	require.NoError(t, err)
	require.Equal(t, "7MB", setting(t, conn, "work_mem"))
	require.Equal(t, "on", setting(t, conn, "fsync"))
	require.Equal(t, "64", setting(t, conn, "max_locks_per_transaction"))
	require.NoError(t, conn.Close(context.Background()))
}

func TestRedisStartsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	r, err := StartRedis(t.Context(), RedisOptions{})
	require.NoError(t, err)
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{r.Addr()}, ForceSingleClient: true, DisableCache: true})
	require.NoError(t, err)
	got, err := client.Do(t.Context(), client.B().ConfigGet().Parameter("maxmemory-policy").Build()).AsStrMap()
	require.NoError(t, err)
	require.Equal(t, map[string]string{"maxmemory-policy": "noeviction"}, got)
	client.Close()
	pid := r.process.cmd.Process.Pid
	require.NoError(t, r.Close())
	requireGone(t, pid, r.scratch.dir, r.Addr())
}

func setting(t *testing.T, conn *pgx.Conn, name string) string {
	t.Helper()
	var value string
	require.NoError(t, conn.QueryRow(t.Context(), "SELECT current_setting($1)", name).Scan(&value))
	return value
}

// requireGone checks that neither the process, its files nor its port is left.
func requireGone(t *testing.T, pid int, dir, addr string) {
	t.Helper()
	require.NoDirExists(t, "/proc/"+strconv.Itoa(pid))
	_, err := os.Stat(dir)
	require.ErrorIs(t, err, os.ErrNotExist)
	listener, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	require.NoError(t, listener.Close())
}

func TestRedisClusterSharesTheSlotsAndLeavesNothing(t *testing.T) {
	t.Parallel()
	c, err := StartRedisCluster(t.Context())
	require.NoError(t, err)
	for i := range c.Nodes() {
		require.Equal(t, i, c.Node(firstSlot(i)))
		require.Equal(t, i, c.Node(firstSlot(i+1)-1))
	}
	require.Equal(t, 0, firstSlot(0))
	require.Equal(t, clusterSlots, firstSlot(clusterNodes))
	client := clientOf(t, c.Reach())
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		require.NoError(t, client.Do(t.Context(), client.B().Set().Key(key).Value("x").Build()).Error())
	}
	client.Close()

	require.NoError(t, c.Nodes()[1].Stop())
	require.Error(t, c.Ready(t.Context()))
	require.NoError(t, c.Nodes()[1].Start(t.Context()))
	require.NoError(t, c.Ready(t.Context()), "it has its slots again")
	pids, dirs := nodesOf(c.Nodes()...)
	require.NoError(t, c.Close())
	for i, node := range c.Nodes() {
		requireGone(t, pids[i], dirs[i], node.Addr())
		requireGone(t, pids[i], dirs[i], c.buses[i].addr())
	}
}

func TestReplicatedRedisLosesWhatFollowsTheCut(t *testing.T) {
	t.Parallel()
	r, err := StartReplicatedRedis(t.Context())
	require.NoError(t, err)
	set := func(client rueidis.Client, key string) {
		require.NoError(t, client.Do(t.Context(), client.B().Set().Key(key).Value("x").Build()).Error())
	}
	before := clientOf(t, r.Reach())
	set(before, "kept")
	require.NoError(t, r.Cut(t.Context()))
	set(before, "lost")
	before.Close()
	require.NoError(t, r.FailOver(t.Context()))

	after := clientOf(t, r.Reach())
	set(after, "new")
	keys, err := after.Do(t.Context(), after.B().Keys().Pattern("*").Build()).AsStrSlice()
	require.NoError(t, err)
	require.ElementsMatch(t, []string{"kept", "new"}, keys)
	after.Close()
	pids, dirs := nodesOf(r.Replica, r.Sentinel)
	require.NoError(t, r.Close())
	requireGone(t, pids[0], dirs[0], r.Replica.Addr())
	requireGone(t, pids[1], dirs[1], r.Sentinel.Addr())
}

func clientOf(t *testing.T, reach rueidis.ClientOption) rueidis.Client {
	t.Helper()
	reach.DisableCache, reach.DisableRetry = true, true
	client, err := rueidis.NewClient(reach)
	require.NoError(t, err)
	return client
}

func nodesOf(servers ...*Redis) (pids []int, dirs []string) {
	for _, s := range servers {
		pids, dirs = append(pids, s.process.cmd.Process.Pid), append(dirs, s.scratch.dir)
	}
	return pids, dirs
}
