package ledger

import (
	"crypto/rand"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

func date(year int, month time.Month, day int) time.Time {
	return time.Date(year, month, day, 0, 0, 0, 0, time.UTC)
}

// batchAt is a UUIDv7 of an instant, its other bits the smallest, the greatest
// or random.
func batchAt(t time.Time, fill func([]byte)) uuid.UUID {
	id := firstBatch(t)
	fill(id[6:])
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return id
}

func zeros([]byte) {}

func ones(b []byte) {
	for i := range b {
		b[i] = 0xff
	}
}

func random(b []byte) { _, _ = rand.Read(b) }

func (b *bundle) partitionDays() map[time.Time]bool {
	b.t.Helper()
	days, err := partitions(b.t.Context(), b.db)
	require.NoError(b.t, err)
	return days
}

func TestBatchTime(t *testing.T) {
	t.Parallel()
	before := time.Now().Truncate(time.Millisecond)
	made := BatchTime(uuid.Must(uuid.NewV7()))
	require.False(t, made.Before(before))
	require.False(t, made.After(time.Now()))
	require.Equal(t, date(2026, 3, 1), BatchTime(batchAt(date(2026, 3, 1), random)))
}

func TestEnsurePartitions(t *testing.T) {
	t.Parallel()

	t.Run("makes each day once, however often and by however many", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		errs := make([]error, 8)
		var makers sync.WaitGroup
		for i := range errs {
			makers.Go(func() {
				errs[i] = EnsurePartitions(t.Context(), b.db, date(2026, 2, 27).Add(time.Duration(i)*time.Hour), date(2026, 3, 1).Add(time.Duration(i)*time.Minute))
			})
		}
		makers.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
		require.Equal(t, map[time.Time]bool{date(2026, 2, 27): true, date(2026, 2, 28): true, date(2026, 3, 1): true}, b.partitionDays())
	})
	t.Run("waits for another that makes the same day", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		other := b.hold(func(tx pgx.Tx) error {
			return makePartitions(t.Context(), tx, []time.Time{date(2026, 3, 1)})
		})
		other.during(func() error {
			return EnsurePartitions(t.Context(), b.db, date(2026, 3, 1), date(2026, 3, 1))
		})
		require.Len(t, b.partitionDays(), 1)
	})
	t.Run("counts days in UTC", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		newYork := time.FixedZone("UTC-5", -5*60*60)
		at := time.Date(2026, 2, 27, 23, 0, 0, 0, newYork)
		require.NoError(t, EnsurePartitions(t.Context(), b.db, at, at))
		require.Equal(t, map[time.Time]bool{date(2026, 2, 28): true}, b.partitionDays())
	})
	t.Run("bounds hold every UUIDv7 of the day and none of another", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		require.NoError(t, EnsurePartitions(t.Context(), b.db, date(2026, 2, 27), date(2026, 3, 1)))
		last := 24*time.Hour - time.Millisecond
		for _, at := range []time.Time{date(2026, 2, 27), date(2026, 2, 27).Add(last), date(2026, 2, 28), date(2026, 2, 28).Add(last), date(2026, 3, 1), date(2026, 3, 1).Add(last)} {
			for _, fill := range []func([]byte){zeros, ones, random} {
				var in string
				require.NoError(t, b.db.QueryRow(t.Context(), `
					INSERT INTO storage_ledger (batch_id, scope_id, scope_kind, namespace_id, marker, bytes, components, emissions, outcome)
					VALUES ($1, $2, 1, $2, 'epoch', 0, 0, 0, 1) RETURNING tableoid::regclass::text`, batchAt(at, fill), newID()).Scan(&in))
				require.Equal(t, "partitions.storage_ledger_"+at.Format("20060102"), in)
			}
		}
		_, err := Apply(t.Context(), b.db, []accounting.Flush{{Scope: b.repository, BatchID: batchAt(date(2026, 3, 2), zeros)}})
		require.NoError(t, err)
		require.True(t, b.partitionDays()[date(2026, 3, 2)], "the first batch of the next day is in none of them")
	})
	t.Run("children have the key and the indexes of their parent", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		require.NoError(t, EnsurePartitions(t.Context(), b.db, date(2026, 3, 1), date(2026, 3, 1)))
		var indexes, children int
		require.NoError(t, b.db.QueryRow(t.Context(), `
			SELECT count(*), count(i.inhrelid) FROM pg_index x LEFT JOIN pg_inherits i ON i.inhparent = x.indexrelid
			WHERE x.indrelid = 'storage_ledger'::regclass AND x.indisvalid`).Scan(&indexes, &children))
		require.Equal(t, 3, indexes)
		require.Equal(t, 3, children)
	})
	t.Run("waits for nobody who writes the ledger", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.apply(flushOf(b.repository, 0, 1, 1))
		b.hold(func(tx pgx.Tx) error {
			_, err := lockAndEnter(t.Context(), tx, columnsOf([]accounting.Flush{flushOf(b.repository, 0, 1, 1)}))
			return err
		})
		require.NoError(t, EnsurePartitions(t.Context(), b.db, date(2026, 3, 1), date(2026, 3, 1)))
	})
}

