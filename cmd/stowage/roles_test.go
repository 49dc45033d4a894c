package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/history"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/redistest"
	"github.com/stowage-dev/stowage/migrate"
)

// The roles belong to the whole server; only this test makes them.
func TestRoles(t *testing.T) {
	t.Parallel()
	s := &services{t: t, url: dbtest.NewEmptyURL(t), redis: redistest.Start(t)}
	s.pool = dbtest.Open(t, s.url)
	roles, _, err := run(t, "migrate", "roles")
	require.NoError(t, err)
	require.Equal(t, migrate.Roles, roles)
	s.exec(roles)
	migrator, writer := s.login("stowage_migrator"), s.login("stowage_writer")
	worker, reader := s.login("stowage_worker"), s.login("stowage_reader")
	_, _, err = run(t, "migrate", "apply", "--database-url", migrator)
	require.NoError(t, err)
	s.exec(roles)
	s.exec(`GRANT UPDATE ON usage_hours TO stowage_worker; GRANT DELETE ON storage_ledger TO stowage_writer`)
	s.exec(roles) // takes back what an earlier version of it may have given

	s.url = worker
	s.start("--reconciliation-staleness", "1s", "--collect-grace", "0s", "--collect-interval", "1s")
	db, err := entdb.New(entdb.Config{
		Pool: dbtest.Open(t, writer), Redis: s.redis.Client(t), Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	namespace := db.Namespace.Create().SetSlug("roles").SaveX(t.Context()).ID
	repository := db.Repository.Create().SetNamespaceID(namespace).SetName("r").SetFormat(schematype.FormatMaven).SetKind(schematype.KindHosted).SaveX(t.Context()).ID
	s.writesEverything(db, namespace, repository)
	s.counted(namespace, repository, 1)
	require.Eventually(t, func() bool {
		return s.count(`SELECT count(*) FROM namespace_statistics WHERE last_reconciled_at > 'epoch'`) == 1
	}, patience, often, "the worker's role cannot reconcile")
	usage, err := db.NamespaceUsage(t.Context(), namespace)
	require.NoError(t, err)
	require.EqualValues(t, 1, usage.Row.Components)
	s.looks(reader)

	for role, refused := range map[string][]string{
		writer: {
			`UPDATE repositories SET size_bytes = 0`,
			`UPDATE repositories SET last_reconciled_at = now()`,
			`UPDATE namespace_statistics SET components_count = 0`,
			`UPDATE namespace_statistics SET reconciliation_marker = now()`,
			`INSERT INTO namespace_statistics (namespace_id, components_count) SELECT id, 5 FROM namespaces`,
			`INSERT INTO repositories (id, namespace_id, name, format, kind, size_bytes) SELECT gen_random_uuid(), id, 'forged', 1, 1, -5 FROM namespaces`,
			`INSERT INTO repositories (id, namespace_id, name, format, kind, artifacts_count) SELECT gen_random_uuid(), id, 'forged', 1, 1, 5 FROM namespaces`,
			`INSERT INTO repositories (id, namespace_id, name, format, kind, last_reconciled_at) SELECT gen_random_uuid(), id, 'forged', 1, 1, now() FROM namespaces`,
			`DELETE FROM namespace_statistics`,
			`DELETE FROM storage_ledger`,
			`INSERT INTO usage_closings SELECT id, now(), 1, 1 FROM namespaces`,
			`DELETE FROM usage_hours`,
			`UPDATE storage_ledger SET bytes = 0`,
			`INSERT INTO storage_ledger SELECT FROM storage_ledger`,
			`UPDATE held_corrections SET approved_at = now()`,
			`UPDATE backfills SET last_key = ''`,
			`UPDATE usage_progress SET hour = now()`,
			`DELETE FROM deletion_requests`,
			`DELETE FROM reconciliation_requests`,
			`DELETE FROM counter_buckets`,
			`SELECT FROM river.river_job`,
			`CREATE TABLE public.x ()`,
			`TRUNCATE npm_versions`,
		},
		worker: {
			`UPDATE usage_hours SET bytes_end = 0`,
			`UPDATE usage_adjustments SET bytes = 0`,
			`INSERT INTO namespaces SELECT FROM namespaces`,
			`UPDATE npm_versions SET size_bytes = 0`,
			`UPDATE repositories SET name = 'x'`,
			`UPDATE namespaces SET slug = 'x'`,
			`INSERT INTO npm_versions SELECT FROM npm_versions`,
			`INSERT INTO blob_storage_blobs SELECT FROM blob_storage_blobs`,
			`INSERT INTO deletion_requests SELECT FROM deletion_requests`,
			`CREATE TABLE public.x ()`,
		},
		reader: {
			`UPDATE reconciliation_requests SET marker = now()`,
			`UPDATE namespace_statistics SET components_count = 0`,
			`DELETE FROM storage_ledger`,
			`SELECT FROM river.river_job`,
		},
	} {
		pool := dbtest.Open(t, role)
		for _, sql := range refused {
			_, err := pool.Exec(t.Context(), sql)
			var refusal *pgconn.PgError
			require.ErrorAs(t, err, &refusal, sql)
			require.Equal(t, "42501", refusal.Code, "%s: %s", sql, refusal.Message)
		}
	}
	s.collectsAndDeletes(db, namespace)
	s.endsUsage(db, writer)
	_, err = dbtest.Open(t, reader).Exec(t.Context(), `SELECT FROM namespaces, repositories, namespace_statistics, storage_ledger`)
	require.NoError(t, err)
}

// looks runs what only looks as the least that may: a reader of the database, and a
// user of Redis that may run scripts and read.
func (s *services) looks(reader string) {
	s.t.Helper()
	const allowed = "ACL SETUSER looker on >looks ~stowage:1:* -@all +@read +@connection +eval +evalsha +info"
	client := s.redis.Client(s.t)
	require.NoError(s.t, client.Do(context.Background(), client.B().Arbitrary(strings.Fields(allowed)...).Build()).Error())
	password := filepath.Join(s.t.TempDir(), "password")
	require.NoError(s.t, os.WriteFile(password, []byte("looks"), 0o600))
	stores := []string{"--database-url", reader, "--redis-addresses", s.redis.Addr, "--redis-username", "looker", "--redis-password-file", password}
	for _, look := range []string{"namespace show roles --unreferenced", "namespace explain roles", "namespace verify --all", "buffer show", "buffer show --bucket 1"} {
		code, _, stderr := runExit(s.t, append(strings.Fields(look), stores...)...)
		require.Zero(s.t, code, "%s: %s", look, stderr)
		require.NotContains(s.t, stderr, "without what is buffered")
	}
	code, _, stderr := runExit(s.t, "namespace", "reconcile", "roles", "--database-url", reader)
	require.Equal(s.t, 1, code)
	require.Contains(s.t, stderr, "permission denied")
}

// collectsAndDeletes has the worker do all that it does beside counting.
func (s *services) collectsAndDeletes(db *entdb.Client, namespace uuid.UUID) {
	s.t.Helper()
	ctx := s.t.Context()
	require.NoError(s.t, db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.PutBlobs(ctx, tx, namespace, []entpublish.Blob{{Digest: schematype.Digest{9}, Size: 9}})
	}))
	require.Eventually(s.t, func() bool {
		var did entpublish.DeletedContent
		require.NoError(s.t, db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) (err error) {
			did, err = entpublish.DeleteContent(ctx, tx, 10, func(context.Context, entpublish.Content) error { return nil })
			return err
		}))
		return did.Deleted > 0 && s.count(`SELECT count(*) FROM blob_storage_blobs WHERE size_bytes = 9`) == 0
	}, patience, often, "the worker's role cannot collect, or the writer's cannot delete content")
	require.NoError(s.t, db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.ScheduleNamespaceDeletion(ctx, tx, namespace)
	}))
	require.Eventually(s.t, func() bool {
		return s.count(`SELECT count(*) FROM namespaces WHERE id = $1`, namespace) == 0
	}, patience, often, "the worker's role cannot delete a namespace")
}

