package entpublish_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/dbtest"
)

// formatTest is a test of one format, with a repository of it.
type formatTest struct {
	*testing.T
	b          *bundle
	format     schematype.Format
	repository uuid.UUID
}

// eachFormat runs a rule for the three formats side by side.
func eachFormat(t *testing.T, rule func(ft formatTest)) {
	t.Helper()
	pool := dbtest.New(t)
	for _, format := range schematype.Formats() {
		t.Run(format.String(), func(t *testing.T) {
			t.Parallel()
			b := setupIn(t, pool)
			rule(formatTest{T: t, b: b, format: format, repository: b.repository(t, format)})
			b.requireExact(t)
		})
	}
}

func TestPublishCountsWhatIsNew(t *testing.T) {
	t.Parallel()
	eachFormat(t, func(ft formatTest) {
		b, format, repository := ft.b, ft.format, ft.repository
		ctx := ft.Context()
		first, err := b.publish(ctx, version(repository, format, 1, blob("a", 100), blob("b", 10), blob("a", 100)))
		require.NoError(ft, err)
		require.True(ft, first.Created)
		require.Equal(ft, int64(110), first.Size, "a blob listed twice counts once")
		second, err := b.publish(ctx, version(repository, format, 2, blob("a", 100), blob("c", 1)))
		require.NoError(ft, err)
		require.NotEqual(ft, first.ID, second.ID)
		require.Equal(ft, entdb.Counters{Bytes: 211, Components: 2}, b.recorder.Repository(repository))
		require.Equal(ft, entdb.Counters{Bytes: 111, Components: 2}, b.recorder.Namespace(b.namespace), "the shared blob counts once")
	})
}

func TestPublishAgainIsIdempotent(t *testing.T) {
	t.Parallel()
	eachFormat(t, func(ft formatTest) {
		b, format, repository := ft.b, ft.format, ft.repository
		ctx := ft.Context()
		v := version(repository, format, 1, blob("a", 100), blob("empty", 0))
		first, err := b.publish(ctx, v)
		require.NoError(ft, err)
		emitted := len(b.recorder.Emissions())
		again, err := b.publish(ctx, v)
		require.NoError(ft, err)
		require.Equal(ft, entpublish.Published{ID: first.ID, Size: 100}, again)
		require.Len(ft, b.recorder.Emissions(), emitted, "nothing changed, nothing emitted")
	})
}

func TestPublishOtherContent(t *testing.T) {
	t.Parallel()
	eachFormat(t, func(ft formatTest) {
		b, format, repository := ft.b, ft.format, ft.repository
		ctx := ft.Context()
		publish := func(blobs ...entpublish.Blob) (entpublish.Published, error) {
			return b.publish(ctx, version(repository, format, 1, blobs...))
		}
		_, err := publish(blob("a", 100), blob("b", 10))
		require.NoError(ft, err)
		for name, blobs := range map[string][]entpublish.Blob{
			"more":  {blob("a", 100), blob("b", 10), blob("c", 0)},
			"other": {blob("a", 100), blob("d", 10)},
		} {
			published, err := publish(blobs...)
			if format == schematype.FormatMaven {
				require.NoError(ft, err, "a Maven version is deployed file by file: %s", name)
				require.False(ft, published.Created)
			} else {
				require.ErrorIs(ft, err, entpublish.ErrConflict, name)
			}
		}
		fewer, err := publish(blob("a", 100))
		if format == schematype.FormatMaven {
			require.NoError(ft, err)
			require.Equal(ft, int64(120), fewer.Size)
		} else {
			require.ErrorIs(ft, err, entpublish.ErrConflict)
		}
	})
}

