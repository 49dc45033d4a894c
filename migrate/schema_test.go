package migrate_test

import (
	"math"
	"testing"
	"time"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent"
	"github.com/stowage-dev/stowage/ent/namespacestatistics"
	_ "github.com/stowage-dev/stowage/ent/runtime"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/dbtest"
)

func TestD1NamespaceStatistics(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	const table = "'namespace_statistics'::regclass"

	t.Run("D1 the primary key is pk_namespace_statistics on namespace_id alone", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, "PRIMARY KEY (namespace_id)", value[string](t, pool, "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conname = 'pk_namespace_statistics' AND conrelid = "+table))
	})
	t.Run("D1 no id column", func(t *testing.T) {
		t.Parallel()
		require.Equal(t,
			[]string{"namespace_id", "deduplicated_size_bytes", "components_count", "last_reconciled_at", "reconciliation_marker"},
			values[string](t, pool, "SELECT attname::text FROM pg_attribute WHERE attrelid = "+table+" AND attnum > 0 AND NOT attisdropped ORDER BY attnum"))
	})
	t.Run("D1 not partitioned", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, "r", value[string](t, pool, "SELECT relkind::text FROM pg_class WHERE NOT relispartition AND oid = "+table))
	})
	t.Run("D1 no second unique index", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, []string{"pk_namespace_statistics"}, values[string](t, pool, "SELECT indexrelid::regclass::text FROM pg_index WHERE indisunique AND indrelid = "+table))
	})
	t.Run("D1 counters may go negative", func(t *testing.T) {
		t.Parallel()
		id := newNamespace(t, pool)
		require.EqualValues(t, 1, exec(t, pool, "UPDATE namespace_statistics SET deduplicated_size_bytes = -1, components_count = $2 WHERE namespace_id = $1", id, int64(math.MinInt64)))
		require.Zero(t, value[int](t, pool, "SELECT count(*) FROM pg_constraint WHERE contype = 'c' AND conrelid = "+table))
	})
	t.Run("D1 its foreign key is the only one to namespaces that names an action", func(t *testing.T) {
		t.Parallel()
		// Per key: on delete and on update, where a is NO ACTION and c is CASCADE.
		require.Equal(t,
			[]string{"fk_blob_storage_blobs_namespace aa", "fk_namespace_statistics_namespace ca", "fk_repositories_namespace aa"},
			values[string](t, pool, "SELECT conname || ' ' || confdeltype::text || confupdtype::text FROM pg_constraint WHERE contype = 'f' AND conparentid = 0 AND confrelid = 'namespaces'::regclass ORDER BY 1"))
	})
	t.Run("D1 deleting a namespace that has a repository fails", func(t *testing.T) {
		t.Parallel()
		id := newNamespace(t, pool)
		newRepository(t, pool, id)
		_, err := pool.Exec(t.Context(), "DELETE FROM namespaces WHERE id = $1", id)
		require.Equal(t, "fk_repositories_namespace", requireServerError(t, err, foreignKeyViolation).ConstraintName)
	})
	t.Run("D1 deleting a namespace that has a blob fails", func(t *testing.T) {
		t.Parallel()
		id := newNamespace(t, pool)
		newBlob(t, pool, id, "content")
		_, err := pool.Exec(t.Context(), "DELETE FROM namespaces WHERE id = $1", id)
		require.Equal(t, "fk_blob_storage_blobs_namespace", requireServerError(t, err, foreignKeyViolation).ConstraintName)
	})
	t.Run("D1 deleting an empty namespace removes its row", func(t *testing.T) {
		t.Parallel()
		id := newNamespace(t, pool)
		require.EqualValues(t, 1, exec(t, pool, "DELETE FROM namespaces WHERE id = $1", id))
		require.Zero(t, value[int](t, pool, "SELECT count(*) FROM namespace_statistics WHERE namespace_id = $1", id))
	})
	t.Run("D1 an update of the counters touches no index", func(t *testing.T) {
		t.Parallel()
		// A session reads its own statistics, which may hold what it did before.
		const hot = "SELECT pg_stat_get_xact_tuples_hot_updated(" + table + ")"
		require.NoError(t, pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			id := newNamespace(t, tx)
			before := value[int](t, tx, hot)
			exec(t, tx, "UPDATE namespace_statistics SET deduplicated_size_bytes = 1, components_count = 1 WHERE namespace_id = $1", id)
			require.Equal(t, before+1, value[int](t, tx, hot))
			return nil
		}))
	})
}

