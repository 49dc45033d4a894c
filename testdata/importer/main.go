// Command registry is a registry in another module: it imports the client,
// publishes in three formats through it, takes some of it back, and checks
// that its usage is right. It proves what the README says about importing.
package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/npmversion"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/migrate"
)

func main() {
	if err := run(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "registry:", err)
		os.Exit(1)
	}
	fmt.Println("registry: usage is exact")
}

func run(ctx context.Context) (err error) {
	pool, err := pgxpool.New(ctx, os.Getenv("STOWAGE_TEST_DATABASE_URL"))
	if err != nil {
		return err
	}
	defer pool.Close()
	if err := migrate.Apply(ctx, pool, migrate.Options{}); err != nil {
		return err
	}
	redis, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{os.Getenv("STOWAGE_TEST_REDIS_ADDRESS")}})
	if err != nil {
		return err
	}
	defer redis.Close()
	if err := quickstart(ctx, pool, redis, blob("ms", 81920).Digest); err != nil {
		return err
	}
	db, err := entdb.New(entdb.Config{Pool: pool, Redis: redis, Logger: slog.Default(), Registerer: prometheus.NewRegistry()})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close(ctx)) }()
	jobs, err := river.NewClient(riverpgxv5.New(pool), &river.Config{Schema: "river"})
	if err != nil {
		return err
	}
	r := registry{db: db, jobs: jobs}
	if err := r.open(ctx); err != nil {
		return err
	}
	return errors.Join(r.publish(ctx), r.replace(ctx), r.remove(ctx))
}

// registry is one namespace with a repository of each format.
type registry struct {
	db           *entdb.Client
	jobs         *river.Client[pgx.Tx]
	namespace    uuid.UUID
	repositories map[schematype.Format]uuid.UUID
}

func (r *registry) open(ctx context.Context) error {
	namespace, err := r.db.Namespace.Create().SetSlug("acme-" + uuid.NewString()).Save(ctx)
	if err != nil {
		return err
	}
	r.namespace = namespace.ID
	r.repositories = make(map[schematype.Format]uuid.UUID)
	for _, format := range schematype.Formats() {
		repository, err := r.db.Repository.Create().SetNamespace(namespace).
			SetName(format.String()).SetFormat(format).SetKind(schematype.KindHosted).Save(ctx)
		if err != nil {
			return err
		}
		r.repositories[format] = repository.ID
	}
	return nil
}

// indexArgs is a job of the registry's own that exists only if the publish does.
type indexArgs struct {
	VersionID uuid.UUID `json:"version_id"`
}

func (indexArgs) Kind() string { return "index_version" }

func (r *registry) publish(ctx context.Context) error {
	shared := blob("shared", 1000)
	for _, format := range schematype.Formats() {
		err := r.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
			published, err := entpublish.Publish(ctx, tx, r.version(format, shared, blob(format.String(), 10)))
			if err != nil {
				return err
			}
			_, err = r.jobs.InsertTx(ctx, tx.Pgx(), indexArgs{VersionID: published.ID}, nil)
			return err
		})
		if err != nil {
			return err
		}
	}
	return r.expect(ctx, "publish", entdb.Counters{Bytes: 1030, Components: 3})
}

// replace changes a size with the generated client.
func (r *registry) replace(ctx context.Context) error {
	npm := r.repositories[schematype.FormatNPM]
	err := r.db.NPMVersion.Update().SetSizeBytes(1).Exec(ctx)
	if !errors.Is(err, entdb.ErrUncounted) {
		return fmt.Errorf("a counted mutation outside WithTx: want ErrUncounted, got %w", err)
	}
	err = r.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		return tx.NPMVersion.Update().Where(npmversion.RepositoryID(npm)).AddSizeBytes(5).Exec(ctx)
	})
	if err != nil {
		return err
	}
	usage, err := r.db.RepositoryUsage(ctx, npm)
	if err != nil {
		return err
	}
	if want := (entdb.Counters{Bytes: 1015, Components: 1}); usage.Total() != want {
		return fmt.Errorf("npm repository: usage is %+v, want %+v", usage.Total(), want)
	}
	return nil
}

// remove takes everything back, a format in each of the three ways.
func (r *registry) remove(ctx context.Context) error {
	container, maven, npm := r.ref(schematype.FormatContainer), r.ref(schematype.FormatMaven), r.ref(schematype.FormatNPM)
	err := r.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		return errors.Join(
			entpublish.SoftDelete(ctx, tx, container),
			entpublish.Restore(ctx, tx, container),
			entpublish.Purge(ctx, tx, container),
			entpublish.DeleteRepository(ctx, tx, maven.RepositoryID),
		)
	})
	if err != nil {
		return err
	}
	if err := r.expect(ctx, "purge", entdb.Counters{Bytes: 1030, Components: 1}); err != nil {
		return err
	}
	err = r.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		if err := entpublish.Purge(ctx, tx, npm); err != nil {
			return err
		}
		collected, err := entpublish.CollectBlobs(ctx, tx, r.namespace, 0, 100)
		if err == nil && len(collected) != 4 {
			err = fmt.Errorf("collected %d blobs, want 4", len(collected))
		}
		return err
	})
	if err != nil {
		return err
	}
	return r.expect(ctx, "collection", entdb.Counters{})
}

func (r *registry) expect(ctx context.Context, after string, want entdb.Counters) error {
	usage, err := r.db.NamespaceUsage(ctx, r.namespace)
	if err != nil {
		return err
	}
	if !usage.PendingKnown || usage.Total() != want {
		return fmt.Errorf("after %s: usage is %+v, want a total of %+v", after, usage, want)
	}
	return nil
}

func (r *registry) ref(format schematype.Format) entpublish.Ref {
	ref := entpublish.Ref{RepositoryID: r.repositories[format], Name: "thing"}
	if format == schematype.FormatContainer {
		ref.Digest = sha256.Sum256([]byte("manifest"))
	} else {
		ref.Version = "1.0.0"
	}
	return ref
}

// version has its blobs as files when it is of Maven.
func (r *registry) version(format schematype.Format, blobs ...entpublish.Blob) entpublish.Version {
	v := entpublish.Version{Ref: r.ref(format)}
	if format != schematype.FormatMaven {
		v.Blobs = blobs
		return v
	}
	for _, b := range blobs {
		v.Files = append(v.Files, entpublish.File{Path: b.Digest.String(), Blob: b})
	}
	return v
}

func blob(content string, size int64) entpublish.Blob {
	return entpublish.Blob{Digest: sha256.Sum256([]byte(content)), Size: size}
}
