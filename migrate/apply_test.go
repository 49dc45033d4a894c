package migrate_test

import (
	"bytes"
	"context"
	"log/slog"
	"testing"
	"testing/fstest"
	"time"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/migrate"
)

// newDir is a directory of migrations of the test's own.
func newDir(t *testing.T, files map[string]string) atlas.Dir {
	t.Helper()
	var all []atlas.File
	for name, content := range files {
		all = append(all, atlas.NewLocalFile(name, []byte(content)))
	}
	dir := &atlas.MemDir{}
	require.NoError(t, dir.CopyFiles(all))
	sum, err := dir.Checksum()
	require.NoError(t, err)
	require.NoError(t, atlas.WriteSumFile(dir, sum))
	return dir
}

func TestApply(t *testing.T) {
	t.Parallel()

	t.Run("is done, recorded and told once", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
		var log bytes.Buffer
		opts := migrate.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}

		require.NoError(t, migrate.Apply(bounded(t), pool, opts))
		require.Equal(t, len(migrations(t)), bytes.Count(log.Bytes(), []byte("migration applied")))
		state, err := migrate.Status(t.Context(), pool)
		require.NoError(t, err)
		require.Empty(t, state.Pending)
		last, _ := newest(t)
		require.Equal(t, last.Version, state.Current())

		log.Reset()
		require.NoError(t, migrate.Apply(bounded(t), pool, opts))
		require.Contains(t, log.String(), "no migration is pending")
		require.NotContains(t, log.String(), "migration applied")
	})
	t.Run("by several at once applies each once", func(t *testing.T) {
		t.Parallel()
		url := dbtest.NewEmptyURL(t)
		group, ctx := errgroup.WithContext(bounded(t))
		for range 4 {
			pool := dbtest.Open(t, url)
			group.Go(func() error { return migrate.Apply(ctx, pool, migrate.Options{}) })
		}
		require.NoError(t, group.Wait())
		require.NoError(t, migrate.Verify(t.Context(), dbtest.Open(t, url)))
	})
	t.Run("waits for the Atlas CLI, until its context ends", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
		tx := begin(t, pool, pgx.TxOptions{})
		exec(t, tx, "SELECT pg_advisory_xact_lock($1)", cliLock)

		ctx, cancel := context.WithCancel(bounded(t))
		done := make(chan error, 1)
		go func() { done <- migrate.Apply(ctx, pool, migrate.Options{}) }()
		requireSoon(t, pool, "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT pg_try_advisory_lock%'")
		cancel()
		err := <-done
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorContains(t, err, "another migrator")

		require.NoError(t, tx.Commit(t.Context()))
		require.NoError(t, migrate.Apply(bounded(t), pool, migrate.Options{}))
	})
	t.Run("stands beside tables that are not ours", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
		exec(t, pool, "CREATE TABLE somebody_elses (id int)")
		require.NoError(t, migrate.Apply(bounded(t), pool, migrate.Options{}))
		require.NoError(t, migrate.Verify(t.Context(), pool))
	})
	t.Run("leaves the pool's sessions as they were", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
		before := value[string](t, pool, "SHOW lock_timeout")
		require.NoError(t, migrate.Apply(bounded(t), pool, migrate.Options{LockTimeout: time.Minute}))
		require.Equal(t, before, value[string](t, pool, "SHOW lock_timeout"))
		require.Zero(t, value[int](t, pool, "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"))
	})
	t.Run("refuses a version that it does not know", func(t *testing.T) {
		t.Parallel()
		err := migrate.Apply(bounded(t), dbtest.New(t), migrate.Options{To: "20000101000000"})
		require.ErrorContains(t, err, `version "20000101000000"`)
		last, _ := newest(t)
		require.ErrorContains(t, err, last.Version)
	})
}

// cliLock is what the CLI locks: FNV-1 of "atlas_migrate_execute".
const cliLock = 2686470616

