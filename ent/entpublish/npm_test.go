package entpublish_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/npmdisttag"
	"github.com/stowage-dev/stowage/ent/npmversion"
	"github.com/stowage-dev/stowage/ent/schematype"
)

func deprecates(repository uuid.UUID, messages map[string]string) step {
	return func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.Deprecate(ctx, tx, repository, "thing", messages)
	}
}

func TestAC17NPM(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository(t, schematype.FormatNPM)
	v1, v2 := version(repository, schematype.FormatNPM, 1, blob("one", 500)), version(repository, schematype.FormatNPM, 2, blob("two", 700))
	b.does(t, publishes(v1), publishes(v2), tags(v1.Ref, "latest", "next"), tags(v2.Ref, "latest"))
	b.counts(t, repository, 1200, 2, 1200)

	t.Run("AC17 another tarball of a version is immutable", func(t *testing.T) {
		other := v1
		other.Blobs = []entpublish.Blob{blob("other", 1)}
		b.fails(t, entpublish.ErrImmutable, publishes(other))
	})

	t.Run("dist-tags and deprecations count nothing", func(t *testing.T) {
		emitted := len(b.recorder.Emissions())
		require.Equal(t, map[string]string{"latest": "1.0.2", "next": "1.0.1"}, b.distTags(t, repository))
		for range 2 {
			b.does(t, deprecates(repository, map[string]string{"1.0.1": "too old", "1.0.2": ""}))
		}
		deprecated := b.db.NPMVersion.Query().Where(npmversion.RepositoryID(repository), npmversion.DeprecationNotNil()).OnlyX(t.Context())
		require.Equal(t, "too old", *deprecated.Deprecation)
		b.does(t, deprecates(repository, map[string]string{"1.0.1": ""}))
		require.False(t, b.db.NPMVersion.Query().Where(npmversion.DeprecationNotNil()).ExistX(t.Context()))
		b.does(t, untags(v1.Ref, "next"))
		require.Len(t, b.recorder.Emissions(), emitted)
		b.fails(t, entpublish.ErrNotFound, deprecates(repository, map[string]string{"1.0.1": "x", "9.9.9": "x"}), "9.9.9")
		require.False(t, b.db.NPMVersion.Query().Where(npmversion.DeprecationNotNil()).ExistX(t.Context()))
		b.fails(t, entdb.ErrFormat, deprecates(b.repository(t, schematype.FormatMaven), map[string]string{"1": "x"}))
		b.fails(t, entpublish.ErrInvalid, deprecates(repository, map[string]string{"1.0.1": "\xff"}))
		b.fails(t, entpublish.ErrInvalid, deprecates(repository, nil), "no messages")
	})

	t.Run("AC17 unpublishing takes the tags along; what was unpublished can be published again", func(t *testing.T) {
		b.does(t, purges(v2.Ref))
		require.Empty(t, b.distTags(t, repository), "latest moves only when the registry says so")
		b.counts(t, repository, 500, 1, 1200)
		b.does(t, publishes(v2), tags(v2.Ref, "latest"))
		b.counts(t, repository, 1200, 2, 1200)
	})

	t.Run("AC17 all of a package goes at once", func(t *testing.T) {
		kept := version(repository, schematype.FormatNPM, 1, blob("one", 500))
		kept.Name = "kept"
		b.does(t, publishes(kept))
		purgesAll := func(ctx context.Context, tx *entdb.Tx) error {
			purged, err := entpublish.PurgeName(ctx, tx, repository, "thing")
			if err == nil {
				require.Equal(t, 2, purged)
			}
			return err
		}
		b.does(t, purgesAll)
		b.fails(t, entpublish.ErrNotFound, purgesAll)
		b.counts(t, repository, 500, 1, 1200)
		require.Empty(t, b.distTags(t, repository))
	})
}

func (b *bundle) distTags(t *testing.T, repository uuid.UUID) map[string]string {
	t.Helper()
	found := make(map[string]string)
	for _, tag := range b.db.NPMDistTag.Query().Where(npmdisttag.RepositoryID(repository)).WithVersion().AllX(t.Context()) {
		found[tag.Tag] = tag.Edges.Version.Version
	}
	return found
}
