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

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	p, err := StartPostgres(t.Context(), PostgresOptions{Durable: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	conn, err := pgx.Connect(t.Context(), p.URL())
	require.NoError(t, err)
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