func TestApplyFails(t *testing.T) {
	t.Parallel()

	t.Run("and leaves nothing of the file that failed", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
		broken := map[string]string{"1_a.sql": "CREATE TABLE a (id int);", "2_b.sql": "CREATE TABLE b (id int);\nSELECT 1 / 0;"}
		err := migrate.ApplyDir(bounded(t), pool, newDir(t, broken), migrate.Options{})
		require.ErrorContains(t, err, "migration 2_b.sql")
		require.ErrorContains(t, err, "division by zero")
		require.NotContains(t, err.Error(), "current transaction is aborted", "the error that matters drowns")
		require.True(t, value[bool](t, pool, "SELECT to_regclass('a') IS NOT NULL AND to_regclass('b') IS NULL"))

		mended := map[string]string{"1_a.sql": broken["1_a.sql"], "2_b.sql": "CREATE TABLE b (id int);"}
		require.NoError(t, migrate.ApplyDir(bounded(t), pool, newDir(t, mended), migrate.Options{}))
		require.True(t, value[bool](t, pool, "SELECT to_regclass('b') IS NOT NULL"))
	})
	t.Run("without a transaction, and goes on at the statement that failed", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
		exec(t, pool, "CREATE TABLE a (id int)")
		dir := newDir(t, map[string]string{"1_a.sql": "-- atlas:txmode none\n\nCREATE INDEX CONCURRENTLY i ON a (id);\nINSERT INTO b VALUES (1);"})
		require.ErrorContains(t, migrate.ApplyDir(bounded(t), pool, dir, migrate.Options{}), `relation "b" does not exist`)
		require.True(t, value[bool](t, pool, "SELECT to_regclass('i') IS NOT NULL"))

		exec(t, pool, "CREATE TABLE b (id int)")
		require.NoError(t, migrate.ApplyDir(bounded(t), pool, dir, migrate.Options{}))
		require.Equal(t, 1, value[int](t, pool, "SELECT count(*) FROM b"))
	})
	t.Run("when its context ends in the middle, and leaves nothing of that file", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
		dir := newDir(t, map[string]string{"1_a.sql": "CREATE TABLE a (id int);\nSELECT pg_sleep(60);"})
		ctx, cancel := context.WithCancel(bounded(t))
		done := make(chan error, 1)
		go func() { done <- migrate.ApplyDir(ctx, pool, dir, migrate.Options{}) }()
		requireSoon(t, pool, "SELECT count(*) = 1 FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'SELECT pg_sleep%'")
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
		require.True(t, value[bool](t, pool, "SELECT to_regclass('a') IS NULL"))
	})
	t.Run("on a directory that differs from its checksums, before it touches anything", func(t *testing.T) {
		t.Parallel()
		_, err := migrate.Load(fstest.MapFS{
			"m/1_a.sql":   {Data: []byte("CREATE TABLE a (id int);")},
			"m/atlas.sum": {Data: []byte("h1:wrong\n1_a.sql h1:wrong\n")},
		}, "m")
		require.ErrorIs(t, err, atlas.ErrChecksumMismatch)
		require.ErrorContains(t, err, "stowage migrate hash")
	})
}

func TestWaitFor(t *testing.T) {
	t.Parallel()
	pool := dbtest.Open(t, dbtest.NewEmptyURL(t))

	t.Run("ends with its context and says how far the database is", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := migrate.WaitFor(ctx, pool, "")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		last, _ := newest(t)
		require.ErrorContains(t, err, "migration "+last.Version)
		require.ErrorContains(t, err, "stowage migrate apply")
	})
	t.Run("returns when another applies the version", func(t *testing.T) {
		group, ctx := errgroup.WithContext(bounded(t))
		group.Go(func() error { return migrate.WaitFor(ctx, pool, versionNamespaces) })
		group.Go(func() error { return migrate.Apply(ctx, pool, migrate.Options{To: versionNamespaces}) })
		require.NoError(t, group.Wait())
	})
	t.Run("returns at once when the database is further", func(t *testing.T) {
		advance(t, pool, versionStatistics)
		require.NoError(t, migrate.WaitFor(t.Context(), pool, versionNamespaces))
	})
	t.Run("accepts a version that only a newer build knows", func(t *testing.T) {
		exec(t, pool, "UPDATE atlas_schema_revisions SET version = '29991231000000' WHERE version = $1", versionStatistics)
		require.NoError(t, migrate.WaitFor(t.Context(), pool, "29991231000000"))
	})
}

