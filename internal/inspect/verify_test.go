package inspect

import (
	"context"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/reconcile"
)

func TestS2Verify(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	run := func(name string, test func(t *testing.T, h *home)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, w.in(t).home())
		})
	}

	run("right: drained, buffered, frozen, counted already", func(t *testing.T, h *home) {
		h.publish(1)
		require.Equal(t, Verification{Scopes: 2}, h.verify())
		h.reconcile()
		require.Empty(t, h.verify().Off)
		h.publish(2)
		_, err := h.claim(t.Context())
		require.NoError(t, err)
		h.publish(4)
		require.Empty(t, h.verify().Off)
		h.drain()
		require.Empty(t, h.verify().Off)
	})

	run("wrong: every scope that is off, and by how much, and nothing is written", func(t *testing.T, h *home) {
		h.publish(10)
		h.drain()
		h.exec(`UPDATE repositories SET size_bytes = 3, artifacts_count = 4 WHERE id = $1`, h.repository.ID)
		h.publish(1)
		off := h.verify().Off
		require.Equal(t, []Off{{
			Kind: "repository", ID: h.repository.ID, NamespaceID: h.ID, Name: "r", Value: accounting.Counters{Bytes: 4, Components: 5},
			Recount: accounting.Counters{Bytes: 11, Components: 2}, Difference: accounting.Counters{Bytes: 7, Components: -3}, Why: WhyDrift,
		}}, off)
		require.Equal(t, off, h.verify().Off)
	})

	run("a namespace without a row", func(t *testing.T, h *home) {
		h.exec(`DELETE FROM namespace_statistics WHERE namespace_id = $1`, h.ID)
		off := h.verify().Off
		require.Len(t, off, 1)
		require.Equal(t, WhyNoRow, off[0].Why)
	})

	run("a namespace that is gone, and one that sums to too much", func(t *testing.T, h *home) {
		totals := NewTotals()
		v, err := h.inspector().Verify(t.Context(), newID())
		require.ErrorIs(t, err, ErrNotFound)
		require.NoError(t, totals.Add(h.ID, v, err))
		require.True(t, totals.OK())

		h.exec(`INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes)
			SELECT gen_random_uuid(), $1, $2, 'x', n::text, $3 FROM generate_series(1, 8200) n`, h.ID, h.repository.ID, int64(1)<<50)
		v, err = h.inspector().Verify(t.Context(), h.ID)
		require.ErrorIs(t, err, reconcile.ErrOverflow)
		require.NoError(t, totals.Add(h.ID, v, err))
		require.False(t, totals.OK())
		require.Contains(t, totals.Failed[h.ID], "bigint")
		h.exec(`DELETE FROM npm_versions WHERE repository_id = $1`, h.repository.ID)
		require.Error(t, totals.Add(h.ID, v, context.Canceled))
	})

	run("not wrong: committed, and emitted as late as an emission may be", func(t *testing.T, h *home) {
		h.reconcile()
		emit, err := h.commit(t.Context(), 10)
		require.NoError(t, err)
		recounts := 0
		i := h.traced(&hook{before: func(sql string) {
			if !strings.Contains(sql, "LATERAL") {
				return
			}
			if recounts++; recounts == minAttempts-1 {
				require.NoError(t, emit(context.Background()))
			}
		}})
		v, err := i.Verify(t.Context(), h.ID)
		require.NoError(t, err)
		require.Empty(t, v.Off)
		require.Equal(t, minAttempts, recounts)
	})

	run("not wrong: drained while it looks", func(t *testing.T, h *home) {
		h.reconcile()
		h.publish(10)
		var once sync.Once
		recounts := 0
		i := h.traced(&hook{before: func(sql string) {
			switch {
			case sql == `SELECT clock_timestamp()`: // Redis is read, the snapshot is not taken
				once.Do(func() { require.NoError(t, h.tryDrain(context.Background())) })
			case strings.Contains(sql, "LATERAL"):
				recounts++
			}
		}})
		v, err := i.Verify(t.Context(), h.ID)
		require.NoError(t, err)
		require.Empty(t, v.Off)
		require.Equal(t, 1, recounts, "it recounts only when Redis stood still")
	})

	run("not wrong: reconciled while it looks", func(t *testing.T, h *home) {
		h.publish(10)
		var once sync.Once
		i := h.traced(&hook{before: func(sql string) {
			if strings.Contains(sql, "LATERAL") {
				once.Do(func() {
					_, err := h.worker().Reconcile(context.Background(), h.ID)
					require.NoError(t, err)
				})
			}
		}})
		v, err := i.Verify(t.Context(), h.ID)
		require.NoError(t, err)
		require.Empty(t, v.Off)
	})

	run("not wrong beside writers, drains and passes that never pause", func(t *testing.T, h *home) {
		ctx, stop := context.WithCancel(t.Context())
		var commits atomic.Int64
		group, ctx := errgroup.WithContext(ctx)
		forever := func(step func(ctx context.Context) error) {
			group.Go(func() error {
				for ctx.Err() == nil {
					if err := step(context.WithoutCancel(ctx)); err != nil {
						return err
					}
				}
				return nil
			})
		}
		for range 2 {
			forever(func(ctx context.Context) error {
				emit, err := h.commit(ctx, 1)
				commits.Add(1)
				if err == nil {
					err = emit(ctx)
				}
				return err
			})
		}
		forever(h.tryDrain)
		forever(func(ctx context.Context) error {
			_, err := h.worker().Reconcile(ctx, h.ID)
			return err
		})
		t.Cleanup(func() {
			stop()
			require.NoError(t, group.Wait())
		})
		for range 20 {
			before := commits.Load()
			for _, off := range h.verify().Off {
				require.Equal(t, WhyUndecided, off.Why, "%+v", off)
			}
			require.Eventually(t, func() bool { return commits.Load() > before }, patience, time.Millisecond, "the writers go on")
		}
		stop()
		require.NoError(t, group.Wait())
		require.Empty(t, h.verify().Off, "and all is right when they pause")
	})
}

