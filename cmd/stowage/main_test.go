package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
)

// exitOf runs the binary of the test as the command.
func exitOf(t *testing.T, args ...string) (code int, stderr string) {
	t.Helper()
	s := &services{t: t}
	w := s.process(args...)
	return w.exit(), w.log.String()
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	const nowhere = "postgres://127.0.0.1:1/x"
	for name, c := range map[string]struct {
		args []string
		code int
	}{
		"an unknown command":        {[]string{"nope"}, 2},
		"an unknown command deeper": {[]string{"namespace", "nope"}, 2},
		"an unknown flag":           {[]string{"worker", "--nope"}, 2},
		"too many arguments":        {[]string{"migrate", "status", "x", "--database-url", nowhere}, 2},
		"a missing flag":            {[]string{"migrate", "diff"}, 2},
		"an invalid configuration":  {[]string{"recover", "--buffer-ttl", "soon"}, 2},
		"a failure":                 {[]string{"migrate", "status", "--database-url", nowhere}, 1},
		"success":                   {[]string{"alerts"}, 0},
		"help":                      {[]string{"namespace"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, stderr := exitOf(t, c.args...)
			require.Equal(t, c.code, code, stderr)
		})
	}
}

func TestErrorsOfTheServerSayWhatToDo(t *testing.T) {
	t.Parallel()
	t.Run("a database that is not migrated", func(t *testing.T) {
		t.Parallel()
		code, _, stderr := runExit(t, "namespace", "history", "acme", "--from", "2026-03-01", "--database-url", dbtest.NewEmptyURL(t))
		require.Equal(t, 1, code)
		require.Contains(t, stderr, "run stowage migrate apply")
	})
	t.Run("a role that may not read", func(t *testing.T) {
		t.Parallel()
		url := dbtest.NewURL(t) + "&options=-c%20role%3Dpg_monitor"
		code, _, stderr := runExit(t, "namespace", "history", "acme", "--from", "2026-03-01", "--database-url", url)
		require.Equal(t, 1, code)
		require.Contains(t, stderr, "stowage migrate roles")
	})
}
