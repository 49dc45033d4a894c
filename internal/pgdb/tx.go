package pgdb

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
)

// beginReadCommitted says the isolation level, because a database or a role
// may have another default, and every rule of the protocol that speaks of a
// new statement needs a new snapshot. It raises synchronous_commit to 'on'
// where it is lower [R9] and leaves remote_apply alone. A process that is
// stopped while it holds row locks would keep all others waiting for as long, so
// the server ends it. All is one message, so this costs the round trip that
// BEGIN costs.
const beginReadCommitted = `BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE;
SET LOCAL idle_in_transaction_session_timeout = '30s';
SELECT set_config('synchronous_commit', 'on', true)
WHERE current_setting('synchronous_commit') IN ('off', 'local', 'remote_write')`

// InTx runs fn in a READ COMMITTED transaction whose commit is durable, and
// commits if fn returns nil. After an error nothing is committed, with one
// exception: when the answer to COMMIT is lost, nobody knows.
func InTx(ctx context.Context, db Beginner, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, db, pgx.TxOptions{BeginQuery: beginReadCommitted}, fn)
}

// SetLockTimeout bounds how long each later statement of the transaction waits
// for a lock; a statement that waits longer fails (see IsLockTimeout).
func SetLockTimeout(ctx context.Context, tx pgx.Tx, d time.Duration) error {
	_, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', $1, true)`, fmt.Sprintf("%dms", d.Milliseconds()))
	return err
}
