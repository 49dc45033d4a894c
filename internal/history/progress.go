package history

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/pgdb"
)

// settle is how long after its end an hour is sealed. A clock of the database that
// steps back by less than that brings no entry into a sealed hour.
const settle = time.Minute

// progress is the row of usage_progress.
type progress struct {
	// since, hour, sealed: history has the hours from since to hour, and those from
	// hour to sealed are rolled up next.
	since, hour, sealed time.Time
	// after is the last namespace of hour that is done.
	after uuid.UUID
	// clock is the database's.
	clock time.Time
}

// begin makes the row, once: history starts with the next whole hour.
func begin(ctx context.Context, db pgdb.DB, now time.Time) error {
	_, err := db.Exec(ctx, `
		INSERT INTO usage_progress (id, since, after_namespace_id, hour, fence, sealed)
		SELECT 1, next, $2, next, '{}', next
		FROM (SELECT date_trunc('hour', least(clock_timestamp(), $1), 'UTC') + interval '1 hour') AS h (next)
		ON CONFLICT DO NOTHING`, now, uuid.Nil)
	return err
}

// lockProgress is the first statement of each step: whoever has the row works
// alone, and sees all that the one before has done.
func lockProgress(ctx context.Context, tx pgx.Tx) (p progress, err error) {
	err = tx.QueryRow(ctx, `SELECT since, hour, sealed, after_namespace_id, clock_timestamp() FROM usage_progress FOR UPDATE`).
		Scan(&p.since, &p.hour, &p.sealed, &p.after, &p.clock)
	p.since, p.hour, p.sealed = p.since.UTC(), p.hour.UTC(), p.sealed.UTC()
	return p, err
}

// readProgress is false if history has not begun.
func readProgress(ctx context.Context, tx pgx.Tx) (since, hour time.Time, begun bool, err error) {
	err = tx.QueryRow(ctx, `SELECT since, hour FROM usage_progress`).Scan(&since, &hour)
	if errors.Is(err, pgx.ErrNoRows) {
		return time.Time{}, time.Time{}, false, nil
	}
	if err != nil {
		return time.Time{}, time.Time{}, false, fmt.Errorf("progress of the history: %w", err)
	}
	return since.UTC(), hour.UTC(), true, nil
}

// writers are the transactions l that write, or have written, entries: an INSERT
// locks its table before it reads the clock, and until its transaction is over and
// visible. Nobody waits for anybody by this, and whatever else runs in the server,
// however long, does not matter.
const writers = `l.locktype = 'relation' AND l.granted AND l.mode = 'RowExclusiveLock'
	AND l.relation IN ('storage_ledger'::regclass, 'usage_closings'::regclass)
	AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())`

// seal moves sealed to the last hour that is over by both clocks: one that jumped
// ahead closes nothing. The writers are read in a new statement, after the clock:
// who wrote an entry of a sealed hour is among them or over.
func seal(ctx context.Context, tx pgx.Tx, p progress, now time.Time) (moved bool, err error) {
	if p.clock.Before(now) {
		now = p.clock
	}
	sealed := now.UTC().Add(-settle).Truncate(time.Hour)
	if !sealed.After(p.sealed) {
		return false, nil
	}
	_, err = tx.Exec(ctx, `
		UPDATE usage_progress
		SET sealed = $1, fence = ARRAY(SELECT DISTINCT l.virtualtransaction FROM pg_locks l WHERE `+writers+`)`, sealed)
	return true, err
}

// unsettled are the processes of the server whose transactions may still bring
// entries into sealed hours; 0 is a prepared transaction, whose number has changed.
func unsettled(ctx context.Context, tx pgx.Tx) (pids []int32, err error) {
	err = tx.QueryRow(ctx, `
		SELECT ARRAY(
			SELECT DISTINCT coalesce(l.pid, 0) FROM pg_locks l, usage_progress p
			WHERE (l.virtualtransaction = ANY (p.fence) OR l.pid IS NULL) AND `+writers+`)`).Scan(&pids)
	return pids, err
}
