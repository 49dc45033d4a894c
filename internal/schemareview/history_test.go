package schemareview_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/schemareview"
)

const (
	firstFile = "migrations/20261130100001_create_namespaces_and_repositories.sql"
	column    = "ALTER TABLE repositories ADD COLUMN note text NULL;"
)

func (r repository) read(t *testing.T, name string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(r.root(), name))
	require.NoError(t, err)
	return string(content)
}

func TestHistoryThatMayNotChange(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change     func(*testing.T, repository)
		rule, file string
	}{
		"an old migration is edited": {func(t *testing.T, r repository) {
			t.Helper()
			r.writeRaw(t, firstFile, r.read(t, firstFile)+"\n-- edited\n")
		}, "history/edited", filepath.Base(firstFile)},
		"an old migration is removed": {func(t *testing.T, r repository) {
			t.Helper()
			require.NoError(t, os.Remove(filepath.Join(r.root(), firstFile)))
			r.add(t, column)
		}, "history/removed", filepath.Base(firstFile)},
		"a new migration sorts before an old one": {func(t *testing.T, r repository) {
			t.Helper()
			r.write(t, "migrations/20261130100001_add_note.sql", column)
		}, "history/order", "20261130100001_add_note.sql"},
		"two new migrations have one version": {func(t *testing.T, r repository) {
			t.Helper()
			r.write(t, "migrations/29990101000000_add_note.sql", column)
			r.write(t, "migrations/29990101000000_drop_note.sql", "ALTER TABLE repositories DROP COLUMN note;")
		}, "history/order", "29990101000000_drop_note.sql"},
		"a new migration has a name of another form": {func(t *testing.T, r repository) {
			t.Helper()
			r.write(t, "migrations/later.sql", column)
		}, "history/name", "later.sql"},
		"the checksums are stale": {func(t *testing.T, r repository) {
			t.Helper()
			sums := r.read(t, "migrations/atlas.sum")
			r.add(t, column)
			require.NoError(t, os.WriteFile(filepath.Join(r.root(), "migrations/atlas.sum"), []byte(sums), 0o600))
		}, "history/checksums", "atlas.sum"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRepository(t)
			tc.change(t, r)
			report := r.review(t)
			require.Equal(t, 1, report.Blocking, markdown(t, report))
			require.Equal(t, tc.rule, report.Findings[0].Rule)
			require.Equal(t, tc.file, report.Findings[0].File)
			require.Contains(t, markdown(t, report), "The rest of the review was not made")
			require.Empty(t, report.Files)
		})
	}
}

func TestNoMigrationsChanged(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	require.Equal(t, "## Schema review: no migrations changed\n\nThe directory is as at `HEAD`.\n", markdown(t, r.review(t)))
}

func TestReviewOfWhatIsCommitted(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	r.git(t, "switch", "--quiet", "--create", "change")
	r.add(t, column)
	r.commit(t)
	report, err := r.tryReview(t.Context(), t, "main")
	require.NoError(t, err)
	require.Len(t, report.Files, 1)
	require.Zero(t, report.Blocking, markdown(t, report))
}

func TestReviewThatCannotBeMade(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	var needs *schemareview.NeedsError

	t.Run("an unknown base", func(t *testing.T) {
		for _, base := range []string{"nowhere", "", "--all", "HEAD:migrate"} {
			_, err := r.tryReview(t.Context(), t, base)
			require.ErrorAs(t, err, &needs)
			require.ErrorContains(t, err, "no such commit here")
		}
	})
	t.Run("no repository", func(t *testing.T) {
		_, err := repository{t.TempDir()}.tryReview(t.Context(), t, "HEAD")
		require.ErrorAs(t, err, &needs)
		require.ErrorContains(t, err, "run this at the top of the repository")
		require.NoError(t, os.RemoveAll(filepath.Join(r.top, ".git")))
		_, err = r.tryReview(t.Context(), t, "HEAD")
		require.ErrorAs(t, err, &needs)
		require.ErrorContains(t, err, "is not in a git repository")
	})
}

func TestReviewNeedsItsLinters(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	for _, program := range []string{"git", "pg_format", "squawk"} {
		_, err := schemareview.Review(t.Context(), schemareview.Options{})
		var needs *schemareview.NeedsError
		require.ErrorAs(t, err, &needs)
		require.ErrorContains(t, err, program+" is not on PATH")
		require.NoError(t, os.WriteFile(filepath.Join(bin, program), []byte("#!/bin/sh\n"), 0o700))
	}
}
