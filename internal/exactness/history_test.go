package exactness

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/requests"
)

// fewHistories are rapid's defaults here: a step costs some milliseconds. Flags
// of the command line overrule them.
func fewHistories() error {
	return errors.Join(flag.Set("rapid.checks", "8"), flag.Set("rapid.steps", "30"))
}

// TestHistories plays histories of one actor, and compares after each step.
func TestHistories(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	buckets := s.bucketPair()
	steps := slices.Concat(writes(), writes(), background(), []string{"tick"})
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt, s, buckets)
		h := w.hand("actor")
		w.pace.start(1)
		ops := opOf(steps)
		rt.Repeat(map[string]func(*rapid.T){
			"":   func(rt *rapid.T) { require.NoError(rt, w.holds(rt.Context())) },
			"op": func(rt *rapid.T) { require.NoError(rt, h.do(rt.Context(), ops.Draw(rt, "op"))) },
		})
		require.NoError(rt, w.quiesce(rt.Context()))
	})
}

// TestConcurrentHistories plays the histories of several actors at once, and
// compares when all have ended. What a schedule did cannot be repeated, but the
// histories can: a failure prints them.
func TestConcurrentHistories(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	buckets := s.bucketPair()
	var first sync.Once // to fail may be luck, which the repetitions of rapid lack
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld(rt, s, buckets)
		histories := map[*hand][]op{}
		draw := func(name string, steps []string, n int) {
			h := w.hand(name)
			histories[h] = rapid.SliceOfN(opOf(steps), n/2, n).Draw(rt, name)
		}
		for i := range 3 {
			draw("writer "+strconv.Itoa(i), writes(), 30)
		}
		for i := range 2 {
			draw("worker "+strconv.Itoa(i), background(), 30)
		}
		draw("ticker", []string{"tick", "drain", "expire lease"}, 10)
		err := w.play(rt.Context(), histories)
		if err == nil {
			err = w.tidy(rt.Context())
		}
		if err == nil {
			err = w.quiesce(rt.Context())
		}
		if err != nil {
			first.Do(func() { t.Logf("%s\n%s", err, printed(histories)) })
		}
		require.NoError(rt, err)
	})
}

func writes() []string {
	return []string{
		"publish", "publish", "publish", "publish", "publish", "publish", "soft-delete", "restore", "purge", "purge",
		"collect", "collect", "delete repository", "delete namespace",
	}
}

func background() []string {
	return []string{"drain", "drain", "drain", "expire lease", "expire lease", "reconcile", "reconcile"}
}

// opOf is one of the steps, mostly without a crash.
func opOf(steps []string) *rapid.Generator[op] {
	return rapid.Custom(func(rt *rapid.T) op {
		o := op{
			Do:      rapid.SampledFrom(steps).Draw(rt, "do"),
			Place:   rapid.IntRange(0, places-1).Draw(rt, "place"),
			Format:  rapid.IntRange(0, formats-1).Draw(rt, "format"),
			Version: rapid.IntRange(0, 2).Draw(rt, "version"),
		}
		if o.Do == "publish" {
			o.Both = rapid.IntRange(0, 4).Draw(rt, "both") == 4
			o.Blobs = rapid.SliceOfN(rapid.IntRange(0, 6), 1, 4).Draw(rt, "blobs")
		}
		if points := pointsOf(o.Do); rapid.IntRange(0, 3).Draw(rt, "crashes") == 3 && len(points) > 0 {
			o.Crash = rapid.SampledFrom(points).Draw(rt, "crash")
			o.Kill = rapid.Bool().Draw(rt, "kill")
		}
		if points := unlocked(pointsOf(o.Do)); rapid.IntRange(0, 2).Draw(rt, "sleeps") == 2 && len(points) > 0 {
			o.Pause = rapid.SampledFrom(points).Draw(rt, "pause")
		}
		return o
	})
}

// unlocked are the points where an actor keeps nobody waiting.
func unlocked(points []failpoint.Point) []failpoint.Point {
	locked := []failpoint.Point{
		failpoint.WriterWrote, failpoint.DrainLocked, failpoint.DrainEntered, failpoint.PassAdvanced, failpoint.PassLocked,
		failpoint.PassSnapshot, failpoint.PassRowsLocked, failpoint.PassRowsWritten, failpoint.PassClosed,
	}
	return slices.DeleteFunc(slices.Clone(points), func(p failpoint.Point) bool { return slices.Contains(locked, p) })
}

