package devstack

import (
	"context"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"
)

func TestPostgresKeepsCommitsOverACrash(t *testing.T) {
	t.Parallel()
	p, err := StartPostgres(t.Context(), PostgresOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	conn, err := pgx.Connect(t.Context(), p.URL())
	require.NoError(t, err)
	_, err = conn.Exec(t.Context(), `CREATE TABLE kept AS SELECT 7 AS n`)
	require.NoError(t, err)
	require.Error(t, p.Start(t.Context()), "it runs")

	require.NoError(t, p.Crash())
	require.NoError(t, p.Crash(), "twice is no error")
	require.Error(t, conn.Ping(t.Context()))
	_ = conn.Close(t.Context())
	require.NoError(t, p.Start(t.Context()))

	conn, err = pgx.Connect(t.Context(), p.URL())
	require.NoError(t, err)
	var n int
	require.NoError(t, conn.QueryRow(t.Context(), `SELECT n FROM kept`).Scan(&n))
	require.Equal(t, 7, n)
	require.NoError(t, conn.Close(context.Background()))
	log, err := os.ReadFile(p.LogPath())
	require.NoError(t, err)
	require.Contains(t, string(log), "was not properly shut down", "or it was no crash")
}

func TestRedisGoesBackAndForgets(t *testing.T) {
	t.Parallel()
	r, err := StartRedis(t.Context(), RedisOptions{AppendOnly: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	require.Error(t, r.Forget(), "it runs")
	require.Error(t, r.Rewind(), "it runs")

	set := func(value string) {
		withRedis(t, r, func(client rueidis.Client) {
			require.NoError(t, client.Do(t.Context(), client.B().Set().Key("k").Value(value).Build()).Error())
		})
	}
	requireValue := func(want string) {
		t.Helper()
		require.NoError(t, r.Start(t.Context()))
		withRedis(t, r, func(client rueidis.Client) {
			got, err := client.Do(t.Context(), client.B().Get().Key("k").Build()).ToString()
			if want == "" {
				require.True(t, rueidis.IsRedisNil(err), "%q, %v", got, err)
				return
			}
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
	set("old")
	require.NoError(t, r.Keep())
	set("new")
	require.NoError(t, r.Stop())
	requireValue("new")
	for range 2 {
		require.NoError(t, r.Stop())
		require.NoError(t, r.Rewind())
		requireValue("old")
	}
	require.NoError(t, r.Stop())
	require.NoError(t, r.Forget())
	requireValue("")
}

func withRedis(t *testing.T, r *Redis, do func(rueidis.Client)) {
	t.Helper()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{r.Addr()}, ForceSingleClient: true, DisableCache: true})
	require.NoError(t, err)
	defer client.Close()
	do(client)
}

func TestProgramIsKilled(t *testing.T) {
	t.Parallel()
	read, write, err := os.Pipe()
	require.NoError(t, err)
	defer read.Close()
	cmd := exec.Command("sh", "-c", `trap '' TERM; echo out; echo log >&2; while :; do sleep 1; done`)
	cmd.Stdout = write
	p, err := StartProgram("stubborn", cmd)
	require.NoError(t, err)
	require.NoError(t, write.Close())
	out := make([]byte, 4)
	_, err = read.Read(out)
	require.NoError(t, err)
	require.Equal(t, "out\n", string(out), "its standard output goes where it was told to")
	require.Eventually(t, func() bool { return p.LogTail() == "log\n" }, 30*time.Second, 10*time.Millisecond)

	require.NoError(t, p.Kill())
	<-p.Done()
	require.ErrorContains(t, p.Err(), "signal: killed")
	require.NoError(t, p.Close())
	require.NoFileExists(t, p.LogPath())
}
