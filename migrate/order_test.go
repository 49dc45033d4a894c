package migrate_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/migrate"
)

func TestD5EachMigrationRunsAgainstRowsMadeBeforeIt(t *testing.T) {
	t.Parallel()
	pool := dbtest.Open(t, dbtest.NewEmptyURL(t))

	t.Run("D5 namespaces and repositories", func(t *testing.T) {
		advance(t, pool, versionNamespaces)
		namespace := newNamespace(t, pool)
		newRepository(t, pool, namespace)
		newNamespace(t, pool)
	})
	t.Run("D5 namespace_statistics", func(t *testing.T) {
		advance(t, pool, versionStatistics)
		newNamespace(t, pool)
		requireZeroedRows(t, pool, 3)
		exec(t, pool, "UPDATE namespace_statistics SET components_count = 5")
	})
	t.Run("D5 repositories.last_reconciled_at", func(t *testing.T) {
		advance(t, pool, versionLastReconciled)
		require.Equal(t, 1, value[int](t, pool, "SELECT count(*) FROM repositories WHERE last_reconciled_at = 'epoch'"))
		exec(t, pool, "UPDATE repositories SET artifacts_count = 1, last_reconciled_at = now()")
	})
	t.Run("D5 content", func(t *testing.T) {
		advance(t, pool, versionContent)
		for table, column := range map[string]string{"container_manifests": "digest", "maven_versions": "version", "npm_versions": "version"} {
			require.EqualValues(t, 1, exec(t, pool, "INSERT INTO "+table+" (id, namespace_id, repository_id, name, "+column+", size_bytes) SELECT $1, namespace_id, id, 'name', 'v', 7 FROM repositories", uuid.Must(uuid.NewV7())))
		}
	})
	t.Run("D5 blobs and partitions", func(t *testing.T) {
		advance(t, pool, versionBlobs)
		newBlob(t, pool, value[uuid.UUID](t, pool, "SELECT namespace_id FROM repositories"), "content")
		exec(t, pool, `INSERT INTO blob_storage_attachments (namespace_id, sha256, repository_id, version_table, version_id)
			SELECT b.namespace_id, b.sha256, v.repository_id, 2, v.id FROM blob_storage_blobs AS b, maven_versions AS v`)
	})
	t.Run("D5 accounting", func(t *testing.T) {
		advance(t, pool, versionAccounting)
		exec(t, pool, "INSERT INTO reconciliation_requests SELECT namespace_id, now() FROM namespace_statistics")
		exec(t, pool, "INSERT INTO counter_buckets VALUES (255, $1, 'run')", uuid.New())
	})
	t.Run("D5 river", func(t *testing.T) {
		advance(t, pool, versionRiver)
		exec(t, pool, "INSERT INTO river.river_job (args, kind, max_attempts) VALUES ('{}', 'a', 1)")
	})
	t.Run("D5 guard of the counters", func(t *testing.T) {
		advance(t, pool, versionGuard)
	})
	t.Run("D5 the rest", func(t *testing.T) {
		last, _ := newest(t)
		advance(t, pool, last.Version)
		require.NoError(t, migrate.Verify(t.Context(), pool))
	})
	t.Run("D5 the rows are as they were", func(t *testing.T) {
		require.Equal(t, 3, value[int](t, pool, "SELECT count(*) FROM namespace_statistics WHERE components_count = 5 AND reconciliation_marker = 'epoch'"))
		require.Equal(t, 1, value[int](t, pool, "SELECT count(*) FROM repositories WHERE artifacts_count = 1 AND last_reconciled_at > 'epoch'"))
		require.Equal(t, 1, value[int](t, pool, "SELECT count(*) FROM blob_storage_attachments JOIN blob_storage_blobs USING (namespace_id, sha256) JOIN maven_versions ON id = version_id"))
		require.Equal(t, 3, value[int](t, pool, "SELECT count(*) FROM reconciliation_requests"))
	})
}

func TestD5NothingIsRewrittenOfAHundredThousand(t *testing.T) {
	t.Parallel()
	const rows = 100_000
	pool := migratedTo(t, versionNamespaces)
	exec(t, pool, `WITH made AS (INSERT INTO namespaces (id, slug) SELECT gen_random_uuid(), n::text FROM generate_series(1, $1::int) AS n RETURNING id)
		INSERT INTO repositories (id, namespace_id, name, format, kind) SELECT gen_random_uuid(), id, 'repository', 1, 1 FROM made`, rows)
	const files = "SELECT pg_relation_filenode('namespaces') || ' ' || pg_relation_filenode('repositories')"
	before := value[string](t, pool, files)

	for _, migration := range migrations(t)[1:] {
		t.Run("D5 "+migration.Description, func(t *testing.T) {
			advance(t, pool, migration.Version)
			require.Equal(t, before, value[string](t, pool, files))
		})
	}
	require.Equal(t, rows, value[int](t, pool, "SELECT count(*) FROM repositories WHERE last_reconciled_at = 'epoch'"))
	require.Equal(t, rows, value[int](t, pool, "SELECT count(*) FROM namespaces JOIN namespace_statistics ON namespace_id = id WHERE components_count = 0"))
}

func TestD5StockSettings(t *testing.T) {
	t.Parallel()
	pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
	require.Equal(t, "64", value[string](t, pool, "SHOW max_locks_per_transaction"), "the suite proves too little where migrations may lock more")
}

func TestD5Order(t *testing.T) {
	t.Parallel()
	state, err := migrate.Status(t.Context(), dbtest.Open(t, dbtest.NewEmptyURL(t)))
	require.NoError(t, err)
	require.Empty(t, state.Applied)
	names := make([]string, len(state.Pending))
	for i, m := range state.Pending {
		names[i] = m.Description
	}
	require.Equal(t, []string{
		"create_namespaces_and_repositories", "create_namespace_statistics", "add_repositories_last_reconciled_at",
		"create_versions", "create_blobs", "create_accounting", "create_river",
	}, names[:7])
}

func TestHashPartitions(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	require.Equal(t,
		[]string{"blob_storage_attachments HASH (sha256) 64", "blob_storage_blobs HASH (sha256) 64", "blob_storage_blobs_by_namespace HASH (namespace_id) 64", "storage_ledger RANGE (batch_id) 0"},
		values[string](t, pool, `SELECT partrelid::regclass || ' ' || pg_get_partkeydef(partrelid) || ' ' ||
			(SELECT count(*) FROM pg_inherits JOIN pg_class ON oid = inhrelid WHERE inhparent = partrelid AND relnamespace = 'partitions'::regnamespace)
			FROM pg_partitioned_table ORDER BY 1`))
	t.Run("a digest has no TOAST table", func(t *testing.T) {
		require.Zero(t, value[int](t, pool, "SELECT count(*) FROM pg_class WHERE relnamespace = 'partitions'::regnamespace AND reltoastrelid <> 0"))
	})
	t.Run("a namespace's sum can read the covering index of one partition alone", func(t *testing.T) {
		tx := begin(t, pool, pgx.TxOptions{})
		exec(t, tx, "SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', 'off', true)")
		rows, err := tx.Query(t.Context(), "EXPLAIN (COSTS OFF) SELECT sum(size_bytes) FROM blob_storage_blobs_by_namespace WHERE namespace_id = '01890000-0000-7000-8000-000000000000'")
		require.NoError(t, err)
		plan, err := pgx.CollectRows(rows, pgx.RowTo[string])
		require.NoError(t, err)
		require.Len(t, plan, 3, plan)
		require.Contains(t, plan[1], "Index Only Scan using blob_storage_blobs_by_namespace_")
	})
}
