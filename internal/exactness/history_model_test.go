package exactness

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
)

// The model of a history knows what content there should be, and computes the
// counters from that alone.

// world has two places for namespaces, each with a repository of each format.
// What is deleted makes room for a new one in its place.
type world struct {
	*servers
	process *process
	buckets [places]int

	mu sync.Mutex
	// spaces are all namespaces that ever were; the last of a place is the one
	// that stands there.
	spaces [places][]*space
	hands  []*hand
	// ticking is held by the one tick: the job queue lets no two run at once.
	ticking sync.Mutex
	pace    pace
}

// pace lets an actor sleep for a number of steps of the others.
type pace struct {
	mu    sync.Mutex
	wake  sync.Cond
	awake int
	steps int
}

// stepsAsleep are enough for a write, its drain and a pass.
const stepsAsleep = 6

// start is called before the hands are let loose, with their number.
func (p *pace) start(hands int) {
	p.wake.L = &p.mu
	p.awake = hands
}

// did is called after each step.
func (p *pace) did() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.steps++
	p.wake.Broadcast()
}

// left is called when a hand has ended.
func (p *pace) left() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awake--
	p.wake.Broadcast()
}

// sleep returns when others have made some steps, or when all of them sleep or
// have ended.
func (p *pace) sleep() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.awake--
	p.wake.Broadcast()
	for until := p.steps + stepsAsleep; p.steps < until && p.awake > 0; {
		p.wake.Wait()
	}
	p.awake++
}

const places = 2

// space is a namespace.
type space struct {
	id           uuid.UUID
	repositories [formats][]*repo
	// stored are its blobs, those that no version has included. Only a history
	// of one hand knows them.
	stored map[int]bool
	// losses is how many transactions may have lost deltas. A pass that is done
	// has healed those from before its begin. Of the first asked ones it is
	// certain that a reconciliation was requested: nobody asks for a killed
	// writer.
	losses, healed, asked int
	// leaving says that somebody deletes it, gone that it is deleted.
	leaving, gone bool
}

const formats = 3

// repo is a repository of a space. Its fields are those of the space.
type repo struct {
	id            uuid.UUID
	format        schematype.Format
	space         *space
	leaving, gone bool
}

// hand is one writer. It publishes under names of its own, so that it knows its
// versions whatever others do; blobs are everybody's.
type hand struct {
	*world
	name     string
	versions map[key]*version
}

// key names a version.
type key struct {
	repo    *repo
	version int
}

// version is one that is published, soft-deleted or not.
type version struct {
	blobs   map[int]bool
	deleted bool
}

func (w *world) hand(name string) *hand {
	h := &hand{world: w, name: name, versions: map[key]*version{}}
	w.hands = append(w.hands, h)
	return h
}

// The blobs of all histories, by number. One is empty.
func blobOf(n int) entpublish.Blob {
	return entpublish.Blob{Digest: digestOf("blob " + strconv.Itoa(n)), Size: int64(n) * 1000}
}

func setOf(numbers []int) map[int]bool {
	set := map[int]bool{}
	for _, n := range numbers {
		set[n] = true
	}
	return set
}

func sizeOf(blobs map[int]bool) int64 {
	var size int64
	for n := range blobs {
		size += blobOf(n).Size
	}
	return size
}

// ref is a version's name in the product.
func (h *hand) ref(k key) entpublish.Ref {
	ref := entpublish.Ref{RepositoryID: k.repo.id, Name: h.name}
	if k.repo.format == schematype.FormatContainer {
		ref.Digest = digestOf(strconv.Itoa(k.version))
	} else {
		ref.Version = strconv.Itoa(k.version)
	}
	return ref
}

func blobsOf(numbers []int) []entpublish.Blob {
	blobs := make([]entpublish.Blob, len(numbers))
	for i, n := range numbers {
		blobs[i] = blobOf(n)
	}
	return blobs
}

// content is a version with blobs in the product: those of Maven are files, each
// at a path of its own.
func (h *hand) content(k key, numbers []int) entpublish.Version {
	if k.repo.format != schematype.FormatMaven {
		return entpublish.Version{Ref: h.ref(k), Blobs: blobsOf(numbers)}
	}
	v := entpublish.Version{Ref: h.ref(k)}
	for _, n := range numbers {
		v.Files = append(v.Files, entpublish.File{Path: strconv.Itoa(n), Blob: blobOf(n)})
	}
	return v
}