func TestD2CursorIndex(t *testing.T) {
	t.Parallel()
	require.Equal(t,
		[]string{"CREATE INDEX index_namespace_statistics_on_last_reconciled_at_and_ns_id ON public.namespace_statistics USING btree (last_reconciled_at, namespace_id)"},
		values[string](t, dbtest.New(t), "SELECT pg_get_indexdef(indexrelid) FROM pg_index WHERE indrelid = 'namespace_statistics'::regclass AND NOT indisprimary"))
}

// epochColumns are the columns that begin as 'epoch'.
var epochColumns = []struct{ table, column string }{
	{"namespace_statistics", "last_reconciled_at"},
	{"namespace_statistics", "reconciliation_marker"},
	{"repositories", "last_reconciled_at"},
}

func TestD3Epoch(t *testing.T) {
	t.Parallel()
	url := dbtest.NewURL(t)
	pool := dbtest.Open(t, url)
	namespace := newNamespace(t, pool)
	newRepository(t, pool, namespace)

	rendered := map[string]string{}
	for _, zone := range []string{"UTC", "America/New_York"} {
		t.Run("D3 session in "+zone, func(t *testing.T) {
			session := inZone(t, url, zone)
			require.Equal(t, zone, value[string](t, session, "SELECT current_setting('timezone')"))
			for _, c := range epochColumns {
				expr := value[string](t, session, `SELECT pg_get_expr(adbin, adrelid) FROM pg_attrdef JOIN pg_attribute ON attrelid = adrelid AND attnum = adnum
					WHERE adrelid = $1::regclass AND attname = $2 AND attnotnull AND atttypid = 'timestamptz'::regtype`, c.table, c.column)
				rendered[zone] = expr
				require.True(t, value[bool](t, session, "SELECT "+expr+" = to_timestamp(0)"), "%s.%s defaults to %s", c.table, c.column, expr)

				stored := value[time.Time](t, session, "SELECT "+c.column+" FROM "+c.table)
				require.True(t, stored.Equal(time.Unix(0, 0)), "%s.%s reads as %s", c.table, c.column, stored)
				require.False(t, stored.IsZero())
			}
		})
	}
	t.Run("D3 the catalog renders the default in the session's zone, so text must not be compared", func(t *testing.T) {
		require.NotEqual(t, rendered["UTC"], rendered["America/New_York"])
	})
	t.Run("D3 a stamped instant round-trips to the microsecond", func(t *testing.T) {
		stamp := time.Date(2026, 11, 30, 10, 0, 0, 123456000, time.UTC)
		for _, c := range epochColumns {
			exec(t, pool, "UPDATE "+c.table+" SET "+c.column+" = $1", stamp)
			require.True(t, value[time.Time](t, pool, "SELECT "+c.column+" FROM "+c.table).Equal(stamp))
		}
	})
	t.Run("D3 pgx cannot scan '-infinity' into a time.Time", func(t *testing.T) {
		var instant time.Time
		require.Error(t, pool.QueryRow(t.Context(), "SELECT '-infinity'::timestamptz").Scan(&instant))
	})
	t.Run("D3 pgx encodes a zero time.Time as year 1 without an error", func(t *testing.T) {
		require.Equal(t, "0001-01-01 00:00:00+00", value[string](t, pool, "SELECT $1::timestamptz::text", time.Time{}))
	})
}