func TestVerify(t *testing.T) {
	t.Parallel()

	t.Run("passes on what the migrations leave, whatever the session's zone", func(t *testing.T) {
		t.Parallel()
		url := dbtest.NewURL(t)
		require.NoError(t, migrate.Verify(t.Context(), inZone(t, url, "America/New_York")))
	})
	t.Run("tells all that is wrong with the record", func(t *testing.T) {
		t.Parallel()
		requireTold(t, []damage{
			{"a pending migration", "DELETE FROM atlas_schema_revisions WHERE version = '" + versionRiver + "'", "migration " + versionRiver + " (create_river) is not applied"},
			{"a half applied one", "UPDATE atlas_schema_revisions SET applied = 1 WHERE version = '" + versionAccounting + "'", "migration " + versionAccounting + " (create_accounting) is not applied"},
			{"other content", "UPDATE atlas_schema_revisions SET hash = 'x' WHERE version = '" + versionBlobs + "'", "migration " + versionBlobs + " (create_blobs) was applied with other content"},
			{"a newer database", "INSERT INTO atlas_schema_revisions SELECT '29991231000000', 'future', type, applied, total, executed_at, execution_time, error, error_stmt, hash, partial_hashes, operator_version FROM atlas_schema_revisions LIMIT 1", "is the build older than the database?"},
		})
	})
	t.Run("tells all that is wrong with the objects", func(t *testing.T) {
		t.Parallel()
		requireTold(t, []damage{
			{"a disabled trigger", "ALTER TABLE namespaces DISABLE TRIGGER trg_namespaces_create_statistics", "trigger public.trg_namespaces_create_statistics differs"},
			{"a dropped trigger", "DROP TRIGGER trg_blob_storage_blobs_shadow_delete ON blob_storage_blobs", "trigger public.trg_blob_storage_blobs_shadow_delete is missing"},
			{"a replaced function", "CREATE OR REPLACE FUNCTION stowage_bucket(namespace_id uuid) RETURNS int LANGUAGE sql IMMUTABLE PARALLEL SAFE AS 'SELECT 1'", "function public.stowage_bucket(uuid) differs"},
			{"another column", "ALTER TABLE repositories ADD COLUMN extra int", "extra integer"},
			{"another default", "ALTER TABLE repositories ALTER COLUMN last_reconciled_at SET DEFAULT '-infinity'", "last_reconciled_at timestamp with time zone NOT NULL DEFAULT '-infinity'"},
			{"a missing partition", "DROP TABLE partitions.blob_storage_blobs_by_namespace_17", "partitions public.blob_storage_blobs_by_namespace differs"},
			{"a missing index", "DROP INDEX index_namespace_statistics_on_last_reconciled_at_and_ns_id", "index public.index_namespace_statistics_on_last_reconciled_at_and_ns_id is missing"},
			{"a foreign key changed", "ALTER TABLE repositories DROP CONSTRAINT fk_repositories_namespace, ADD CONSTRAINT fk_repositories_namespace FOREIGN KEY (namespace_id) REFERENCES namespaces (id) ON DELETE CASCADE", "foreign key public.fk_repositories_namespace differs"},
			{"River's table changed", "ALTER TABLE river.river_job DROP COLUMN tags", "table river.river_job differs"},
		})
	})
	t.Run("tells each pending migration", func(t *testing.T) {
		t.Parallel()
		err := migrate.Verify(t.Context(), migratedTo(t, versionBlobs))
		require.ErrorContains(t, err, versionAccounting)
		require.ErrorContains(t, err, versionRiver)
	})
	t.Run("ignores the ledger's partitions and what is not ours", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		exec(t, pool, "CREATE TABLE partitions.storage_ledger_20260101 PARTITION OF storage_ledger FOR VALUES FROM ('019b0000-0000-0000-0000-000000000000') TO ('019c0000-0000-0000-0000-000000000000')")
		exec(t, pool, "CREATE TABLE somebody_elses (id int)")
		require.NoError(t, migrate.Verify(t.Context(), pool))
	})
}

type damage struct{ name, sql, says string }

func requireTold(t *testing.T, damages []damage) {
	t.Helper()
	pool := dbtest.New(t)
	for _, d := range damages {
		exec(t, pool, d.sql)
	}
	err := migrate.Verify(t.Context(), pool)
	for _, d := range damages {
		require.ErrorContains(t, err, d.says, d.name)
	}
}