// login is the database's URL for a new login that acts as the role.
func (s *services) login(role string) string {
	s.t.Helper()
	name := strings.ReplaceAll(role+"_"+uuid.NewString(), "-", "_")
	s.exec(`CREATE ROLE ` + name + ` LOGIN PASSWORD 'secret' IN ROLE ` + role)
	s.exec(`ALTER ROLE ` + name + ` SET role = '` + role + `'`)
	pool := s.pool
	s.t.Cleanup(func() {
		_, err := pool.Exec(context.Background(), `DROP ROLE `+name)
		require.NoError(s.t, err)
	})
	u, err := url.Parse(s.url)
	require.NoError(s.t, err)
	u.User = url.UserPassword(name, "secret")
	return u.String()
}

// writesEverything does all that entpublish can, and leaves one version.
func (s *services) writesEverything(db *entdb.Client, namespace, repository uuid.UUID) {
	s.t.Helper()
	version := func(n string) entpublish.Version {
		return entpublish.Version{
			Ref: entpublish.Ref{RepositoryID: repository, Name: "group:artifact", Version: n},
			Files: []entpublish.File{
				{Path: "pom", Blob: entpublish.Blob{Digest: schematype.Digest{1}, Size: 10}},
				{Path: "jar", Blob: entpublish.Blob{Digest: schematype.Digest{2, n[0]}, Size: 20}},
			},
		}
	}
	steps := []func(context.Context, *entdb.Tx) error{
		func(ctx context.Context, tx *entdb.Tx) error { return entpublish.SoftDelete(ctx, tx, version("1").Ref) },
		func(ctx context.Context, tx *entdb.Tx) error { return entpublish.Restore(ctx, tx, version("1").Ref) },
		func(ctx context.Context, tx *entdb.Tx) error { return entpublish.Purge(ctx, tx, version("1").Ref) },
		func(ctx context.Context, tx *entdb.Tx) error {
			_, err := entpublish.CollectBlobs(ctx, tx, namespace, 0, 10)
			return err
		},
		func(ctx context.Context, tx *entdb.Tx) error {
			other := tx.Repository.Create().SetNamespaceID(namespace).SetName("other").SetFormat(schematype.FormatNPM).SetKind(schematype.KindHosted).SaveX(ctx).ID
			return entpublish.DeleteRepository(ctx, tx, other)
		},
		func(ctx context.Context, tx *entdb.Tx) error {
			err := entpublish.DeleteFile(ctx, tx, version("2").Ref, "pom")
			if err == nil {
				_, err = entpublish.Publish(ctx, tx, version("2"))
			}
			return err
		},
		func(ctx context.Context, tx *entdb.Tx) error {
			return errors.Join(
				entpublish.SoftDeleteRepository(ctx, tx, repository), entpublish.RestoreRepository(ctx, tx, repository),
				entpublish.SoftDeleteNamespace(ctx, tx, namespace), entpublish.RestoreNamespace(ctx, tx, namespace))
		},
		func(ctx context.Context, tx *entdb.Tx) error { return writesImages(ctx, tx, namespace) },
		func(ctx context.Context, tx *entdb.Tx) error { return writesPackages(ctx, tx, namespace) },
		func(ctx context.Context, tx *entdb.Tx) error {
			empty := tx.Namespace.Create().SetSlug("empty").SaveX(ctx)
			return tx.Namespace.DeleteOne(empty).Exec(ctx)
		},
	}
	for _, n := range []string{"1", "1", "2"} {
		steps = append([]func(context.Context, *entdb.Tx) error{func(ctx context.Context, tx *entdb.Tx) error {
			_, err := entpublish.Publish(ctx, tx, version(n))
			return err
		}}, steps...)
	}
	for _, step := range steps {
		require.NoError(s.t, db.WithTx(context.Background(), step))
	}
}

