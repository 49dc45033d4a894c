package exactness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"time"

	"github.com/stowage-dev/stowage/ent"
	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

// op is one step of a history. Its numbers choose among what there is.
type op struct {
	Do string
	// Place, Format and Version name what is changed. Both says that a publish
	// goes into the other place too, in the same transaction.
	Place, Format, Version int
	Both                   bool
	Blobs                  []int
	// Crash is the point where the actor fails; Kill that a writer which has
	// committed does not fail but is killed.
	Crash failpoint.Point
	Kill  bool
	// Pause is the point where the actor sleeps while others go on.
	Pause failpoint.Point
}

// String is short, because histories are long.
func (o op) String() string {
	text := fmt.Sprintf("%s %d/%s/%d", o.Do, o.Place, schematype.Formats()[o.Format], o.Version)
	if o.Do == "publish" {
		text += fmt.Sprint(" blobs ", o.Blobs)
	}
	if o.Both {
		text += " in both"
	}
	switch {
	case o.Kill && o.Crash == failpoint.WriterCommitted:
		text += " killed at " + string(o.Crash)
	case o.Crash != "":
		text += " fails at " + string(o.Crash)
	}
	if o.Pause != "" {
		text += " sleeps at " + string(o.Pause)
	}
	return text
}

// GoString is what rapid prints.
func (o op) GoString() string { return o.String() }

// do makes the step in the product and in the model. An error is what the
// product must not do.
func (h *hand) do(ctx context.Context, o op) error {
	steps := map[string]func(context.Context, op) error{
		"publish": h.publish, "soft-delete": h.softDelete, "restore": h.restore, "purge": h.purge, "collect": h.collect,
		"delete repository": h.deleteRepository, "delete namespace": h.deleteNamespace,
		"drain": h.drain, "expire lease": h.expireLease, "reconcile": h.reconcile, "tick": h.tick,
	}
	defer h.pace.did()
	if err := steps[o.Do](ctx, o); err != nil {
		return fmt.Errorf("%s: %s: %w", h.name, o, err)
	}
	return nil
}

var errKilled = errors.New("killed")

// write runs a counted transaction that fails, or whose writer is killed, at
// the point of the op. It reports whether it is committed; an error is one of a
// transaction that is not, and was not meant to fail.
func (h *hand) write(ctx context.Context, o op, repos []*repo, fn func(context.Context, *entdb.Tx) error) (committed bool, err error) {
	met := map[failpoint.Point]int{}
	ctx = failpoint.With(ctx, func(_ context.Context, at failpoint.Point) error {
		met[at]++
		h.sleep(o, at)
		switch {
		case at != o.Crash:
			return nil
		case o.Kill && at == failpoint.WriterCommitted:
			runtime.Goexit()
		}
		return errInjected
	})
	ended := make(chan error, 1)
	go func() {
		err := errKilled
		defer func() { ended <- err }()
		err = h.process.db.WithTx(ctx, fn)
	}()
	err = <-ended
	failed := met[o.Crash] > 0
	switch {
	case failed && o.Crash == failpoint.WriterWrote && errors.Is(err, errInjected):
		return false, nil
	case errors.Is(err, errKilled):
		h.lost(repos, false)
	case failed && o.Crash == failpoint.WriterCommitted && errors.Is(err, entdb.ErrCommitUnknown):
		h.lost(repos, true)
	case err != nil:
		return false, err
	case failed && o.Crash == failpoint.WriterEmits:
		h.lost(repos, true)
	case met[failpoint.WriterCommitted] > 0 && met[failpoint.WriterEmits] < len(repos): // perhaps the breaker was open
		h.lost(repos, false)
	}
	return true, nil
}

// lost notes that deltas are lost. With two namespaces it is not certain which.
func (w *world) lost(repos []*repo, asked bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, r := range repos {
		r.space.losses++
		if asked && len(repos) == 1 {
			r.space.asked = r.space.losses
		}
	}
}

