package entpublish_test

import (
	"context"
	"crypto/sha256"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/dbtest"
)

func TestMain(m *testing.M) {
	if err := fewHistories(); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// bundle is a client with one namespace, in a database that may hold others.
type bundle struct {
	db        *entdb.Client
	pool      *pgxpool.Pool
	recorder  *entdb.Recorder
	namespace uuid.UUID
}

func setup(t *testing.T) *bundle {
	t.Helper()
	return setupIn(t, dbtest.New(t))
}

// setupIn makes a bundle in a database that parallel tests share.
func setupIn(t *testing.T, pool *pgxpool.Pool) *bundle {
	t.Helper()
	b := &bundle{pool: pool, recorder: &entdb.Recorder{}}
	db, err := entdb.New(entdb.Config{
		Pool: b.pool, Emitter: b.recorder, Registerer: prometheus.NewRegistry(),
		Logger: slog.New(slog.NewTextHandler(t.Output(), nil)),
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, db.Close(ctx))
	})
	b.db = db
	b.namespace = db.Namespace.Create().SetSlug(uuid.NewString()).SaveX(t.Context()).ID
	return b
}

func (b *bundle) repository(t *testing.T, format schematype.Format) uuid.UUID {
	t.Helper()
	return b.repositoryOfKind(t, format, schematype.KindHosted)
}

func (b *bundle) repositoryOfKind(t *testing.T, format schematype.Format, kind schematype.Kind) uuid.UUID {
	t.Helper()
	return b.db.Repository.Create().SetNamespaceID(b.namespace).SetName(uuid.NewString()).
		SetFormat(format).SetKind(kind).SaveX(t.Context()).ID
}

// does runs steps that must succeed, each in a transaction of its own.
func (b *bundle) does(t *testing.T, steps ...step) {
	t.Helper()
	for _, s := range steps {
		require.NoError(t, b.in(t.Context(), s))
	}
}

// failure is the error of a step that must fail, and change no counter.
func (b *bundle) failure(t *testing.T, s step) error {
	t.Helper()
	emitted := len(b.recorder.Emissions())
	err := b.in(t.Context(), s)
	require.Error(t, err)
	require.Len(t, b.recorder.Emissions(), emitted)
	return err
}

// fails runs a step that must fail with want, in a text that has the words.
func (b *bundle) fails(t *testing.T, want error, s step, words ...string) {
	t.Helper()
	err := b.failure(t, s)
	require.ErrorIs(t, err, want)
	for _, word := range words {
		require.ErrorContains(t, err, word)
	}
}

// counts requires the counters of a repository and of the namespace.
func (b *bundle) counts(t *testing.T, repository uuid.UUID, logical, components, deduplicated int64) {
	t.Helper()
	require.Equal(t, entdb.Counters{Bytes: logical, Components: components}, b.recorder.Repository(repository), "repository")
	require.Equal(t, deduplicated, b.recorder.Namespace(b.namespace).Bytes, "deduplicated bytes")
	b.requireExact(t)
}

// step is one function of the package with its arguments.
type step = func(ctx context.Context, tx *entdb.Tx) error

func publishes(v entpublish.Version) step {
	return func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.Publish(ctx, tx, v)
		return err
	}
}

func tags(r entpublish.Ref, tags ...string) step {
	return func(ctx context.Context, tx *entdb.Tx) error { return entpublish.Tag(ctx, tx, r, tags...) }
}

func untags(r entpublish.Ref, tag string) step {
	return func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.Untag(ctx, tx, r.RepositoryID, r.Name, tag)
	}
}

func purges(r entpublish.Ref) step {
	return func(ctx context.Context, tx *entdb.Tx) error { return entpublish.Purge(ctx, tx, r) }
}

func softDeletes(r entpublish.Ref) step {
	return func(ctx context.Context, tx *entdb.Tx) error { return entpublish.SoftDelete(ctx, tx, r) }
}

func restores(r entpublish.Ref) step {
	return func(ctx context.Context, tx *entdb.Tx) error { return entpublish.Restore(ctx, tx, r) }
}

func deletesFile(r entpublish.Ref, path string) step {
	return func(ctx context.Context, tx *entdb.Tx) error { return entpublish.DeleteFile(ctx, tx, r, path) }
}

// on makes a step of a function that takes an id.
func on(do func(context.Context, *entdb.Tx, uuid.UUID) error, id uuid.UUID) step {
	return func(ctx context.Context, tx *entdb.Tx) error { return do(ctx, tx, id) }
}

// in runs one step in a transaction of its own.
func (b *bundle) in(ctx context.Context, step func(ctx context.Context, tx *entdb.Tx) error) error {
	return b.db.WithTx(ctx, step)
}

func (b *bundle) publish(ctx context.Context, v entpublish.Version) (published entpublish.Published, err error) {
	err = b.in(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		published, err = entpublish.Publish(ctx, tx, v)
		return err
	})
	return published, err
}

func (b *bundle) purge(ctx context.Context, ref entpublish.Ref) error {
	return b.in(ctx, func(ctx context.Context, tx *entdb.Tx) error { return entpublish.Purge(ctx, tx, ref) })
}