func TestSoftDeletedCountsUntilPurged(t *testing.T) {
	t.Parallel()
	eachFormat(t, func(ft formatTest) {
		b, format, repository := ft.b, ft.format, ft.repository
		ctx := ft.Context()
		v := version(repository, format, 1, blob("a", 5<<20))
		full := entdb.Counters{Bytes: 5 << 20, Components: 1}
		first, err := b.publish(ctx, v)
		require.NoError(ft, err)
		for range 2 {
			require.NoError(ft, b.in(ctx, func(ctx context.Context, tx *entdb.Tx) error { return entpublish.SoftDelete(ctx, tx, v.Ref) }))
			require.Equal(ft, full, b.recorder.Repository(repository))
		}
		for range 2 {
			require.NoError(ft, b.in(ctx, func(ctx context.Context, tx *entdb.Tx) error { return entpublish.Restore(ctx, tx, v.Ref) }))
		}
		require.NoError(ft, b.in(ctx, func(ctx context.Context, tx *entdb.Tx) error { return entpublish.SoftDelete(ctx, tx, v.Ref) }))
		restored, err := b.publish(ctx, v)
		require.NoError(ft, err)
		require.Equal(ft, entpublish.Published{ID: first.ID, Restored: true, Size: 5 << 20}, restored)
		require.Equal(ft, full, b.recorder.Namespace(b.namespace))

		require.NoError(ft, b.purge(ctx, v.Ref))
		require.Equal(ft, entdb.Counters{}, b.recorder.Repository(repository))
		require.ErrorIs(ft, b.purge(ctx, v.Ref), entpublish.ErrNotFound)
		require.ErrorIs(ft, b.in(ctx, func(ctx context.Context, tx *entdb.Tx) error { return entpublish.SoftDelete(ctx, tx, v.Ref) }), entpublish.ErrNotFound)
		require.ErrorIs(ft, b.in(ctx, func(ctx context.Context, tx *entdb.Tx) error { return entpublish.Restore(ctx, tx, v.Ref) }), entpublish.ErrNotFound)

		again, err := b.publish(ctx, v)
		require.NoError(ft, err)
		require.True(ft, again.Created)
		require.Equal(ft, full, b.recorder.Namespace(b.namespace), "publish, unpublish, publish the same bytes")
	})
}

func TestCollectBlobs(t *testing.T) {
	t.Parallel()
	eachFormat(t, func(ft formatTest) {
		b, format, repository := ft.b, ft.format, ft.repository
		ctx := ft.Context()
		shared := blob("shared", 1000)
		for n := range 3 {
			_, err := b.publish(ctx, version(repository, format, n, shared, blob(fmt.Sprint("own", n), 1)))
			require.NoError(ft, err)
		}
		for n := range 2 {
			require.NoError(ft, b.purge(ctx, ref(repository, format, n)))
		}
		require.Equal(ft, entdb.Counters{Bytes: 1003, Components: 1}, b.recorder.Namespace(b.namespace), "blobs stay until they are collected")

		collected, err := b.collect(ctx, time.Hour)
		require.NoError(ft, err)
		require.Empty(ft, collected, "the grace period keeps young ones")
		collected, err = b.collect(ctx, 0)
		require.NoError(ft, err)
		require.ElementsMatch(ft, []entpublish.Blob{blob("own0", 1), blob("own1", 1)}, collected, "and a blob of a kept version stays")
		require.Equal(ft, entdb.Counters{Bytes: 1001, Components: 1}, b.recorder.Namespace(b.namespace))
	})
}

func TestPutBlobsAheadOfTheirVersion(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	for range 2 {
		require.NoError(t, b.in(ctx, func(ctx context.Context, tx *entdb.Tx) error {
			return entpublish.PutBlobs(ctx, tx, b.namespace, []entpublish.Blob{blob("a", 7)})
		}))
	}
	require.Equal(t, entdb.Counters{Bytes: 7}, b.recorder.Namespace(b.namespace))
	err := b.in(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.PutBlobs(ctx, tx, b.namespace, []entpublish.Blob{blob("a", 8)})
	})
	require.ErrorIs(t, err, entpublish.ErrConflict)
	b.requireExact(t)
}

func TestDeleteRepositoryWithContent(t *testing.T) {
	t.Parallel()
	eachFormat(t, func(ft formatTest) {
		b, format, repository := ft.b, ft.format, ft.repository
		ctx := ft.Context()
		kept := b.repository(ft.T, format)
		for n := range 3 {
			_, err := b.publish(ctx, version(repository, format, n, blob("shared", 10), blob(fmt.Sprint(n), 1)))
			require.NoError(ft, err)
		}
		require.NoError(ft, b.in(ctx, func(ctx context.Context, tx *entdb.Tx) error {
			return entpublish.SoftDelete(ctx, tx, ref(repository, format, 1))
		}))
		_, err := b.publish(ctx, version(kept, format, 1, blob("shared", 10)))
		require.NoError(ft, err)

		remove := func(ctx context.Context, tx *entdb.Tx) error { return entpublish.DeleteRepository(ctx, tx, repository) }
		require.NoError(ft, b.in(ctx, remove))
		require.ErrorIs(ft, b.in(ctx, remove), entdb.ErrRepository)
		require.Equal(ft, entdb.Counters{Bytes: 13, Components: 1}, b.recorder.Namespace(b.namespace))
		_, err = b.collect(ctx, 0)
		require.NoError(ft, err)
		require.Equal(ft, entdb.Counters{Bytes: 10, Components: 1}, b.recorder.Namespace(b.namespace))
		var left int
		require.NoError(ft, b.pool.QueryRow(ctx, `SELECT count(*) FROM blob_storage_attachments WHERE repository_id = $1`, repository).Scan(&left))
		require.Zero(ft, left)
		_, err = b.publish(ctx, entpublish.Version{Ref: ref(repository, format, 9)})
		require.ErrorIs(ft, err, entdb.ErrRepository)
	})
}

func TestBadInputIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	npm, container := b.repository(t, schematype.FormatNPM), b.repository(t, schematype.FormatContainer)
	virtual := b.repositoryOfKind(t, schematype.FormatNPM, schematype.KindVirtual)
	good := ref(npm, schematype.FormatNPM, 1)
	for name, c := range map[string]struct {
		version entpublish.Version
		want    error
		text    string
	}{
		"no name":                     {entpublish.Version{Ref: entpublish.Ref{RepositoryID: npm, Version: "1"}}, entpublish.ErrInvalid, "name is empty"},
		"npm without a version":       {entpublish.Version{Ref: entpublish.Ref{RepositoryID: npm, Name: "x"}}, entpublish.ErrInvalid, "needs a version"},
		"npm with a digest":           {entpublish.Version{Ref: entpublish.Ref{RepositoryID: npm, Name: "x", Version: "1", Digest: digest("d")}}, entpublish.ErrInvalid, "no digest"},
		"container without a digest":  {entpublish.Version{Ref: entpublish.Ref{RepositoryID: container, Name: "x"}}, entpublish.ErrInvalid, "needs a digest"},
		"container with a version":    {entpublish.Version{Ref: entpublish.Ref{RepositoryID: container, Name: "x", Version: "1", Digest: digest("d")}}, entpublish.ErrInvalid, `version "1"`},
		"negative size":               {entpublish.Version{Ref: good, Blobs: []entpublish.Blob{blob("a", -1)}}, entpublish.ErrInvalid, "-1 bytes"},
		"too large":                   {entpublish.Version{Ref: good, Blobs: []entpublish.Blob{blob("a", 1<<50+1)}}, entpublish.ErrInvalid, "1125899906842625 bytes"},
		"too large together":          {entpublish.Version{Ref: good, Blobs: []entpublish.Blob{blob("a", 1<<50), blob("b", 1)}}, entpublish.ErrInvalid, "together"},
		"one digest, two sizes":       {entpublish.Version{Ref: good, Blobs: []entpublish.Blob{blob("a", 1), blob("a", 2)}}, entpublish.ErrInvalid, "with 1 and with 2 bytes"},
		"virtual":                     {entpublish.Version{Ref: ref(virtual, schematype.FormatNPM, 1)}, entdb.ErrVirtual, "virtual"},
		"a repository that is absent": {entpublish.Version{Ref: ref(uuid.New(), schematype.FormatNPM, 1)}, entdb.ErrRepository, "no such repository"},
	} {
		_, err := b.publish(t.Context(), c.version)
		require.ErrorIs(t, err, c.want, name)
		require.ErrorContains(t, err, c.text, name)
	}
	err := b.in(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.CollectBlobs(ctx, tx, b.namespace, -1, 1)
		require.ErrorIs(t, err, entpublish.ErrInvalid)
		_, err = entpublish.CollectBlobs(ctx, tx, b.namespace, 0, 0)
		require.ErrorIs(t, err, entpublish.ErrInvalid)
		return nil
	})
	require.NoError(t, err)
	require.Empty(t, b.recorder.Emissions())
	b.requireExact(t)
}

func TestSizeConflictIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	npm := b.repository(t, schematype.FormatNPM)
	_, err := b.publish(t.Context(), entpublish.Version{Ref: ref(npm, schematype.FormatNPM, 1), Blobs: []entpublish.Blob{blob("a", 1)}})
	require.NoError(t, err)
	_, err = b.publish(t.Context(), entpublish.Version{Ref: ref(npm, schematype.FormatNPM, 2), Blobs: []entpublish.Blob{blob("a", 2)}})
	require.ErrorIs(t, err, entpublish.ErrConflict)
	require.ErrorContains(t, err, "the namespace has it with 1 bytes")
	b.requireExact(t)
}

// The function goes on after a conflict, and commits what was stored before.
func TestSwallowedConflictIsCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	put := func(blobs ...entpublish.Blob) error {
		return b.in(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			return ignore(entpublish.PutBlobs(ctx, tx, b.namespace, blobs), entpublish.ErrConflict)
		})
	}
	require.NoError(t, put(blob("a", 100), blob("b", 10), blob("c", 1)))
	require.NoError(t, put(blob("a", 99), blob("b", 9), blob("d", 5), blob("e", 6), blob("f", 7)))
	b.requireExact(t)
}