func pointsOf(step string) []failpoint.Point {
	switch step {
	case "drain":
		return failpoint.DrainPoints()
	case "reconcile":
		return failpoint.PassPoints()
	case "tick":
		return failpoint.TickPoints()
	case "expire lease":
		return nil
	default:
		return []failpoint.Point{failpoint.WriterWrote, failpoint.WriterCommitted, failpoint.WriterEmits, failpoint.WriterEmitted}
	}
}

func (s *servers) bucketPair() [places]int {
	return [places]int{accounting.Bucket(s.namespaceID()), accounting.Bucket(s.namespaceID())}
}

// newWorld begins with nothing, and a process of its own. Its namespaces share
// a bucket or not.
func newWorld(rt *rapid.T, s *servers, buckets [places]int) *world {
	rt.Helper()
	if rapid.Bool().Draw(rt, "one bucket") {
		buckets[1] = buckets[0]
	}
	p, err := s.startProcess()
	require.NoError(rt, err)
	rt.Cleanup(func() { require.NoError(rt, s.endProcess(p)) })
	return &world{servers: s, process: p, buckets: buckets}
}

// play lets the hands loose.
func (w *world) play(ctx context.Context, histories map[*hand][]op) error {
	var hands errgroup.Group
	w.pace.start(len(histories))
	for h, ops := range histories {
		hands.Go(func() error {
			defer w.pace.left()
			for _, o := range ops {
				if err := h.do(ctx, o); err != nil {
					return err
				}
			}
			return nil
		})
	}
	return hands.Wait()
}

// tidy collects what no version has, because the model does not know which of
// several collectors took which blob of which publish.
func (w *world) tidy(ctx context.Context) error {
	for place, spaces := range w.spaces {
		if len(spaces) == 0 || spaces[len(spaces)-1].gone {
			continue
		}
		s := spaces[len(spaces)-1]
		for found := 1; found > 0; {
			var err error
			if found, err = w.hands[0].collectSome(ctx, op{Do: "collect", Place: place, Version: 99}, s); err != nil {
				return err
			}
		}
		s.stored = w.attached(s)
	}
	return nil
}

// holds compares in the middle of a history: the content is what the model
// says, the rows are what the ledger says, and unless a delta is lost, the rows
// and what is buffered make up the content.
func (w *world) holds(ctx context.Context) error {
	for _, s := range w.all() {
		accounts, err := w.accounts(ctx, s.id)
		if err != nil {
			return err
		}
		totals, known, err := w.totals(ctx, s, accounts)
		if err != nil {
			return err
		}
		known = known && s.losses == s.healed
		expected := w.expected(s)
		if len(accounts) != len(expected) {
			return fmt.Errorf("%s: rows of %d scopes, there are %d", s.id, len(accounts), len(expected))
		}
		for scope, a := range accounts {
			if a.recounted != expected[scope] || a.row != a.entered || known && totals[scope] != expected[scope] {
				return fmt.Errorf("%s: expected %v, row and buffer make up %v, %s", scope.Kind, expected[scope], totals[scope], a)
			}
		}
	}
	return nil
}

// totals are rows and buffers as the product adds them up; known is false while
// its breaker keeps it from asking Redis.
func (w *world) totals(ctx context.Context, s *space, of map[accounting.Scope]account) (totals map[accounting.Scope]accounting.Counters, known bool, err error) {
	var repositories []uuid.UUID
	for scope := range of {
		if scope.Kind == accounting.KindRepository {
			repositories = append(repositories, scope.ID)
		}
	}
	found, err := w.process.db.RepositoryUsages(ctx, repositories)
	if err != nil {
		return nil, false, err
	}
	totals, known = map[accounting.Scope]accounting.Counters{}, true
	for id, usage := range found {
		totals[accounting.RepositoryScope(s.id, id)] = accounting.Counters(usage.Total())
		known = known && usage.PendingKnown
	}
	own, err := w.process.db.NamespaceUsage(ctx, s.id)
	if errors.Is(err, entdb.ErrNotFound) {
		return totals, known, nil
	}
	totals[accounting.NamespaceScope(s.id)] = accounting.Counters(own.Total())
	return totals, known && own.PendingKnown, err
}

