package schemareview_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/devstack"
	"github.com/stowage-dev/stowage/internal/schemadiff"
	"github.com/stowage-dev/stowage/internal/schemareview"
)

// migrateRoot is the folder of package migrate.
const migrateRoot = "../../migrate"

// TestMain puts squawk on PATH, as stowagelab run does.
func TestMain(m *testing.M) {
	linters, err := devstack.LinterPath()
	if err != nil {
		panic(err)
	}
	if err := os.Setenv("PATH", os.Getenv("PATH")+string(os.PathListSeparator)+linters); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// newestOfBase is the newest real migration in the repositories of the tests: with
// later ones the golden reviews would change.
const newestOfBase = "20261130100007"

// repository is a git repository whose only commit has the real directory up to
// newestOfBase, with what is declared by hand.
type repository struct{ top string }

func newRepository(t *testing.T) repository {
	t.Helper()
	r := repository{t.TempDir()}
	for _, folder := range []string{"migrations", "tables", "triggers"} {
		require.NoError(t, os.CopyFS(filepath.Join(r.root(), folder), os.DirFS(filepath.Join(migrateRoot, folder))))
	}
	files, err := filepath.Glob(filepath.Join(r.root(), "migrations", "*.sql"))
	require.NoError(t, err)
	for _, file := range files {
		if filepath.Base(file) > newestOfBase+"_~" {
			require.NoError(t, os.Remove(file))
		}
	}
	require.NoError(t, schemadiff.Hash(r.root()))
	settings, err := os.ReadFile("../../.pg_format")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(r.top, ".pg_format"), settings, 0o600))
	r.git(t, "init", "--quiet", "--initial-branch=main")
	r.commit(t)
	return r
}

func (r repository) root() string { return filepath.Join(r.top, "migrate") }

func (r repository) git(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = r.top
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

func (r repository) commit(t *testing.T) {
	t.Helper()
	r.git(t, "add", "--all")
	r.git(t, "-c", "user.name=t", "-c", "user.email=t@example.com", "commit", "--quiet", "--message=t")
}

// write makes the file formatted, whatever the test thinks of line breaks. Where an
// empty line sets off the comment that begins it, the comment stays as it is.
func (r repository) write(t *testing.T, name, sql string) {
	t.Helper()
	head := ""
	if before, after, ok := strings.Cut(sql, "\n\n"); ok && strings.HasPrefix(sql, "--") {
		head, sql = before+"\n\n", after
	}
	cmd := exec.CommandContext(t.Context(), "pg_format", "--config", filepath.Join(r.top, ".pg_format"), "-")
	cmd.Stdin = strings.NewReader(sql)
	out, err := cmd.Output()
	require.NoError(t, err)
	r.writeRaw(t, name, head+string(out))
}

// writeRaw writes a file below root, and the checksums.
func (r repository) writeRaw(t *testing.T, name, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(r.root(), name), []byte(content), 0o600))
	require.NoError(t, schemadiff.Hash(r.root()))
}

// add writes migrations that are newer than all others, in their order.
func (r repository) add(t *testing.T, files ...string) {
	t.Helper()
	for i, sql := range files {
		r.write(t, newName(i), sql)
	}
}

// newName is the path of the nth new migration below root.
func newName(n int) string {
	return fmt.Sprintf("migrations/29990101%06d_change_it.sql", n)
}

func (r repository) review(t *testing.T) *schemareview.Report {
	t.Helper()
	report, err := r.tryReview(t.Context(), t, "HEAD")
	require.NoError(t, err)
	return report
}

func (r repository) tryReview(ctx context.Context, t *testing.T, base string) (*schemareview.Report, error) {
	t.Helper()
	return schemareview.Review(ctx, schemareview.Options{Root: r.root(), Base: base, DevURL: dbtest.ServerURL(t)})
}

func markdown(t *testing.T, report *schemareview.Report) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, report.WriteMarkdown(&b))
	return b.String()
}

// reviewOf is the review of files on top of the real directory.
func reviewOf(t *testing.T, files ...string) *schemareview.Report {
	t.Helper()
	r := newRepository(t)
	r.add(t, files...)
	return r.review(t)
}

// statement is the nth statement of the only new file.
func statement(t *testing.T, report *schemareview.Report, n int) *schemareview.Statement {
	t.Helper()
	require.NotEmpty(t, report.Files, markdown(t, report))
	require.Greater(t, len(report.Files[0].Statements), n)
	return report.Files[0].Statements[n]
}
