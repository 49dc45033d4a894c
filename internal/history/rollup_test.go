package history

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/failpoint"
)

func TestAnHour(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	n, idle := b.namespace(), b.namespace()
	b.applied(n, b.at(10*time.Minute), b.at(10*time.Minute), 1000, 2)
	b.applied(n, b.at(30*time.Minute), b.at(30*time.Minute), 500, 1)
	b.applied(n, b.at(45*time.Minute), b.at(45*time.Minute+time.Microsecond), -1200, -2)

	b.rollUp(b.at(time.Hour + settle - 1))
	require.Empty(t, b.read(n), "the hour is over and not settled")
	b.rollUp(b.at(3*time.Hour + settle))
	flat := Hour{End: counters(300, 1), ByteSeconds: rat("1080000"), PeakBytes: 300}
	second, third := flat, flat
	second.Start, third.Start = b.at(time.Hour), b.at(2*time.Hour)
	require.Equal(t, []Hour{
		{Start: b.since, End: counters(300, 1), ByteSeconds: rat("2820000.0012"), PeakBytes: 1500}, second, third,
	}, b.read(n))
	require.EqualValues(t, 1, b.count(`SELECT count(*) FROM usage_hours`), "hours without a change are not stored")
	require.Equal(t, Hour{Start: b.since, ByteSeconds: rat("0")}, b.read(idle)[0])
}

func TestAdjustments(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	n := b.namespace()
	b.applied(n, b.at(59*time.Minute), b.at(time.Hour+late-time.Minute), 100, 1) // at the edge of an hour
	b.applied(n, b.at(30*time.Minute), b.at(50*time.Minute), 10, 0)              // slow, in its hour
	b.rollUp(b.at(2*time.Hour + settle))
	for _, h := range b.read(n) {
		require.Empty(t, h.Adjustments, "ordinary traffic")
	}

	b.applied(n, b.at(59*time.Minute), b.at(150*time.Minute), 20, 2)
	b.corrected(n, b.at(160*time.Minute), 125, 3)
	b.deleted(n, b.at(170*time.Minute))
	b.rollUp(b.at(4*time.Hour + settle))
	hours := b.read(n)
	third := hours[2]
	require.Len(t, third.Adjustments, 3)
	require.Equal(t, []Adjustment{
		{AppliedAt: b.at(150 * time.Minute), Kind: Late, Counters: counters(20, 2), BatchID: third.Adjustments[0].BatchID},
		{AppliedAt: b.at(160 * time.Minute), Kind: Correction, Counters: counters(-5, 0), BatchID: third.Adjustments[1].BatchID},
		{AppliedAt: b.at(170 * time.Minute), Kind: Closed, Counters: counters(-125, -3)},
	}, third.Adjustments)
	require.NotZero(t, third.Adjustments[0].BatchID)
	require.NotZero(t, third.Adjustments[1].BatchID)
	require.Equal(t, counters(0, 0), third.End)
	require.EqualValues(t, 130, third.PeakBytes)
	require.Equal(t, rat("351000"), third.ByteSeconds) // 110 for half an hour, 130 and 125 for ten minutes each
	require.Equal(t, counters(110, 1), hours[1].End, "an hour that is closed is not restated")
	require.Equal(t, Hour{Start: b.at(3 * time.Hour), ByteSeconds: rat("0")}, hours[3], "history outlives its namespace")
	require.Zero(t, b.count(`SELECT count(*) FROM usage_closings`))
}