func (h *hand) publish(ctx context.Context, o op) error {
	repos, err := h.repos(ctx, o)
	if err != nil {
		return err
	}
	conflict := false
	for _, r := range repos {
		old := h.versions[key{r, o.Version}]
		conflict = conflict || old != nil && r.format != schematype.FormatMaven && !maps.Equal(old.blobs, setOf(o.Blobs))
	}
	committed, err := h.write(ctx, o, repos, func(ctx context.Context, tx *entdb.Tx) error {
		for _, r := range repos {
			if _, err := entpublish.Publish(ctx, tx, h.content(key{r, o.Version}, o.Blobs)); err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case conflict && errors.Is(err, entpublish.ErrConflict):
		return nil
	case err != nil:
		return h.unlessLeft(err, repos...)
	case conflict && committed:
		return errors.New("published over other content")
	case committed:
		h.published(o, repos)
	}
	return nil
}

// repos are those of a publish. One that goes into both places takes them in
// their order: two in different orders could wait for each other's blobs.
func (h *hand) repos(ctx context.Context, o op) ([]*repo, error) {
	if !o.Both {
		r, err := h.repo(ctx, o.Place, o.Format)
		return []*repo{r}, err
	}
	var repos []*repo
	for place := range places {
		r, err := h.repo(ctx, place, o.Format)
		if err != nil {
			return nil, err
		}
		repos = append(repos, r)
	}
	return repos, nil
}

func (h *hand) published(o op, repos []*repo) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, r := range repos {
		v := h.versions[key{r, o.Version}]
		if v == nil {
			v = &version{blobs: map[int]bool{}}
			h.versions[key{r, o.Version}] = v
		}
		v.deleted = false
		maps.Copy(v.blobs, setOf(o.Blobs))
		maps.Copy(r.space.stored, setOf(o.Blobs))
	}
}

// unlessLeft allows what happens to writers of a repository that others delete.
func (h *hand) unlessLeft(err error, repos ...*repo) error {
	expected := errors.Is(err, entdb.ErrRepository) || errors.Is(err, entpublish.ErrNotFound) || pgdb.IsForeignKeyViolation(err)
	if expected && slices.ContainsFunc(repos, h.left) {
		return nil
	}
	return err
}

func (h *hand) softDelete(ctx context.Context, o op) error {
	return h.change(ctx, o, entpublish.SoftDelete, func(_ key, v *version) { v.deleted = true })
}

func (h *hand) restore(ctx context.Context, o op) error {
	return h.change(ctx, o, entpublish.Restore, func(_ key, v *version) { v.deleted = false })
}

func (h *hand) purge(ctx context.Context, o op) error {
	return h.change(ctx, o, entpublish.Purge, func(k key, _ *version) { delete(h.versions, k) })
}

// change changes one version, which must be there for that.
func (h *hand) change(ctx context.Context, o op, fn func(context.Context, *entdb.Tx, entpublish.Ref) error, apply func(key, *version)) error {
	r, err := h.repo(ctx, o.Place, o.Format)
	if err != nil {
		return err
	}
	k := key{r, o.Version}
	v := h.versions[k]
	committed, err := h.write(ctx, o, []*repo{r}, func(ctx context.Context, tx *entdb.Tx) error { return fn(ctx, tx, h.ref(k)) })
	switch {
	case v == nil && errors.Is(err, entpublish.ErrNotFound):
		return nil
	case err != nil:
		return h.unlessLeft(err, r)
	case v == nil && committed:
		return errors.New("changed a version that is not there")
	case committed:
		apply(k, v)
	}
	return nil
}

func (h *hand) deleteRepository(ctx context.Context, o op) error {
	r, err := h.repo(ctx, o.Place, o.Format)
	if err != nil {
		return err
	}
	_, err = h.remove(ctx, o, r)
	return err
}

// remove deletes a repository, unless somebody else is about to.
func (h *hand) remove(ctx context.Context, o op, r *repo) (removed bool, err error) {
	h.mu.Lock()
	taken := r.leaving
	r.leaving = true
	h.mu.Unlock()
	if taken {
		return r.gone, nil
	}
	removed, err = h.write(ctx, o, []*repo{r}, func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.DeleteRepository(ctx, tx, r.id)
	})
	h.mu.Lock()
	defer h.mu.Unlock()
	r.leaving, r.gone = removed, removed
	return removed, err
}

func (h *hand) collect(ctx context.Context, o op) error {
	s, err := h.space(ctx, o.Place)
	if err != nil {
		return err
	}
	_, err = h.collectSome(ctx, o, s)
	return err
}

