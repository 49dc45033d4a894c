package exactness

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// A hand deletes a namespace's statistics row, and perhaps makes it again. Its
// marker is lost: it begins anew at 'epoch' while the repositories keep the
// marker of their last pass.
func TestBadDataStatisticsRow(t *testing.T) {
	t.Parallel()
	// One after the other: a trigger looks at every namespace.
	shared := newServers(t)
	deleteRow := func(s *stage) {
		s.exec(`DELETE FROM namespace_statistics WHERE namespace_id = $1`, s.namespace)
	}

	t.Run("AC23 E13 E19 deleted: writers ask for a pass, drains say gone, and the pass makes the row", func(t *testing.T) {
		s := shared.stage(t)
		s.pass()
		s.publishes(s.scope(), "1", 10)
		deleteRow(s)
		s.publishes(s.scope(), "2", 20)
		s.requestedInTheEnd()
		s.drainAll()
		require.EqualValues(t, 2, s.outcome("gone"), "of the namespace, before and after")
		s.requireHealedByRequest()
		s.publishes(s.scope(), "3", 30)
		s.drainAll()
		require.False(t, s.requested())
		s.requireTruth()
	})

	t.Run("AC23 E19 deleted, and nobody writes: the trigger finds it", func(t *testing.T) {
		s := shared.stage(t)
		s.pass()
		deleteRow(s)
		require.Equal(t, []uuid.UUID{s.namespace}, s.triggered(t))
		s.pass()
		s.requireTruth()
	})

	t.Run("AC8 AC27 deleted and made again before anybody noticed: it is the stalest, so the next trigger brings it a pass", func(t *testing.T) {
		s := shared.stage(t)
		s.pass()
		s.publishes(s.scope(), "1", 10) // with the old marker
		deleteRow(s)
		s.exec(`INSERT INTO namespace_statistics (namespace_id) VALUES ($1)`, s.namespace)
		s.publishes(s.scope(), "2", 20) // with the marker 'epoch'
		require.False(t, s.requested(), "nobody noticed")
		s.drainAll()
		require.EqualValues(t, 1, s.outcome("counted"), "the repository takes the second for counted")
		require.NotEqual(t, s.recount(s.scope()), s.row(s.scope()))

		require.Equal(t, []uuid.UUID{s.namespace}, s.triggered(t))
		s.publishes(s.scope(), "3", 30) // buffered while the pass runs
		s.pass()
		s.drainAll()
		s.requireTruth()
		require.Empty(t, s.triggered(t))
	})

	t.Run("AC8 AC27 made again with a later stamp than it earned: wrong until it is stale, and then healed", func(t *testing.T) {
		s := shared.stage(t)
		s.pass()
		deleteRow(s)
		s.exec(`INSERT INTO namespace_statistics (namespace_id, last_reconciled_at) VALUES ($1, now())`, s.namespace)
		s.publishes(s.scope(), "1", 10)
		s.drainAll()
		require.NotEqual(t, s.recount(s.scope()), s.row(s.scope()))
		require.Empty(t, s.triggered(t))
		s.exec(`UPDATE namespace_statistics SET last_reconciled_at = last_reconciled_at - interval '2 hours' WHERE namespace_id = $1`, s.namespace)
		require.Equal(t, []uuid.UUID{s.namespace}, s.triggered(t))
		s.pass()
		s.requireTruth()
	})

	t.Run("AC8 deleted and made again while a pass runs: the next pass is right", func(t *testing.T) {
		s := shared.stage(t)
		s.pass()
		first := s.marker()
		s.publishes(s.scope(), "1", 10)
		ctx := atPoint(t, "pass.marked", func() {
			deleteRow(s)
			s.exec(`INSERT INTO namespace_statistics (namespace_id) VALUES ($1)`, s.namespace)
		})
		require.NoError(t, s.reconcile(ctx, s.namespace))
		s.publishes(s.scope(), "2", 20)
		s.drainAll()
		s.pass()
		s.requireTruth()
		require.Greater(t, s.marker(), first)
	})
}

// marker is the namespace's own.
func (s *stage) marker() (m accounting.Marker) {
	s.t.Helper()
	require.NoError(s.t, s.servers.pool.QueryRow(context.Background(),
		`SELECT stowage_marker_micros(reconciliation_marker) FROM namespace_statistics WHERE namespace_id = $1`, s.namespace).Scan(&m))
	return m
}
