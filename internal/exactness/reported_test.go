package exactness

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/metrics"
)

const megabyte = 1_000_000

// TestReported are failures that other systems had, each with the value that is
// right. Counters are those of a repository or namespace that was empty before.
func TestReported(t *testing.T) {
	t.Parallel()
	s := newServers(t)

	for _, killed := range []struct {
		where string
		at    failpoint.Point
	}{
		{"after the freeze", failpoint.DrainClaimed},
		{"before the UPDATE", failpoint.DrainLocked},
		{"after COMMIT, before DEL", failpoint.DrainCommitted},
		{"after DEL", failpoint.DrainFinished},
	} {
		t.Run("E4 E8 a drain of 100 is killed "+killed.where, func(t *testing.T) {
			t.Parallel()
			st := s.emptyStage(t)
			require.NoError(t, st.publish(t.Context(), st.repository(), "1", 100))
			cmd := st.child(t, drainer, killed.at, "kill")
			require.NoError(t, cmd.Start())
			requireKilled(t, cmd)
			st.drainAll()
			st.requireRows(counted{st.own(): bytes(100, 1), st.first(): bytes(100, 1)})
		})
	}

	t.Run("E9 AC4 drain A stops with a flush of 10, 5 arrive, drain B runs to its end, A goes on: 15", func(t *testing.T) {
		t.Parallel()
		st := s.emptyStage(t)
		require.NoError(t, st.publish(t.Context(), st.repository(), "1", 10))
		goOn := st.pausedAt(t, drainer, failpoint.DrainClaimed)
		require.NoError(t, st.publish(t.Context(), st.repository(), "2", 5))
		st.expireLease()
		require.NoError(t, s.process(t).drain(t.Context(), st.bucket))
		require.NoError(t, goOn())
		st.drainAll()
		st.requireRows(counted{st.own(): bytes(15, 2), st.first(): bytes(15, 2)})
	})

	t.Run("AC8 E16 of 11 versions of 1 MB the last is purged, a recount sums 10, the -1 arrives afterwards: 10 MB", func(t *testing.T) {
		t.Parallel()
		st := s.emptyStage(t)
		for n := range 11 {
			require.NoError(t, st.publish(t.Context(), st.repository(), strconv.Itoa(n), megabyte))
		}
		st.drainAll()
		purge := failpointPause(failpoint.WriterEmits)
		ended := make(chan error, 1)
		go func() { ended <- st.purgeAndCollect(purge.context(), "10") }()
		awaitClosed(t, purge.reached, "nothing is emitted")
		st.pass()
		st.requireRows(counted{st.own(): bytes(10*megabyte, 10), st.first(): bytes(10*megabyte, 10)})
		close(purge.goOn)
		require.NoError(t, <-ended)
		st.drainAll()
		st.requireRows(counted{st.own(): bytes(10*megabyte, 10), st.first(): bytes(10*megabyte, 10)})
	})

	t.Run("AC8 E16 a version of 100 is committed, a recount reads it, its delta lands afterwards: 100", func(t *testing.T) {
		t.Parallel()
		st := s.emptyStage(t)
		publish := failpointPause(failpoint.WriterEmits)
		ended := make(chan error, 1)
		go func() { ended <- st.publish(publish.context(), st.repository(), "1", 100) }()
		awaitClosed(t, publish.reached, "nothing is emitted")
		st.pass()
		close(publish.goOn)
		require.NoError(t, <-ended)
		st.drainAll()
		st.requireRows(counted{st.own(): bytes(100, 1), st.first(): bytes(100, 1)})
	})

	t.Run("E3 the UPDATE fails once after the claim", func(t *testing.T) {
		t.Parallel()
		st := s.emptyStage(t)
		require.NoError(t, st.publish(t.Context(), st.repository(), "1", 100))
		require.ErrorIs(t, st.drain(failpoint.With(t.Context(), failing(failpoint.DrainEntered)), st.bucket), errInjected)
		st.requireRows(counted{st.own(): {}, st.first(): {}})
		require.NoError(t, st.drain(t.Context(), st.bucket))
		st.requireRows(counted{st.own(): bytes(100, 1), st.first(): bytes(100, 1)})
	})

	t.Run("AC19 20 clients delete one manifest of 10 MB: it is given back once", func(t *testing.T) {
		t.Parallel()
		st := s.emptyStage(t)
		images := st.newRepository(schematype.FormatContainer)
		manifest := image(images.ID, 1, entpublish.Blob{Digest: digestOf("layer"), Size: 10 * megabyte})
		require.NoError(t, st.inTx(t.Context(), publishes(manifest)))
		st.drainAll()
		st.requireRows(counted{st.own(): bytes(10*megabyte, 1), st.first(): {}, images: bytes(10*megabyte, 1)})
		var deleters errgroup.Group
		for range 20 {
			deleters.Go(func() error {
				err := st.inTx(t.Context(), purges(manifest))
				if err != nil && !errors.Is(err, entpublish.ErrNotFound) {
					return err
				}
				return nil
			})
		}
		require.NoError(t, deleters.Wait())
		st.collect(t)
		st.drainAll()
		st.requireRows(counted{st.own(): {}, st.first(): {}, images: {}})
	})

	t.Run("AC18 50 concurrent pushes share a layer of 100 MB and have 1 MB of their own: 150 MB", func(t *testing.T) {
		t.Parallel()
		st := s.emptyStage(t)
		images := st.newRepository(schematype.FormatContainer)
		var pushes errgroup.Group
		for n := range 50 {
			pushes.Go(func() error {
				return st.inTx(t.Context(), publishes(image(images.ID, n,
					entpublish.Blob{Digest: digestOf("shared layer"), Size: 100 * megabyte},
					entpublish.Blob{Digest: digestOf("layer" + strconv.Itoa(n)), Size: megabyte})))
			})
		}
		require.NoError(t, pushes.Wait())
		st.drainAll()
		st.requireRows(counted{st.own(): bytes(150*megabyte, 50), st.first(): {}, images: bytes(50*101*megabyte, 50)})
	})

	t.Run("AC17 publish 5 MB, unpublish, publish the same bytes: 5 MB", func(t *testing.T) {
		t.Parallel()
		st := s.emptyStage(t)
		require.NoError(t, st.publish(t.Context(), st.repository(), "1", 5*megabyte))
		require.NoError(t, st.purgeAndCollect(t.Context(), "1"))
		require.NoError(t, st.publish(t.Context(), st.repository(), "1", 5*megabyte))
		st.drainAll()
		st.requireRows(counted{st.own(): bytes(5*megabyte, 1), st.first(): bytes(5*megabyte, 1)})
	})

	t.Run("E15 R7 a pass stalls beyond every timeout, another one runs, the first goes on: its write is refused", func(t *testing.T) {
		t.Parallel()
		st := s.emptyStage(t)
		require.NoError(t, st.publish(t.Context(), st.repository(), "1", 100))
		st.drainAll()
		goOn := st.pausedAt(t, passer, failpoint.PassWrites)
		// The first pass's snapshot lacks this one, the second's has it.
		require.NoError(t, st.publish(t.Context(), st.repository(), "2", 20))
		require.NoError(t, s.process(t).reconcile(t.Context(), st.namespace))
		st.requireRows(counted{st.own(): bytes(120, 2), st.first(): bytes(120, 2)})
		require.NoError(t, goOn())
		require.Equal(t, 1.0, testutil.ToFloat64(st.metrics.ReconciliationPasses.WithLabelValues(metrics.PassFenced)))
		st.drainAll()
		st.requireRows(counted{st.own(): bytes(120, 2), st.first(): bytes(120, 2)})
	})
}

