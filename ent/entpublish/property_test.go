package entpublish_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/dbtest"
)

// fewHistories are rapid's defaults here: a step costs some milliseconds. Flags
// of the command line overrule them.
func fewHistories() error {
	return errors.Join(flag.Set("rapid.checks", "8"), flag.Set("rapid.steps", "40"))
}

// TestOperationsAgreeWithARecount plays random operations of the three formats in
// one namespace. After each, what was emitted is what a recount finds; an
// operation that is repeated at once changes nothing more; one that fails changes
// nothing at all.
func TestOperationsAgreeWithARecount(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	rapid.Check(t, func(rt *rapid.T) {
		p := &player{T: rt, bundle: setupIn(t, pool), repositories: make(map[schematype.Format][2]uuid.UUID)}
		for _, format := range schematype.Formats() {
			p.repositories[format] = [2]uuid.UUID{p.repository(t, format), p.repositoryOfKind(t, format, schematype.KindRemote)}
		}
		rt.Repeat(map[string]func(*rapid.T){
			"": func(*rapid.T) { p.requireExact(t) },

			"publish":     p.plays(p.publishes, false),
			"put blobs":   p.plays(p.putsBlobs, false),
			"tag":         p.plays(p.tagsIt, false),
			"untag":       p.plays(p.untagsIt, true),
			"purge":       p.plays(func() step { return purges(p.ref()) }, true),
			"purge many":  p.plays(p.purgesMany, false),
			"purge name":  p.plays(p.purgesName, true),
			"soft-delete": p.plays(func() step { return softDeletes(p.ref()) }, false),
			"restore":     p.plays(func() step { return restores(p.ref()) }, false),
			"delete file": p.plays(p.deletesFile, true),
			"collect":     p.plays(p.collects, false),
			"hide or show a repository": p.plays(func() step {
				id := p.anyRepository()
				if rapid.IntRange(0, 2).Draw(p.T, "hide") == 0 {
					return on(entpublish.SoftDeleteRepository, id)
				}
				return on(entpublish.RestoreRepository, id)
			}, false),
		})
	})
}

// player draws operations.
type player struct {
	*rapid.T
	*bundle
	repositories map[schematype.Format][2]uuid.UUID
	format       schematype.Format
}

// refusals are the errors that an operation may end with when what it names is
// not there, or otherwise there.
var refusals = []error{
	entpublish.ErrNotFound, entpublish.ErrConflict, entdb.ErrSoftDeleted, entdb.ErrFormat,
}

// plays makes an action of an operation, and now and then repeats it. once says
// that the repetition must find nothing left.
func (p *player) plays(draw func() step, once bool) func(*rapid.T) {
	return func(*rapid.T) {
		s := draw()
		emitted := len(p.recorder.Emissions())
		err := p.in(context.Background(), s)
		if err != nil {
			require.True(p, slices.ContainsFunc(refusals, func(refusal error) bool { return errors.Is(err, refusal) }), "%v", err)
			require.Len(p, p.recorder.Emissions(), emitted, "a failed operation emits nothing")
			return
		}
		if rapid.Bool().Draw(p.T, "again") {
			emitted = len(p.recorder.Emissions())
			err := p.in(context.Background(), s)
			if once {
				require.ErrorIs(p, err, entpublish.ErrNotFound)
			} else {
				require.NoError(p, err)
			}
			require.Len(p, p.recorder.Emissions(), emitted, "the repetition changes nothing")
		}
	}
}

func (p *player) anyRepository() uuid.UUID {
	p.format = rapid.SampledFrom(schematype.Formats()).Draw(p.T, "format")
	return p.repositories[p.format][rapid.IntRange(0, 1).Draw(p.T, "repository")]
}

// ref is one of few versions. In Maven the first is a snapshot, and the second
// the artifact itself.
func (p *player) ref() entpublish.Ref {
	id := p.anyRepository()
	n := rapid.IntRange(0, 3).Draw(p.T, "version")
	r := ref(id, p.format, n)
	if p.format == schematype.FormatMaven && n < 2 {
		r.Version = []string{"1-SNAPSHOT", ""}[n]
	}
	return r
}

func (p *player) blobs() []entpublish.Blob {
	numbers := rapid.SliceOfN(rapid.IntRange(0, 5), 1, 4).Draw(p.T, "blobs")
	blobs := make([]entpublish.Blob, 0, len(numbers))
	for _, n := range numbers {
		blobs = append(blobs, blob(fmt.Sprint("blob", n), int64(1)<<(4*n)))
	}
	return blobs
}

func (p *player) publishes() step {
	v := entpublish.Version{Ref: p.ref()}
	switch p.format {
	case schematype.FormatMaven:
		for i, b := range p.blobs() {
			v.Files = append(v.Files, entpublish.File{Path: p.path(i), Blob: b})
		}
	case schematype.FormatContainer:
		if rapid.Bool().Draw(p.T, "index") {
			v.Digest = digest(fmt.Sprint("index ", rapid.IntRange(0, 1).Draw(p.T, "index number")))
			for _, n := range rapid.SliceOfN(rapid.IntRange(0, 3), 1, 3).Draw(p.T, "children") {
				v.Children = append(v.Children, ref(v.RepositoryID, p.format, n).Digest)
			}
			break
		}
		v.Blobs = p.blobs()
	default:
		v.Blobs = p.blobs()
	}
	return publishes(v)
}

// path is the i-th of a deploy: those of one deploy differ.
func (p *player) path(i int) string {
	return fmt.Sprint(rapid.SampledFrom([]string{"file", "maven-metadata.xml."}).Draw(p.T, "path"), i)
}

func (p *player) putsBlobs() step {
	blobs := p.blobs()
	return func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.PutBlobs(ctx, tx, p.namespace, blobs)
	}
}

func (p *player) tagsIt() step {
	return tags(p.ref(), rapid.SliceOfN(rapid.SampledFrom([]string{"latest", "next"}), 1, 2).Draw(p.T, "tags")...)
}

func (p *player) untagsIt() step { return untags(p.ref(), "latest") }

func (p *player) purgesMany() step {
	refs := []entpublish.Ref{p.ref(), p.ref(), p.ref()}
	return func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.PurgeMany(ctx, tx, refs)
		return err
	}
}

func (p *player) purgesName() step {
	id := p.anyRepository()
	return func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.PurgeName(ctx, tx, id, "thing")
		return err
	}
}

func (p *player) deletesFile() step {
	r := p.ref()
	return deletesFile(r, p.path(0))
}

func (p *player) collects() step {
	return func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.CollectBlobs(ctx, tx, p.namespace, time.Duration(0), 100)
		return err
	}
}
