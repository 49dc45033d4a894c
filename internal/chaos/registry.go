package chaos

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

const (
	// hotShare is how often, in percent, an operation is on the first namespace.
	hotShare = 40
	// sharedShare is how often, in percent, a version is one that all writers
	// publish and purge.
	sharedShare = 30
	// distinctBlobs are all that versions are made of, so that most are shared.
	distinctBlobs = 200
	// versionsOfAName are those of each name in a repository.
	versionsOfAName = 4
	// collectLimit is how many blobs one collection removes.
	collectLimit = 20
)

// space is a namespace with its repositories, which nobody deletes.
type space struct {
	id           uuid.UUID
	repositories []repository
}

type repository struct {
	id     uuid.UUID
	format schematype.Format
}

// loadSpaces reads what the storm made, the hot one first.
func loadSpaces(ctx context.Context, db pgdb.DB) ([]space, error) {
	rows, err := db.Query(ctx, `
		SELECT n.id, r.id, r.format FROM namespaces n JOIN repositories r ON r.namespace_id = n.id
		WHERE r.name LIKE 'kept-%' ORDER BY n.slug, r.name`)
	if err != nil {
		return nil, err
	}
	var spaces []space
	var namespace uuid.UUID
	var repo repository
	_, err = pgx.ForEachRow(rows, []any{&namespace, &repo.id, &repo.format}, func() error {
		if len(spaces) == 0 || spaces[len(spaces)-1].id != namespace {
			spaces = append(spaces, space{id: namespace})
		}
		last := &spaces[len(spaces)-1]
		last.repositories = append(last.repositories, repo)
		return nil
	})
	return spaces, err
}

// operation is one thing that a writer does, and the namespaces whose counters
// it may change.
type operation struct {
	name       string
	namespaces []uuid.UUID
	run        func(context.Context) error
}

// registry makes up operations and knows what their results must be.
type registry struct {
	db     *entdb.Client
	rng    *rand.Rand
	spaces []space
	own    string
	made   int
	// beliefs are about the versions of this writer's own.
	beliefs map[entpublish.Ref]belief
}

func newRegistry(db *entdb.Client, rng *rand.Rand, spaces []space, number int) *registry {
	return &registry{db: db, rng: rng, spaces: spaces, own: fmt.Sprintf("writer-%d", number), beliefs: make(map[entpublish.Ref]belief)}
}

func (r *registry) next() operation {
	s := r.space()
	switch n := r.rng.IntN(100); {
	case n < 48:
		return r.publish(s)
	case n < 58:
		return r.mark(s, "soft-delete", entpublish.SoftDelete, hidden)
	case n < 64:
		return r.mark(s, "restore", entpublish.Restore, visible)
	case n < 82:
		return r.mark(s, "purge", entpublish.Purge, absent)
	case n < 89:
		return r.collect(s)
	case n < 93:
		return r.putBlobs(s)
	case n < 97:
		return r.publishTwice()
	default:
		return r.shortLived(s)
	}
}

func (r *registry) space() space {
	if r.rng.IntN(100) < hotShare {
		return r.spaces[0]
	}
	return r.spaces[r.rng.IntN(len(r.spaces))]
}

// ref is a version of this writer's own, or one that all share.
func (r *registry) ref(s space) (repository, entpublish.Ref) {
	repo := s.repositories[r.rng.IntN(len(s.repositories))]
	name := r.own
	if r.rng.IntN(100) < sharedShare {
		name = "shared"
	}
	return repo, makeRef(repo, name, r.rng.IntN(versionsOfAName))
}

func makeRef(repo repository, name string, version int) entpublish.Ref {
	ref := entpublish.Ref{RepositoryID: repo.id, Name: name}
	if repo.format == schematype.FormatContainer {
		ref.Digest = sha256.Sum256(fmt.Appendf(nil, "%s@%d", name, version))
	} else {
		ref.Version = fmt.Sprint(version)
	}
	return ref
}

// makeVersion makes files of a Maven version's blobs, each at a path of its own.
func makeVersion(repo repository, ref entpublish.Ref, blobs []entpublish.Blob) entpublish.Version {
	if repo.format != schematype.FormatMaven {
		return entpublish.Version{Ref: ref, Blobs: blobs}
	}
	v := entpublish.Version{Ref: ref}
	for _, b := range blobs {
		v.Files = append(v.Files, entpublish.File{Path: b.Digest.String(), Blob: b})
	}
	return v
}

// content is what a version consists of, the same for each writer.
func content(ref entpublish.Ref) []entpublish.Blob {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s@%s@%s", ref.Name, ref.Version, ref.Digest))
	blobs := make([]entpublish.Blob, 1+sum[0]%5)
	for i := range blobs {
		blobs[i] = makeBlob(int(sum[i+1]))
	}
	return blobs
}

// makeBlob gives blobs sizes whose sums tell which of them are missing.
func makeBlob(n int) entpublish.Blob {
	n %= distinctBlobs
	return entpublish.Blob{Digest: sha256.Sum256(fmt.Appendf(nil, "blob %d", n)), Size: int64(n*n*1021 + n + 1)}
}

func (r *registry) inTx(ctx context.Context, fn func(ctx context.Context, tx *entdb.Tx) error) error {
	return r.db.WithTx(ctx, fn)
}

