package entpublish_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/ent/containermanifest"
	"github.com/stowage-dev/stowage/ent/containertag"
	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
)

// manifest is a container manifest, named by a number.
func manifest(repository uuid.UUID, n int, blobs ...entpublish.Blob) entpublish.Version {
	return version(repository, schematype.FormatContainer, n, blobs...)
}

// indexOf is an image index of manifests.
func indexOf(repository uuid.UUID, n int, children ...entpublish.Version) entpublish.Version {
	v := manifest(repository, n)
	for _, c := range children {
		v.Children = append(v.Children, c.Digest)
	}
	return v
}

func TestContainerPush(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository(t, schematype.FormatContainer)
	layer, config := blob("layer", 1000), blob("config", 10)
	image := manifest(repository, 1, config, layer, layer)

	t.Run("AC18 blobs come first, the manifest attaches them, a layer that it has twice counts once", func(t *testing.T) {
		for _, blob := range []entpublish.Blob{layer, config} {
			b.does(t, func(ctx context.Context, tx *entdb.Tx) error {
				return entpublish.PutBlobs(ctx, tx, b.namespace, []entpublish.Blob{blob})
			})
		}
		b.counts(t, repository, 0, 0, 1010)
		b.does(t, publishes(image), publishes(image))
		b.counts(t, repository, 1010, 1, 1010)
	})

	t.Run("AC18 tags move and count nothing", func(t *testing.T) {
		other := manifest(repository, 2, config)
		b.does(t, publishes(other))
		emitted := len(b.recorder.Emissions())
		b.does(t, tags(image.Ref, "latest", "1.0"), tags(image.Ref, "1.0"), tags(other.Ref, "latest"))
		require.Equal(t, map[string]schematype.Digest{"1.0": image.Digest, "latest": other.Digest}, b.containerTags(t, repository))
		b.does(t, untags(image.Ref, "1.0"))
		b.fails(t, entpublish.ErrNotFound, untags(image.Ref, "1.0"))
		require.Len(t, b.recorder.Emissions(), emitted)

		b.does(t, softDeletes(other.Ref))
		require.Equal(t, map[string]schematype.Digest{"latest": other.Digest}, b.containerTags(t, repository), "a hidden version keeps its tags")
		b.fails(t, entpublish.ErrNotFound, tags(other.Ref, "2.0"))
		b.does(t, restores(other.Ref), purges(other.Ref))
		require.Empty(t, b.containerTags(t, repository), "tags go with their manifest")
		b.fails(t, entpublish.ErrNotFound, tags(other.Ref, "2.0"))
		b.counts(t, repository, 1010, 1, 1010)
	})

	t.Run("other content under one digest is a conflict", func(t *testing.T) {
		err := b.failure(t, publishes(manifest(repository, 1, config)))
		require.ErrorIs(t, err, entpublish.ErrConflict)
		require.NotErrorIs(t, err, entpublish.ErrImmutable)
		other := image
		other.Children = []schematype.Digest{image.Digest}
		b.fails(t, entpublish.ErrConflict, publishes(other))
	})
}

func (b *bundle) containerTags(t *testing.T, repository uuid.UUID) map[string]schematype.Digest {
	t.Helper()
	found := make(map[string]schematype.Digest)
	for _, tag := range b.db.ContainerTag.Query().Where(containertag.RepositoryID(repository)).WithManifest().AllX(t.Context()) {
		found[tag.Tag] = tag.Edges.Manifest.Digest
	}
	return found
}

func TestContainerIndex(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository(t, schematype.FormatContainer)
	amd, arm := manifest(repository, 1, blob("shared", 100), blob("amd", 1)), manifest(repository, 2, blob("shared", 100), blob("arm", 2))
	index := indexOf(repository, 3, amd, arm, amd)

	b.fails(t, entpublish.ErrNotFound, publishes(index), "push it first")
	b.does(t, publishes(amd), publishes(arm), publishes(index), publishes(index))
	b.counts(t, repository, 203, 3, 103)
	children := b.db.ContainerManifest.Query().Where(containermanifest.Digest(index.Digest)).QueryChildren().CountX(t.Context())
	require.Equal(t, 2, children)

	t.Run("a child stays while an index refers to it", func(t *testing.T) {
		b.fails(t, entpublish.ErrConflict, purges(amd.Ref), amd.Digest.String(), index.Digest.String())
		for _, deletes := range []step{purges(amd.Ref), func(ctx context.Context, tx *entdb.Tx) error {
			_, err := tx.ContainerManifest.Delete().Where(containermanifest.Digest(amd.Digest)).Exec(ctx)
			return err
		}} {
			b.fails(t, entdb.ErrReferenced, deletes, index.Digest.String())
		}
	})

	t.Run("its index refers to exactly those that it was pushed with", func(t *testing.T) {
		b.fails(t, entpublish.ErrConflict, publishes(indexOf(repository, 3, amd)))
	})

	t.Run("a hidden child, and one of another name, are not found", func(t *testing.T) {
		b.does(t, softDeletes(amd.Ref))
		b.fails(t, entpublish.ErrNotFound, publishes(indexOf(repository, 4, amd)))
		b.does(t, restores(amd.Ref))
		other := indexOf(repository, 4, amd)
		other.Name = "another"
		b.fails(t, entpublish.ErrNotFound, publishes(other))
	})

	t.Run("purging the index frees its children", func(t *testing.T) {
		b.does(t, purges(index.Ref), purges(amd.Ref))
		b.counts(t, repository, 102, 1, 103)
	})

	t.Run("an index and its children may go together", func(t *testing.T) {
		b.does(t, publishes(amd), publishes(index), func(ctx context.Context, tx *entdb.Tx) error {
			purged, err := entpublish.PurgeMany(ctx, tx, []entpublish.Ref{amd.Ref, index.Ref, ref(repository, schematype.FormatContainer, 99)})
			require.Equal(t, 2, purged)
			return err
		})
		b.counts(t, repository, 102, 1, 103)
		b.does(t, publishes(amd), publishes(index), on(entpublish.DeleteRepository, repository))
		b.requireExact(t)
	})
}

