package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// The namespaces count as just reconciled: a pass would heal what drains do
// wrong.
func TestE8E11EveryDeltaCountsOnceWhileWorkersAreKilled(t *testing.T) {
	t.Parallel()
	const namespaces, kills = 10_000, 8
	s := newServices(t)
	ids := s.namespacesWithoutContent(namespaces)
	var reconciled int64
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT stowage_marker_micros(now())`).Scan(&reconciled))
	s.exec(`UPDATE namespace_statistics SET last_reconciled_at = stowage_marker_time($1), reconciliation_marker = stowage_marker_time($1)`, reconciled)
	start := func() *worker {
		return s.start("--drain-interval", "3s", "--drain-chunk-size", "10")
	}
	workers := []*worker{start(), start(), start()}
	require.Eventually(t, func() bool { return leading(workers) >= 0 }, patience, often, "nobody leads")
	second := time.NewTicker(time.Second)
	defer second.Stop()
	for n := range kills {
		for _, id := range ids[n*namespaces/kills : (n+1)*namespaces/kills] {
			s.emit(id, accounting.Marker(reconciled), 7)
		}
		<-second.C
		victim := max(leading(workers), 0)
		if n != kills/2 {
			// A new leader needs five seconds: killed each second, nobody would lead.
			victim = (victim + 1 + n%2) % len(workers)
		}
		require.NoError(t, workers[victim].cmd.Process.Kill())
		workers[victim] = start()
	}
	require.Eventually(t, func() bool {
		return s.count(`SELECT count(*) FROM namespace_statistics WHERE components_count = 1 AND deduplicated_size_bytes = 7`) == namespaces
	}, 5*patience, 10*often)
	s.requireDrained()
	require.EqualValues(t, namespaces, s.count(`SELECT count(*) FROM storage_ledger`), "one entry for each delta")
	require.Zero(t, s.count(`SELECT count(*) FROM namespace_statistics WHERE components_count <> 1 OR last_reconciled_at <> stowage_marker_time($1)`, reconciled))
}

// leading is the index of the worker that leads, or -1.
func leading(workers []*worker) int {
	for i, w := range workers {
		if strings.Contains(w.log.String(), "this process leads") {
			return i
		}
	}
	return -1
}

func (s *services) namespacesWithoutContent(n int) []uuid.UUID {
	s.t.Helper()
	rows, err := s.pool.Query(context.Background(), `
		INSERT INTO namespaces (id, slug) SELECT id, id::text FROM (SELECT gen_random_uuid() AS id FROM generate_series(1, $1)) AS g RETURNING id`, n)
	require.NoError(s.t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	require.NoError(s.t, err)
	return ids
}

func (s *services) emit(namespace uuid.UUID, marker accounting.Marker, bytes int64) {
	s.t.Helper()
	failed, err := s.buf.Emit(context.Background(), namespace, marker, []accounting.Delta{
		{Scope: accounting.NamespaceScope(namespace), Counters: accounting.Counters{Bytes: bytes, Components: 1}},
	})
	require.NoError(s.t, err)
	require.Empty(s.t, failed)
}

// requireDrained waits until nothing is dirty or in flight.
func (s *services) requireDrained() {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		sizes, err := s.buf.Sizes(context.Background())
		require.NoError(s.t, err)
		var left int64
		for _, size := range sizes {
			left += size.Namespaces + size.Repositories + size.InFlight
		}
		return left == 0
	}, patience, often)
}
