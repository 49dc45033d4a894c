package failpoint_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/failpoint"
)

func TestWith(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	armed := failpoint.With(t.Context(), func(_ context.Context, at failpoint.Point) error {
		if at == failpoint.DrainClaimed {
			return boom
		}
		return nil
	})
	require.ErrorIs(t, failpoint.Hit(armed, failpoint.DrainClaimed), boom)
	require.ErrorIs(t, failpoint.Hit(context.WithoutCancel(armed), failpoint.DrainClaimed), boom, "a commit outlives its request, and stays armed")
	require.NoError(t, failpoint.Hit(armed, failpoint.DrainFinished))
	require.NoError(t, failpoint.Hit(t.Context(), failpoint.DrainClaimed), "another context")
}

func TestPointsAreDistinct(t *testing.T) {
	t.Parallel()
	seen := map[failpoint.Point]bool{}
	for _, point := range failpoint.Points() {
		require.False(t, seen[point], point)
		seen[point] = true
	}
}

// The symbols of a program without the tag hold neither the hooks nor the call.
func TestProductionBuildsHaveNone(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "stowage")
	build := exec.Command("go", "build", "-o", program, "../../cmd/stowage")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	symbols, err := exec.Command("go", "tool", "nm", program).Output()
	require.NoError(t, err)
	require.Contains(t, string(symbols), "stowage/internal/drain", "the symbols of the program's packages are there")
	require.NotContains(t, string(symbols), "stowage/internal/failpoint")
	// Code that was inlined leaves no symbol, but it needs what it compares with.
	code, err := os.ReadFile(program)
	require.NoError(t, err)
	require.NotContains(t, string(code), failpoint.Variable)
	for _, point := range []failpoint.Point{failpoint.WriterWrote, failpoint.RequestWaits, failpoint.TickRenewed, failpoint.PassMarked} {
		require.False(t, bytes.Contains(code, []byte(point)), point)
	}
}