// quiesce ends a history: requests are written, buffers drained, and what needs
// no repair is compared; then requests are worked off, lost deltas that nobody
// asked for are healed by a pass, and everything is compared.
func (w *world) quiesce(ctx context.Context) error {
	if err := w.process.db.Close(ctx); err != nil {
		return err
	}
	if err := w.drainAll(ctx); err != nil {
		return err
	}
	requested, err := w.requested(ctx)
	if err != nil {
		return err
	}
	for _, s := range w.all() {
		if err := w.answered(ctx, s, requested[s.id]); err != nil {
			return err
		}
		if s.losses > s.healed || requested[s.id] {
			if err := w.process.reconcile(ctx, s.id); err != nil {
				return err
			}
		}
		if err := w.exact(ctx, s); err != nil {
			return err
		}
	}
	return w.nothingLeft(ctx)
}

// answered checks that a loss which its writer knew is still requested, or that a
// pass has healed it: one that began before the loss was noted, and took its
// snapshot after. What a killed writer lost since then would look the same.
func (w *world) answered(ctx context.Context, s *space, requested bool) error {
	if s.gone || requested || s.healed >= s.asked || s.losses > s.asked {
		return nil
	}
	if err := w.exact(ctx, s); err != nil {
		return fmt.Errorf("%s lost a delta, which its writer knew, and no reconciliation is requested: %w", s.id, err)
	}
	return nil
}

func (w *world) drainAll(ctx context.Context) error {
	for {
		sizes, err := w.process.buffer.Sizes(ctx)
		if err != nil {
			return err
		}
		empty := true
		for _, bucket := range w.buckets {
			if sizes[bucket] == (buffer.Size{}) {
				continue
			}
			empty = false
			if err := errors.Join(dropLease(w.redis, bucket), w.process.drain(ctx, bucket)); err != nil {
				return err
			}
		}
		if empty {
			return nil
		}
	}
}

func (w *world) requested(ctx context.Context) (map[uuid.UUID]bool, error) {
	open, err := requests.Open(ctx, w.pool, requests.Request{}, 10_000)
	requested := map[uuid.UUID]bool{}
	for _, r := range open {
		requested[r.Namespace] = true
	}
	return requested, err
}

func (w *world) exact(ctx context.Context, s *space) error {
	accounts, err := w.accounts(ctx, s.id)
	if err != nil {
		return err
	}
	expected := w.expected(s)
	if len(accounts) != len(expected) {
		return fmt.Errorf("%s: rows of %d scopes, there are %d", s.id, len(accounts), len(expected))
	}
	for scope, a := range accounts {
		if !a.exact() || a.row != expected[scope] {
			return fmt.Errorf("%s %s: expected %v, %s", scope.Kind, scope.ID, expected[scope], a)
		}
	}
	return nil
}

// nothingLeft: no request is open, and Redis holds nothing but what belongs to
// a bucket itself.
func (w *world) nothingLeft(ctx context.Context) error {
	requested, err := w.requested(ctx)
	if err != nil {
		return err
	}
	for _, s := range w.all() {
		if requested[s.id] {
			return fmt.Errorf("the request of %s is still open", s.id)
		}
	}
	for _, bucket := range w.buckets {
		keys, err := w.redis.Do(ctx, w.redis.B().Keys().Pattern(bucketKey(bucket, "*")).Build()).AsStrSlice()
		if err != nil {
			return err
		}
		for _, k := range keys {
			if k != bucketKey(bucket, "identity") && k != bucketKey(bucket, "lease") {
				return fmt.Errorf("Redis still holds %s", k)
			}
		}
	}
	return nil
}

func printed(histories map[*hand][]op) string {
	var text strings.Builder
	for h, ops := range histories {
		fmt.Fprintf(&text, "%s:\n", h.name)
		for _, o := range ops {
			fmt.Fprintf(&text, "  %s\n", o)
		}
	}
	return text.String()
}
