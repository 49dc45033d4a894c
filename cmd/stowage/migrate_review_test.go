package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/devstack"
	"github.com/stowage-dev/stowage/internal/schemareview"
)

func TestMigrateReview(t *testing.T) {
	linters, err := devstack.LinterPath()
	require.NoError(t, err)
	t.Setenv("PATH", os.Getenv("PATH")+string(os.PathListSeparator)+linters)
	top := t.TempDir()
	root := filepath.Join(top, "migrate")
	require.NoError(t, os.CopyFS(root, os.DirFS("../../migrate")))
	for _, args := range []string{"init --quiet", "add --all", "-c user.name=t -c user.email=t@example.com commit --quiet --message=t"} {
		cmd := exec.CommandContext(t.Context(), "git", strings.Fields(args)...)
		cmd.Dir = top
		require.NoError(t, cmd.Run())
	}
	review := func(args ...string) (string, error) {
		stdout, _, err := run(t, append([]string{"migrate", "review", "--root", root, "--dev-url", dbtest.ServerURL(t)}, args...)...)
		return stdout, err
	}

	t.Run("without a change it is short, and fine", func(t *testing.T) {
		stdout, err := review("--base", "HEAD")
		require.NoError(t, err)
		require.Contains(t, stdout, "no migrations changed")
	})
	t.Run("what blocks fails it, with the report on stdout", func(t *testing.T) {
		file := filepath.Join(root, "migrations", "29990101000000_drop_ledger.sql")
		require.NoError(t, os.WriteFile(file, []byte("DROP TABLE storage_ledger;\n"), 0o600))
		_, _, err := run(t, "migrate", "hash", "--root", root)
		require.NoError(t, err)
		stdout, err := review("--base", "HEAD", "--format", "json")
		require.ErrorContains(t, err, "findings that block")
		require.Equal(t, 1, exitCode(err))
		var report schemareview.Report
		require.NoError(t, json.Unmarshal([]byte(stdout), &report))
		require.True(t, slices.ContainsFunc(report.Findings, func(f schemareview.Finding) bool { return f.Rule == "compat/table-dropped" }))
		require.Equal(t, "ACCESS EXCLUSIVE", report.Files[0].Statements[0].Locks[0].Mode)
	})
	t.Run("a wrong call", func(t *testing.T) {
		for says, args := range map[string][]string{
			"want markdown or json": {"--base", "HEAD", "--format", "html"},
			`base "nowhere"`:        {"--base", "nowhere"},
		} {
			_, err := review(args...)
			require.ErrorContains(t, err, says)
			require.Equal(t, 2, exitCode(err))
		}
	})
}