// endsUsage has the registry delete a namespace that stores something, which the
// history learns by a trigger that serves no table of the registry's own, and the
// worker keep history, which the registry reads.
func (s *services) endsUsage(db *entdb.Client, writer string) {
	s.t.Helper()
	gone := db.Namespace.Create().SetSlug("gone").SaveX(s.t.Context()).ID
	conn, err := dbtest.Open(s.t, writer).Acquire(s.t.Context())
	require.NoError(s.t, err)
	defer conn.Release()
	_, err = conn.Exec(s.t.Context(), `
		CREATE TEMP TABLE own AS SELECT namespace_id, 7::bigint AS deduplicated_size_bytes, 7::bigint AS components_count FROM namespace_statistics;
		CREATE TRIGGER forged AFTER DELETE ON own FOR EACH ROW EXECUTE FUNCTION stowage_close_usage();
		DELETE FROM own`)
	require.NoError(s.t, err)
	s.exec(fmt.Sprintf(`BEGIN;
		UPDATE namespace_statistics SET deduplicated_size_bytes = 5 WHERE namespace_id = '%[1]s';
		SET LOCAL ROLE stowage_writer;
		DELETE FROM namespaces WHERE id = '%[1]s';
		COMMIT`, gone)) // at once, or the worker puts the counter right
	require.Equal(s.t, int64(1), s.count(`SELECT count(*) FROM usage_closings WHERE namespace_id = $1 AND bytes = 5`, gone))
	require.Zero(s.t, s.count(`SELECT count(*) FROM usage_closings WHERE bytes = 7`), "forged")

	hour := time.Now().UTC().Truncate(time.Hour).Add(-5 * time.Hour)
	require.Eventually(s.t, func() bool { return s.count(`SELECT count(*) FROM usage_progress`) == 1 }, patience, often)
	s.exec(`UPDATE usage_progress SET since = $1, hour = $1, sealed = $1`, hour)
	pool := dbtest.Open(s.t, s.url) // the worker's role
	rollup := history.NewRollupWorker(history.Config{Late: time.Minute, Retention: 24 * time.Hour}, history.Deps{
		DB: pool, Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler), Clock: quartz.NewReal(),
	})
	require.Eventually(s.t, func() bool {
		require.NoError(s.t, rollup.Run(s.t.Context()))
		h, err := db.History(s.t.Context(), gone, hour, hour.Add(10*time.Hour))
		require.NoError(s.t, err)
		return len(h.Hours) >= 4
	}, patience, often)
}