func TestBeginning(t *testing.T) {
	t.Parallel()

	t.Run("a namespace that is older begins with what it had", func(t *testing.T) {
		t.Parallel()
		b := setup(t, Config{})
		n, idle := b.namespace(), b.namespace()
		b.exec(`UPDATE namespace_statistics SET deduplicated_size_bytes = 700, components_count = 7`)
		b.applied(n, b.at(-time.Hour), b.at(-time.Hour), 50, 1) // before history: in the row already
		b.applied(n, b.at(90*time.Minute), b.at(90*time.Minute), 250, 2)
		b.applied(n, b.at(5*time.Hour), b.at(5*time.Hour), -1, 0) // still to be rolled up
		b.rollUp(b.at(3*time.Hour + settle))
		hours := b.read(n)
		require.Equal(t, counters(750, 8), hours[0].End)
		require.Equal(t, counters(1000, 10), hours[1].End)
		require.Empty(t, hours[1].Adjustments)
		require.Equal(t, rat("3150000"), hours[1].ByteSeconds)
		require.Equal(t, Hour{Start: b.since, End: counters(700, 7), ByteSeconds: rat("2520000"), PeakBytes: 700}, b.read(idle)[0])

		b.deleted(idle, b.at(4*time.Hour+time.Minute))
		require.Equal(t, counters(700, 7), b.read(idle)[0].End, "deleted, and its hour is open")
		b.rollUp(b.at(5*time.Hour + settle))
		require.Equal(t, counters(700, 7), b.read(idle)[3].End)
		require.Equal(t, counters(0, 0), b.read(idle)[4].End)
		require.Equal(t, rat("42000"), b.read(idle)[4].ByteSeconds)
	})
	t.Run("one that lived and died between two runs has had what it had", func(t *testing.T) {
		t.Parallel()
		b := setup(t, Config{})
		n := b.namespace()
		b.applied(n, b.at(0), b.at(0), 100, 1)
		b.applied(n, b.at(90*time.Minute), b.at(90*time.Minute), 20, 1)
		b.deleted(n, b.at(3*time.Hour+30*time.Minute))
		b.rollUp(b.at(5*time.Hour + settle))
		ends := make([]int64, 5)
		for i, h := range b.read(n) {
			ends[i] = h.End.Bytes
		}
		require.Equal(t, []int64{100, 120, 120, 0, 0}, ends)
	})
	t.Run("the first whole hour after it", func(t *testing.T) {
		t.Parallel()
		b := setup(t, Config{})
		require.Equal(t, b.since, b.closedUntil().UTC())
		require.NoError(t, b.worker.Run(t.Context()))
		require.Equal(t, b.since, b.closedUntil().UTC())
	})
}

func TestACounterChangedByHandIsSeen(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	n := b.namespace()
	b.applied(n, b.at(0), b.at(0), 100, 1)
	b.rollUp(b.at(time.Hour + settle))
	b.exec(`UPDATE namespace_statistics SET deduplicated_size_bytes = 0`)
	b.corrected(n, b.at(90*time.Minute), 100, 1)
	b.rollUp(b.at(3*time.Hour + settle)) // the second hour is not the newest
	require.Equal(t, counters(200, 1), b.read(n)[1].End)
	b.applied(n, b.at(190*time.Minute), b.at(190*time.Minute), 1, 0)
	b.rollUp(b.at(4*time.Hour + settle))
	last := b.read(n)[3]
	require.Equal(t, []Adjustment{{AppliedAt: b.at(3 * time.Hour), Kind: Unexplained, Counters: counters(-100, 0)}}, last.Adjustments)
	require.Equal(t, counters(101, 1), last.End)
}

func TestCountersThatDoNotFitStopNobody(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	n, other := b.namespace(), b.namespace()
	const most = 9223372036854775807
	b.exec(`UPDATE namespace_statistics SET deduplicated_size_bytes = $1 WHERE namespace_id = $2`, -most, n)
	b.corrected(n, b.at(time.Minute), most, 0)
	b.applied(n, b.at(2*time.Minute), b.at(2*time.Minute), -1, 0)
	b.applied(other, b.at(time.Minute), b.at(time.Minute), 5, 0)
	b.rollUp(b.at(time.Hour + settle))
	require.EqualValues(t, 5, b.read(other)[0].End.Bytes)
	require.EqualValues(t, most-1, b.read(n)[0].End.Bytes)
}