func TestApplyMakesMissingPartitions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	old := flushOf(b.repository, 0, 1, 1)
	old.BatchID = batchAt(date(2026, 1, 5), random)
	require.Equal(t, []Verdict{Applied, Applied}, b.apply(flushOf(b.repository, 0, 1, 1), old))
	require.Len(t, b.partitionDays(), 2)
	require.True(t, b.partitionDays()[date(2026, 1, 5)])

	pass := b.pass(1)
	pass.Batch = batchAt(date(2026, 1, 7), random)
	b.writeBack(pass, valueOf(b.repository, 1, 1))
	require.True(t, b.partitionDays()[date(2026, 1, 7)], "a correction needs one too")
}

func TestDropPartitions(t *testing.T) {
	t.Parallel()

	t.Run("drops those whose every batch is older", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.exec(`CREATE TABLE partitions.by_hand PARTITION OF storage_ledger FOR VALUES FROM ('00000000-0000-0000-0000-000000000000') TO ('00000000-0000-0001-0000-000000000000')`)
		require.NoError(t, EnsurePartitions(t.Context(), b.db, date(2026, 3, 1), date(2026, 3, 4)))
		n, _, err := DropPartitions(t.Context(), b.db, date(2026, 3, 3).Add(-time.Nanosecond))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		n, _, err = DropPartitions(t.Context(), b.db, date(2026, 3, 3))
		require.NoError(t, err)
		require.Equal(t, 1, n)
		require.Equal(t, map[time.Time]bool{date(2026, 3, 3): true, date(2026, 3, 4): true}, b.partitionDays())
	})
	t.Run("keeps what the history of usage has not rolled up", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		for _, f := range []struct {
			scope           accounting.Scope
			frozen, entered time.Time
		}{
			{b.namespace, date(2026, 3, 1), date(2026, 3, 5).Add(10 * time.Hour)},
			{b.namespace, date(2026, 3, 2), date(2026, 3, 5).Add(9 * time.Hour)},
			{b.repository, date(2026, 3, 3), date(2026, 3, 5).Add(10 * time.Hour)},
		} {
			flush := flushOf(f.scope, 0, 1, 1)
			flush.BatchID = batchAt(f.frozen, random)
			b.apply(flush)
			b.exec(`UPDATE storage_ledger SET applied_at = $1 WHERE batch_id = $2`, f.entered, flush.BatchID)
		}
		b.exec(`INSERT INTO usage_progress (id, since, hour, after_namespace_id, sealed, fence) VALUES (1, $1, $1, $2, $1, '{}')`,
			date(2026, 3, 5).Add(10*time.Hour), uuid.Nil)
		dropped, kept, err := DropPartitions(t.Context(), b.db, date(2026, 4, 1))
		require.NoError(t, err)
		require.Equal(t, []int{2, 1}, []int{dropped, kept})
		require.Equal(t, map[time.Time]bool{date(2026, 3, 1): true}, b.partitionDays())

		b.exec(`UPDATE usage_progress SET hour = hour + interval '1 hour'`)
		dropped, kept, err = DropPartitions(t.Context(), b.db, date(2026, 4, 1))
		require.NoError(t, err)
		require.Equal(t, []int{1, 0}, []int{dropped, kept})
	})
	t.Run("gives up rather than make everybody wait", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		require.NoError(t, EnsurePartitions(t.Context(), b.db, date(2026, 3, 1), date(2026, 3, 1)))
		b.hold(func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `SELECT FROM storage_ledger`)
			return err
		})
		n, _, err := DropPartitions(t.Context(), b.db, date(2026, 4, 1))
		require.True(t, pgdb.IsLockTimeout(err), "%v", err)
		require.ErrorContains(t, err, "storage_ledger_20260301")
		require.Zero(t, n)
	})
}

func TestPartitionsWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	clock := quartz.NewMock(t)
	clock.Set(date(2026, 3, 1).Add(time.Hour)).MustWait(t.Context())
	worker := NewPartitionsWorker(PartitionsConfig{Retention: 48 * time.Hour}, b.db, slog.New(slog.DiscardHandler), clock)
	require.NoError(t, EnsurePartitions(t.Context(), b.db, date(2026, 2, 25), date(2026, 2, 27)))

	require.NoError(t, worker.Work(t.Context(), &river.Job[PartitionsArgs]{}))
	want := map[time.Time]bool{}
	for d := date(2026, 2, 27); !d.After(date(2026, 3, 4)); d = d.AddDate(0, 0, 1) {
		want[d] = d != date(2026, 2, 28) // nobody has ever made this one
	}
	delete(want, date(2026, 2, 28))
	require.Equal(t, want, b.partitionDays())
	require.NoError(t, worker.Work(t.Context(), &river.Job[PartitionsArgs]{}), "again")
	require.Equal(t, want, b.partitionDays())
}

func TestPartitionsConfig(t *testing.T) {
	t.Parallel()
	require.NoError(t, PartitionsConfig{Retention: 48 * time.Hour}.Validate())
	require.ErrorContains(t, PartitionsConfig{Retention: 47 * time.Hour}.Validate(), "retention")
}
