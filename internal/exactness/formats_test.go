package exactness

import (
	"context"
	"fmt"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
)

// step is one thing that a client of a registry does, and what the rows hold
// once it is drained. Bytes of the namespace are those of its distinct blobs.
type step struct {
	name                  string
	do                    func(ctx context.Context, tx *entdb.Tx) error
	namespace, repository accounting.Counters
}

// TestFormats: what clients do moves the counters, with nothing but the write
// path called.
func TestFormats(t *testing.T) {
	t.Parallel()
	s := newServers(t)

	t.Run("AC17 npm", func(t *testing.T) {
		t.Parallel()
		st, repository := s.formatStage(t, schematype.FormatNPM)
		v1 := npmVersion(repository, "1.0.0", "tarball 1", 500)
		v2 := npmVersion(repository, "2.0.0", "tarball 2", 700)
		st.steps(repository, []step{
			{"publish", publishes(v1), bytes(500, 1), bytes(500, 1)},
			{"publish the same again", publishes(v1), bytes(500, 1), bytes(500, 1)},
			{"publish another version", publishes(v2), bytes(1200, 2), bytes(1200, 2)},
			{"unpublish one, which can be undone", softDeletes(v1), bytes(1200, 2), bytes(1200, 2)},
			{"publish it again", publishes(v1), bytes(1200, 2), bytes(1200, 2)},
			{"unpublish it again", softDeletes(v1), bytes(1200, 2), bytes(1200, 2)},
			{"purge it", purges(v1), bytes(1200, 1), bytes(700, 1)},
			{"collect its tarball", collects(st.namespace), bytes(700, 1), bytes(700, 1)},
			{"publish it once more", publishes(v1), bytes(1200, 2), bytes(1200, 2)},
		})
	})

	t.Run("AC18 AC19 container", func(t *testing.T) {
		t.Parallel()
		st, repository := s.formatStage(t, schematype.FormatContainer)
		layer := entpublish.Blob{Digest: digestOf("shared layer"), Size: 1000}
		config := func(n int) entpublish.Blob {
			return entpublish.Blob{Digest: digestOf("config" + strconv.Itoa(n)), Size: 10}
		}
		v1 := image(repository, 1, layer, layer, config(1))
		v2 := image(repository, 2, layer, config(2))
		st.steps(repository, []step{
			{"push the blobs", func(ctx context.Context, tx *entdb.Tx) error {
				return entpublish.PutBlobs(ctx, tx, st.namespace, v1.Blobs)
			}, bytes(1010, 0), bytes(0, 0)},
			{"push the manifest, which has one layer twice", publishes(v1), bytes(1010, 1), bytes(1010, 1)},
			{"push another image with that layer", publishes(v2), bytes(1020, 2), bytes(2020, 2)},
			{"push it again", publishes(v2), bytes(1020, 2), bytes(2020, 2)},
			{"delete the first", purges(v1), bytes(1020, 1), bytes(1010, 1)},
			{"collect", collects(st.namespace), bytes(1010, 1), bytes(1010, 1)},
		})
	})

	t.Run("AC20 maven", func(t *testing.T) {
		t.Parallel()
		st, repository := s.formatStage(t, schematype.FormatMaven)
		version := func(files ...entpublish.File) entpublish.Version {
			return entpublish.Version{Ref: entpublish.Ref{RepositoryID: repository, Name: "org.example:library", Version: "1.0"}, Files: files}
		}
		file := func(path string, size int64) entpublish.File {
			return entpublish.File{Path: path, Blob: entpublish.Blob{Digest: digestOf(path), Size: size}}
		}
		pom, jar, sources := file("pom", 10), file("jar", 1000), file("sources", 100)
		other := version(jar)
		other.Version = "1.1"
		st.steps(repository, []step{
			{"deploy the pom", publishes(version(pom)), bytes(10, 1), bytes(10, 1)},
			{"deploy the jar", publishes(version(jar)), bytes(1010, 1), bytes(1010, 1)},
			{"deploy the sources, and the jar again", publishes(version(sources, jar)), bytes(1110, 1), bytes(1110, 1)},
			{"deploy another version with the same jar", publishes(other), bytes(1110, 2), bytes(2110, 2)},
			{"delete the first", purges(version()), bytes(1110, 1), bytes(1000, 1)},
			{"collect", collects(st.namespace), bytes(1000, 1), bytes(1000, 1)},
		})
	})
}