// openWriter has written an entry of the hour and not committed.
func (b *bundle) openWriter(n uuid.UUID, at time.Time, sql string) pgx.Tx {
	b.t.Helper()
	tx, err := b.db.BeginTx(context.Background(), pgx.TxOptions{IsoLevel: pgx.ReadCommitted})
	require.NoError(b.t, err)
	b.t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	_, err = tx.Exec(context.Background(), sql, n, at)
	require.NoError(b.t, err)
	return tx
}

func TestAnHourWaitsForWhoStillWritesItAndForNobodyElse(t *testing.T) {
	t.Parallel()
	for name, write := range map[string]string{
		"an entry": `WITH row AS (UPDATE namespace_statistics SET deduplicated_size_bytes = deduplicated_size_bytes + 7 WHERE namespace_id = $1)
			INSERT INTO storage_ledger (batch_id, scope_id, scope_kind, namespace_id, marker, bytes, components, emissions, outcome, applied_at)
			SELECT batch_id, $1, 1, $1, 'epoch', 7, 0, 1, 1, $2 FROM storage_ledger WHERE scope_id <> $1`,
		"an end": `WITH row AS (DELETE FROM namespace_statistics WHERE namespace_id = $1) SELECT $2::timestamptz`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t, Config{})
			n, other := b.namespace(), b.namespace()
			b.applied(n, b.at(0), b.at(0), 100, 1)
			b.applied(other, b.at(0), b.at(0), 1, 1)
			bystander := b.openWriter(other, b.at(0), `UPDATE namespaces SET created_at = $2 WHERE id = $1`)
			writer := b.openWriter(n, b.at(30*time.Minute), write)

			b.setClock(b.at(time.Hour + settle))
			for range 3 {
				require.NoError(t, b.worker.Run(t.Context()))
				require.Equal(t, b.since, b.closedUntil().UTC())
			}
			require.NoError(t, writer.Commit(t.Context()))
			// One that begins after the hour is sealed keeps nobody waiting.
			later := b.openWriter(other, b.at(61*time.Minute), `INSERT INTO usage_closings VALUES ($1, $2, 1, 1)`)
			b.finish()
			require.NoError(t, later.Rollback(t.Context()))
			require.NoError(t, bystander.Rollback(t.Context()))
			want := int64(107)
			if name == "an end" {
				want = 100 // it ended now, by the database's clock
			}
			require.Equal(t, want, b.read(n)[0].End.Bytes)
		})
	}
}

func TestAClockThatIsAheadClosesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.setClock(time.Now().Add(240 * time.Hour))
	require.NoError(t, b.worker.Run(t.Context()))
	require.NoError(t, b.worker.Run(t.Context()))
	require.False(t, b.closedUntil().After(time.Now()), "the worker's")
	b.setClock(b.at(-time.Hour))
	require.NoError(t, b.worker.Run(t.Context()), "and one that went back does no harm")
}

// kills are the ways in which a step ends early: the n-th time that it comes by.
func kill(ctx context.Context, point failpoint.Point, n int) context.Context {
	return failpoint.With(ctx, func(_ context.Context, at failpoint.Point) error {
		if at != point {
			return nil
		}
		if n--; n == 0 {
			return errors.New("killed")
		}
		return nil
	})
}

func TestAKilledRunIsGoneOnWith(t *testing.T) {
	t.Parallel()
	for _, point := range failpoint.HistoryPoints() {
		t.Run(string(point), func(t *testing.T) {
			t.Parallel()
			b := setup(t, Config{Retention: 24 * time.Hour})
			b.worker.size = 2
			var namespaces []uuid.UUID
			for i := range 5 {
				n := b.namespace()
				namespaces = append(namespaces, n)
				for hour := range 30 {
					if hour%7 == i {
						b.applied(n, b.at(time.Duration(hour)*time.Hour), b.at(time.Duration(hour)*time.Hour), int64(hour+1), 1)
					}
				}
			}
			b.setClock(b.at(30*time.Hour + settle))
			killed := 0
			for n := 1; killed < 40 && b.closedUntil().Before(b.at(30*time.Hour)); n = n%3 + 1 {
				if b.worker.Run(kill(t.Context(), point, n)) != nil {
					killed++
				}
			}
			b.finish()
			require.NoError(t, b.worker.Run(t.Context()))
			require.Greater(t, killed, 5)
			for i, n := range namespaces {
				want := int64(0)
				for hour := i; hour < 30; hour += 7 {
					want += int64(hour + 1)
				}
				hours := b.read(n)
				require.Len(t, hours, 24)
				require.Equal(t, want, hours[23].End.Bytes)
			}
		})
	}
}

