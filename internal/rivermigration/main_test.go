package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/migrate"
)

const projectDirectory = "../../" + directory

func TestDirectoryHoldsEveryVersionOfTheModuleAsGenerated(t *testing.T) {
	t.Parallel()
	require.Empty(t, problems(t, projectDirectory), "run go run ./internal/rivermigration, then stowage migrate hash and stowage migrate schema")
}

func TestAnotherDirectoryDoesNot(t *testing.T) {
	t.Parallel()
	versions, err := moduleVersions()
	require.NoError(t, err)
	newest := len(versions)
	for name, tc := range map[string]struct {
		content string
		want    string
	}{
		"of an older module": {generate(versions[:newest-1]), fmt.Sprintf("it holds River's versions up to %d, the module has %d", newest-1, newest)},
		"that was edited":    {generate(versions) + "SELECT 1;\n", "1_create_river.sql is not what the program writes"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, "1_create_river.sql"), []byte(tc.content), 0o600))
			require.Equal(t, []string{tc.want}, problems(t, dir))
		})
	}
}

// problems are what is wrong with River's files in a directory.
func problems(t *testing.T, dir string) (found []string) {
	t.Helper()
	versions, err := moduleVersions()
	require.NoError(t, err)
	held, err := heldVersion(dir)
	require.NoError(t, err)
	if held != len(versions) {
		found = append(found, fmt.Sprintf("it holds River's versions up to %d, the module has %d", held, len(versions)))
	}
	files, err := filepath.Glob(filepath.Join(dir, "*_river.sql"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		match := header.FindSubmatch(content)
		require.NotNil(t, match, file)
		first, err := strconv.Atoi(string(match[1]))
		require.NoError(t, err)
		last, err := strconv.Atoi(string(match[2]))
		require.NoError(t, err)
		if generate(versions[first-1:last]) != string(content) {
			found = append(found, filepath.Base(file)+" is not what the program writes")
		}
	}
	return found
}

func TestFileLeavesWhatRiversMigratorLeaves(t *testing.T) {
	t.Parallel()
	ours := dbtest.New(t)
	theirs := dbtest.Open(t, dbtest.NewEmptyURL(t))
	_, err := theirs.Exec(t.Context(), "CREATE SCHEMA river")
	require.NoError(t, err)
	_, err = newMigrator(t, theirs).Migrate(t.Context(), rivermigrate.DirectionUp, nil)
	require.NoError(t, err)

	t.Run("the same objects", func(t *testing.T) {
		t.Parallel()
		want, err := migrate.Objects(t.Context(), theirs, schema)
		require.NoError(t, err)
		require.NotEmpty(t, want)
		got, err := migrate.Objects(t.Context(), ours, schema)
		require.NoError(t, err)
		require.Equal(t, want, got)
	})
	for what, query := range map[string]string{
		"the same record of versions": "SELECT line || ' ' || version FROM river.river_migration ORDER BY 1",
		"the same owners of sequences": `SELECT objid::regclass || ' ' || refobjid::regclass || '.' || refobjsubid || ' ' || deptype::text FROM pg_depend
			WHERE classid = 'pg_class'::regclass AND refclassid = 'pg_class'::regclass AND deptype IN ('a', 'i')
				AND objid IN (SELECT oid FROM pg_class WHERE relnamespace = 'river'::regnamespace AND relkind = 'S') ORDER BY 1`,
		"the same order of columns": "SELECT attrelid::regclass || '.' || attname FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid WHERE relnamespace = 'river'::regnamespace AND attnum > 0 ORDER BY attrelid::regclass::text, attnum",
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			want := texts(t, theirs, query)
			require.NotEmpty(t, want)
			require.Equal(t, want, texts(t, ours, query))
		})
	}
	t.Run("so that its migrator finds nothing to do", func(t *testing.T) {
		t.Parallel()
		migrator := newMigrator(t, ours)
		validated, err := migrator.Validate(t.Context(), nil)
		require.NoError(t, err)
		require.True(t, validated.OK, validated.Messages)
		migrated, err := migrator.Migrate(t.Context(), rivermigrate.DirectionUp, nil)
		require.NoError(t, err)
		require.Empty(t, migrated.Versions)
	})
}

func TestEnumValuesAreFoldedIntoTheirType(t *testing.T) {
	t.Parallel()
	versions, err := moduleVersions()
	require.NoError(t, err)
	require.NotContains(t, generate(versions), "ADD VALUE")
	require.Equal(t,
		"CREATE TYPE t AS ENUM(\n  'a',\n  'b',\n  'c');\n-- (created with the type, see above)\n",
		foldEnumValues("CREATE TYPE t AS ENUM(\n  'a',\n  'c');\nALTER TYPE t ADD VALUE IF NOT EXISTS 'b' AFTER 'a';\n"))

	const earlier = "ALTER TYPE t ADD VALUE IF NOT EXISTS 'b' AFTER 'a';\n"
	require.Equal(t, earlier, foldEnumValues(earlier), "the type is of an earlier file")
}

func TestRunWritesOnlyWhatTheDirectoryLacks(t *testing.T) {
	t.Parallel()
	versions, err := moduleVersions()
	require.NoError(t, err)
	now := time.Date(2026, 12, 1, 10, 0, 0, 0, time.UTC)

	t.Run("everything into an empty one", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		require.NoError(t, run(dir, now))
		content, err := os.ReadFile(filepath.Join(dir, "20261201100000_create_river.sql"))
		require.NoError(t, err)
		require.Equal(t, generate(versions), string(content))
	})
	t.Run("the newer versions into an older one", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "20260101000000_create_river.sql"), []byte(generate(versions[:6])), 0o600))
		require.NoError(t, run(dir, now))
		content, err := os.ReadFile(filepath.Join(dir, "20261201100000_update_river.sql"))
		require.NoError(t, err)
		require.Equal(t, generate(versions[6:]), string(content))
		require.NotContains(t, string(content), "CREATE SCHEMA")
	})
	t.Run("nothing when it lacks none", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		require.NoError(t, run(dir, now))
		require.NoError(t, run(dir, now.Add(time.Hour)))
		files, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, files, 1)
	})
	t.Run("and refuses a file that it did not write", func(t *testing.T) {
		t.Parallel()
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "1_create_river.sql"), []byte("SELECT 1;"), 0o600))
		require.ErrorContains(t, run(dir, now), "1_create_river.sql: no header line")
	})
}

func newMigrator(t *testing.T, pool *pgxpool.Pool) *rivermigrate.Migrator[pgx.Tx] {
	t.Helper()
	migrator, err := rivermigrate.New(riverpgxv5.New(pool), &rivermigrate.Config{Schema: schema})
	require.NoError(t, err)
	return migrator
}

func texts(t *testing.T, pool *pgxpool.Pool, query string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), query)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	require.NoError(t, err)
	return all
}
