package entpublish_test

import (
	"context"
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/mavenversion"
	"github.com/stowage-dev/stowage/ent/schematype"
	data "github.com/stowage-dev/stowage/internal/publishes"
)

// deploy is a version of a Maven artifact with files.
func deploy(repository uuid.UUID, version string, files ...entpublish.File) entpublish.Version {
	return entpublish.Version{Ref: entpublish.Ref{RepositoryID: repository, Name: "org.example:library", Version: version}, Files: files}
}

// file has a content that is made of its words.
func file(path, content string, size int64) entpublish.File {
	return entpublish.File{Path: path, Blob: blob(content, size)}
}

func TestAC20MavenDeploy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository(t, schematype.FormatMaven)

	t.Run("AC20 files come one by one, checksums are files", func(t *testing.T) {
		for _, f := range []entpublish.File{file("l-1.0.jar", "jar", 1000), file("l-1.0.jar.sha1", "sha1", 40), file("l-1.0.pom", "pom", 200), file("l-1.0.pom", "pom", 200)} {
			b.does(t, publishes(deploy(repository, "1.0", f)))
		}
		b.counts(t, repository, 1240, 1, 1240)
	})

	t.Run("two files with one content count it once", func(t *testing.T) {
		b.does(t, publishes(deploy(repository, "1.0", file("l-1.0-copy.jar", "jar", 1000))))
		b.counts(t, repository, 1240, 1, 1240)
		b.does(t, deletesFile(deploy(repository, "1.0").Ref, "l-1.0-copy.jar"))
		b.counts(t, repository, 1240, 1, 1240)
	})

	t.Run("a release is immutable, and nothing of a deploy that would change it is stored", func(t *testing.T) {
		other := publishes(deploy(repository, "1.0", file("l-1.0-sources.jar", "sources", 5), file("l-1.0.jar", "other", 7)))
		b.fails(t, entpublish.ErrImmutable, other, `"l-1.0.jar" of release "1.0"`)
		b.fails(t, entpublish.ErrConflict, other)
		b.counts(t, repository, 1240, 1, 1240)
	})

	t.Run("metadata of a release is replaced", func(t *testing.T) {
		b.does(t,
			publishes(deploy(repository, "1.0", file("maven-metadata.xml", "m1", 10), file("maven-metadata.xml.md5", "c1", 2))),
			publishes(deploy(repository, "1.0", file("maven-metadata.xml", "m2", 15), file("maven-metadata.xml.md5", "c2", 3))))
		b.counts(t, repository, 1258, 1, 1270)
	})

	t.Run("the artifact's own metadata is a component of the empty version", func(t *testing.T) {
		b.does(t, publishes(deploy(repository, "", file("maven-metadata.xml", "a1", 100))), publishes(deploy(repository, "", file("maven-metadata.xml", "a2", 1))))
		b.counts(t, repository, 1259, 2, 1371)
		require.Equal(t, 2, b.db.MavenVersion.Query().Where(mavenversion.RepositoryID(repository)).CountX(t.Context()))
	})

	t.Run("deleting files gives up their bytes; the component stays until it is purged", func(t *testing.T) {
		v := deploy(repository, "1.0").Ref
		b.does(t, deletesFile(v, "l-1.0.jar"))
		b.fails(t, entpublish.ErrNotFound, deletesFile(v, "l-1.0.jar"))
		b.fails(t, entpublish.ErrNotFound, deletesFile(deploy(repository, "9").Ref, "l-1.0.jar"))
		b.counts(t, repository, 259, 2, 1371)
		b.does(t, publishes(deploy(repository, "1.0", file("l-1.0.jar", "other", 7))))
		b.counts(t, repository, 266, 2, 1378)
		b.does(t, purges(v))
		b.counts(t, repository, 1, 1, 1378)
		_, err := b.collect(t.Context(), 0)
		require.NoError(t, err)
		b.counts(t, repository, 1, 1, 1)
	})
}

