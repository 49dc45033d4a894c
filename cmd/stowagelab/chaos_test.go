package main

import (
	"os/exec"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func chaosCmd(t *testing.T, stowagelab string, args ...string) (cmd *exec.Cmd, tmp string) {
	t.Helper()
	cmd, tmp = lab(t, append([]string{"chaos"}, args...)...)
	cmd.Path = stowagelab
	return cmd, tmp
}

func TestChaos(t *testing.T) {
	t.Parallel()
	stowagelab := built(t)

	t.Run("a short storm ends exact and leaves nothing", func(t *testing.T) {
		t.Parallel()
		cmd, tmp := chaosCmd(t, stowagelab, "--duration", "6s", "--seed", "5", "--writers", "2", "--workers", "2", "--namespaces", "3")
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Regexp(t, `(?m)^exact after \d+ injections with seed 5: \d+ scopes, drift 0, deadlocks 0$`, string(out))
		require.Regexp(t, `(?m)^drift after all +0 of \d+ scopes$`, string(out))
		requireEmpty(t, tmp)
	})
	t.Run("without a seed it takes one and says it, and it goes away on a signal", func(t *testing.T) {
		t.Parallel()
		cmd, tmp := chaosCmd(t, stowagelab, "--writers", "2", "--workers", "1", "--duration", "20s")
		out := start(t, cmd, "storm 5/20")
		require.NoError(t, cmd.Process.Signal(syscall.SIGINT))
		require.Error(t, cmd.Wait())
		require.Equal(t, 1, cmd.ProcessState.ExitCode(), "%s", out)
		require.Contains(t, out.String(), "interrupt")
		require.Regexp(t, `(?m)^storm of 20s with seed [1-9]\d*: `, out.String())
		requireEmpty(t, tmp)
	})
	t.Run("refuses flags that make no sense, all at once", func(t *testing.T) {
		t.Parallel()
		cmd, tmp := chaosCmd(t, stowagelab, "--duration", "1s", "--writers", "0", "--workers", "0", "--namespaces", "1")
		out, err := cmd.CombinedOutput()
		require.Error(t, err)
		for _, want := range []string{"--duration 1s", "--writers 0", "--workers 0", "--namespaces 1"} {
			require.Contains(t, string(out), want)
		}
		requireEmpty(t, tmp)
	})
}
