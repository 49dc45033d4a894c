package reconcile

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/requests"
)

func TestRecount(t *testing.T) {
	t.Parallel()
	all := newWorld(t)

	t.Run("AC10 recomputation sees each version table for hosted and remote repositories, and nothing of virtual ones", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace := w.namespace()
		var size, total int64
		for _, format := range schematype.Formats() {
			for _, kind := range []schematype.Kind{schematype.KindHosted, schematype.KindRemote} {
				size += 10
				total += size
				repository := w.repository(namespace, format, kind)
				w.publish(namespace, repository, format, size)
				w.reconcile(namespace)
				require.Equal(t, accounting.Counters{Bytes: size, Components: 1}, w.repositoryRow(repository).Counters, "%s %s", format, kind)
				require.Equal(t, total, w.statistics(namespace).Bytes, "%s %s", format, kind)
			}
			virtual := w.repository(namespace, format, schematype.KindVirtual)
			w.publish(namespace, virtual, format, 0)
			w.reconcile(namespace)
			require.Zero(t, w.repositoryRow(virtual).Counters, "%s", format)
		}
		require.Equal(t, accounting.Counters{Bytes: total, Components: 6}, w.statistics(namespace).Counters)
		w.requireExact(namespace)
	})

	t.Run("AC9 soft-deleted rows count until they are purged", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		w.drain(w.write(namespace, repository, 7))
		w.exec(`UPDATE npm_versions SET soft_deleted_at = now() WHERE repository_id = $1`, repository)
		w.exec(`UPDATE repositories SET soft_deleted_at = now() WHERE id = $1`, repository)

		pass := w.reconcile(namespace)
		require.Zero(t, pass.Corrected, "recomputation and increments disagree about a soft-deleted row")
		require.Equal(t, accounting.Counters{Bytes: 7, Components: 1}, w.repositoryRow(repository).Counters)

		w.exec(`DELETE FROM npm_versions WHERE repository_id = $1`, repository)
		w.reconcile(namespace)
		require.Zero(t, w.repositoryRow(repository).Counters)
		require.Zero(t, w.statistics(namespace).Components)
	})

	t.Run("a repository whose versions exceed a bigint is named, and nothing is written", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		w.exec(`INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes)
			SELECT gen_random_uuid(), $1, $2, 'x', n::text, 1::bigint << 50 FROM generate_series(1, 8192) AS n`, namespace, repository)

		_, err := w.reconciler(w.pool).Reconcile(t.Context(), namespace)
		require.ErrorIs(t, err, ErrOverflow)
		require.ErrorContains(t, err, repository.String())
		require.Zero(t, w.statistics(namespace).L)
	})

	t.Run("a namespace whose blobs exceed a bigint is an overflow too", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace := w.namespace()
		w.exec(`INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes)
			SELECT $1, sha256(n::text::bytea), 1::bigint << 50 FROM generate_series(1, 8192) AS n`, namespace)
		_, err := w.reconciler(w.pool).Reconcile(t.Context(), namespace)
		require.ErrorIs(t, err, ErrOverflow)
	})

	t.Run("repositories of other namespaces are left alone, and more than one chunk is written", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace, other := w.namespace(), w.namespace()
		w.exec(`INSERT INTO repositories (id, namespace_id, name, format, kind)
			SELECT gen_random_uuid(), $1, n::text, 3, 1 FROM generate_series(1, $2) AS n`, namespace, 2*chunkSize+1)
		w.exec(`INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes)
			SELECT gen_random_uuid(), namespace_id, id, 'x', '1', 3 FROM repositories WHERE namespace_id = $1`, namespace)
		w.publish(other, w.hosted(other), schematype.FormatNPM, 5)

		pass := w.reconcile(namespace)
		require.Equal(t, 2*chunkSize+2, pass.Scopes)
		require.EqualValues(t, 2*chunkSize+1, w.statistics(namespace).Components)
		w.requireExact(namespace)
		require.Zero(t, w.statistics(other).L)
	})
}

