package exactness

import (
	"context"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/requests"
)

// A namespace is deleted, with all that it holds, in the middle of everything.
// No step fails for it, and nothing of it is left.
func TestBadDataNamespaceDeleted(t *testing.T) {
	t.Parallel()
	shared := newServers(t)

	t.Run("S2 AC35 E12 after the emission: its flushes are gone, and the ledger and the metric say so", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		s.publishes(s.scope(), "1", 10)
		s.deleteNamespace()
		s.drainAll()
		require.EqualValues(t, 2, s.outcome("gone"))
		require.Equal(t, 2, s.entered(accounting.OutcomeGone))
		s.requireNoTrace()
	})

	for _, at := range []failpoint.Point{failpoint.DrainClaims, failpoint.DrainClaimed, failpoint.DrainCommitted, failpoint.DrainFinishes} {
		t.Run("AC35 E12 during a drain at "+string(at), func(t *testing.T) {
			t.Parallel()
			s := shared.stage(t)
			s.publishes(s.scope(), "1", 10)
			s.expireLease()
			require.NoError(t, s.drain(atPoint(t, at, s.deleteNamespace), s.bucket))
			s.drainAll()
			s.requireNoTrace()
		})
	}

	for _, at := range []failpoint.Point{failpoint.PassSlot, failpoint.PassMarked, failpoint.PassScans, failpoint.PassWrites, failpoint.PassChunk, failpoint.PassScanned} {
		t.Run("AC35 E12 during a pass with a request open, at "+string(at), func(t *testing.T) {
			t.Parallel()
			s := shared.stage(t)
			s.publishes(s.scope(), "1", 10)
			require.NoError(t, requests.Raise(t.Context(), s.servers.pool, []requests.Request{{Namespace: s.namespace}}))
			require.NoError(t, s.reconcile(atPoint(t, at, s.deleteNamespace), s.namespace))
			require.EqualValues(t, 1, testutil.ToFloat64(s.metrics.ReconciliationPasses.WithLabelValues(metrics.PassGone)))
			s.drainAll()
			if s.requested() { // the next pass finds no namespace
				s.pass()
			}
			s.requireNoTrace()
		})
	}

	t.Run("AC35 AC7 before the emission, and the request that replaces it is dropped", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		ctx := failpoint.With(t.Context(), func(_ context.Context, met failpoint.Point) error {
			if met == failpoint.WriterEmits {
				s.deleteNamespace()
				return errInjected
			}
			return nil
		})
		require.NoError(t, s.publish(ctx, s.repository(), "1", 10))
		s.requestedInTheEnd()
		s.pass()
		s.requireNoTrace()
	})
}

// atPoint does something at the first visit of a point, between two steps.
func atPoint(t testing.TB, at failpoint.Point, do func()) context.Context {
	t.Helper()
	var once sync.Once
	met := false
	t.Cleanup(func() { require.True(t, met, "nobody came to %s", at) })
	return failpoint.With(t.Context(), func(_ context.Context, p failpoint.Point) error {
		if p == at {
			once.Do(func() { met = true; do() })
		}
		return nil
	})
}

// deleteNamespace deletes all that a namespace holds, and it.
func (s *stage) deleteNamespace() {
	s.t.Helper()
	for _, sql := range []string{
		`DELETE FROM blob_storage_attachments WHERE namespace_id = $1`,
		`DELETE FROM blob_storage_blobs WHERE namespace_id = $1`,
		`DELETE FROM npm_versions WHERE namespace_id = $1`,
		`DELETE FROM repositories WHERE namespace_id = $1`,
		`DELETE FROM namespaces WHERE id = $1`,
	} {
		s.exec(sql, s.namespace)
	}
}

// requireNoTrace: nothing but the ledger remembers the namespace.
func (s *stage) requireNoTrace() {
	s.t.Helper()
	require.Empty(s.t, s.rows(s.t, s.namespace))
	require.False(s.t, s.requested())
	s.requireNoKeys()
}