func TestAC20MavenSnapshot(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository(t, schematype.FormatMaven)
	jar := func(content string, size int64) entpublish.File { return file("l.jar", content, size) }
	b.does(t, publishes(deploy(repository, "1-SNAPSHOT", jar("one", 1000), file("copy.jar", "one", 1000), file("l.pom", "pom", 5))))
	b.counts(t, repository, 1005, 1, 1005)
	b.does(t, publishes(deploy(repository, "1-SNAPSHOT", jar("two", 400))))
	b.counts(t, repository, 1405, 1, 1405)
	b.does(t, publishes(deploy(repository, "1-SNAPSHOT", file("copy.jar", "two", 400))))
	b.counts(t, repository, 405, 1, 1405)
	b.does(t, publishes(deploy(repository, "1-SNAPSHOT", jar("one", 1000), file("copy.jar", "one", 1000))))
	b.counts(t, repository, 1005, 1, 1405)
	b.does(t, publishes(deploy(repository, "1-SNAPSHOT", jar("pom", 5), file("copy.jar", "pom", 5))))
	b.counts(t, repository, 5, 1, 1405)

	t.Run("in one deploy two files may exchange their contents", func(t *testing.T) {
		b.does(t, publishes(deploy(repository, "1-SNAPSHOT", jar("x", 10), file("copy.jar", "y", 20))))
		b.counts(t, repository, 35, 1, 1435)
		b.does(t, publishes(deploy(repository, "1-SNAPSHOT", jar("y", 20), file("copy.jar", "x", 10))))
		b.counts(t, repository, 35, 1, 1435)
	})

	t.Run("AC9 a hidden version is shown again by a deploy", func(t *testing.T) {
		v := deploy(repository, "1-SNAPSHOT", jar("z", 21))
		b.does(t, softDeletes(v.Ref))
		b.counts(t, repository, 35, 1, 1435)
		published, err := b.publish(t.Context(), v)
		require.NoError(t, err)
		require.True(t, published.Restored)
		require.Equal(t, int64(36), published.Size)
		b.counts(t, repository, 36, 1, 1456)
	})
}

func TestMavenRefusesWhatItCannotStore(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository, npm := b.repository(t, schematype.FormatMaven), b.repository(t, schematype.FormatNPM)
	twice := deploy(repository, "1", file("a", "one", 1), file("a", "two", 2))
	b.fails(t, entpublish.ErrInvalid, publishes(twice), `file "a" is given with blob`)
	b.fails(t, entpublish.ErrInvalid, publishes(deploy(repository, "1", file("", "one", 1))))
	b.fails(t, entpublish.ErrInvalid, publishes(deploy(npm, "1", file("a", "one", 1))))
	b.fails(t, entpublish.ErrInvalid, publishes(entpublish.Version{Ref: deploy(repository, "1").Ref, Blobs: []entpublish.Blob{blob("a", 1)}}))
	b.fails(t, entdb.ErrFormat, deletesFile(deploy(npm, "1").Ref, "a"))
	b.fails(t, entpublish.ErrInvalid, deletesFile(deploy(repository, "1").Ref, "a\x00"))
	b.fails(t, entdb.ErrFormat, tags(deploy(repository, "1").Ref, "latest"))
	b.does(t, publishes(deploy(repository, "1", file("a", "large", 1<<50))))
	b.fails(t, entpublish.ErrInvalid, publishes(deploy(repository, "1", file("b", "small", 1))))
	b.requireExact(t)
}

// Deploys replace the files of few snapshots while others delete files and purge.
func TestAC20MavenDeploysBesidePurges(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository(t, schematype.FormatMaven)
	const rounds = 30
	var group errgroup.Group
	for w := range 4 {
		group.Go(func() error {
			for n := range rounds {
				v := deploy(repository, fmt.Sprint(n%2, "-SNAPSHOT"), file(fmt.Sprint(n%3), fmt.Sprint("content", (w+n)%5), int64(1+(w+n)%5)), file(fmt.Sprint((w+n)%3+3), fmt.Sprint("content", n%5), int64(1+n%5)))
				steps := []step{publishes(v)}
				switch n % 5 {
				case 3:
					steps = append(steps, deletesFile(v.Ref, v.Files[0].Path))
				case 4:
					steps = append(steps, purges(v.Ref))
				}
				for _, s := range steps {
					if err := ignore(b.in(t.Context(), s), entpublish.ErrNotFound); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	group.Go(func() error {
		for range rounds {
			if _, err := b.collect(t.Context(), 0); err != nil {
				return err
			}
		}
		return nil
	})
	require.NoError(t, group.Wait())
	b.requireExact(t)
}

// Real versions are deployed file by file, in an order that mixes them.
func TestAC20RealMavenPublishes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all, err := data.Load(os.DirFS("../../testdata/publishes"))
	require.NoError(t, err)
	lines := slices.DeleteFunc(all, func(p data.Publish) bool { return p.Format != schematype.FormatMaven })
	repository := b.repository(t, schematype.FormatMaven)
	for i := range 3 {
		b.does(t, func(ctx context.Context, tx *entdb.Tx) error {
			for _, line := range lines {
				v := entpublish.Version{Ref: entpublish.Ref{RepositoryID: repository, Name: line.Name, Version: line.Version}}
				for j, f := range line.Blobs {
					if j%3 == i {
						v.Files = append(v.Files, entpublish.File{Path: f.Name, Blob: entpublish.Blob{Digest: f.SHA256, Size: f.Size}})
					}
				}
				if _, err := entpublish.Publish(ctx, tx, v); err != nil {
					return err
				}
			}
			return nil
		})
	}
	want := data.Sum(lines)
	b.counts(t, repository, want.LogicalBytes, want.Versions, want.DeduplicatedBytes)
}
