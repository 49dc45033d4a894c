package entdb_test

import (
	"math/big"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/entdb"
)

func TestHistory(t *testing.T) {
	t.Parallel()
	b := setup(t)
	since := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	at := func(hours float64) time.Time { return since.Add(time.Duration(hours * float64(time.Hour))) }
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := b.pool.Exec(t.Context(), sql, args...)
		require.NoError(t, err)
	}

	h, err := b.db.History(t.Context(), b.namespace.ID, since, at(4))
	require.NoError(t, err)
	require.Zero(t, h.Until, "no worker has begun to keep history")
	require.Empty(t, h.Hours)

	batch := uuid.New()
	exec(`INSERT INTO usage_progress (id, since, hour, after_namespace_id, sealed, fence) VALUES (1, $1, $2, $3, $2, '{}')`, since, at(3), uuid.Nil)
	exec(`INSERT INTO usage_hours (namespace_id, hour, bytes_start, components_start, bytes_end, components_end, peak_bytes, byte_seconds)
		VALUES ($1, $2, 100, 1, 250, 2, 300, 500000.000001)`, b.namespace.ID, at(1))
	exec(`INSERT INTO usage_adjustments (namespace_id, applied_at, kind, batch_id, bytes, components) VALUES ($1, $2, 2, $3, 150, 1)`, b.namespace.ID, at(1.5), batch)
	h, err = b.db.History(t.Context(), b.namespace.ID, at(-5), at(9))
	require.NoError(t, err)
	require.Equal(t, entdb.History{Since: since, Until: at(3), Hours: []entdb.UsageHour{
		{Start: since, End: entdb.Counters{Bytes: 100, Components: 1}, ByteSeconds: big.NewRat(360_000, 1), PeakBytes: 100},
		{
			Start: at(1), End: entdb.Counters{Bytes: 250, Components: 2}, ByteSeconds: big.NewRat(500_000_000_001, 1_000_000), PeakBytes: 300,
			Adjustments: []entdb.UsageAdjustment{{AppliedAt: at(1.5), Kind: "late", BatchID: batch, Change: entdb.Counters{Bytes: 150, Components: 1}}},
		},
		{Start: at(2), End: entdb.Counters{Bytes: 250, Components: 2}, ByteSeconds: big.NewRat(900_000, 1), PeakBytes: 250},
	}}, h)
	h, err = b.db.History(t.Context(), b.namespace.ID, at(3), at(4))
	require.NoError(t, err)
	require.Empty(t, h.Hours, "open hours are not given")

	_, err = b.db.History(t.Context(), uuid.Nil, since, at(1))
	require.ErrorIs(t, err, entdb.ErrNilID)
	_, err = b.db.History(t.Context(), uuid.New(), since, at(1))
	require.ErrorIs(t, err, entdb.ErrNoHistory)
	for _, to := range []time.Time{since, at(-1), at(1.5)} {
		_, err = b.db.History(t.Context(), b.namespace.ID, since, to)
		require.ErrorIs(t, err, entdb.ErrHistoryRange)
	}
}