// TestAC21DeletingEverything deletes repositories, and at last the namespace,
// while some of their deltas are still buffered.
func TestAC21DeletingEverything(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	st := s.emptyStage(t)
	for n := range 5 {
		require.NoError(t, st.publish(t.Context(), st.repository(), strconv.Itoa(n), 100))
	}
	images := st.newRepository(schematype.FormatContainer)
	require.NoError(t, st.inTx(t.Context(), publishes(image(images.ID, 1, entpublish.Blob{Digest: digestOf("layer"), Size: 1000}))))
	st.drainAll()
	st.requireRows(counted{st.own(): bytes(1500, 6), st.first(): bytes(500, 5), images: bytes(1000, 1)})

	deletes := func(repository uuid.UUID) func(context.Context, *entdb.Tx) error {
		return func(ctx context.Context, tx *entdb.Tx) error { return entpublish.DeleteRepository(ctx, tx, repository) }
	}
	require.NoError(t, st.publish(t.Context(), st.repository(), "buffered when the repository goes", 100))
	require.NoError(t, st.inTx(t.Context(), deletes(st.repository())))
	st.drainAll()
	st.requireRows(counted{st.own(): bytes(1600, 1), images: bytes(1000, 1)})
	st.collect(t)
	st.drainAll()
	st.requireRows(counted{st.own(): bytes(1000, 1), images: bytes(1000, 1)})

	require.NoError(t, st.inTx(t.Context(), deletes(images.ID)))
	st.collect(t)
	require.NoError(t, st.db.Namespace.DeleteOneID(st.namespace).Exec(t.Context()))
	st.drainAll()
	st.requireNoKeys()
	require.Equal(t, []string{"blob_storage_deletions"}, st.rowsLeft(), "the registry has yet to delete the content")
	st.deleteContent()
	require.Empty(t, st.rowsLeft(), "only the ledger and the history outlive the namespace")
}

func (s *stage) deleteContent() {
	s.t.Helper()
	require.NoError(s.t, s.inTx(s.t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.DeleteContent(ctx, tx, 1000, func(context.Context, entpublish.Content) error { return nil })
		return err
	}))
}

// rowsLeft are the tables that hold rows of the namespace.
func (s *stage) rowsLeft() (left []string) {
	s.t.Helper()
	tables, err := s.servers.pool.Query(context.Background(), `
		SELECT table_name FROM information_schema.columns
		WHERE table_schema = 'public' AND column_name = 'namespace_id'
		  AND table_name <> 'storage_ledger' AND table_name NOT LIKE 'usage%'`)
	require.NoError(s.t, err)
	names, err := pgx.CollectRows(tables, pgx.RowTo[string])
	require.NoError(s.t, err)
	require.Contains(s.t, names, "blob_storage_attachments")
	for _, name := range names {
		var rows int
		require.NoError(s.t, s.servers.pool.QueryRow(context.Background(), fmt.Sprintf(`SELECT count(*) FROM %s WHERE namespace_id = $1`, name), s.namespace).Scan(&rows))
		if rows > 0 {
			left = append(left, name)
		}
	}
	return left
}

func (s *servers) formatStage(t testing.TB, format schematype.Format) (*stage, uuid.UUID) {
	t.Helper()
	st := s.emptyStage(t)
	return st, st.newRepository(format).ID
}

// steps does one after the other, and drains after each.
func (s *stage) steps(repository uuid.UUID, steps []step) {
	s.t.Helper()
	for _, step := range steps {
		require.NoError(s.t, s.inTx(context.Background(), step.do), step.name)
		s.drainAll()
		rows := s.rows(s.t, s.namespace)
		require.Equal(s.t, step.namespace, rows[s.own()], "namespace after: %s", step.name)
		require.Equal(s.t, step.repository, rows[accounting.RepositoryScope(s.namespace, repository)], "repository after: %s", step.name)
		s.requireExact()
	}
}

func npmVersion(repository uuid.UUID, version, tarball string, size int64) entpublish.Version {
	return entpublish.Version{
		Ref:   entpublish.Ref{RepositoryID: repository, Name: "package", Version: version},
		Blobs: []entpublish.Blob{{Digest: digestOf(tarball), Size: size}},
	}
}

func image(repository uuid.UUID, n int, blobs ...entpublish.Blob) entpublish.Version {
	return entpublish.Version{
		Ref:   entpublish.Ref{RepositoryID: repository, Name: "image", Digest: digestOf("manifest" + strconv.Itoa(n))},
		Blobs: blobs,
	}
}

func publishes(v entpublish.Version) func(context.Context, *entdb.Tx) error {
	return func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.Publish(ctx, tx, v)
		return err
	}
}

func softDeletes(v entpublish.Version) func(context.Context, *entdb.Tx) error {
	return func(ctx context.Context, tx *entdb.Tx) error { return entpublish.SoftDelete(ctx, tx, v.Ref) }
}

func purges(v entpublish.Version) func(context.Context, *entdb.Tx) error {
	return func(ctx context.Context, tx *entdb.Tx) error { return entpublish.Purge(ctx, tx, v.Ref) }
}

func collects(namespace uuid.UUID) func(context.Context, *entdb.Tx) error {
	return func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.CollectBlobs(ctx, tx, namespace, 0, 100)
		return err
	}
}