func TestAC8CountedIsNeverAddedAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	namespace := w.namespace()
	repository := w.hosted(namespace)
	before := w.write(namespace, repository, 10) // buffered, frozen or emitted late: drained below
	w.reconcile(namespace)
	counted := accounting.Counters{Bytes: 10, Components: 1}
	require.Equal(t, counted, w.repositoryRow(repository).Counters)

	require.Equal(t, []ledger.Verdict{ledger.Counted, ledger.Counted}, w.drain(before))
	require.Equal(t, counted, w.repositoryRow(repository).Counters)
	require.Equal(t, counted, w.statistics(namespace).Counters)

	after := w.write(namespace, repository, 5)
	require.Equal(t, []ledger.Verdict{ledger.Applied, ledger.Applied}, w.drain(after))
	w.requireExact(namespace)
}

func TestPass(t *testing.T) {
	t.Parallel()
	all := newWorld(t)

	t.Run("AC11 E18 drift is corrected, logged, and recorded in the histogram of its own unit", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		w.publish(namespace, repository, schematype.FormatNPM, 100)
		w.reconcile(namespace)
		w.exec(`UPDATE repositories SET size_bytes = size_bytes + 7 WHERE id = $1`, repository)
		w.exec(`UPDATE namespace_statistics SET components_count = components_count - 3 WHERE namespace_id = $1`, namespace)

		var log strings.Builder
		r := w.reconciler(w.pool)
		r.Log = textLogger(&log)
		pass, err := r.Reconcile(t.Context(), namespace)
		require.NoError(t, err)
		require.Equal(t, 2, pass.Corrected)
		require.Equal(t, accounting.Counters{Bytes: 7, Components: 3}, pass.Off)
		requireHistogram(t, r.Metrics.DiscrepancyBytes, 1, 7)
		requireHistogram(t, r.Metrics.DiscrepancyComponents, 1, 3)
		require.Contains(t, log.String(), "namespace_id="+namespace.String())
		require.Contains(t, log.String(), "bytes_off=7")
		w.requireExact(namespace)

		require.Equal(t, 2, w.count(`SELECT count(*) FROM storage_ledger WHERE namespace_id = $1 AND outcome = 4 AND (bytes, components) IN ((-7, 0), (0, 3))`, namespace),
			"S2: corrections are visible in the ledger, signed")
	})

	t.Run("AC23 E19 a namespace without a statistics row gets one in its first pass", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace := w.namespace()
		w.publish(namespace, w.hosted(namespace), schematype.FormatNPM, 9)
		w.exec(`DELETE FROM namespace_statistics WHERE namespace_id = $1`, namespace)
		pass := w.reconcile(namespace)
		require.Equal(t, row{Counters: accounting.Counters{Bytes: 9, Components: 1}, L: pass.Marker}, w.statistics(namespace))
		require.Equal(t, pass.Marker, w.marker(namespace))
	})

	t.Run("a namespace that is gone: its request is dropped and the job completes", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		gone := newID()
		require.NoError(t, requests.Raise(t.Context(), w.pool, []requests.Request{{Namespace: gone}}))
		pass, err := w.reconciler(w.pool).Reconcile(t.Context(), gone)
		require.NoError(t, err)
		require.Equal(t, metrics.PassGone, pass.Result)
		require.Zero(t, w.requests(gone))
	})

	t.Run("a request from before the pass is closed, one made while it ran stays open", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace := w.namespace()
		w.hosted(namespace)
		raise := func() {
			require.NoError(t, requests.Raise(context.Background(), w.pool, []requests.Request{{Namespace: namespace}}))
		}
		raise()
		w.reconcile(namespace)
		require.Zero(t, w.requests(namespace))

		pool := w.traced(&tracer{before: once("FROM repositories r", raise)})
		_, err := w.reconciler(pool).Reconcile(t.Context(), namespace)
		require.NoError(t, err)
		require.Equal(t, 1, w.requests(namespace))
	})

	t.Run("the marker exceeds the old one and every last_reconciled_at of the namespace, also when they are ahead of the clock", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		for _, ahead := range []string{
			`UPDATE namespace_statistics SET reconciliation_marker = now() + interval '1 day' WHERE namespace_id = $1`,
			`UPDATE namespace_statistics SET last_reconciled_at = now() + interval '2 days' WHERE namespace_id = $1`,
			`UPDATE repositories SET last_reconciled_at = now() + interval '3 days' WHERE namespace_id = $1`,
			`DELETE FROM namespace_statistics WHERE namespace_id = $1`,
		} {
			w.exec(ahead, namespace)
			newest := w.repositoryRow(repository).L
			pass := w.reconcile(namespace)
			require.Greater(t, pass.Marker, newest)
			require.Equal(t, pass.Marker, w.repositoryRow(repository).L)
			require.Equal(t, pass.Marker, w.statistics(namespace).L)
		}
	})

	t.Run("a marker far in the future is reported", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace := w.namespace()
		w.exec(`UPDATE namespace_statistics SET reconciliation_marker = now() + interval '1 day' WHERE namespace_id = $1`, namespace)
		var log strings.Builder
		r := w.reconciler(w.pool)
		r.Log = textLogger(&log)
		_, err := r.Reconcile(t.Context(), namespace)
		require.NoError(t, err)
		require.Contains(t, log.String(), "level=ERROR")
		require.Contains(t, log.String(), "marker is in the future")
	})

	t.Run("AC26 the namespace is stamped only after all of its repositories", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace := w.namespace()
		for range 3 {
			w.publish(namespace, w.hosted(namespace), schematype.FormatNPM, 1)
		}
		early := false
		look := func(string) {
			early = early || w.statistics(namespace).L != 0 &&
				w.count(`SELECT count(*) FROM repositories WHERE namespace_id = $1 AND last_reconciled_at = 'epoch'`, namespace) > 0
		}
		pool := w.traced(&tracer{before: look, after: look})
		_, err := w.reconciler(pool).Reconcile(t.Context(), namespace)
		require.NoError(t, err)
		require.False(t, early, "the namespace was stamped before a repository")
		require.NotZero(t, w.statistics(namespace).L)
	})

	t.Run("R7 a pass that slept while a newer one finished changes nothing", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		var newer Pass
		pool := w.traced(&tracer{before: once("FROM repositories WHERE id = ANY", func() {
			w.publish(namespace, repository, schematype.FormatNPM, 50)
			newer = w.reconcile(namespace)
		})})
		pass, err := w.reconciler(pool).Reconcile(t.Context(), namespace)
		require.NoError(t, err)
		require.Equal(t, metrics.PassFenced, pass.Result)
		require.Equal(t, newer.Marker, w.statistics(namespace).L)
		w.requireExact(namespace)
	})

	t.Run("a namespace deleted while its pass runs is gone", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace := w.namespace()
		pool := w.traced(&tracer{before: once("FROM blob_storage_blobs_by_namespace", func() {
			w.exec(`DELETE FROM namespaces WHERE id = $1`, namespace)
		})})
		pass, err := w.reconciler(pool).Reconcile(t.Context(), namespace)
		require.NoError(t, err)
		require.Equal(t, metrics.PassGone, pass.Result)
	})

	t.Run("E20 a pass that fails before its last write does not stamp the namespace, and the next one is right", func(t *testing.T) {
		t.Parallel()
		w := all.in(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		w.publish(namespace, repository, schematype.FormatNPM, 4)
		ctx, cancel := context.WithCancelCause(t.Context())
		boom := errors.New("boom")
		pool := w.traced(&tracer{before: once("FROM namespace_statistics WHERE namespace_id = ANY", func() { cancel(boom) })})
		r := w.reconciler(pool)
		pass, err := r.Reconcile(ctx, namespace)
		require.Error(t, err)
		require.Equal(t, metrics.PassFailed, pass.Result)
		require.NotZero(t, w.repositoryRow(repository).L)
		require.Zero(t, w.statistics(namespace).L)
		require.EqualValues(t, 1, testutil.ToFloat64(r.Metrics.ReconciliationPasses.WithLabelValues(metrics.PassFailed)))
		require.Zero(t, testutil.ToFloat64(r.Metrics.ReconciliationInFlight))

		w.reconcile(namespace)
		w.requireExact(namespace)
	})
}

