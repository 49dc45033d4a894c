package schemareview_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/schemadiff"
	"github.com/stowage-dev/stowage/internal/schemareview"
)

// A file without a transaction holds no lock from one statement to the next.
func TestWhatIsMeasured(t *testing.T) {
	t.Parallel()
	const repositories = "repositories"
	cases := []struct {
		name, sql, mode    string
		rewritten, scanned bool
	}{
		{"a column with a constant default", "ALTER TABLE repositories ADD COLUMN a text NOT NULL DEFAULT 'x';", "ACCESS EXCLUSIVE", false, false},
		{"a column with a volatile default", "ALTER TABLE repositories ADD COLUMN b uuid NOT NULL DEFAULT gen_random_uuid();", "ACCESS EXCLUSIVE", true, true},
		{"another type", "ALTER TABLE repositories ALTER COLUMN kind TYPE bigint;", "ACCESS EXCLUSIVE", true, true},
		{"a varchar", "ALTER TABLE repositories ADD COLUMN c varchar(5) NULL;", "ACCESS EXCLUSIVE", false, false},
		{"a longer varchar", "ALTER TABLE repositories ALTER COLUMN c TYPE varchar(9);", "ACCESS EXCLUSIVE", false, false},
		{"a default", "ALTER TABLE repositories ALTER COLUMN kind SET DEFAULT 1;", "ACCESS EXCLUSIVE", false, false},
		{"an index", "CREATE INDEX index_a ON repositories (a);", "SHARE", false, true},
		{"an index, concurrently", "CREATE INDEX CONCURRENTLY index_b ON repositories (b);", "SHARE UPDATE EXCLUSIVE", false, true},
		{"an index less, concurrently", "DROP INDEX CONCURRENTLY index_b;", "SHARE UPDATE EXCLUSIVE", false, false},
		{"a check", "ALTER TABLE repositories ADD CONSTRAINT ck_a CHECK (a <> '');", "ACCESS EXCLUSIVE", false, true},
		{"a check that is not valid", "ALTER TABLE repositories ADD CONSTRAINT ck_b CHECK (b IS NOT NULL) NOT VALID;", "ACCESS EXCLUSIVE", false, false},
		{"its validation", "ALTER TABLE repositories VALIDATE CONSTRAINT ck_b;", "SHARE UPDATE EXCLUSIVE", false, true},
		{"NOT NULL that looks", "ALTER TABLE repositories ALTER COLUMN soft_deleted_at SET NOT NULL;", "ACCESS EXCLUSIVE", false, true},
		{"a trigger", "CREATE TRIGGER trg_a AFTER INSERT ON repositories FOR EACH ROW EXECUTE FUNCTION stowage_refuse_slug_change ();", "SHARE ROW EXCLUSIVE", false, false},
		{"rows", "UPDATE repositories SET a = name;", "ROW EXCLUSIVE", false, true},
		{"a row by its key", "DELETE FROM repositories WHERE id = '01890000-0000-7000-8000-000000000000' AND false;", "ROW EXCLUSIVE", false, false},
		{"a look", "SELECT count(*) FROM repositories;", "ACCESS SHARE", false, true},
		{"a table that refers to it", "CREATE TABLE t (id uuid REFERENCES repositories (id));", "SHARE ROW EXCLUSIVE", false, false},
	}
	sql := "-- atlas:txmode none\n\n"
	for _, c := range cases {
		sql += c.sql + "\n"
	}
	report := reviewOf(t, sql)
	require.True(t, report.WithRows, markdown(t, report))
	require.Empty(t, report.NoRows)
	require.Len(t, report.Files[0].Statements, len(cases))
	for i, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			s := statement(t, report, i)
			require.True(t, s.Measured)
			require.Len(t, s.Locks, 1)
			require.Equal(t, repositories, s.Locks[0].Table)
			require.Equal(t, c.mode, s.Locks[0].Mode)
			require.Equal(t, c.rewritten, len(s.Rewritten) == 1, s.Rewritten)
			require.Equal(t, c.scanned, len(s.Scanned) == 1, s.Scanned)
			if c.name == "rows" {
				require.Equal(t, []schemareview.RowChange{{Table: repositories, Updated: 3}}, s.Rows)
			}
		})
	}
}

