package migrate_test

import (
	"context"
	"net/url"
	"os"
	osexec "os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/migrate"
)

// project is a folder with an atlas.hcl, and the databases that it is told of.
// None of both URLs binds a schema: that is up to atlas.hcl.
type project struct{ binary, root, url, dev string }

func newProject(t *testing.T, root string) project {
	t.Helper()
	return project{binary: cliBinary(t), root: root, url: unbound(t, dbtest.NewEmptyURL(t)), dev: unbound(t, dbtest.NewEmptyURL(t))}
}

func unbound(t *testing.T, raw string) string {
	t.Helper()
	u, err := url.Parse(raw)
	require.NoError(t, err)
	query := u.Query()
	query.Del("search_path")
	u.RawQuery = query.Encode()
	return u.String()
}

// run runs a command of "atlas migrate" in the folder.
func (p project) run(ctx context.Context, args ...string) (output string, err error) {
	cmd := osexec.CommandContext(ctx, p.binary, append([]string{"migrate"}, args...)...)
	cmd.Dir = p.root
	cmd.Env = append(os.Environ(), "STOWAGE_DATABASE__URL="+p.url, "ATLAS_DEV_URL="+p.dev)
	return call(cmd)
}

func TestAtlasCLIWithTheProjectsConfiguration(t *testing.T) {
	t.Parallel()

	t.Run("deploys", func(t *testing.T) {
		t.Parallel()
		p := newProject(t, "..")
		_, err := p.run(bounded(t), "apply", "--env", "deploy")
		require.NoError(t, err)
		for _, env := range []string{"deploy", "local"} {
			status, err := p.run(bounded(t), "status", "--env", env)
			require.NoError(t, err)
			require.Contains(t, status, "Already at latest version")
		}
		require.NoError(t, migrate.Verify(t.Context(), dbtest.Open(t, p.url)))
	})
	t.Run("validates", func(t *testing.T) {
		t.Parallel()
		_, err := newProject(t, "..").run(bounded(t), "validate", "--env", "ci")
		require.NoError(t, err)
	})
	t.Run("lints the newest migration", func(t *testing.T) {
		t.Parallel()
		_, err := newProject(t, "..").run(bounded(t), "lint", "--env", "local")
		require.NoError(t, err)
	})
}

// newGitProject is a folder under git with the project's atlas.hcl and a
// directory of migrations of its own, which it has committed.
func newGitProject(t *testing.T) project {
	t.Helper()
	p := newProject(t, t.TempDir())
	require.NoError(t, os.MkdirAll(filepath.Join(p.root, "migrate", "migrations"), 0o700))
	config, err := os.ReadFile("../atlas.hcl")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(p.root, "atlas.hcl"), config, 0o600))
	p.git(t, "init", "--quiet", "--initial-branch=main")
	p.commit(t, "1_a.sql", "CREATE TABLE a (id int, n int);\nCREATE INDEX index_a ON a (id);")
	return p
}

func (p project) git(t *testing.T, args ...string) {
	t.Helper()
	cmd := osexec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = p.root
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
}

// commit adds a migration.
func (p project) commit(t *testing.T, name, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(p.root, "migrate", "migrations", name), []byte(content), 0o600))
	_, err := p.run(bounded(t), "hash", "--env", "ci")
	require.NoError(t, err)
	p.git(t, "add", ".")
	p.git(t, "-c", "user.name=t", "-c", "user.email=t@example.invalid", "commit", "--quiet", "-m", name)
}

func TestAtlasCLILintsAChange(t *testing.T) {
	t.Parallel()
	const none = "-- atlas:txmode none\n\n"
	for name, tc := range map[string]struct{ file, says string }{
		"a good one":                       {none + "ALTER TABLE a ADD COLUMN b int NOT NULL DEFAULT 0;\nCREATE INDEX CONCURRENTLY index_b ON a (b);\nCREATE TABLE b (id int);", ""},
		"a finding that is suppressed":     {"-- atlas:nolint destructive\nDROP TABLE a;", ""},
		"a dropped table":                  {"DROP TABLE a;", "destructive changes detected"},
		"a dropped column":                 {"ALTER TABLE a DROP COLUMN n;", "destructive changes detected"},
		"a column that needs no rows":      {"ALTER TABLE a ADD COLUMN b int NOT NULL;", "data dependent changes detected"},
		"a renamed column":                 {"ALTER TABLE a RENAME COLUMN id TO m;", "backward incompatible changes detected"},
		"an index that locks out writers":  {"CREATE INDEX index_b ON a (id);", "concurrent index violations detected"},
		"an index that is named otherwise": {none + "CREATE INDEX CONCURRENTLY a_id_idx ON a (id);", "naming violations detected"},
		"a file that fails":                {"SELECT 1 / 0;", "division by zero"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := newGitProject(t)
			p.commit(t, "2_b.sql", tc.file)
			output, err := p.run(bounded(t), "lint", "--env", "ci", "--var", "base=main~1")
			if tc.says == "" {
				require.NoError(t, err)
				require.Empty(t, output)
				return
			}
			require.ErrorContains(t, err, "exit status 1")
			require.Contains(t, output, tc.says)
		})
	}
}