// inZone is a pool whose sessions are in a time zone.
func inZone(t *testing.T, url, zone string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(url)
	require.NoError(t, err)
	cfg.ConnConfig.RuntimeParams["timezone"] = zone
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// generatedClient is the bare client, without what ent/entdb puts around it.
func generatedClient(t *testing.T, pool *pgxpool.Pool) *ent.Client {
	t.Helper()
	client := ent.NewClient(ent.Driver(entsql.OpenDB(dialect.Postgres, stdlib.OpenDBFromPool(pool))))
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	return client
}

func TestAC14GeneratedClientRoundTripsEachColumn(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	client := generatedClient(t, pool)
	ctx := t.Context()
	created := time.Date(2026, 1, 2, 3, 4, 5, 678901000, time.UTC)
	epoch := time.Unix(0, 0)

	namespace, err := client.Namespace.Create().SetSlug("acme").SetCreatedAt(created).SetSoftDeletedAt(created).Save(ctx)
	require.NoError(t, err)
	repository, err := client.Repository.Create().SetNamespaceID(namespace.ID).SetName("images").SetFormat(schematype.FormatContainer).SetKind(schematype.KindRemote).
		SetCreatedAt(created).SetSoftDeletedAt(created).Save(ctx)
	require.NoError(t, err)

	t.Run("AC14 namespaces", func(t *testing.T) {
		read, err := client.Namespace.Get(ctx, namespace.ID)
		require.NoError(t, err)
		require.Equal(t, "acme", read.Slug)
		require.True(t, read.CreatedAt.Equal(created))
		require.True(t, read.SoftDeletedAt.Equal(created))
	})
	t.Run("AC14 repositories begin at epoch", func(t *testing.T) {
		read, err := client.Repository.Get(ctx, repository.ID)
		require.NoError(t, err)
		require.Equal(t, namespace.ID, read.NamespaceID)
		require.Equal(t, "images", read.Name)
		require.Equal(t, schematype.FormatContainer, read.Format)
		require.Equal(t, schematype.KindRemote, read.Kind)
		require.Zero(t, read.SizeBytes)
		require.Zero(t, read.ArtifactsCount)
		require.True(t, read.LastReconciledAt.Equal(epoch), read.LastReconciledAt)
		require.True(t, read.SoftDeletedAt.Equal(created))
		require.True(t, read.CreatedAt.Equal(created))
	})
	t.Run("AC14 namespace_statistics begin at epoch", func(t *testing.T) {
		read, err := client.NamespaceStatistics.Get(ctx, namespace.ID)
		require.NoError(t, err)
		require.Zero(t, read.DeduplicatedSizeBytes)
		require.Zero(t, read.ComponentsCount)
		require.True(t, read.LastReconciledAt.Equal(epoch), read.LastReconciledAt)
		require.True(t, read.ReconciliationMarker.Equal(epoch), read.ReconciliationMarker)
	})
	t.Run("AC14 what the protocol writes is read", func(t *testing.T) {
		exec(t, pool, "UPDATE namespace_statistics SET deduplicated_size_bytes = 1, components_count = 2, last_reconciled_at = $1, reconciliation_marker = $2", created, created.Add(time.Microsecond))
		exec(t, pool, "UPDATE repositories SET size_bytes = 3, artifacts_count = 4, last_reconciled_at = $1", created)
		stats, err := client.NamespaceStatistics.Query().Where(namespacestatistics.ID(namespace.ID)).Only(ctx)
		require.NoError(t, err)
		require.EqualValues(t, 1, stats.DeduplicatedSizeBytes)
		require.EqualValues(t, 2, stats.ComponentsCount)
		require.True(t, stats.LastReconciledAt.Equal(created))
		require.True(t, stats.ReconciliationMarker.Equal(created.Add(time.Microsecond)))
		read, err := client.Repository.Get(ctx, repository.ID)
		require.NoError(t, err)
		require.EqualValues(t, 3, read.SizeBytes)
		require.EqualValues(t, 4, read.ArtifactsCount)
		require.True(t, read.LastReconciledAt.Equal(created))
	})
	t.Run("AC14 container_manifests", func(t *testing.T) {
		made, err := client.ContainerManifest.Create().SetNamespaceID(namespace.ID).SetRepositoryID(repository.ID).SetName("app").
			SetDigest(schematype.Digest(digest("app"))).SetSizeBytes(1 << 50).SetSoftDeletedAt(created).SetCreatedAt(created).Save(ctx)
		require.NoError(t, err)
		read, err := client.ContainerManifest.Get(ctx, made.ID)
		require.NoError(t, err)
		require.Equal(t, schematype.Digest(digest("app")), read.Digest)
		require.Equal(t, []any{namespace.ID, repository.ID, "app", int64(1 << 50)}, []any{read.NamespaceID, read.RepositoryID, read.Name, read.SizeBytes})
		require.True(t, read.CreatedAt.Equal(created))
		require.True(t, read.SoftDeletedAt.Equal(created))
	})
	t.Run("AC14 maven_versions", func(t *testing.T) {
		made, err := client.MavenVersion.Create().SetNamespaceID(namespace.ID).SetRepositoryID(repository.ID).SetName("org.acme:app").
			SetVersion("1.0").SetSizeBytes(7).SetSoftDeletedAt(created).SetCreatedAt(created).Save(ctx)
		require.NoError(t, err)
		read, err := client.MavenVersion.Get(ctx, made.ID)
		require.NoError(t, err)
		require.Equal(t, []any{namespace.ID, repository.ID, "org.acme:app", "1.0", int64(7)}, []any{read.NamespaceID, read.RepositoryID, read.Name, read.Version, read.SizeBytes})
		require.True(t, read.CreatedAt.Equal(created))
		require.True(t, read.SoftDeletedAt.Equal(created))
	})
	t.Run("AC14 npm_versions", func(t *testing.T) {
		made, err := client.NPMVersion.Create().SetNamespaceID(namespace.ID).SetRepositoryID(repository.ID).SetName("@acme/app").
			SetVersion("1.0.0").SetSizeBytes(7).SetDeprecation("old").SetSoftDeletedAt(created).SetCreatedAt(created).Save(ctx)
		require.NoError(t, err)
		read, err := client.NPMVersion.Get(ctx, made.ID)
		require.NoError(t, err)
		require.Equal(t, []any{namespace.ID, repository.ID, "@acme/app", "1.0.0", int64(7), "old"}, []any{read.NamespaceID, read.RepositoryID, read.Name, read.Version, read.SizeBytes, *read.Deprecation})
		require.True(t, read.CreatedAt.Equal(created))
		require.True(t, read.SoftDeletedAt.Equal(created))
	})
	t.Run("AC14 container_tags and container_manifest_references", func(t *testing.T) {
		manifest := client.ContainerManifest.Query().OnlyX(ctx)
		made, err := client.ContainerTag.Create().SetRepositoryID(repository.ID).SetName("app").SetTag("latest").SetManifest(manifest).
			SetCreatedAt(created).SetUpdatedAt(created).Save(ctx)
		require.NoError(t, err)
		read, err := client.ContainerTag.Get(ctx, made.ID)
		require.NoError(t, err)
		require.Equal(t, []any{repository.ID, "app", "latest", manifest.ID}, []any{read.RepositoryID, read.Name, read.Tag, read.ManifestID})
		require.True(t, read.CreatedAt.Equal(created))
		require.True(t, read.UpdatedAt.Equal(created))

		index, err := client.ContainerManifest.Create().SetNamespaceID(namespace.ID).SetRepositoryID(repository.ID).SetName("app").
			SetDigest(schematype.Digest(digest("index"))).SetSizeBytes(0).AddChildren(manifest).Save(ctx)
		require.NoError(t, err)
		reference, err := client.ContainerManifestReference.Query().Only(ctx)
		require.NoError(t, err)
		require.Equal(t, []any{index.ID, manifest.ID}, []any{reference.IndexID, reference.ChildID})
	})
	t.Run("AC14 maven_files", func(t *testing.T) {
		version := client.MavenVersion.Query().OnlyX(ctx)
		made, err := client.MavenFile.Create().SetVersion(version).SetPath("app-1.0.jar").SetSha256(schematype.Digest(digest("jar"))).
			SetSizeBytes(1 << 50).SetCreatedAt(created).SetUpdatedAt(created).Save(ctx)
		require.NoError(t, err)
		read, err := client.MavenFile.Get(ctx, made.ID)
		require.NoError(t, err)
		require.Equal(t, []any{version.ID, "app-1.0.jar", schematype.Digest(digest("jar")), int64(1 << 50)}, []any{read.VersionID, read.Path, read.Sha256, read.SizeBytes})
		require.True(t, read.CreatedAt.Equal(created))
		require.True(t, read.UpdatedAt.Equal(created))
	})
	t.Run("AC14 npm_dist_tags", func(t *testing.T) {
		version := client.NPMVersion.Query().OnlyX(ctx)
		made, err := client.NPMDistTag.Create().SetRepositoryID(repository.ID).SetName("@acme/app").SetTag("latest").SetVersion(version).
			SetCreatedAt(created).SetUpdatedAt(created).Save(ctx)
		require.NoError(t, err)
		read, err := client.NPMDistTag.Get(ctx, made.ID)
		require.NoError(t, err)
		require.Equal(t, []any{repository.ID, "@acme/app", "latest", version.ID}, []any{read.RepositoryID, read.Name, read.Tag, read.VersionID})
		require.True(t, read.CreatedAt.Equal(created))
		require.True(t, read.UpdatedAt.Equal(created))
	})
}

func TestSizesAreBounded(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	namespace := newNamespace(t, pool)
	repository := newRepository(t, pool, namespace)
	const checkViolation = "23514"
	for _, table := range []struct{ name, column string }{{"container_manifests", "digest"}, {"maven_versions", "version"}, {"npm_versions", "version"}} {
		for _, size := range []int64{-1, 1<<50 + 1} {
			_, err := pool.Exec(t.Context(), "INSERT INTO "+table.name+" (id, namespace_id, repository_id, name, "+table.column+", size_bytes) VALUES ($1, $2, $3, 'n', 'v', $4)", uuid.Must(uuid.NewV7()), namespace, repository, size)
			require.Equal(t, "ck_"+table.name+"_size_bytes", requireServerError(t, err, checkViolation).ConstraintName)
		}
	}
	for _, size := range []int64{-1, 1<<50 + 1} {
		_, err := pool.Exec(t.Context(), "INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) VALUES ($1, $2, $3)", namespace, digest("x"), size)
		require.Equal(t, "ck_blob_storage_blobs_size_bytes", requireServerError(t, err, checkViolation).ConstraintName)
	}
	_, err := pool.Exec(t.Context(), "INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) VALUES ($1, '\\x00', 1)", namespace)
	require.Equal(t, "ck_blob_storage_blobs_sha256", requireServerError(t, err, checkViolation).ConstraintName)
}

func TestEveryConstraintAndIndexHasANameOfItsOwn(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	require.Empty(t, values[string](t, pool, `
		SELECT conrelid::regclass || '.' || conname FROM pg_constraint
		WHERE connamespace = 'public'::regnamespace AND conparentid = 0 AND conrelid <> 'atlas_schema_revisions'::regclass
			AND contype IN ('p', 'u', 'f', 'c', 'x') AND conname !~ '^(pk|uq|fk|ck)_'`))
	require.Empty(t, values[string](t, pool, `
		SELECT indexrelid::regclass::text FROM pg_index JOIN pg_class ON oid = indexrelid
		WHERE relnamespace = 'public'::regnamespace AND indrelid <> 'atlas_schema_revisions'::regclass
			AND relname !~ '^(pk|uq|index)_'`))
}
