package schemadiff_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/schemadiff"
	"github.com/stowage-dev/stowage/migrate"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const root = "../../migrate"

func TestD6DirectoryAgreesWithEntitiesAndDeclaredSQL(t *testing.T) {
	t.Parallel()
	changes, err := schemadiff.Diff(t.Context(), dbtest.ServerURL(t), root)
	require.NoError(t, err)
	require.Empty(t, changes, "the directory lags behind: run stowage migrate diff")
}

func TestD6DeclaredByHandEqualsWhatTheMigrationsLeave(t *testing.T) {
	t.Parallel()
	declared := dbtest.Open(t, dbtest.NewEmptyURL(t))
	require.NoError(t, schemadiff.Declare(t.Context(), declared, root))
	want := byTitle(t, declared)
	got := byTitle(t, dbtest.New(t))

	for _, folder := range []string{"tables", "triggers"} {
		files, err := filepath.Glob(filepath.Join(root, folder, "*.sql"))
		require.NoError(t, err)
		require.NotEmpty(t, files)
		for _, file := range files {
			t.Run("D6 "+folder+"/"+filepath.Base(file), func(t *testing.T) {
				content, err := os.ReadFile(file)
				require.NoError(t, err)
				names := objectsIn(string(content))
				require.NotEmpty(t, names)
				for _, name := range names {
					require.NotEmpty(t, want[name], "%s is not among the objects that the file made", name)
					require.Equal(t, want[name], got[name])
				}
			})
		}
	}
	t.Run("D6 nothing is left undeclared", func(t *testing.T) {
		for name := range got {
			require.Contains(t, want, name)
		}
	})
}

// byTitle are the definitions of the objects in public, by kind and name.
// Functions go by their bare name: none is overloaded.
func byTitle(t *testing.T, pool *pgxpool.Pool) map[string]string {
	t.Helper()
	objects, err := migrate.Objects(t.Context(), pool, "public")
	require.NoError(t, err)
	found := map[string]string{}
	for _, o := range objects {
		if o.Kind == "partitions" {
			continue // children are made by the migrations only
		}
		name, _, _ := strings.Cut(o.Name, "(")
		found[o.Kind+" "+name] = o.Definition
	}
	return found
}

var (
	created     = regexp.MustCompile(`(?m)^CREATE (?:OR REPLACE )?(?:UNIQUE )?(TABLE|INDEX|FUNCTION|TRIGGER) (\w+)`)
	constrained = regexp.MustCompile(`(?m)CONSTRAINT (\w+) FOREIGN KEY`)
)

// objectsIn lists what a declared file makes.
func objectsIn(content string) (names []string) {
	for _, match := range created.FindAllStringSubmatch(content, -1) {
		names = append(names, strings.ToLower(match[1])+" "+match[2])
	}
	for _, match := range constrained.FindAllStringSubmatch(content, -1) {
		names = append(names, "foreign key "+match[1])
	}
	return names
}

func TestSchemaSQLIsFresh(t *testing.T) {
	t.Parallel()
	dump, err := schemadiff.Dump(t.Context(), dbtest.ServerURL(t), root)
	require.NoError(t, err)
	committed, err := os.ReadFile(filepath.Join(root, "schema.sql"))
	require.NoError(t, err)
	require.Equal(t, dump, string(committed), "schema.sql is stale: run stowage migrate schema, and git diff shows what changed")
}

func TestChecksumsAreRight(t *testing.T) {
	t.Parallel()
	dir, err := atlas.NewLocalDir(filepath.Join(root, "migrations"))
	require.NoError(t, err)
	require.NoError(t, atlas.Validate(dir), "run stowage migrate hash")
}

// checkout is a copy of the folder of package migrate, to be changed.
type checkout string

func newCheckout(t *testing.T) checkout {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.CopyFS(dir, os.DirFS(root)))
	return checkout(dir)
}

func (c checkout) read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(string(c), file))
	require.NoError(t, err)
	return string(content)
}

func (c checkout) replace(t *testing.T, file, old, replacement string) {
	t.Helper()
	content := c.read(t, file)
	require.Contains(t, content, old)
	c.write(t, file, strings.Replace(content, old, replacement, 1))
}

func (c checkout) write(t *testing.T, file, content string) {
	t.Helper()
	require.NoError(t, os.WriteFile(filepath.Join(string(c), file), []byte(content), 0o600))
}

func (c checkout) remove(t *testing.T, file string) {
	t.Helper()
	require.NoError(t, os.Remove(filepath.Join(string(c), file)))
}

func (c checkout) diff(t *testing.T) ([]*atlas.Change, error) {
	t.Helper()
	return schemadiff.Diff(t.Context(), dbtest.ServerURL(t), string(c))
}

// next is the migration that Diff writes, after which nothing differs any more.
func (c checkout) next(t *testing.T) string {
	t.Helper()
	changes, err := c.diff(t)
	require.NoError(t, err)
	file, err := schemadiff.Write(string(c), "change_it", changes)
	require.NoError(t, err)
	content, err := os.ReadFile(file)
	require.NoError(t, err)

	changes, err = c.diff(t)
	require.NoError(t, err)
	require.Empty(t, changes)
	return string(content)
}

