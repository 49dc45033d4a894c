package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
)

// backlogTimeout bounds the count of the backlog: when every row is stale it
// reads the whole table.
const backlogTimeout = 20 * time.Second

// BacklogArgs asks for a count of the namespaces that are due.
//
//   - Not unique in River: it is inserted and worked by the process that leads,
//     one at a time, and a process that leads no longer withdraws the gauges. So
//     each has one writer.
//   - Attempts: one; the next count is the retry. After a failure the gauges
//     keep their values.
//   - Timeout: backlogTimeout, also as a statement timeout in the server.
//   - A kill leaves nothing.
type BacklogArgs struct{}

// Kind names the job.
func (BacklogArgs) Kind() string { return "reconcile_backlog" }

// InsertOpts are described at BacklogArgs.
func (BacklogArgs) InsertOpts() river.InsertOpts { return river.InsertOpts{MaxAttempts: 1} }

// Backlog exports the gauges of the backlog and of what is held.
type Backlog struct {
	river.WorkerDefaults[BacklogArgs]
	Deps
	cfg Config
}

// NewBacklog makes the worker of BacklogArgs.
func NewBacklog(deps Deps, cfg Config) *Backlog {
	return &Backlog{Deps: deps, cfg: cfg}
}

// Timeout is somewhat more than that of the statement.
func (w *Backlog) Timeout(*river.Job[BacklogArgs]) time.Duration {
	return backlogTimeout + 5*time.Second
}

// Work counts and exports.
func (w *Backlog) Work(ctx context.Context, _ *river.Job[BacklogArgs]) error {
	due, held, err := w.Count(ctx)
	if err != nil {
		return err
	}
	w.Metrics.SetBacklog(due)
	w.Metrics.SetHeld(held)
	return nil
}

// Each namespace counts once: the requested ones only if they are not stale,
// those without a row whether requested or not. One whose next pass waits with a
// held correction is not due.
const backlogSQL = `
WITH waiting AS (` + waitingSQL + `)
SELECT (SELECT count(*) FROM namespace_statistics WHERE last_reconciled_at < now() - $1::interval
        AND namespace_id NOT IN (SELECT namespace_id FROM waiting))
     + (SELECT count(*) FROM reconciliation_requests JOIN namespace_statistics USING (namespace_id)
        WHERE last_reconciled_at >= now() - $1::interval
        AND namespace_id NOT IN (SELECT namespace_id FROM waiting))
     + (SELECT count(*) FROM namespaces n
        WHERE NOT EXISTS (SELECT FROM namespace_statistics s WHERE s.namespace_id = n.id)),
       (SELECT count(*) FROM held_corrections)`

// Count is how many namespaces are due for a reconciliation, exactly, and how many
// corrections are held.
func (w *Backlog) Count(ctx context.Context) (due, held int64, err error) {
	err = inBacklog(ctx, w.Pool, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, backlogSQL, w.cfg.Staleness).Scan(&due, &held)
	})
	if err != nil {
		return 0, 0, fmt.Errorf("count the backlog: %w", err)
	}
	return due, held, nil
}

// inBacklog runs fn in a transaction under the timeout, which the server
// enforces also when this process is gone.
func inBacklog(ctx context.Context, pool *pgxpool.Pool, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL statement_timeout = %d`, backlogTimeout.Milliseconds())); err != nil {
			return err
		}
		return fn(tx)
	})
}
