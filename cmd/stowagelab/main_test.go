package main

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// asCommand makes the test binary behave as stowagelab.
const asCommand = "STOWAGELAB_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
	}
	os.Exit(m.Run())
}

// lab is stowagelab with its own temporary folder, so that what it leaves
// behind can be seen.
func lab(t *testing.T, args ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	tmp, err := os.MkdirTemp("", "stowagelab-test-") //nolint:usetesting // PostgreSQL's account cannot enter t.TempDir()
	require.NoError(t, err)
	require.NoError(t, os.Chmod(tmp, 0o755))
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(tmp)) })
	cmd = exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), asCommand+"=1", "TMPDIR="+tmp)
	return cmd, tmp
}

func requireEmpty(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestRunGivesADatabaseAndReturnsTheExitCode(t *testing.T) {
	t.Parallel()
	cmd, tmp := lab(t, "run", "--", "sh", "-c", "echo $"+testDatabaseVariable+" $"+testRedisVariable+"; exit 7")
	out, err := cmd.Output()
	require.Equal(t, 7, cmd.ProcessState.ExitCode(), "%v", err)
	require.Regexp(t, `^postgres://postgres@127\.0\.0\.1:\d+/postgres\?sslmode=disable 127\.0\.0\.1:\d+\n$`, string(out))
	requireEmpty(t, tmp)
}

func TestRunForwardsSignals(t *testing.T) {
	t.Parallel()
	// The outer shell runs its trap when its child has ended, so the signal
	// must reach both.
	cmd, tmp := lab(t, "run", "--", "sh", "-c",
		`trap 'echo told; exit 5' INT; sh -c 'echo ready; exec sleep 600'`)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	lines := bufio.NewReader(stdout)
	line, err := lines.ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "ready\n", line)
	require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
	rest, err := io.ReadAll(lines)
	require.NoError(t, err)
	require.Equal(t, "told\n", string(rest))
	require.Error(t, cmd.Wait())
	require.Equal(t, 5, cmd.ProcessState.ExitCode())
	requireEmpty(t, tmp)
}

func TestNothingStaysWhenRunIsKilled(t *testing.T) {
	t.Parallel()
	cmd, tmp := lab(t, "run", "--", "sh", "-c", "echo $"+testDatabaseVariable+"; read -r line")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	stdout, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	_, err = bufio.NewReader(stdout).ReadString('\n')
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Kill())
	require.NoError(t, stdin.Close())
	require.Error(t, cmd.Wait())
	require.Eventually(t, func() bool {
		entries, err := os.ReadDir(tmp)
		return err == nil && len(entries) == 0
	}, time.Minute, 20*time.Millisecond)
}

func TestExitCode(t *testing.T) {
	t.Parallel()
	shell := func(script string) error { return runChild(t.Context(), []string{"sh", "-c", script}) }
	for name, tc := range map[string]struct {
		err  error
		want int
	}{
		"success":                      {shell("exit 0"), 0},
		"failure":                      {shell("exit 3"), 3},
		"failure, then a failed clean": {errors.Join(shell("exit 3"), io.ErrUnexpectedEOF), 3},
		"killed":                       {shell("kill -9 $$"), 128 + 9},
		"no such command":              {runChild(t.Context(), []string{"no-such-command"}), 1},
		"interrupted before the start": {context.Canceled, 1},
		"another process failed":       {exec.Command("sh", "-c", "exit 3").Run(), 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, exitCode(tc.err))
		})
	}
}
