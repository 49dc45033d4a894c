package pgdb

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// releaseTimeout bounds the ROLLBACK that gives a lock back. A connection that
// does not answer in time is closed, and the server then releases the lock.
const releaseTimeout = 5 * time.Second

// Hold is an advisory lock that lives as long as its connection. The lock is
// transaction-level, so it also works through a pooler in transaction mode,
// and its transaction is READ COMMITTED and idle, so it pins no snapshot and
// hinders no vacuum. It takes one connection of the pool until it is released.
// It is for one goroutine at a time.
type Hold struct {
	conn *pgxpool.Conn
}

// TryHold takes the lock (class, key) of the two-int key space without waiting
// for it. It returns false if somebody else has it. It does wait for a
// connection of the pool, as long as ctx allows.
func TryHold(ctx context.Context, pool *pgxpool.Pool, class, key int32) (*Hold, bool, error) {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return nil, false, fmt.Errorf("lock (%d, %d): %w", class, key, err)
	}
	h := &Hold{conn: conn}
	held, err := h.lock(ctx, class, key)
	if err != nil || !held {
		h.Release(ctx)
	}
	if err != nil {
		return nil, false, fmt.Errorf("lock (%d, %d): %w", class, key, err)
	}
	if !held {
		return nil, false, nil
	}
	return h, true, nil
}

// lock opens the transaction. It may idle: a timeout that the server or the
// role sets for idle transactions would give the lock to somebody else.
func (h *Hold) lock(ctx context.Context, class, key int32) (held bool, err error) {
	if _, err := h.conn.Exec(ctx, `BEGIN ISOLATION LEVEL READ COMMITTED READ ONLY; SET LOCAL idle_in_transaction_session_timeout = 0`); err != nil {
		return false, err
	}
	err = h.conn.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1, $2)`, class, key).Scan(&held)
	return held, err
}

// Alive returns an error unless the connection, and so the lock, still lives.
func (h *Hold) Alive(ctx context.Context) error {
	if h.conn.Conn().PgConn().TxStatus() != 'T' {
		return fmt.Errorf("lock lost: its transaction is over")
	}
	if _, err := h.conn.Exec(ctx, `SELECT 1`); err != nil {
		return fmt.Errorf("lock lost: %w", err)
	}
	return nil
}

// Release gives the lock back, also when ctx is cancelled. A second call does
// nothing.
func (h *Hold) Release(ctx context.Context) {
	if h.conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	// If this fails, the pool closes a connection that is inside a transaction.
	_, _ = h.conn.Exec(ctx, `ROLLBACK`)
	h.conn.Release()
	h.conn = nil
}

var _ interface {
	DB
	Beginner
} = (*pgxpool.Pool)(nil)

var _ DB = pgx.Tx(nil)
