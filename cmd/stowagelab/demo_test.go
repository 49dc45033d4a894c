package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/redistest"
)

// built are both programs, side by side as the demo wants them.
func built(t *testing.T) (stowagelab string) {
	t.Helper()
	dir := t.TempDir()
	out, err := exec.Command("go", "build", "-o", dir+"/", "../stowage", ".").CombinedOutput()
	require.NoError(t, err, "%s", out)
	return filepath.Join(dir, "stowagelab")
}

// demoCmd is the demo with its own temporary folder.
func demoCmd(t *testing.T, stowagelab string, args ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	cmd, tmp = lab(t, append([]string{"demo", "--data", "../../testdata/publishes"}, args...)...)
	cmd.Path = stowagelab
	return cmd, tmp
}

func TestDemo(t *testing.T) {
	t.Parallel()
	stowagelab := built(t)

	t.Run("is exact, keeps everything running until a signal, and leaves nothing", func(t *testing.T) {
		t.Parallel()
		cmd, tmp := demoCmd(t, stowagelab, "--keep")
		out := start(t, cmd, "running until Ctrl-C")
		require.NoError(t, syscall.Kill(workerOf(t, tmp), 0))
		_, url, _ := strings.Cut(out.String(), "\ndatabase: ")
		url, _, _ = strings.Cut(url, "\n")
		require.Len(t, demoDatabases(t, url), 1)
		require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		require.NoError(t, cmd.Wait(), "%s", out)
		require.Contains(t, out.String(), "\nexact: 189 comparisons of a scope, drift 0 bytes, 0 components\ndatabase: ")
		requireEmpty(t, tmp)
	})
	t.Run("on servers that it was given", func(t *testing.T) {
		t.Parallel()
		server, redis := dbtest.ServerURL(t), redistest.Start(t)
		given := []string{"--repeat", "50", "--database-url", server, "--redis-url", "redis://" + redis.Addr}
		requireNothingLeft := func(t *testing.T, tmp string) {
			t.Helper()
			requireEmpty(t, tmp)
			require.Zero(t, keys(t, redis.Client(t)))
			require.Empty(t, demoDatabases(t, server))
		}
		t.Run("it goes away on a signal", func(t *testing.T) {
			cmd, tmp := demoCmd(t, stowagelab, given...)
			out := start(t, cmd, "stage 1")
			require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
			require.Error(t, cmd.Wait())
			require.Equal(t, 1, cmd.ProcessState.ExitCode(), "%s", out)
			require.Contains(t, out.String(), "interrupt")
			requireNothingLeft(t, tmp)
		})
		t.Run("it ends with the worker's log when that dies", func(t *testing.T) {
			cmd, tmp := demoCmd(t, stowagelab, given...)
			out := start(t, cmd, "stage 1")
			require.NoError(t, syscall.Kill(workerOf(t, tmp), syscall.SIGKILL))
			require.Error(t, cmd.Wait())
			require.Equal(t, 1, cmd.ProcessState.ExitCode(), "%s", out)
			require.Contains(t, out.String(), "stowage worker ended (signal: killed)")
			requireNothingLeft(t, tmp)
		})
	})
	t.Run("keeps away from a Redis that serves a Stowage", func(t *testing.T) {
		t.Parallel()
		redis := redistest.Start(t)
		client := redis.Client(t)
		require.NoError(t, client.Do(t.Context(), client.B().Set().Key("stowage:1:{7}:identity").Value("x").Build()).Error())
		cmd, tmp := demoCmd(t, stowagelab, "--redis-url", "redis://"+redis.Addr)
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "serves a Stowage already, it has stowage:1:{7}:identity")
		require.Equal(t, int64(1), keys(t, client))
		requireEmpty(t, tmp)
	})
	t.Run("needs the worker's program beside it", func(t *testing.T) {
		t.Parallel()
		alone := filepath.Join(t.TempDir(), "stowagelab")
		require.NoError(t, os.Link(stowagelab, alone))
		cmd, tmp := demoCmd(t, alone)
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), "run make build")
		requireEmpty(t, tmp)
	})
	t.Run("refuses flags that make no sense, all at once", func(t *testing.T) {
		t.Parallel()
		cmd, tmp := demoCmd(t, stowagelab, "--repeat", "0", "--writers", "0", "--data", "nowhere")
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		for _, want := range []string{"--repeat 0", "--writers 0", "--data: stat nowhere"} {
			require.Contains(t, string(out), want)
		}
		requireEmpty(t, tmp)
	})
}

// output collects what a command writes while it runs.
type output struct {
	mu    sync.Mutex
	text  strings.Builder
	until string
	seen  chan struct{}
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.text.Write(p)
	if o.until != "" && strings.Contains(o.text.String(), o.until) {
		o.until = ""
		close(o.seen)
	}
	return len(p), nil
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// start starts the command and waits until it has written the text.
func start(t *testing.T, cmd *exec.Cmd, until string) *output {
	t.Helper()
	out := &output{until: until, seen: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = out, out
	require.NoError(t, cmd.Start())
	select {
	case <-out.seen:
	case <-time.After(3 * time.Minute):
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		require.FailNow(t, "never written: "+until, "%s", out)
	}
	return out
}

func workerOf(t *testing.T, tmp string) (pid int) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(tmp, "stowage-program-*", "pid"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	content, err := os.ReadFile(files[0])
	require.NoError(t, err)
	pid, err = strconv.Atoi(string(content))
	require.NoError(t, err)
	return pid
}

func keys(t *testing.T, client rueidis.Client) int64 {
	t.Helper()
	n, err := client.Do(t.Context(), client.B().Dbsize().Build()).AsInt64()
	require.NoError(t, err)
	return n
}

func demoDatabases(t *testing.T, url string) []string {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), url)
	require.NoError(t, err)
	rows, err := conn.Query(t.Context(), `SELECT datname FROM pg_database WHERE datname LIKE 'stowage\_demo\_%'`)
	require.NoError(t, err)
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	require.NoError(t, conn.Close(t.Context()))
	return names
}

func TestDatabaseURLKeepsThePassword(t *testing.T) {
	t.Parallel()
	got, err := inDatabase("postgres://u:p@h:5432/postgres?sslmode=disable", "d")
	require.NoError(t, err)
	require.Equal(t, "postgres://u:p@h:5432/d?sslmode=disable", got)
	for _, bad := range []string{"host=h password=hunter2", "postgres://u:hunter2@h:port/x"} {
		_, err := inDatabase(bad, "d")
		require.ErrorContains(t, err, "want postgres://")
		require.NotContains(t, err.Error(), "hunter2")
	}
}
