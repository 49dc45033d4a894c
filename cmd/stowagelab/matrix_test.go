package main

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMatrixWithoutServersSaysHowToGetThem(t *testing.T) {
	t.Parallel()
	cmd, tmp := lab(t, "matrix", "--", "true")
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	cmd.Env = append(cmd.Env, "XDG_CACHE_HOME="+t.TempDir())
	require.Error(t, cmd.Run())
	require.Equal(t, 1, cmd.ProcessState.ExitCode())
	require.Contains(t, stderr.String(), "PostgreSQL 15 is not on this machine")
	require.Contains(t, stderr.String(), "stowagelab setup --postgres")
	requireEmpty(t, tmp)
}

func TestMatrixTable(t *testing.T) {
	t.Parallel()
	columns := []column{
		{
			server:  "15.18",
			command: 7 * time.Second,
			empty:   []step{{"create_a", 7 * time.Millisecond}, {"the newest down", 0}},
			full:    []step{{"create_a", 14 * time.Millisecond}, {"the newest down", 7 * time.Millisecond}},
		},
		{
			server:  "18.4",
			command: 1000 * time.Second,
			empty:   []step{{"create_a", time.Second}, {"the newest down", 0}},
			full:    []step{{"create_a", 2 * time.Second}, {"the newest down", time.Second}},
		},
	}
	var out bytes.Buffer
	require.NoError(t, writeMatrix(&out, columns))
	require.Equal(t, `
       PostgreSQL      15.18            18.4
         create_a  7 / 14 ms  1000 / 2000 ms
  the newest down   0 / 7 ms     0 / 1000 ms
      the command         7s          16m40s
milliseconds on an empty database / on one with 100000 namespaces and as many repositories
`, "\n"+out.String())
}