func TestTwentyDeletersOfOneManifest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository(t, schematype.FormatContainer)
	v := entpublish.Version{Ref: ref(repository, schematype.FormatContainer, 1), Blobs: []entpublish.Blob{blob("layer", 10<<20)}}
	_, err := b.publish(t.Context(), v)
	require.NoError(t, err)
	var deleted atomic.Int64
	var deleters errgroup.Group
	for range 20 {
		deleters.Go(func() error {
			err := b.purge(t.Context(), v.Ref)
			if err == nil {
				deleted.Add(1)
			}
			return ignore(err, entpublish.ErrNotFound)
		})
	}
	require.NoError(t, deleters.Wait())
	require.Equal(t, int64(1), deleted.Load())
	require.Equal(t, entdb.Counters{}, b.recorder.Repository(repository))
	b.requireExact(t)
}

// Names come from clients, and errors go to logs.
func TestErrorsQuoteNamesAndCutLongOnes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository(t, schematype.FormatNPM)
	r := entpublish.Ref{RepositoryID: repository, Name: "two\nlines", Version: "1"}
	b.fails(t, entpublish.ErrNotFound, purges(r), `purge "two\nlines": `)
	b.fails(t, entpublish.ErrInvalid, untags(r, ""), `remove tag "" of "two\nlines": `)
	r.Name = strings.Repeat("x", 2000)
	long := `"` + strings.Repeat("x", 100) + `"... (2000 bytes): `
	for what, s := range map[string]step{
		"purge ": purges(r), "publish ": publishes(entpublish.Version{Ref: r}), "tag ": tags(r, "t"), `remove tag "t" of `: untags(r, "t"),
	} {
		b.fails(t, entpublish.ErrInvalid, s, what+long)
	}
}

func TestFiftyPushesShareALayer(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository(t, schematype.FormatContainer)
	var pushes errgroup.Group
	for n := range 50 {
		pushes.Go(func() error {
			_, err := b.publish(t.Context(), entpublish.Version{
				Ref:   ref(repository, schematype.FormatContainer, n),
				Blobs: []entpublish.Blob{blob("shared", 100<<20), blob(fmt.Sprint("own", n), 1<<20)},
			})
			return err
		})
	}
	require.NoError(t, pushes.Wait())
	require.Equal(t, entdb.Counters{Bytes: 150 << 20, Components: 50}, b.recorder.Namespace(b.namespace))
	b.requireExact(t)
}

// Collectors, publishers and purgers meet on the same few blobs and versions.
func TestCollectorBesidePublishers(t *testing.T) {
	t.Parallel()
	eachFormat(t, func(ft formatTest) {
		const rounds = 40
		var group errgroup.Group
		for w := range 3 {
			group.Go(func() error { return ft.publishOften(w, rounds) })
			group.Go(func() error { return ft.purgeOften(w, rounds) })
		}
		group.Go(func() error {
			for range rounds {
				if _, err := ft.b.collect(ft.Context(), 0); err != nil {
					return err
				}
			}
			return nil
		})
		require.NoError(ft, group.Wait())
	})
}

func (ft formatTest) publishOften(worker, rounds int) error {
	for n := range rounds {
		_, err := ft.b.publish(ft.Context(), version(ft.repository, ft.format, (worker+n)%4, blob("a", 100), blob("b", 10), blob(fmt.Sprint((worker+n)%4), 1)))
		if err != nil {
			return err
		}
	}
	return nil
}

func (ft formatTest) purgeOften(worker, rounds int) error {
	for n := range rounds {
		err := ft.b.purge(ft.Context(), ref(ft.repository, ft.format, (worker+n)%4))
		if err := ignore(err, entpublish.ErrNotFound); err != nil {
			return err
		}
	}
	return nil
}

// Publishes extend a Maven version, or meet on one of another format, while
// the repository is deleted.
func TestDeleteRepositoryBesidePublishers(t *testing.T) {
	t.Parallel()
	eachFormat(t, func(ft formatTest) {
		var group errgroup.Group
		for n := range 20 {
			group.Go(func() error {
				_, err := ft.b.publish(ft.Context(), version(ft.repository, ft.format, 1, blob("a", 100), blob(fmt.Sprint(n), 1)))
				if ft.format != schematype.FormatMaven {
					err = ignore(err, entpublish.ErrConflict)
				}
				return ignore(err, entdb.ErrRepository)
			})
		}
		group.Go(func() error {
			return ft.b.in(ft.Context(), func(ctx context.Context, tx *entdb.Tx) error {
				return entpublish.DeleteRepository(ctx, tx, ft.repository)
			})
		})
		require.NoError(ft, group.Wait())
	})
}

// ignore is err unless it is the expected one.
func ignore(err, expected error) error {
	if errors.Is(err, expected) {
		return nil
	}
	return err
}
