package entpublish_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/ent/containertag"
	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/dbtest"
)

// registry is what the examples work with: a client, a namespace, and a
// repository in it.
type registry struct {
	*entdb.Client
	namespace, repository uuid.UUID
	counted               *entdb.Recorder
}

// show prints the counters as they stand once the workers have drained them.
func (r *registry) show(after string) {
	repository, namespace := r.counted.Repository(r.repository), r.counted.Namespace(r.namespace)
	fmt.Printf("%s: repository %d bytes in %d, namespace %d bytes\n", after, repository.Bytes, repository.Components, namespace.Bytes)
}

// do runs steps in one counted transaction.
func (r *registry) do(steps ...func(context.Context, *entdb.Tx) error) error {
	return r.WithTx(context.Background(), func(ctx context.Context, tx *entdb.Tx) error {
		for _, s := range steps {
			if err := s(ctx, tx); err != nil {
				return err
			}
		}
		return nil
	})
}

// A container client pushes the blobs, then the manifests that have them, then
// the index that refers to these, and a tag.
func Example_container() {
	withRegistry(schematype.FormatContainer, func(r *registry) error {
		layer := entpublish.Blob{Digest: sha256.Sum256([]byte("layer")), Size: 1000}
		amd := entpublish.Version{
			Ref:   entpublish.Ref{RepositoryID: r.repository, Name: "app", Digest: sha256.Sum256([]byte("amd64"))},
			Blobs: []entpublish.Blob{layer, {Digest: sha256.Sum256([]byte("config")), Size: 10}, layer},
		}
		index := entpublish.Version{
			Ref:      entpublish.Ref{RepositoryID: r.repository, Name: "app", Digest: sha256.Sum256([]byte("index"))},
			Children: []schematype.Digest{amd.Digest},
		}
		err := r.do(func(ctx context.Context, tx *entdb.Tx) error {
			return entpublish.PutBlobs(ctx, tx, r.namespace, []entpublish.Blob{layer})
		})
		if err != nil {
			return err
		}
		r.show("blob")
		err = r.do(publishes(amd), publishes(index), func(ctx context.Context, tx *entdb.Tx) error {
			return entpublish.Tag(ctx, tx, index.Ref, "latest")
		})
		if err != nil {
			return err
		}
		r.show("push")

		// Whoever pulls a tag must not find what is soft-deleted.
		tag, err := r.ContainerTag.Query().
			Where(containertag.RepositoryID(r.repository), containertag.Name("app"), containertag.Tag("latest")).
			WithManifest().Only(context.Background())
		if err != nil {
			return err
		}
		fmt.Println("latest is hidden:", tag.Edges.Manifest.SoftDeletedAt != nil)

		err = r.do(purges(amd.Ref))
		fmt.Println("the index keeps its child:", errors.Is(err, entpublish.ErrConflict))
		err = r.do(purges(index.Ref), purges(amd.Ref))
		r.show("purge")
		return err
	})
	// Output:
	// blob: repository 0 bytes in 0, namespace 1000 bytes
	// push: repository 1010 bytes in 2, namespace 1010 bytes
	// latest is hidden: false
	// the index keeps its child: true
	// purge: repository 0 bytes in 0, namespace 1010 bytes
}

// Maven deploys file by file. A file of a snapshot is replaced.
func Example_maven() {
	withRegistry(schematype.FormatMaven, func(r *registry) error {
		deploy := func(version, path, content string, size int64) error {
			_, err := published(r, entpublish.Version{
				Ref: entpublish.Ref{RepositoryID: r.repository, Name: "org.example:library", Version: version},
				Files: []entpublish.File{
					{Path: path, Blob: entpublish.Blob{Digest: sha256.Sum256([]byte(content)), Size: size}},
				},
			})
			return err
		}
		err := errors.Join(
			deploy("1.0", "library-1.0.jar", "jar", 1000),
			deploy("1.0", "library-1.0.jar.sha1", "checksum", 40),
			deploy("1.0", "library-1.0.pom", "pom", 200),
		)
		r.show("release")
		fmt.Println("immutable:", errors.Is(deploy("1.0", "library-1.0.jar", "another", 1), entpublish.ErrImmutable))
		err = errors.Join(err,
			deploy("1.1-SNAPSHOT", "library-1.1.jar", "monday", 1100),
			deploy("1.1-SNAPSHOT", "library-1.1.jar", "tuesday", 1150),
		)
		r.show("snapshot")
		// The artifact's own metadata belongs to the empty version.
		err = errors.Join(err, deploy("", "maven-metadata.xml", "metadata", 300))
		r.show("metadata")
		return err
	})
	// Output:
	// release: repository 1240 bytes in 1, namespace 1240 bytes
	// immutable: true
	// snapshot: repository 2390 bytes in 2, namespace 3490 bytes
	// metadata: repository 2690 bytes in 3, namespace 3790 bytes
}