func TestPartitionsAreOneFamily(t *testing.T) {
	t.Parallel()
	report := reviewOf(t, `ALTER TABLE blob_storage_blobs ADD COLUMN note text NULL;
		CREATE INDEX index_blob_storage_blobs_on_size ON blob_storage_blobs (size_bytes);
		ALTER TABLE storage_ledger ALTER COLUMN bytes TYPE numeric;
		CREATE TABLE shards (id uuid NOT NULL, CONSTRAINT pk_shards PRIMARY KEY (id)) PARTITION BY HASH (id);
		CREATE TABLE shards_0 PARTITION OF shards FOR VALUES WITH (MODULUS 2, REMAINDER 0);
		CREATE TABLE shards_1 PARTITION OF shards FOR VALUES WITH (MODULUS 2, REMAINDER 1);`)
	require.Empty(t, report.NoRows, "the ledger, which has no partition at first, has rows too")
	require.Equal(t, "blob_storage_blobs", statement(t, report, 0).Locks[0].Table)
	require.Len(t, statement(t, report, 0).Locks, 1)
	require.Equal(t, []string{"blob_storage_blobs"}, statement(t, report, 1).Scanned)
	require.Equal(t, []string{"storage_ledger"}, statement(t, report, 2).Rewritten)
	family, found := 0, ""
	for _, o := range report.Objects {
		if o.Kind == "partitions" {
			family, found = family+1, o.After
		}
	}
	require.Equal(t, 1, family)
	require.Contains(t, found, "2 partitions of shards")
}

// A lock is held until the end of the transaction: what is harmless by itself scans
// under a lock that an earlier statement took.
func TestLocksThatAreHeld(t *testing.T) {
	t.Parallel()
	report := reviewOf(t, `ALTER TABLE repositories ADD CONSTRAINT ck_repositories_size CHECK (size_bytes > -9) NOT VALID;
		ALTER TABLE repositories VALIDATE CONSTRAINT ck_repositories_size;`)
	s := statement(t, report, 1)
	require.Empty(t, s.Locks)
	require.Equal(t, "ACCESS EXCLUSIVE", s.Held[0].Mode)
	require.Equal(t, []string{"repositories"}, s.Scanned)
	var rules []string
	for _, f := range report.Findings {
		if f.Line == s.Line {
			rules = append(rules, f.Rule)
		}
	}
	require.Equal(t, []string{"blocking-scan"}, rules)
}

// The real directory, as if all but its first two files came with the change.
func TestTheRealDirectory(t *testing.T) {
	t.Parallel()
	r := newRepository(t)
	folder := filepath.Join(r.root(), "migrations")
	require.NoError(t, os.RemoveAll(folder))
	require.NoError(t, os.CopyFS(folder, os.DirFS(filepath.Join(migrateRoot, "migrations"))))
	all, err := filepath.Glob(filepath.Join(folder, "*.sql"))
	require.NoError(t, err)
	aside := t.TempDir()
	for _, file := range all[2:] {
		require.NoError(t, os.Rename(file, filepath.Join(aside, filepath.Base(file))))
	}
	require.NoError(t, schemadiff.Hash(r.root()))
	r.commit(t)
	for _, file := range all[2:] {
		require.NoError(t, os.Rename(filepath.Join(aside, filepath.Base(file)), file))
	}
	require.NoError(t, schemadiff.Hash(r.root()))

	report := r.review(t)
	require.Len(t, report.Files, len(all)-2)
	require.True(t, report.WithRows, markdown(t, report))
	for _, file := range report.Files {
		require.NotEmpty(t, file.Statements)
		for _, s := range file.Statements {
			require.True(t, s.Measured, "%s:%d", file.Name, s.Line)
		}
	}
	for _, f := range report.Findings {
		require.NotContains(t, f.Rule, "fails", f.Message)
	}
}

func TestTheWayOutOfATransaction(t *testing.T) {
	t.Parallel()
	report := reviewOf(t, "CREATE INDEX CONCURRENTLY index_repositories_on_kind ON repositories (kind);")
	require.Equal(t, 1, report.Blocking, markdown(t, report))
	require.Equal(t, "fails", report.Findings[0].Rule)
	require.Contains(t, report.Findings[0].Message, "begins with -- atlas:txmode none")
}

func TestAFileThatEndsItsTransaction(t *testing.T) {
	t.Parallel()
	report := reviewOf(t, column+"\n\nCOMMIT;\n\nBEGIN;\n\nALTER TABLE namespaces ADD COLUMN note text NULL;")
	i := slices.IndexFunc(report.Findings, func(f schemareview.Finding) bool { return f.Rule == "fails" })
	require.GreaterOrEqual(t, i, 0, markdown(t, report))
	require.Equal(t, report.Files[0].Statements[1].Line, report.Findings[i].Line)
	require.Contains(t, report.Findings[i].Message, "it ends the transaction")
}