// space is the namespace that stands in a place; one is made if there is none.
func (w *world) space(ctx context.Context, place int) (*space, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if all := w.spaces[place]; len(all) > 0 && !all[len(all)-1].gone {
		return all[len(all)-1], nil
	}
	s := &space{id: idInBucket(w.buckets[place]), stored: map[int]bool{}}
	if err := w.process.db.Namespace.Create().SetID(s.id).SetSlug(s.id.String()).Exec(ctx); err != nil {
		return nil, err
	}
	for format := range formats {
		if err := w.newRepo(ctx, s, format); err != nil {
			return nil, err
		}
	}
	w.spaces[place] = append(w.spaces[place], s)
	return s, nil
}

// repo is the repository of a format in a place. A namespace that is leaving
// gets no new one.
func (w *world) repo(ctx context.Context, place, format int) (*repo, error) {
	s, err := w.space(ctx, place)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if last := s.repo(format); !last.gone || s.leaving {
		return last, nil
	}
	err = w.newRepo(ctx, s, format)
	return s.repo(format), err
}

func (s *space) repo(format int) *repo {
	all := s.repositories[format]
	return all[len(all)-1]
}

func (w *world) newRepo(ctx context.Context, s *space, format int) error {
	r := &repo{id: uuid.Must(uuid.NewV7()), format: schematype.Formats()[format], space: s}
	kind := []schematype.Kind{schematype.KindHosted, schematype.KindRemote}[format%2]
	s.repositories[format] = append(s.repositories[format], r)
	return w.process.db.Repository.Create().SetID(r.id).SetNamespaceID(s.id).SetName(r.id.String()).SetFormat(r.format).SetKind(kind).Exec(ctx)
}

// left reports whether somebody deletes the repository or has deleted it.
func (w *world) left(r *repo) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return r.leaving || r.space.leaving
}

// all are the namespaces that ever were.
func (w *world) all() []*space {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Concat(w.spaces[:]...)
}

// live are the versions of a namespace.
func (w *world) live(s *space) map[key][]*version {
	live := map[key][]*version{}
	for _, h := range w.hands {
		for k, v := range h.versions {
			if k.repo.space == s && !k.repo.gone {
				live[k] = append(live[k], v)
			}
		}
	}
	return live
}

// attached are the blobs that a version of the namespace has.
func (w *world) attached(s *space) map[int]bool {
	blobs := map[int]bool{}
	for _, versions := range w.live(s) {
		for _, v := range versions {
			maps.Copy(blobs, v.blobs)
		}
	}
	return blobs
}

// unattached are the others, in the order in which the collector takes them.
func (w *world) unattached(s *space) []int {
	attached := w.attached(s)
	var rest []int
	for n := range s.stored {
		if !attached[n] {
			rest = append(rest, n)
		}
	}
	slices.SortFunc(rest, func(a, b int) int { return byDigest(blobOf(a), blobOf(b)) })
	return rest
}

func byDigest(a, b entpublish.Blob) int { return slices.Compare(a.Digest[:], b.Digest[:]) }

// expected are the counters of every scope of a namespace.
func (w *world) expected(s *space) map[accounting.Scope]accounting.Counters {
	expected := map[accounting.Scope]accounting.Counters{}
	if s.gone {
		return expected
	}
	for _, r := range slices.Concat(s.repositories[:]...) {
		if !r.gone {
			expected[accounting.RepositoryScope(s.id, r.id)] = accounting.Counters{}
		}
	}
	own := accounting.Counters{Bytes: sizeOf(s.stored)}
	for k, versions := range w.live(s) {
		scope := accounting.RepositoryScope(s.id, k.repo.id)
		for _, v := range versions {
			expected[scope] = expected[scope].Plus(accounting.Counters{Bytes: sizeOf(v.blobs), Components: 1})
			own.Components++
		}
	}
	expected[accounting.NamespaceScope(s.id)] = own
	return expected
}