// An npm client publishes a tarball with a dist-tag, deprecates, and unpublishes.
func Example_npm() {
	withRegistry(schematype.FormatNPM, func(r *registry) error {
		v := entpublish.Version{
			Ref:   entpublish.Ref{RepositoryID: r.repository, Name: "@acme/app", Version: "1.0.0"},
			Blobs: []entpublish.Blob{{Digest: sha256.Sum256([]byte("tarball")), Size: 500}},
		}
		err := r.do(publishes(v), func(ctx context.Context, tx *entdb.Tx) error {
			// After an error a transaction only rolls back: nothing more is tried in it.
			if err := entpublish.Tag(ctx, tx, v.Ref, "latest"); err != nil {
				return err
			}
			return entpublish.Deprecate(ctx, tx, r.repository, v.Name, map[string]string{"1.0.0": "use @acme/lib"})
		})
		if err != nil {
			return err
		}
		r.show("publish")
		again, err := published(r, v)
		fmt.Println("published again, created:", again.Created)
		if err := errors.Join(err, r.do(softDeletes(v.Ref))); err != nil {
			return err
		}
		r.show("soft-deleted")
		err = r.do(func(ctx context.Context, tx *entdb.Tx) error {
			purged, err := entpublish.PurgeName(ctx, tx, r.repository, v.Name)
			fmt.Println("versions unpublished:", purged)
			return err
		})
		r.show("unpublish")
		return err
	})
	// Output:
	// publish: repository 500 bytes in 1, namespace 500 bytes
	// published again, created: false
	// soft-deleted: repository 500 bytes in 1, namespace 500 bytes
	// versions unpublished: 1
	// unpublish: repository 0 bytes in 0, namespace 500 bytes
}

// What cannot use the client reports what its SQL really changed, in the same
// transaction: RETURNING tells rows affected, not rows asked for.
func Example_rawSQL() {
	withRegistry(schematype.FormatNPM, func(r *registry) error {
		for _, version := range []string{"1.0.0", "1.0.1"} {
			_, err := published(r, entpublish.Version{
				Ref:   entpublish.Ref{RepositoryID: r.repository, Name: "app", Version: version},
				Blobs: []entpublish.Blob{{Digest: sha256.Sum256([]byte(version)), Size: 500}},
			})
			if err != nil {
				return err
			}
		}
		err := r.do(func(ctx context.Context, tx *entdb.Tx) error {
			var bytes, versions int64
			err := tx.Pgx().QueryRow(ctx, `
				WITH deleted AS (
					DELETE FROM npm_versions WHERE repository_id = $1 AND version = $2 RETURNING id, size_bytes),
				detached AS (
					DELETE FROM blob_storage_attachments a USING deleted d WHERE a.version_table = 3 AND a.version_id = d.id)
				SELECT coalesce(sum(size_bytes), 0)::bigint, count(*) FROM deleted`, r.repository, "1.0.1").Scan(&bytes, &versions)
			if err != nil {
				return err
			}
			// The repository's logical bytes and components, and the namespace's
			// components: its bytes are those of its blobs, which stay.
			return errors.Join(
				tx.Report(entdb.Change{NamespaceID: r.namespace, RepositoryID: r.repository, Counters: entdb.Counters{Bytes: -bytes, Components: -versions}}),
				tx.Report(entdb.Change{NamespaceID: r.namespace, Counters: entdb.Counters{Components: -versions}}),
			)
		})
		r.show("raw SQL")
		return err
	})
	// Output:
	// raw SQL: repository 500 bytes in 1, namespace 1000 bytes
}

func published(r *registry, v entpublish.Version) (published entpublish.Published, err error) {
	err = r.do(func(ctx context.Context, tx *entdb.Tx) error {
		published, err = entpublish.Publish(ctx, tx, v)
		return err
	})
	return published, err
}

// withRegistry runs an example in a database of its own. A registry gives its own
// pool, and Redis instead of the Recorder.
func withRegistry(format schematype.Format, example func(r *registry) error) {
	ctx := context.Background()
	t := &exampleTB{}
	defer t.end()
	r := &registry{counted: &entdb.Recorder{}}
	db, err := entdb.New(entdb.Config{
		Pool: dbtest.New(t), Emitter: r.counted, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		fmt.Println("failed:", err)
		return
	}
	r.Client = db
	if err := errors.Join(db.Check(ctx), r.open(ctx, format), example(r), db.Close(ctx)); err != nil {
		fmt.Println("failed:", err)
	}
}

// exampleTB is what a database of its own needs of a test, which examples have
// not.
type exampleTB struct {
	testing.TB
	cleanups []func()
}

func (*exampleTB) Helper()                   {}
func (*exampleTB) Failed() bool              { return false }
func (*exampleTB) Logf(string, ...any)       {}
func (*exampleTB) Context() context.Context  { return context.Background() }
func (*exampleTB) Errorf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (*exampleTB) Fatalf(f string, a ...any) { panic(fmt.Sprintf(f, a...)) }
func (t *exampleTB) Cleanup(f func())        { t.cleanups = append(t.cleanups, f) }

func (t *exampleTB) end() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}

func (r *registry) open(ctx context.Context, format schematype.Format) error {
	namespace, err := r.Namespace.Create().SetSlug("acme").Save(ctx)
	if err != nil {
		return err
	}
	repository, err := r.Repository.Create().SetNamespace(namespace).
		SetName("main").SetFormat(format).SetKind(schematype.KindHosted).Save(ctx)
	if err != nil {
		return err
	}
	r.namespace, r.repository = namespace.ID, repository.ID
	return nil
}