func TestDiffWritesTheNextMigration(t *testing.T) {
	t.Parallel()

	t.Run("for entities", func(t *testing.T) {
		t.Parallel()
		c := newCheckout(t)
		// It stands between the newest and the one that is written now.
		c.write(t, "migrations/"+time.Now().UTC().Add(-time.Minute).Format("20060102150405")+"_drop_some.sql", "ALTER TABLE repositories DROP COLUMN last_reconciled_at CASCADE;\nDROP TABLE maven_versions CASCADE;\n")
		require.NoError(t, schemadiff.Hash(string(c)))
		written := c.next(t)

		require.Contains(t, written, `ALTER TABLE "repositories" ADD COLUMN "last_reconciled_at" timestamptz NOT NULL DEFAULT '1970-01-01 00:00:00+00'`)
		require.Contains(t, written, `CREATE TABLE "maven_versions"`)
		require.Contains(t, written, `CONSTRAINT "pk_maven_versions" PRIMARY KEY`, "a primary key has a name")
		require.Contains(t, written, `CONSTRAINT "fk_maven_versions_repository"`)
		require.Contains(t, written, `INCLUDE ("size_bytes")`)
	})
	t.Run("for what is declared by hand", func(t *testing.T) {
		t.Parallel()
		c := newCheckout(t)
		c.replace(t, "triggers/stowage_bucket.sql", "sha256", "sha512")
		c.replace(t, "triggers/trg_blob_storage_blobs_immutable.sql", "BEFORE UPDATE", "BEFORE UPDATE OR DELETE")
		c.remove(t, "triggers/trg_namespaces_slug_immutable.sql")
		c.replace(t, "tables/04_storage_ledger.sql", "applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),", "applied_at timestamptz NOT NULL DEFAULT clock_timestamp(),\n    note text NULL,\n    CONSTRAINT ck_storage_ledger_note CHECK (note <> ''),")
		c.remove(t, "tables/05_counter_buckets.sql")
		c.replace(t, "tables/06_reconciliation_requests.sql", "\n);", "\n);\nCREATE INDEX index_reconciliation_requests_on_marker ON reconciliation_requests (marker);")
		c.write(t, "tables/07_notes.sql", "-- A reason.\nCREATE TABLE notes (id uuid NOT NULL, CONSTRAINT pk_notes PRIMARY KEY (id)) WITH (fillfactor = 50);\nCREATE INDEX index_notes_on_id ON notes (id);\n")
		written := c.next(t)

		require.Contains(t, written, "CREATE OR REPLACE FUNCTION public.stowage_bucket(namespace_id uuid)")
		require.Contains(t, written, "sha512")
		require.Contains(t, written, "CREATE OR REPLACE TRIGGER trg_blob_storage_blobs_immutable BEFORE DELETE OR UPDATE ON public.blob_storage_blobs")
		require.Contains(t, written, "DROP TRIGGER trg_namespaces_slug_immutable ON public.namespaces;")
		require.Contains(t, written, "DROP FUNCTION stowage_refuse_slug_change();")
		require.Contains(t, written, `ADD COLUMN "note" text NULL`)
		require.Contains(t, written, "ck_storage_ledger_note")
		require.Contains(t, written, `DROP TABLE "counter_buckets"`)
		require.Contains(t, written, "index_reconciliation_requests_on_marker")
		require.Contains(t, written, "-- A reason.\nCREATE TABLE notes", "a new table is written as its file says")
		require.Contains(t, written, "fillfactor = 50")
	})
}

func TestDiffTellsWhatMustBeWrittenByHand(t *testing.T) {
	t.Parallel()

	t.Run("a storage parameter", func(t *testing.T) {
		t.Parallel()
		c := newCheckout(t)
		c.replace(t, "tables/05_counter_buckets.sql", "\n);", "\n)\nWITH (\n    fillfactor = 50\n);")
		_, err := c.diff(t)
		require.ErrorContains(t, err, "table counter_buckets differs in a way that cannot be planned, write its migration by hand")
		require.ErrorContains(t, err, "WITH (fillfactor=50)")
	})
	t.Run("another partition key", func(t *testing.T) {
		t.Parallel()
		c := newCheckout(t)
		c.replace(t, "tables/03_blob_storage_blobs_by_namespace.sql", "PARTITION BY HASH (namespace_id)", "PARTITION BY HASH (sha256)")
		_, err := c.diff(t)
		require.ErrorContains(t, err, "blob_storage_blobs_by_namespace")
	})
	t.Run("another result of a function", func(t *testing.T) {
		t.Parallel()
		c := newCheckout(t)
		c.replace(t, "triggers/stowage_bucket.sql", "RETURNS int", "RETURNS bigint")
		_, err := c.diff(t)
		require.ErrorContains(t, err, "write its migration by hand")
		require.ErrorContains(t, err, "cannot change return type")
	})
	t.Run("a directory that differs from its checksums", func(t *testing.T) {
		t.Parallel()
		c := newCheckout(t)
		c.replace(t, "migrations/20261130100002_create_namespace_statistics.sql", "fillfactor = 70", "fillfactor = 80")
		_, err := c.diff(t)
		require.ErrorIs(t, err, atlas.ErrChecksumMismatch)
		require.ErrorContains(t, err, "stowage migrate hash")
	})
}

func TestWriteRefusesAName(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "add", "Add_it", "add_it.sql", "../add_it"} {
		_, err := schemadiff.Write(string(newCheckout(t)), name, nil)
		require.ErrorContains(t, err, "want a verb and an object")
	}
}
