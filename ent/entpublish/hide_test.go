package entpublish_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/dbtest"
)

func TestAC9SoftDeletedRepositoriesAndNamespacesCount(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository(t, schematype.FormatNPM)
	v := version(repository, schematype.FormatNPM, 1, blob("a", 100))
	b.does(t, publishes(v))
	for name, c := range map[string]struct {
		hide, show step
		absent     step
		want       error
	}{
		"repository": {
			on(entpublish.SoftDeleteRepository, repository), on(entpublish.RestoreRepository, repository),
			on(entpublish.SoftDeleteRepository, uuid.New()), entdb.ErrRepository,
		},
		"namespace": {
			on(entpublish.SoftDeleteNamespace, b.namespace), on(entpublish.RestoreNamespace, b.namespace),
			on(entpublish.SoftDeleteNamespace, uuid.New()), entpublish.ErrNotFound,
		},
	} {
		t.Run(name, func(t *testing.T) {
			b.does(t, c.hide, c.hide)
			b.counts(t, repository, 100, 1, 100)
			refused := []step{
				publishes(version(repository, schematype.FormatNPM, 2)), publishes(v), tags(v.Ref, "latest"),
				deprecates(repository, map[string]string{v.Version: "x"}),
				func(ctx context.Context, tx *entdb.Tx) error {
					return tx.NPMVersion.Create().SetNamespaceID(b.namespace).SetRepositoryID(repository).SetName("x").SetVersion("1").SetSizeBytes(0).Exec(ctx)
				},
			}
			if name == "namespace" {
				refused = append(refused, func(ctx context.Context, tx *entdb.Tx) error {
					return entpublish.PutBlobs(ctx, tx, b.namespace, v.Blobs)
				}, func(ctx context.Context, tx *entdb.Tx) error {
					_, err := entpublish.MountBlob(ctx, tx, b.namespace, b.namespace, v.Blobs[0].Digest)
					return err
				})
			}
			for _, s := range refused {
				b.fails(t, entdb.ErrSoftDeleted, s)
			}
			b.does(t, c.show, c.show)
			b.counts(t, repository, 100, 1, 100)
			b.fails(t, c.want, c.absent)
			b.does(t, func(ctx context.Context, tx *entdb.Tx) error {
				require.NoError(t, publishes(v)(ctx, tx))
				require.NoError(t, c.hide(ctx, tx))
				require.ErrorIs(t, publishes(v)(ctx, tx), entdb.ErrSoftDeleted, "in the same transaction")
				require.NoError(t, c.show(ctx, tx))
				return publishes(v)(ctx, tx)
			})
		})
	}
	b.fails(t, entdb.ErrRepository, on(entpublish.RestoreRepository, uuid.New()))
	b.fails(t, entpublish.ErrNotFound, on(entpublish.RestoreNamespace, uuid.New()))
	b.does(t, on(entpublish.SoftDeleteRepository, repository), purges(v.Ref))
	b.counts(t, repository, 0, 0, 100)
}

// Whoever hides a repository waits for those who publish into it.
func TestSoftDeleteRepositoryWaitsForPublishers(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository(t, schematype.FormatNPM)
	v := version(repository, schematype.FormatNPM, 1, blob("a", 100))
	published, goOn, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- b.in(context.Background(), func(ctx context.Context, tx *entdb.Tx) error {
			err := publishes(v)(ctx, tx)
			close(published)
			<-goOn
			return err
		})
	}()
	<-published
	err := b.in(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		if _, err := tx.Pgx().Exec(ctx, `SET LOCAL lock_timeout = '100ms'`); err != nil {
			return err
		}
		return entpublish.SoftDeleteRepository(ctx, tx, repository)
	})
	require.ErrorContains(t, err, "lock timeout")
	close(goOn)
	require.NoError(t, <-ended)
	b.does(t, on(entpublish.SoftDeleteRepository, repository))
	b.counts(t, repository, 100, 1, 100)
}

// Remote repositories cache and evict; virtual ones refuse.
func TestAC10KindsOfRepository(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	for _, format := range schematype.Formats() {
		t.Run("AC10 "+format.String(), func(t *testing.T) {
			t.Parallel()
			b := setupIn(t, pool)
			for _, kind := range []schematype.Kind{schematype.KindHosted, schematype.KindRemote} {
				repository := b.repositoryOfKind(t, format, kind)
				var refs []entpublish.Ref
				for n := range 5 {
					v := version(repository, format, n, blob("shared", 100), blob(string(rune('a'+n)), 1))
					refs = append(refs, v.Ref)
					b.does(t, publishes(v))
				}
				require.Equal(t, entdb.Counters{Bytes: 505, Components: 5}, b.recorder.Repository(repository))
				evicts := func(want int) step {
					return func(ctx context.Context, tx *entdb.Tx) error {
						purged, err := entpublish.PurgeMany(ctx, tx, append(refs[:3:3], refs[0]))
						require.Equal(t, want, purged)
						return err
					}
				}
				b.does(t, evicts(3), evicts(0))
				require.Equal(t, entdb.Counters{Bytes: 202, Components: 2}, b.recorder.Repository(repository))
			}
			virtual := b.repositoryOfKind(t, format, schematype.KindVirtual)
			b.fails(t, entdb.ErrVirtual, publishes(version(virtual, format, 1, blob("a", 1))))
			b.fails(t, entdb.ErrVirtual, tags(ref(virtual, format, 1), "latest"))
			require.Equal(t, entdb.Counters{}, b.recorder.Repository(virtual))
			b.requireExact(t)
		})
	}
}

// What hangs on a version goes with it also when the generated client deletes it.
func TestGeneratedClientDeletesWhatHangsOnVersions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, format := range schematype.Formats() {
		repository := b.repository(t, format)
		v := version(repository, format, 1, blob("a", 100))
		b.does(t, publishes(v))
		if format != schematype.FormatMaven {
			b.does(t, tags(v.Ref, "latest"))
		}
		b.does(t, func(ctx context.Context, tx *entdb.Tx) (err error) {
			switch format {
			case schematype.FormatContainer:
				_, err = tx.ContainerManifest.Delete().Exec(ctx)
			case schematype.FormatMaven:
				_, err = tx.MavenVersion.Delete().Exec(ctx)
			case schematype.FormatNPM:
				err = tx.NPMVersion.DeleteOne(tx.NPMVersion.Query().OnlyX(ctx)).Exec(ctx)
			}
			return err
		})
		b.counts(t, repository, 0, 0, 100)
	}
	for _, table := range []string{"container_tags", "npm_dist_tags", "maven_files", "container_manifest_references", "blob_storage_attachments"} {
		var n int
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM `+table).Scan(&n))
		require.Zero(t, n, table)
	}
}