func TestTwoWorkersRollUpOnce(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.worker.size = 3
	n := make([]uuid.UUID, 20)
	for i := range n {
		n[i] = b.namespace()
		for hour := range 5 {
			at := b.at(time.Duration(hour)*time.Hour + time.Duration(i)*time.Second)
			b.applied(n[i], at, at, 10, 1)
		}
	}
	b.setClock(b.at(5*time.Hour + settle))
	require.NoError(t, b.worker.Run(t.Context())) // seals
	errs := make([]error, 4)
	var workers sync.WaitGroup
	for i := range errs {
		workers.Go(func() { errs[i] = b.worker.Run(t.Context()) })
	}
	workers.Wait()
	require.Equal(t, make([]error, 4), errs)
	b.finish()
	require.EqualValues(t, 100, b.count(`SELECT count(*) FROM usage_hours`))
	for _, id := range n {
		require.Equal(t, counters(50, 5), b.read(id)[4].End)
	}
}

func TestRetention(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{Retention: 24 * time.Hour})
	steady, busy, gone := b.namespace(), b.namespace(), b.namespace()
	b.applied(steady, b.at(0), b.at(0), 100, 1)
	b.applied(gone, b.at(0), b.at(0), 100, 1)
	b.deleted(gone, b.at(time.Hour))
	for hour := range 30 {
		at := b.at(time.Duration(hour) * time.Hour)
		b.applied(busy, at.Add(-time.Hour), at, 1, 0)
	}
	b.rollUp(b.at(24*time.Hour + settle))
	require.Len(t, b.read(busy), 24)
	require.Len(t, b.read(gone), 24)

	b.rollUp(b.at(30*time.Hour + settle))
	require.NoError(t, b.worker.Run(t.Context()))
	h, err := Read(t.Context(), b.db, busy, b.since, b.at(30*time.Hour))
	require.NoError(t, err)
	require.Equal(t, b.at(6*time.Hour), h.Since)
	require.Equal(t, b.at(30*time.Hour), h.Until)
	require.Len(t, h.Hours, 24)
	require.EqualValues(t, 7, h.Hours[0].End.Bytes)
	require.Equal(t, counters(100, 1), b.read(steady)[0].End, "what was stored before and never changed since")
	require.EqualValues(t, 25, b.count(`SELECT count(*) FROM usage_hours WHERE namespace_id = $1`, busy), "24 and what the first of them began with")
	require.EqualValues(t, 24, b.count(`SELECT count(*) FROM usage_adjustments`))
	require.Zero(t, b.count(`SELECT count(*) FROM usage_hours WHERE namespace_id = $1`, gone))
	_, err = Read(t.Context(), b.db, gone, b.since, b.at(time.Hour))
	require.ErrorIs(t, err, ErrNotFound)
}

func TestConfig(t *testing.T) {
	t.Parallel()
	require.NoError(t, Config{Late: 1}.Validate())
	require.NoError(t, Config{Late: 1, Retention: 24 * time.Hour}.Validate())
	require.ErrorContains(t, Config{Late: 1, Retention: time.Hour}.Validate(), "retention")
	require.ErrorContains(t, Config{Late: 1, Retention: -1}.Validate(), "retention")
	require.ErrorContains(t, Config{}.Validate(), "late")
}