func TestVerifyAll(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wrong, right := w.home(), w.home()
	right.publish(10)
	w.exec(`UPDATE namespace_statistics SET components_count = 1 WHERE namespace_id = $1`, wrong.ID)
	var told int64
	totals, err := w.inspector().VerifyAll(t.Context(), func(now *Totals) {
		told++
		require.Equal(t, told, now.Done)
	})
	require.NoError(t, err)
	require.EqualValues(t, 2, totals.Done)
	require.EqualValues(t, 2, totals.Namespaces)
	require.EqualValues(t, 4, totals.Scopes)
	require.Len(t, totals.Off, 1)
	require.Equal(t, wrong.ID, totals.Off[0].ID)
	require.Equal(t, 1, totals.Wrong(WhyDrift))

	t.Run("interrupted, it says how far it came", func(t *testing.T) {
		ctx, interrupt := context.WithCancel(t.Context())
		totals, err := w.inspector().VerifyAll(ctx, func(*Totals) {
			interrupt()
		})
		require.ErrorIs(t, err, context.Canceled)
		require.EqualValues(t, 1, totals.Done)
	})

	t.Run("it goes through more than one page", func(t *testing.T) {
		w.exec(`INSERT INTO namespaces (id, slug) SELECT id, id::text FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, $1)) g`, namespacesPage)
		seen := map[uuid.UUID]bool{}
		require.NoError(t, w.inspector().eachNamespace(t.Context(), func(id uuid.UUID) error {
			seen[id] = true
			return nil
		}))
		require.Len(t, seen, namespacesPage+2)
	})
}

func TestJudge(t *testing.T) {
	t.Parallel()
	scope := accounting.NamespaceScope(newID())
	for name, c := range map[string]struct {
		missing               []int64 // by each look; moving stands for one that tells nothing
		agrees, differs, open bool
	}{
		"right at once":                        {missing: []int64{0}, agrees: true},
		"right in the end":                     {missing: []int64{5, 5, 0}, agrees: true},
		"wrong: three looks that say the same": {missing: []int64{5, 5, 5}, differs: true, open: true},
		"wrong, with looks that tell nothing":  {missing: []int64{5, moving, 5, moving, 5, moving}, differs: true, open: true},
		"unclear: only two":                    {missing: []int64{5, moving, 5}, open: true},
		"unclear: what is missing changes":     {missing: []int64{5, 5, 6}, open: true},
		"unclear: nothing was told":            {missing: []int64{moving, moving, moving}, open: true},
		"wrong again after it changed":         {missing: []int64{5, 6, 6}, differs: true, open: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			findings, open, unclear := map[accounting.Scope]finding{}, []accounting.Scope{scope}, 0
			for _, missing := range c.missing {
				look := measured{known: true, still: missing != moving, recount: accounting.Counters{Bytes: missing}}
				s := &snapshot{answered: true, scopes: map[accounting.Scope]measured{scope: look}}
				open, unclear = s.judge(findings, open)
			}
			require.Equal(t, c.agrees, findings[scope].agrees())
			require.Equal(t, c.differs, findings[scope].differs())
			require.Equal(t, c.open, len(open) == 1)
			require.Equal(t, c.open && !c.differs, unclear == 1)
		})
	}
}

const moving = math.MaxInt64

// What is off by more than an int64 is off all the same.
func TestDifferenceThatDoesNotFit(t *testing.T) {
	t.Parallel()
	m := measured{row: accounting.Counters{Bytes: math.MinInt64}, recount: accounting.Counters{Bytes: 1}}
	require.False(t, m.difference().IsZero())
}