// own is the scope of the namespace, and first that of its first repository.
func (s *stage) own() accounting.Scope { return accounting.NamespaceScope(s.namespace) }

func (s *stage) first() accounting.Scope {
	return accounting.RepositoryScope(s.namespace, s.repository())
}

func bytes(n, components int64) accounting.Counters {
	return accounting.Counters{Bytes: n, Components: components}
}

func (s *stage) requireRows(want counted) {
	s.t.Helper()
	require.Equal(s.t, want, s.rows(s.t, s.namespace))
}

func (p *process) inTx(ctx context.Context, fn func(context.Context, *entdb.Tx) error) error {
	return p.db.WithTx(ctx, fn)
}

// purgeAndCollect gives a version of the first repository and its blob back, in
// one transaction.
func (s *stage) purgeAndCollect(ctx context.Context, version string) error {
	return s.inTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		if err := entpublish.Purge(ctx, tx, entpublish.Ref{RepositoryID: s.repository(), Name: "package", Version: version}); err != nil {
			return err
		}
		return collects(s.namespace)(ctx, tx)
	})
}

func (s *stage) collect(t testing.TB) {
	t.Helper()
	require.NoError(t, s.inTx(context.Background(), collects(s.namespace)))
}

// pause stops the first that comes to its point until goOn is closed.
type pause struct {
	at            failpoint.Point
	reached, goOn chan struct{}
	once          sync.Once
}

func failpointPause(at failpoint.Point) *pause {
	return &pause{at: at, reached: make(chan struct{}), goOn: make(chan struct{})}
}

func (p *pause) context() context.Context {
	return failpoint.With(context.Background(), func(_ context.Context, at failpoint.Point) error {
		if at == p.at {
			p.once.Do(func() {
				close(p.reached)
				<-p.goOn
			})
		}
		return nil
	})
}

// pausedAt starts the actor, waits until it stops at the point, and returns what
// lets it go on and waits for its end.
func (s *stage) pausedAt(t testing.TB, who actor, at failpoint.Point) (goOn func() error) {
	t.Helper()
	p := failpointPause(at)
	ended := make(chan error, 1)
	go func() { ended <- s.act(p.context(), who, s.namespace, s.repository()) }()
	awaitClosed(t, p.reached, "the actor met no such point")
	return func() error {
		close(p.goOn)
		return <-ended
	}
}
