package ledger

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/pgdb"
)

const (
	// partitionPrefix is followed by the day in UTC, as partitionDay shows it.
	partitionPrefix = "storage_ledger_"
	partitionDay    = "20060102"
	// A statement that waits for a lock on the ledger makes later ones wait
	// behind it, so it does not wait long; who called tries again.
	partitionLockTimeout = time.Second
)

// EnsurePartitions makes the ledger's missing daily partitions, from the day of
// from to the day of to, both included, in UTC. Any number of processes may
// call it at once; nobody who writes the ledger waits for it.
func EnsurePartitions(ctx context.Context, db DB, from, to time.Time) error {
	var days []time.Time
	for d := dayOf(from); !d.After(to); d = d.AddDate(0, 0, 1) {
		days = append(days, d)
	}
	missing, err := missingPartitions(ctx, db, days)
	if err != nil || len(missing) == 0 {
		return err
	}
	return pgdb.InTx(ctx, db, func(tx pgx.Tx) error {
		return makePartitions(ctx, tx, days)
	})
}

// makePartitions holds the lock that ATTACH takes anyway, which excludes only
// its like, and looks again. ATTACH, and not CREATE TABLE PARTITION OF, whose
// lock on the ledger excludes everybody.
func makePartitions(ctx context.Context, tx pgx.Tx, days []time.Time) error {
	if err := pgdb.SetLockTimeout(ctx, tx, partitionLockTimeout); err != nil {
		return err
	}
	if _, err := tx.Exec(ctx, `LOCK TABLE storage_ledger IN SHARE UPDATE EXCLUSIVE MODE`); err != nil {
		return fmt.Errorf("lock the ledger for new partitions: %w", err)
	}
	missing, err := missingPartitions(ctx, tx, days)
	if err != nil {
		return err
	}
	for _, day := range missing {
		name, lower, upper := partitionName(day), firstBatch(day), firstBatch(day.AddDate(0, 0, 1))
		_, err := tx.Exec(ctx, fmt.Sprintf(`
			CREATE TABLE partitions.%[1]s (LIKE storage_ledger INCLUDING ALL);
			ALTER TABLE storage_ledger ATTACH PARTITION partitions.%[1]s FOR VALUES FROM ('%[2]s') TO ('%[3]s')`,
			name, lower, upper))
		if err != nil {
			return fmt.Errorf("make ledger partition %s: %w", name, err)
		}
	}
	return nil
}

// missingPartitions are those of the days that have no partition.
func missingPartitions(ctx context.Context, db pgdb.DB, days []time.Time) ([]time.Time, error) {
	existing, err := partitions(ctx, db)
	if err != nil {
		return nil, err
	}
	var missing []time.Time
	for _, day := range days {
		if !existing[day] {
			missing = append(missing, day)
		}
	}
	return missing, nil
}

// partitions are the days that have a partition.
func partitions(ctx context.Context, db pgdb.DB) (map[time.Time]bool, error) {
	rows, err := db.Query(ctx, `
		SELECT c.relname FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
		WHERE i.inhparent = 'storage_ledger'::regclass`)
	if err != nil {
		return nil, fmt.Errorf("list ledger partitions: %w", err)
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("list ledger partitions: %w", err)
	}
	days := map[time.Time]bool{}
	for _, name := range names {
		// A partition of another name was made by hand and is left alone.
		if day, err := time.Parse(partitionDay, strings.TrimPrefix(name, partitionPrefix)); err == nil {
			days[day] = true
		}
	}
	return days, nil
}

// Begins is the start of the oldest partition: what was applied before is not in
// the ledger any more, if it ever was. The zero time when there is no partition.
func Begins(ctx context.Context, db pgdb.DB) (time.Time, error) {
	days, err := partitions(ctx, db)
	if err != nil || len(days) == 0 {
		return time.Time{}, err
	}
	return slices.MinFunc(slices.Collect(maps.Keys(days)), time.Time.Compare), nil
}

// DropPartitions drops the partitions whose every batch is older than the given
// time, but for those with entries that the history of usage still needs, and
// returns how many it dropped and how many it kept. Each is dropped by itself; for a
// moment that excludes everybody from the ledger, so it gives up rather than wait
// long.
func DropPartitions(ctx context.Context, db DB, olderThan time.Time) (dropped, kept int, err error) {
	days, err := partitions(ctx, db)
	if err != nil {
		return 0, 0, err
	}
	for _, day := range slices.SortedFunc(maps.Keys(days), time.Time.Compare) {
		if day.AddDate(0, 0, 1).After(olderThan) {
			continue
		}
		needed, err := dropPartition(ctx, db, day)
		switch {
		case err != nil:
			return dropped, kept, fmt.Errorf("drop ledger partition %s: %w", partitionName(day), err)
		case needed:
			kept++
		default:
			dropped++
		}
	}
	return dropped, kept, nil
}

// neededSQL asks whether a partition has entries of hours that are not rolled up.
// No new ones come to a partition this old: its batches are not applied any more.
const neededSQL = `
SELECT EXISTS (
	SELECT FROM storage_ledger l, usage_progress p
	WHERE l.batch_id >= $1 AND l.batch_id < $2 AND date_trunc('hour', l.applied_at AT TIME ZONE 'UTC') >= p.hour AT TIME ZONE 'UTC'
	  AND l.scope_kind = 1 AND l.outcome IN (1, 4))`

// dropPartition reports whether the partition is still needed, and was left.
func dropPartition(ctx context.Context, db DB, day time.Time) (needed bool, err error) {
	err = db.QueryRow(ctx, neededSQL, firstBatch(day), firstBatch(day.AddDate(0, 0, 1))).Scan(&needed)
	if err != nil || needed {
		return needed, err
	}
	return false, pgdb.InTx(ctx, db, func(tx pgx.Tx) error {
		if err := pgdb.SetLockTimeout(ctx, tx, partitionLockTimeout); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `DROP TABLE IF EXISTS partitions.`+partitionName(day))
		return err
	})
}

func partitionName(day time.Time) string { return partitionPrefix + day.Format(partitionDay) }

func dayOf(t time.Time) time.Time { return t.UTC().Truncate(24 * time.Hour) }

// firstBatch is less than every UUIDv7 made from that time on, and greater than
// every one made before: a UUID is ordered by its bytes, a UUIDv7 begins with
// its milliseconds since 1970, and the rest of this one is zero.
func firstBatch(t time.Time) uuid.UUID {
	var id uuid.UUID
	ms := t.UnixMilli()
	for i := 5; i >= 0; i-- {
		id[i] = byte(ms)
		ms >>= 8
	}
	return id
}