func TestE15KilledAtAnyStep(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for step := 1; ; step++ {
		namespace := w.namespace()
		repository := w.hosted(namespace)
		w.drain(w.write(namespace, repository, 10))
		w.publish(namespace, repository, schematype.FormatNPM, 3) // drift: a registry was killed before it emitted
		late := w.write(namespace, repository, 5)
		old := accounting.Counters{Bytes: 10, Components: 1}

		n := 0
		tr := &tracer{}
		tr.before = func(string) {
			if n++; n == step {
				w.kill(tr)
			}
		}
		pool := w.traced(tr)
		_, err := w.reconciler(pool).Reconcile(t.Context(), namespace)
		pool.Close()

		if w.statistics(namespace).L == 0 {
			require.Equal(t, old, w.statistics(namespace).Counters, "step %d: old values stand", step)
		}
		w.drain(late)
		w.reconcile(namespace)
		w.requireExact(namespace)
		if n < step {
			require.NoError(t, err, "no step was left to kill, so the pass must succeed")
			require.Greater(t, step, 15, "the pass has fewer steps than the protocol: the kills hit nothing")
			return
		}
	}
}

// TestE16E17BesideWritersAndDrains attacks with what a cluster does: writers,
// drains that replay and reorder, and two passes at a time.
func TestE16E17BesideWritersAndDrains(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	namespace := w.namespace()
	repositories := []uuid.UUID{w.hosted(namespace), w.hosted(namespace)}
	const writers, commits = 4, 40

	ctx := t.Context()
	flushes := make(chan []accounting.Flush, writers*commits)
	stop := make(chan struct{})
	var writing, others errgroup.Group
	for i := range writers {
		writing.Go(func() error {
			for n := range commits {
				f, err := w.tryWrite(ctx, namespace, repositories[(i+n)%2], int64(n+1))
				if err != nil {
					return err
				}
				flushes <- f
			}
			return nil
		})
	}
	for range 2 {
		others.Go(func() error {
			for f := range flushes {
				for range 2 {
					if _, err := ledger.Apply(ctx, w.pool, f); err != nil {
						return err
					}
				}
			}
			return nil
		})
	}
	var done atomic.Int32
	for range 2 {
		others.Go(func() error {
			for {
				select {
				case <-stop:
					return nil
				default:
				}
				pass, err := w.reconciler(w.pool).Reconcile(ctx, namespace)
				if err != nil {
					return err
				}
				if pass.Result == metrics.PassDone {
					done.Add(1)
				}
			}
		})
	}
	err := writing.Wait()
	close(stop)
	close(flushes)
	require.NoError(t, others.Wait())
	require.NoError(t, err)

	require.Positive(t, done.Load(), "no pass came through, so nothing was tested")
	w.requireExact(namespace) // without a last pass: the increments themselves are exact
	w.reconcile(namespace)
	w.requireExact(namespace)
	require.EqualValues(t, writers*commits, w.statistics(namespace).Components)
}

func TestScanGivesItsSnapshotBackBeforeTheLastWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	namespace := w.namespace()
	w.hosted(namespace)
	tr := &tracer{}
	tr.before = once("FROM namespace_statistics WHERE namespace_id = ANY", func() {
		require.Zero(t, w.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
			AND application_name = $1 AND state LIKE 'idle%' AND backend_xmin IS NOT NULL`, tr.application()))
	})
	_, err := w.reconciler(w.traced(tr)).Reconcile(t.Context(), namespace)
	require.NoError(t, err)
}
