package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
)

// The worker is a process that dies by SIGKILL in the middle of the third batch, which
// waits for a version.
func TestAC21DeletionGoesOnAfterItsWorkerWasKilled(t *testing.T) {
	t.Parallel()
	const versions, deletedBefore = 2500, 2000
	s := newServices(t)
	namespace, repository := s.namespace()
	s.exec(`INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes)
		SELECT gen_random_uuid(), $1, $2, 'x', to_char(n, 'FM0000'), 1 FROM generate_series(1, $3::int) AS n`, namespace, repository, versions)
	s.exec(`UPDATE repositories SET artifacts_count = $2, size_bytes = $2 WHERE id = $1`, repository, versions)
	s.exec(`UPDATE namespace_statistics SET components_count = $2 WHERE namespace_id = $1`, namespace, versions)
	s.exec(`UPDATE repositories SET soft_deleted_at = now() WHERE id = $1`, repository)
	s.exec(`INSERT INTO deletion_requests (scope_id, scope_kind) VALUES ($1, 2)`, repository)
	lock, err := s.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = lock.Rollback(context.Background()) })
	var holder int
	require.NoError(t, lock.QueryRow(t.Context(), `SELECT pg_backend_pid() FROM npm_versions WHERE version = '2400' FOR UPDATE`).Scan(&holder))

	doomed := s.start()
	require.Eventually(t, func() bool {
		return s.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND $1 = ANY(pg_blocking_pids(pid))`, holder) > 0 &&
			s.count(`SELECT versions_deleted FROM deletion_requests`) == deletedBefore
	}, patience, often, "the third batch does not wait")
	require.NoError(t, doomed.cmd.Process.Kill())
	require.Equal(t, -1, doomed.exit(), "killed")
	require.EqualValues(t, deletedBefore, s.count(`SELECT versions_deleted FROM deletion_requests`))
	require.EqualValues(t, versions-deletedBefore, s.count(`SELECT count(*) FROM npm_versions`), "the batch under way is undone, those before it are not")
	require.NoError(t, lock.Rollback(t.Context()))

	s.start()
	require.Eventually(t, func() bool {
		return s.count(`SELECT count(*) FROM repositories`)+s.count(`SELECT count(*) FROM deletion_requests`)+s.count(`SELECT count(*) FROM npm_versions`) == 0 &&
			s.count(`SELECT components_count FROM namespace_statistics WHERE namespace_id = $1`, namespace) == 0
	}, patience, often)
}

// Both namespaces have rows in every table, and the same blobs. Only one is deleted.
func TestAC21NothingIsLeftOfADeletedNamespace(t *testing.T) {
	t.Parallel()
	s := newServices(t)
	db, _ := s.registry(nil)
	doomed, kept := s.everyFormat(db), s.everyFormat(db)
	w := s.start()
	s.command("namespace reconcile --all --wait")
	require.Eventually(t, func() bool { return s.miscounted() == 0 }, patience, often)
	doomedIDs, keptIDs := s.idsOf(doomed), s.idsOf(kept)
	tables := s.rowsOf(keptIDs)
	require.Equal(t, tables, s.rowsOf(doomedIDs))
	for _, table := range []string{"container_tags", "container_manifest_references", "maven_files", "npm_dist_tags", "blob_storage_attachments", "blob_storage_blobs_by_namespace"} {
		require.Positive(t, tables[table], table)
	}

	require.NoError(t, db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.ScheduleNamespaceDeletion(ctx, tx, doomed)
	}))
	s.command("namespace reconcile " + doomed.String())
	client := s.redis.Client(t)
	var left map[string]int64
	var keys []string
	require.Eventually(t, func() bool {
		s.exec(`UPDATE blob_storage_deletions SET due_at = now()`) // as if its grace were over
		require.NoError(t, db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			_, err := entpublish.DeleteContent(ctx, tx, 100, func(context.Context, entpublish.Content) error { return nil })
			return err
		}))
		left, keys = s.rowsOf(doomedIDs), s.redisKeys(client)
		return len(left) == 0 && len(keys) == 0
	}, patience, 10*often, "left: %v %v", &left, &keys)
	require.Equal(t, tables, s.rowsOf(keptIDs))
	require.Zero(t, s.miscounted())
	require.NotContains(t, w.log.String(), "level=ERROR")
}

// everyFormat makes a namespace with all that a registry can put into one.
func (s *services) everyFormat(db *entdb.Client) uuid.UUID {
	s.t.Helper()
	namespace := db.Namespace.Create().SetSlug(uuid.NewString()).SaveX(s.t.Context()).ID
	repository := func(f schematype.Format) uuid.UUID {
		return db.Repository.Create().SetNamespaceID(namespace).SetName(f.String()).SetFormat(f).SetKind(schematype.KindHosted).SaveX(s.t.Context()).ID
	}
	image := asBefore(repository(schematype.FormatContainer), schematype.FormatContainer, 1)
	twin := asBefore(image.RepositoryID, schematype.FormatContainer, 51) // of the same blobs
	index := entpublish.Version{
		Ref:      entpublish.Ref{RepositoryID: image.RepositoryID, Name: image.Name, Digest: schematype.Digest{1}},
		Children: []schematype.Digest{image.Digest, twin.Digest},
	}
	npm := asBefore(repository(schematype.FormatNPM), schematype.FormatNPM, 1)
	maven := asBefore(repository(schematype.FormatMaven), schematype.FormatMaven, 1)
	require.NoError(s.t, db.WithTx(s.t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		for _, v := range []entpublish.Version{image, twin, index, npm, maven} {
			if _, err := entpublish.Publish(ctx, tx, v); err != nil {
				return err
			}
		}
		for _, r := range []entpublish.Ref{index.Ref, npm.Ref} {
			if err := entpublish.Tag(ctx, tx, r, "latest", "next"); err != nil {
				return err
			}
		}
		return entpublish.PutBlobs(ctx, tx, namespace, []entpublish.Blob{{Digest: schematype.Digest{2}, Size: 2}})
	}))
	return namespace
}

// idsOf are those of a namespace, its repositories and its versions.
func (s *services) idsOf(namespace uuid.UUID) []uuid.UUID {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `
		SELECT $1::uuid UNION ALL SELECT id FROM repositories WHERE namespace_id = $1
		UNION ALL SELECT id FROM container_manifests WHERE namespace_id = $1
		UNION ALL SELECT id FROM maven_versions WHERE namespace_id = $1
		UNION ALL SELECT id FROM npm_versions WHERE namespace_id = $1`, namespace)
	require.NoError(s.t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	require.NoError(s.t, err)
	return ids
}

// rowsOf is how many rows of each table have one of the ids in any column. History
// outlives what it tells of.
func (s *services) rowsOf(ids []uuid.UUID) map[string]int64 {
	s.t.Helper()
	rows, err := s.pool.Query(s.t.Context(), `
		SELECT table_name, string_agg(format('%I = ANY ($1)', column_name), ' OR ') FROM information_schema.columns
		WHERE table_schema = 'public' AND data_type = 'uuid' AND table_name <> 'storage_ledger' AND table_name NOT LIKE 'usage_%'
		GROUP BY table_name`)
	require.NoError(s.t, err)
	conditions := map[string]string{}
	var table, condition string
	_, err = pgx.ForEachRow(rows, []any{&table, &condition}, func() error {
		conditions[table] = condition
		return nil
	})
	require.NoError(s.t, err)
	found := map[string]int64{}
	for table, condition := range conditions {
		if n := s.count(`SELECT count(*) FROM `+table+` WHERE `+condition, ids); n > 0 {
			found[table] = n
		}
	}
	return found
}

// redisKeys are all but the identities of buckets, which tell of no namespace.
func (s *services) redisKeys(client rueidis.Client) []string {
	s.t.Helper()
	keys, err := client.Do(context.Background(), client.B().Keys().Pattern("*").Build()).AsStrSlice()
	require.NoError(s.t, err)
	return slices.DeleteFunc(keys, func(key string) bool { return strings.HasSuffix(key, ":identity") })
}