func (b *bundle) collect(ctx context.Context, grace time.Duration) (collected []entpublish.Blob, err error) {
	for {
		var some []entpublish.Blob
		err = b.in(ctx, func(ctx context.Context, tx *entdb.Tx) error {
			some, err = entpublish.CollectBlobs(ctx, tx, b.namespace, grace, 10)
			return err
		})
		collected = append(collected, some...)
		if err != nil || len(some) == 0 {
			return collected, err
		}
	}
}

// blob is a blob whose digest is made of its name.
func blob(name string, size int64) entpublish.Blob {
	return entpublish.Blob{Digest: digest(name), Size: size}
}

func digest(name string) schematype.Digest { return sha256.Sum256([]byte(name)) }

// version is one of the format with blobs, which in Maven are files.
func version(repository uuid.UUID, format schematype.Format, n int, blobs ...entpublish.Blob) entpublish.Version {
	v := entpublish.Version{Ref: ref(repository, format, n)}
	if format != schematype.FormatMaven {
		v.Blobs = blobs
		return v
	}
	for _, b := range blobs {
		v.Files = append(v.Files, entpublish.File{Path: b.Digest.String(), Blob: b})
	}
	return v
}

// ref is a version of the format, named by a number.
func ref(repository uuid.UUID, format schematype.Format, n int) entpublish.Ref {
	r := entpublish.Ref{RepositoryID: repository, Name: "thing"}
	if format == schematype.FormatContainer {
		r.Digest = digest(fmt.Sprint("manifest ", n))
	} else {
		r.Version = fmt.Sprintf("1.0.%d", n)
	}
	return r
}

// recount is what the source tables hold.
func (b *bundle) recount(t *testing.T) (namespace entdb.Counters, repositories map[uuid.UUID]entdb.Counters) {
	t.Helper()
	ctx := context.Background()
	rows, err := b.pool.Query(ctx, `
		SELECT r.id, coalesce(sum(v.size_bytes), 0)::bigint, count(v.size_bytes)
		FROM repositories r LEFT JOIN (
			SELECT repository_id, size_bytes FROM container_manifests
			UNION ALL SELECT repository_id, size_bytes FROM maven_versions
			UNION ALL SELECT repository_id, size_bytes FROM npm_versions) v ON v.repository_id = r.id
		WHERE r.namespace_id = $1
		GROUP BY r.id`, b.namespace)
	require.NoError(t, err)
	defer rows.Close()
	repositories = make(map[uuid.UUID]entdb.Counters)
	for rows.Next() {
		var id uuid.UUID
		var c entdb.Counters
		require.NoError(t, rows.Scan(&id, &c.Bytes, &c.Components))
		repositories[id] = c
		namespace.Components += c.Components
	}
	require.NoError(t, rows.Err())
	require.NoError(t, b.pool.QueryRow(ctx, `SELECT coalesce(sum(size_bytes), 0)::bigint FROM blob_storage_blobs WHERE namespace_id = $1`, b.namespace).Scan(&namespace.Bytes))
	return namespace, repositories
}

// requireExact compares what was emitted with what the source tables hold, and
// versions with the blobs that they have attached.
func (b *bundle) requireExact(t *testing.T) {
	t.Helper()
	namespace, repositories := b.recount(t)
	require.Equal(t, namespace, b.recorder.Namespace(b.namespace), "namespace")
	for id, want := range repositories {
		require.Equal(t, want, b.recorder.Repository(id), "repository")
	}
	var wrong int
	require.NoError(t, b.pool.QueryRow(context.Background(), `
		WITH versions AS (
			SELECT 1 AS version_table, id, size_bytes FROM container_manifests
			UNION ALL SELECT 2, id, size_bytes FROM maven_versions
			UNION ALL SELECT 3, id, size_bytes FROM npm_versions),
		attached AS (
			SELECT a.version_table, a.version_id, sum(b.size_bytes) AS size_bytes
			FROM blob_storage_attachments a JOIN blob_storage_blobs b USING (namespace_id, sha256) GROUP BY 1, 2)
		SELECT count(*) FROM versions v FULL JOIN attached a ON a.version_table = v.version_table AND a.version_id = v.id
		WHERE coalesce(v.size_bytes, -1) <> coalesce(a.size_bytes, 0)`).Scan(&wrong))
	require.Zero(t, wrong, "versions whose size is not that of their blobs, and attachments without a version")
	require.NoError(t, b.pool.QueryRow(context.Background(), `
		WITH files AS (
			SELECT DISTINCT v.namespace_id, f.version_id, f.sha256, f.size_bytes
			FROM maven_files f JOIN maven_versions v ON v.id = f.version_id),
		attached AS (
			SELECT a.namespace_id, a.version_id, a.sha256, b.size_bytes
			FROM blob_storage_attachments a JOIN blob_storage_blobs b USING (namespace_id, sha256) WHERE a.version_table = 2)
		SELECT count(*) FROM (
			(SELECT * FROM files EXCEPT SELECT * FROM attached) UNION ALL (SELECT * FROM attached EXCEPT SELECT * FROM files)) AS odd
		WHERE namespace_id = $1`, b.namespace).Scan(&wrong))
	require.Zero(t, wrong, "files whose blob is not attached, and blobs that no file has")
}