func TestContainerMount(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := setupIn(t, b.pool)
	layer := blob("layer", 1000)
	mounts := func(from, to uuid.UUID, digest schematype.Digest) step {
		return func(ctx context.Context, tx *entdb.Tx) error {
			mounted, err := entpublish.MountBlob(ctx, tx, from, to, digest)
			if err == nil {
				require.Equal(t, layer, mounted)
			}
			return err
		}
	}
	b.does(t, func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.PutBlobs(ctx, tx, b.namespace, []entpublish.Blob{layer})
	})
	b.does(t, mounts(b.namespace, b.namespace, layer.Digest))
	require.Len(t, b.recorder.Emissions(), 1, "a mount inside the namespace stores nothing")
	other.does(t, mounts(b.namespace, other.namespace, layer.Digest), mounts(b.namespace, other.namespace, layer.Digest))
	require.Equal(t, entdb.Counters{Bytes: 1000}, other.recorder.Namespace(other.namespace), "the target stores the blob once")
	b.requireExact(t)
	other.requireExact(t)

	b.fails(t, entpublish.ErrNotFound, mounts(b.namespace, other.namespace, digest("unknown")))
	b.fails(t, entpublish.ErrNotFound, mounts(uuid.New(), b.namespace, layer.Digest))
	b.fails(t, entpublish.ErrNotFound, mounts(b.namespace, uuid.New(), layer.Digest))
	b.fails(t, entpublish.ErrNotFound, func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.PutBlobs(ctx, tx, uuid.New(), []entpublish.Blob{layer})
	})
}

// Twenty clients delete an image that has an index, a child and tags.
func TestAC19TwentyDeletersOfAnImage(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository(t, schematype.FormatContainer)
	child := manifest(repository, 1, blob("layer", 10<<20))
	index := indexOf(repository, 2, child)
	b.does(t, publishes(child), publishes(index), tags(index.Ref, "a", "b", "c"), tags(child.Ref, "d"))
	var purged atomic.Int64
	var deleters errgroup.Group
	for n := range 20 {
		deleters.Go(func() error {
			return b.in(t.Context(), func(ctx context.Context, tx *entdb.Tx) (err error) {
				var some int
				if n%2 == 0 {
					some, err = entpublish.PurgeMany(ctx, tx, []entpublish.Ref{index.Ref, child.Ref})
				} else {
					some, err = entpublish.PurgeName(ctx, tx, repository, child.Name)
					err = ignore(err, entpublish.ErrNotFound)
				}
				purged.Add(int64(some))
				return err
			})
		})
	}
	require.NoError(t, deleters.Wait())
	require.Equal(t, int64(2), purged.Load())
	b.counts(t, repository, 0, 0, 10<<20)
}

// Whoever pushes an index, tags and purges meets the others on few manifests.
func TestIndexesBesidePurges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository(t, schematype.FormatContainer)
	const rounds = 25
	var group errgroup.Group
	for w := range 3 {
		group.Go(func() error {
			for n := range rounds {
				child := manifest(repository, (w+n)%2, blob(fmt.Sprint("layer", (w+n)%2), 100))
				index := indexOf(repository, 10+(w+n)%2, child)
				for _, s := range []step{publishes(child), publishes(index), tags(index.Ref, "a", "b"), tags(child.Ref, "b", "a")} {
					if err := ignore(b.in(t.Context(), s), entpublish.ErrNotFound); err != nil {
						return err
					}
				}
			}
			return nil
		})
		group.Go(func() error {
			for n := range rounds {
				for _, r := range []int{10 + (w+n)%2, (w + n) % 2} {
					err := b.purge(t.Context(), ref(repository, schematype.FormatContainer, r))
					if err := ignore(ignore(err, entpublish.ErrNotFound), entpublish.ErrConflict); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	b.requireExact(t)
}