func (h *hand) collectSome(ctx context.Context, o op, s *space) (found int, err error) {
	limit := 1 + o.Version
	var collected []entpublish.Blob
	committed, err := h.write(ctx, o, []*repo{s.repo(0)}, func(ctx context.Context, tx *entdb.Tx) (err error) {
		collected, err = entpublish.CollectBlobs(ctx, tx, s.id, 0, limit)
		return err
	})
	if err != nil || !committed {
		return 0, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.hands) == 1 {
		rest := h.unattached(s)
		want := blobsOf(rest[:min(limit, len(rest))])
		slices.SortFunc(collected, byDigest)
		if !slices.Equal(want, collected) {
			return 0, fmt.Errorf("collected %v, want %v", collected, want)
		}
	}
	maps.DeleteFunc(s.stored, func(n int, _ bool) bool { return slices.Contains(collected, blobOf(n)) })
	return len(collected), nil
}

// deleteNamespace deletes all repositories, collects the blobs and deletes the
// namespace. A crash on the way leaves the rest.
func (h *hand) deleteNamespace(ctx context.Context, o op) error {
	s, err := h.space(ctx, o.Place)
	if err != nil {
		return err
	}
	h.mu.Lock()
	taken := s.leaving || s.gone
	s.leaving = true
	h.mu.Unlock()
	if taken {
		return nil
	}
	gone, err := h.empty(ctx, o, s)
	if err == nil && gone {
		err = h.process.db.Namespace.DeleteOneID(s.id).Exec(ctx)
		// A writer that is about to fail may hold it for a moment.
		if len(h.hands) > 1 && ent.IsConstraintError(err) {
			gone, err = false, nil
		}
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	s.leaving, s.gone = gone, gone
	return err
}

func (h *hand) empty(ctx context.Context, o op, s *space) (bool, error) {
	for format := range formats {
		r := s.repo(format)
		if gone, err := h.remove(ctx, o, r); err != nil || !gone {
			return false, err
		}
	}
	if o.Crash == failpoint.WriterWrote { // nothing collected would look like nothing to collect
		o.Crash = ""
	}
	for {
		found, err := h.collectSome(ctx, o, s)
		if err != nil || found == 0 {
			return err == nil, err
		}
	}
}

// sleep lets others go on at the op's point.
func (h *hand) sleep(o op, at failpoint.Point) {
	if at == o.Pause {
		h.pace.sleep()
	}
}

// armed fails and sleeps at the op's points; failed says that it has failed.
func (h *hand) armed(ctx context.Context, o op) (_ context.Context, failed *bool) {
	failed = new(bool)
	return failpoint.With(ctx, func(_ context.Context, at failpoint.Point) error {
		h.sleep(o, at)
		if at != o.Crash {
			return nil
		}
		*failed = true
		return errInjected
	}), failed
}

// drain works the bucket. One that fails leaves its lease, as if it was killed.
func (h *hand) drain(ctx context.Context, o op) error {
	bucket := h.buckets[o.Place]
	armedCtx, failed := h.armed(ctx, o)
	err := h.process.drain(armedCtx, bucket)
	if !*failed {
		return err
	}
	return h.redis.Do(ctx, h.redis.B().Set().Key(bucketKey(bucket, "lease")).Value("killed").Ex(time.Minute).Build()).Error()
}

func (h *hand) expireLease(_ context.Context, o op) error {
	return dropLease(h.redis, h.buckets[o.Place])
}

// reconcile is a pass over the namespace, or over the one before it.
func (h *hand) reconcile(ctx context.Context, o op) error {
	s, err := h.space(ctx, o.Place)
	if err != nil {
		return err
	}
	h.mu.Lock()
	losses := s.losses
	h.mu.Unlock()
	armedCtx, failed := h.armed(ctx, o)
	pass, err := h.process.passes.Reconcile(armedCtx, s.id)
	if *failed {
		return nil
	}
	if pass.Result == metrics.PassDone {
		h.mu.Lock()
		s.healed = max(s.healed, losses)
		h.mu.Unlock()
	}
	return err
}

func (h *hand) tick(ctx context.Context, o op) error {
	h.ticking.Lock()
	defer h.ticking.Unlock()
	armedCtx, failed := h.armed(ctx, o)
	if err := h.process.tick(armedCtx); !*failed {
		return err
	}
	return nil
}