// publish adds a further blob now and then: a Maven version takes it, others
// are in conflict then or, when they are new, later.
func (r *registry) publish(s space) operation {
	repo, ref := r.ref(s)
	blobs := content(ref)
	if r.rng.IntN(20) == 0 {
		blobs = append(blobs, makeBlob(r.rng.IntN(distinctBlobs)))
	}
	v := makeVersion(repo, ref, blobs)
	return operation{"publish", []uuid.UUID{s.id}, func(ctx context.Context) error {
		var published entpublish.Published
		err := r.inTx(ctx, func(ctx context.Context, tx *entdb.Tx) (err error) {
			published, err = entpublish.Publish(ctx, tx, v)
			return err
		})
		return r.learn(ref, err, visible, func(b belief) bool {
			return published.Created == (b == absent) && published.Restored == (b == hidden)
		})
	}}
}

// mark is any of the functions that only name a version.
func (r *registry) mark(s space, name string, do func(context.Context, *entdb.Tx, entpublish.Ref) error, then belief) operation {
	_, ref := r.ref(s)
	return operation{name, []uuid.UUID{s.id}, func(ctx context.Context) error {
		err := r.inTx(ctx, func(ctx context.Context, tx *entdb.Tx) error { return do(ctx, tx, ref) })
		return r.learn(ref, err, then, func(b belief) bool { return b != absent })
	}}
}

func (r *registry) collect(s space) operation {
	return operation{"collect blobs", []uuid.UUID{s.id}, func(ctx context.Context) error {
		return r.inTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
			_, err := entpublish.CollectBlobs(ctx, tx, s.id, 0, collectLimit)
			return err
		})
	}}
}

func (r *registry) putBlobs(s space) operation {
	blobs := []entpublish.Blob{makeBlob(r.rng.IntN(distinctBlobs)), makeBlob(r.rng.IntN(distinctBlobs))}
	return operation{"put blobs", []uuid.UUID{s.id}, func(ctx context.Context) error {
		return r.inTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
			return entpublish.PutBlobs(ctx, tx, s.id, blobs)
		})
	}}
}

// publishTwice publishes into two namespaces in one transaction, always in the
// order of the spaces: steps of one transaction could deadlock otherwise.
func (r *registry) publishTwice() operation {
	i := r.rng.IntN(len(r.spaces) - 1)
	j := i + 1 + r.rng.IntN(len(r.spaces)-1-i)
	n := r.rng.IntN(versionsOfAName)
	return operation{"publish into two", []uuid.UUID{r.spaces[i].id, r.spaces[j].id}, func(ctx context.Context) error {
		return r.inTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
			for _, s := range []space{r.spaces[i], r.spaces[j]} {
				repo := s.repositories[0]
				ref := makeRef(repo, "pair", n)
				if _, err := entpublish.Publish(ctx, tx, makeVersion(repo, ref, content(ref))); err != nil {
					return err
				}
			}
			return nil
		})
	}}
}

// shortLived makes a repository, fills it and deletes it, so that drains and
// passes find scopes that are gone.
func (r *registry) shortLived(s space) operation {
	r.made++
	name := fmt.Sprintf("short-%s-%d", r.own, r.made)
	return operation{"repository made and deleted", []uuid.UUID{s.id}, func(ctx context.Context) error {
		made, err := r.db.Repository.Create().SetNamespaceID(s.id).SetName(name).
			SetFormat(schematype.FormatNPM).SetKind(schematype.KindRemote).Save(ctx)
		if err != nil {
			return err
		}
		for n := range 2 {
			repo := repository{made.ID, made.Format}
			ref := makeRef(repo, name, n)
			err := r.inTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
				_, err := entpublish.Publish(ctx, tx, makeVersion(repo, ref, content(ref)))
				return err
			})
			if err != nil {
				return err
			}
		}
		return r.inTx(ctx, func(ctx context.Context, tx *entdb.Tx) error { return entpublish.DeleteRepository(ctx, tx, made.ID) })
	}}
}

// belief is what a writer knows of a version that nobody else touches.
type belief string

const (
	absent  belief = "absent"
	visible belief = "visible"
	hidden  belief = "hidden"
	unknown belief = "unknown"
)

// errInconsistent says that a result contradicts what had been acknowledged.
var errInconsistent = errors.New("result contradicts an earlier one")

// learn compares the result of an operation with what is known of its version,
// and returns its error. Success must fit the belief, by the condition, and
// makes it then. An error other than a lost answer to COMMIT promises that
// nothing was changed.
func (r *registry) learn(ref entpublish.Ref, err error, then belief, fits func(belief) bool) error {
	if ref.Name != r.own {
		return err
	}
	was, known := r.beliefs[ref]
	if !known {
		was = absent
	}
	switch {
	case err == nil:
	case errors.Is(err, entpublish.ErrNotFound):
		then, fits = absent, func(b belief) bool { return b == absent }
	case errors.Is(err, entpublish.ErrConflict):
		then, fits = was, func(b belief) bool { return b != absent }
	case errors.Is(err, entdb.ErrCommitUnknown):
		r.beliefs[ref] = unknown
		return err
	default:
		return err
	}
	if was != unknown && !fits(was) {
		return fmt.Errorf("%w: a version that was %s would be %s now, the operation's error is %q", errInconsistent, was, then, fmt.Sprint(err))
	}
	r.beliefs[ref] = then
	return err
}