// writesImages does what a container registry can, and leaves nothing but a blob.
func writesImages(ctx context.Context, tx *entdb.Tx, namespace uuid.UUID) error {
	id := tx.Repository.Create().SetNamespaceID(namespace).SetName("images").SetFormat(schematype.FormatContainer).SetKind(schematype.KindHosted).SaveX(ctx).ID
	layer := entpublish.Blob{Digest: schematype.Digest{1}, Size: 10}
	image := entpublish.Version{Ref: entpublish.Ref{RepositoryID: id, Name: "app", Digest: schematype.Digest{3}}, Blobs: []entpublish.Blob{layer}}
	index := entpublish.Version{Ref: entpublish.Ref{RepositoryID: id, Name: "app", Digest: schematype.Digest{4}}, Children: []schematype.Digest{image.Digest}}
	if err := entpublish.PutBlobs(ctx, tx, namespace, image.Blobs); err != nil {
		return err
	}
	if _, err := entpublish.MountBlob(ctx, tx, namespace, namespace, layer.Digest); err != nil {
		return err
	}
	for _, v := range []entpublish.Version{image, image, index, index} {
		if _, err := entpublish.Publish(ctx, tx, v); err != nil {
			return err
		}
	}
	return errors.Join(
		entpublish.Tag(ctx, tx, image.Ref, "latest", "1"), entpublish.Tag(ctx, tx, index.Ref, "latest"),
		entpublish.Untag(ctx, tx, id, "app", "1"),
		entpublish.Purge(ctx, tx, index.Ref), entpublish.Purge(ctx, tx, image.Ref), entpublish.DeleteRepository(ctx, tx, id))
}

// writesPackages does what an npm registry can.
func writesPackages(ctx context.Context, tx *entdb.Tx, namespace uuid.UUID) error {
	id := tx.Repository.Create().SetNamespaceID(namespace).SetName("packages").SetFormat(schematype.FormatNPM).SetKind(schematype.KindRemote).SaveX(ctx).ID
	v := entpublish.Version{Ref: entpublish.Ref{RepositoryID: id, Name: "app", Version: "1.0.0"}, Blobs: []entpublish.Blob{{Digest: schematype.Digest{1}, Size: 10}}}
	if _, err := entpublish.Publish(ctx, tx, v); err != nil {
		return err
	}
	err := errors.Join(
		entpublish.Tag(ctx, tx, v.Ref, "latest"), entpublish.Untag(ctx, tx, id, "app", "latest"), entpublish.Tag(ctx, tx, v.Ref, "next"),
		entpublish.Deprecate(ctx, tx, id, "app", map[string]string{"1.0.0": "old"}))
	if err != nil {
		return err
	}
	_, err = entpublish.PurgeName(ctx, tx, id, "app")
	return errors.Join(err, entpublish.DeleteRepository(ctx, tx, id))
}
