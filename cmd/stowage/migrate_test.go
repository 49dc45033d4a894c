package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/migrate"
)

// run runs the command and returns what it wrote to stdout and stderr.
func run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	var out, log bytes.Buffer
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&log)
	err = root.ExecuteContext(t.Context())
	return out.String(), log.String(), err
}

func TestMigrateOnADatabase(t *testing.T) {
	t.Parallel()
	url := dbtest.NewEmptyURL(t)
	state, err := migrate.Status(t.Context(), dbtest.Open(t, url))
	require.NoError(t, err)
	newest := state.Pending[len(state.Pending)-1]
	line, applied := newest.Version+" "+newest.Description, "description="+newest.Description
	steps := []struct {
		name, args, stdout, stderr, fails string
	}{
		{name: "status of a new database", args: "status", stdout: line + " pending"},
		{name: "verify fails before", args: "verify", fails: "run stowage migrate apply"},
		{name: "apply to a version", args: "apply --to 20261130100002", stderr: "description=create_namespace_statistics"},
		{name: "apply the rest", args: "apply", stderr: applied},
		{name: "apply again", args: "apply", stderr: "no migration is pending"},
		{name: "status afterwards", args: "status", stdout: line + " 20"},
		{name: "verify afterwards", args: "verify", stdout: "the database is what the migrations leave"},
		{name: "down", args: "down", stderr: "migration taken back"},
		{name: "status after down", args: "status", stdout: line + " pending"},
		{name: "down again", args: "down --allow-data-loss", fails: "only the newest"},
		{name: "apply after down", args: "apply", stderr: applied},
		{name: "an unknown version", args: "apply --to 1", fails: `version "1"`},
	}
	for _, step := range steps {
		t.Run(step.name, func(t *testing.T) {
			args := append([]string{"migrate"}, strings.Fields(step.args)...)
			stdout, stderr, err := run(t, append(args, "--database-url", url)...)
			if step.fails != "" {
				require.ErrorContains(t, err, step.fails)
				return
			}
			require.NoError(t, err)
			require.Contains(t, strings.Join(strings.Fields(stdout), " "), step.stdout)
			require.Contains(t, stderr, step.stderr)
		})
	}
}

func TestMigrateStatusTellsWhatIsHalfDone(t *testing.T) {
	t.Parallel()
	url := dbtest.NewURL(t)
	_, err := dbtest.Open(t, url).Exec(t.Context(), "UPDATE atlas_schema_revisions SET applied = 1, total = 3, error = 'no disk' WHERE version = (SELECT max(version) FROM atlas_schema_revisions)")
	require.NoError(t, err)
	stdout, _, err := run(t, "migrate", "status", "--database-url", url)
	require.NoError(t, err)
	require.Contains(t, stdout, "pending: 1 of 3 statements are applied, then: no disk")
}

func TestMigrateReadsTheURLFromTheEnvironment(t *testing.T) {
	t.Setenv("STOWAGE_DATABASE__URL", "")
	_, _, err := run(t, "migrate", "status")
	require.ErrorContains(t, err, "--database-url")
	require.ErrorContains(t, err, "STOWAGE_DATABASE__URL")

	t.Setenv("STOWAGE_DATABASE__URL", dbtest.NewURL(t))
	stdout, _, err := run(t, "migrate", "status")
	require.NoError(t, err)
	require.NotContains(t, stdout, "pending")
}

func TestMigrateErrorsKeepThePassword(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"postgres://stowage:hunter2@127.0.0.1:1/x?sslmode=disable", "postgres://stowage:hunter2@127.0.0.1:port/x"} {
		_, _, err := run(t, "migrate", "status", "--database-url", url)
		require.Error(t, err)
		require.NotContains(t, err.Error(), "hunter2")
	}
}

func TestMigrateInACheckout(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	require.NoError(t, os.CopyFS(root, os.DirFS("../../migrate")))
	dev := dbtest.ServerURL(t)

	t.Run("diff writes nothing when nothing differs", func(t *testing.T) {
		stdout, _, err := run(t, "migrate", "diff", "--name", "add_nothing", "--dev-url", dev, "--root", root)
		require.NoError(t, err)
		require.Contains(t, stdout, "nothing to write")
	})
	t.Run("diff writes the next migration, schema what it leaves", func(t *testing.T) {
		table := "CREATE TABLE notes (id uuid NOT NULL, CONSTRAINT pk_notes PRIMARY KEY (id));\n"
		require.NoError(t, os.WriteFile(filepath.Join(root, "tables", "07_notes.sql"), []byte(table), 0o600))
		stdout, _, err := run(t, "migrate", "diff", "--name", "create_notes", "--dev-url", dev, "--root", root)
		require.NoError(t, err)
		require.Contains(t, stdout, "_create_notes.sql")

		_, _, err = run(t, "migrate", "schema", "--dev-url", dev, "--root", root)
		require.NoError(t, err)
		dump, err := os.ReadFile(filepath.Join(root, "schema.sql"))
		require.NoError(t, err)
		require.Contains(t, string(dump), "-- table public.notes\nCREATE TABLE notes (")
	})
	t.Run("hash makes an edited directory valid again", func(t *testing.T) {
		file := filepath.Join(root, "migrations", "20261130100001_create_namespaces_and_repositories.sql")
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(file, append(content, "\n-- edited\n"...), 0o600))
		_, _, err = run(t, "migrate", "schema", "--dev-url", dev, "--root", root)
		require.ErrorContains(t, err, "stowage migrate hash")

		_, _, err = run(t, "migrate", "hash", "--root", root)
		require.NoError(t, err)
		_, _, err = run(t, "migrate", "schema", "--dev-url", dev, "--root", root)
		require.NoError(t, err)
	})
	t.Run("diff demands a name and a server", func(t *testing.T) {
		_, _, err := run(t, "migrate", "diff")
		require.ErrorContains(t, err, `"dev-url", "name"`)
	})
}
