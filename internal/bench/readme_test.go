package main

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The commands themselves take half an hour; CI runs the one that does not.
func TestReadmeCommandsAreCallable(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	found := regexp.MustCompile(`(?m)^make bench BENCH="(.*?)"`).FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, found)
	for _, m := range found {
		cmd := command()
		require.NoError(t, cmd.ParseFlags(strings.Fields(m[1])), m[0])
		only, err := cmd.Flags().GetStringSlice("only")
		require.NoError(t, err)
		_, err = options{rounds: 1, scale: 1, only: only}.choose()
		require.NoError(t, err, m[0])
	}
	ci, err := os.ReadFile("../../.ci/run")
	require.NoError(t, err)
	require.Contains(t, string(readme), `BENCH="--scale 0.01 --rounds 1 --out ../../bin/bench"`)
	require.Contains(t, string(ci), `BENCH="--scale 0.01 --rounds 1 --out ../../bin/bench"`)
}

func TestReadmeExplainsEveryMeasureAndDrawing(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, m := range measures() {
		require.Regexp(t, `(?m)^\| (.*, )?`+m.ID+`(, .*)? \|`, string(readme))
	}
	for _, g := range series() {
		require.Contains(t, string(readme), "](results/"+growth{growing: g}.file()+")")
		require.Contains(t, string(readme), "| `"+g.Name+"` |")
	}
}
