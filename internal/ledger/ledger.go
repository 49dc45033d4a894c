// Package ledger is the only code that changes counters: it applies flushes to
// them and writes the results of reconciliations over them, and records both
// in storage_ledger. README.md beside this file says what that guarantees.
package ledger

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/pgdb"
)

// The order in which every transaction of this package locks: repositories
// before statistics, each by id. FOR NO KEY UPDATE, because FOR UPDATE would
// wait for, and deadlock with, publishers, whose foreign keys hold rows FOR KEY
// SHARE. A lock is a statement of its own: only a later statement has a
// snapshot that is sure to contain what the lock waited for.
const (
	lockRepositories = `SELECT FROM repositories WHERE id = ANY ($1) ORDER BY id FOR NO KEY UPDATE`
	lockNamespaces   = `SELECT FROM namespace_statistics WHERE namespace_id = ANY ($1) ORDER BY namespace_id FOR NO KEY UPDATE`
)

// ids are UUIDs that pgx sends as they are. Of each uuid.UUID it makes a text first, by
// way of an error, which was most of the time that a drain itself took.
type ids = [][16]byte

// lock locks the rows with the given ids and returns how many there are.
func lock(ctx context.Context, tx pgx.Tx, statement string, ids ids) (int, error) {
	if len(ids) == 0 {
		return 0, nil
	}
	tag, err := tx.Exec(ctx, statement, ids)
	return int(tag.RowsAffected()), err
}

// inLedger runs fn in a transaction. If the ledger lacks the partition of a
// batch, it makes the partitions of all of them and runs fn once more: the job
// that makes them ahead may not have run, and a flush may be older than the
// database.
func inLedger(ctx context.Context, db DB, batches ids, fn func(tx pgx.Tx) error) error {
	err := pgdb.InTx(ctx, db, fn)
	if !pgdb.IsNoPartition(err) {
		return err
	}
	for _, batch := range batches {
		day := BatchTime(batch)
		if err := EnsurePartitions(ctx, db, day, day); err != nil {
			return err
		}
	}
	return pgdb.InTx(ctx, db, fn)
}

// DB is what this package needs of a pool.
type DB interface {
	pgdb.DB
	pgdb.Beginner
}

// BatchTime is when a batch id (UUIDv7) was made, to the millisecond, in UTC.
func BatchTime(batch uuid.UUID) time.Time {
	var ms int64
	for _, b := range batch[:6] {
		ms = ms<<8 | int64(b)
	}
	return time.UnixMilli(ms).UTC()
}
