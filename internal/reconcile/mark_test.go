package reconcile

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
)

// patient is a worker whose mark waits as long as a test takes.
func (w *world) patient(pool *pgxpool.Pool) *Namespace {
	r := w.reconciler(pool)
	r.lockTimeout = time.Minute
	return r
}

// started is a pass that runs in a goroutine.
type started struct {
	pass Pass
	err  error
	done chan struct{}
}

func startPass(ctx context.Context, r *Namespace, namespace uuid.UUID) *started {
	s := &started{done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.pass, s.err = r.Reconcile(ctx, namespace)
	}()
	return s
}

func (s *started) wait(t *testing.T) Pass {
	t.Helper()
	<-s.done
	require.NoError(t, s.err)
	return s.pass
}

// The interleavings of mark, snapshot and writers. The subtests share a
// database and look for waiting backends in it, so they run one by one.
func TestMark(t *testing.T) {
	t.Parallel()
	all := newWorld(t)

	t.Run("a namespace that is deleted while the pass makes its statistics row is gone", func(t *testing.T) {
		w := all.in(t)
		namespace := w.namespace()
		w.exec(`DELETE FROM namespace_statistics WHERE namespace_id = $1`, namespace)
		deleter, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = deleter.Rollback(context.Background()) })
		_, err = deleter.Exec(t.Context(), `DELETE FROM namespaces WHERE id = $1`, namespace)
		require.NoError(t, err)

		pass := startPass(t.Context(), w.patient(w.pool), namespace)
		w.waitBlocked()
		require.NoError(t, deleter.Commit(t.Context()))
		require.Equal(t, metrics.PassGone, pass.wait(t).Result)
	})

	t.Run("R5 the snapshot holds what a writer with the old marker commits while the pass waits for it", func(t *testing.T) {
		w := all.in(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		old := w.marker(namespace)
		writer, err := w.writer(t.Context(), namespace, repository, 10)
		require.NoError(t, err)
		require.NoError(t, writer.lock(t.Context()))
		require.Equal(t, old, writer.marker)

		pass := startPass(t.Context(), w.patient(w.pool), namespace)
		w.waitBlocked()
		flushes, err := writer.commit(t.Context())
		require.NoError(t, err)
		require.Equal(t, metrics.PassDone, pass.wait(t).Result)

		w.requireExact(namespace)
		require.Equal(t, []ledger.Verdict{ledger.Counted, ledger.Counted}, w.drain(flushes))
		w.requireExact(namespace)
	})

	t.Run("R5 the snapshot holds nothing of a writer that sees the new marker", func(t *testing.T) {
		w := all.in(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		var flushes []accounting.Flush
		var marker accounting.Marker
		pool := w.traced(&tracer{after: onceCommitted(func() {
			marker = w.marker(namespace)
			flushes = w.write(namespace, repository, 10)
		})})
		pass, err := w.reconciler(pool).Reconcile(t.Context(), namespace)
		require.NoError(t, err)
		require.Equal(t, pass.Marker, marker, "the mark must be committed")
		require.Equal(t, pass.Marker, flushes[0].Marker, "a writer after the mark sees R")
		require.Zero(t, w.statistics(namespace).Counters)

		require.Equal(t, []ledger.Verdict{ledger.Applied, ledger.Applied}, w.drain(flushes))
		w.requireExact(namespace)
	})

	t.Run("R6 what is applied between the snapshot and the write-back is kept", func(t *testing.T) {
		w := all.in(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		pool := w.traced(&tracer{after: onceCommitted(func() {
			require.Equal(t, []ledger.Verdict{ledger.Applied, ledger.Applied}, w.drain(w.write(namespace, repository, 10)))
		})})
		_, err := w.reconciler(pool).Reconcile(t.Context(), namespace)
		require.NoError(t, err)
		require.Equal(t, accounting.Counters{Bytes: 10, Components: 1}, w.statistics(namespace).Counters)
		w.requireExact(namespace)
	})

	t.Run("a writer that begins while the mark waits sees the new marker", func(t *testing.T) {
		w := all.in(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		first, err := w.writer(t.Context(), namespace, repository, 10)
		require.NoError(t, err)
		require.NoError(t, first.lock(t.Context()))
		second, err := w.writer(t.Context(), namespace, repository, 5)
		require.NoError(t, err)

		pass := startPass(t.Context(), w.patient(w.pool), namespace)
		w.waitBlocked()
		locked := make(chan error, 1)
		go func() { locked <- second.lock(t.Context()) }()
		require.Eventually(t, func() bool {
			return w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) == 2
		}, time.Minute, time.Millisecond, "the second writer must queue behind the mark")
		before, err := first.commit(t.Context())
		require.NoError(t, err)
		require.NoError(t, <-locked)
		after, err := second.commit(t.Context())
		require.NoError(t, err)

		require.Equal(t, pass.wait(t).Marker, second.marker)
		w.drain(after)
		w.drain(before)
		w.requireExact(namespace)
	})

	t.Run("AC34 a writer that keeps the lock makes the pass give up and come again, and nothing is changed", func(t *testing.T) {
		w := all.in(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		old := w.marker(namespace)
		writer, err := w.writer(t.Context(), namespace, repository, 10)
		require.NoError(t, err)
		require.NoError(t, writer.lock(t.Context()))

		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		r := w.reconciler(w.pool)
		pass, err := r.Reconcile(ctx, namespace)
		require.NoError(t, err)
		require.Equal(t, metrics.PassLockTimeout, pass.Result)
		require.Equal(t, old, w.marker(namespace))

		var snooze *rivertype.JobSnoozeError
		require.ErrorAs(t, r.Work(ctx, &river.Job[NamespaceArgs]{Args: NamespaceArgs{NamespaceID: namespace}}), &snooze)
		require.Positive(t, snooze.Duration)

		_, err = writer.commit(t.Context())
		require.NoError(t, err)
		w.reconcile(namespace)
		w.requireExact(namespace)
	})

	t.Run("writers do not wait for a drain that the mark waits for", func(t *testing.T) {
		w := all.in(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		drain, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = drain.Rollback(context.Background()) })
		_, err = drain.Exec(t.Context(), `SELECT FROM namespace_statistics WHERE namespace_id = $1 FOR NO KEY UPDATE`, namespace)
		require.NoError(t, err)

		pass := startPass(t.Context(), w.patient(w.pool), namespace)
		w.waitBlocked()
		writer, err := w.writer(t.Context(), namespace, repository, 10)
		require.NoError(t, err)
		require.NoError(t, writer.lock(t.Context()), "the writer waits for the mark, and so for the drain")
		_, err = writer.commit(t.Context())
		require.NoError(t, err)
		require.NoError(t, drain.Rollback(t.Context()))
		pass.wait(t)
		w.requireExact(namespace)
	})

	t.Run("E15 the server ends a mark whose process stalls, so writers go on", func(t *testing.T) {
		w := all.in(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		old := w.marker(namespace)
		var during []accounting.Flush
		pool := w.traced(&tracer{before: once("pg_current_snapshot", func() {
			during = w.write(namespace, repository, 10) // waits until the mark is ended
		})})
		pass, err := w.reconciler(pool).Reconcile(t.Context(), namespace)
		require.Error(t, err)
		require.Equal(t, metrics.PassFailed, pass.Result)
		require.Equal(t, old, during[0].Marker)
		require.Equal(t, old, w.marker(namespace))
		require.Zero(t, w.statistics(namespace).L)
	})
}
