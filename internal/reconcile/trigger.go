package reconcile

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/stowage-dev/stowage/internal/pgdb"
)

// outstandingFactor times the limit of passes is how many jobs wait at most:
// enough to keep the slots busy until the next trigger, and few enough that a
// request does not stand in a long queue.
const outstandingFactor = 10

// searchSize is how many namespaces a trigger looks through for those without a
// statistics row: some tenths of a second. The next trigger goes on behind them. To look
// through all at once would take a trigger's whole time where there are millions.
const searchSize = 100_000

// triggerTimeout is much more than a trigger takes.
const triggerTimeout = 30 * time.Second

// TriggerArgs asks for jobs for the namespaces that are due.
//
//   - Unique while it works, by a lock in PostgreSQL: a second trigger finds it
//     taken and does nothing. Not unique in River, where a trigger that was
//     killed would block the next ones until it is rescued.
//   - Attempts: one; the next trigger is the retry.
//   - Timeout: triggerTimeout.
//   - A kill leaves nothing: jobs are inserted in one transaction.
type TriggerArgs struct{}

// Kind names the job.
func (TriggerArgs) Kind() string { return "reconcile_trigger" }

// InsertOpts are described at TriggerArgs.
func (TriggerArgs) InsertOpts() river.InsertOpts { return river.InsertOpts{MaxAttempts: 1} }

// Trigger makes reconciliation jobs.
type Trigger struct {
	river.WorkerDefaults[TriggerArgs]
	Deps
	cfg          Config
	page, search int

	mu sync.Mutex
	// searched is the namespace up to which the last trigger of this process has looked
	// for those without a statistics row.
	searched uuid.UUID
}

// NewTrigger makes the worker of TriggerArgs.
func NewTrigger(deps Deps, cfg Config) *Trigger {
	return &Trigger{Deps: deps, cfg: cfg, page: pageSize, search: searchSize}
}

// Timeout bounds a trigger.
func (w *Trigger) Timeout(*river.Job[TriggerArgs]) time.Duration { return triggerTimeout }

// Work makes the jobs.
func (w *Trigger) Work(ctx context.Context, _ *river.Job[TriggerArgs]) error {
	made, err := w.Run(ctx, river.ClientFromContext[pgx.Tx](ctx))
	if err != nil {
		return fmt.Errorf("trigger reconciliations: %w", err)
	}
	if made > 0 {
		w.Log.InfoContext(ctx, "reconciliations triggered", "jobs", made)
	}
	return nil
}

// Run makes a job for each namespace that is due, until ten times the limit of
// passes are outstanding, and returns how many: first for those requested, then
// for the stale ones, then for those without a statistics row, of which it looks
// through a part of the namespaces.
//
// A namespace that has a job already is passed over, and one whose next pass waits
// with a held correction. If that job runs, it may
// have its snapshot already, and a request made since stays open: a later
// trigger finds it.
func (w *Trigger) Run(ctx context.Context, client *river.Client[pgx.Tx]) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	made, searched := 0, w.searched
	err := pgdb.InTx(ctx, w.Pool, func(tx pgx.Tx) error {
		alone, err := lockTrigger(ctx, tx)
		if err != nil || !alone {
			return err
		}
		due, last, err := w.due(ctx, tx)
		if err != nil {
			return err
		}
		searched = last
		if len(due) > 0 {
			made, err = insert(ctx, client, tx, due)
		}
		return err
	})
	if err != nil {
		return 0, err
	}
	w.searched = searched
	return made, nil
}

// lockTrigger reports whether no other trigger works: two would each fill up
// what the other does not see yet.
func lockTrigger(ctx context.Context, tx pgx.Tx) (alone bool, err error) {
	err = tx.QueryRow(ctx, `SELECT pg_try_advisory_xact_lock($1, 0)`, classTrigger).Scan(&alone)
	return alone, err
}

// due are the namespaces to make jobs for, and up to which it has looked for those
// without a statistics row.
func (w *Trigger) due(ctx context.Context, tx pgx.Tx) (due []uuid.UUID, searched uuid.UUID, err error) {
	seen, active, err := outstanding(ctx, tx)
	if err != nil {
		return nil, uuid.Nil, err
	}
	held, err := waiting(ctx, tx)
	if err != nil {
		return nil, uuid.Nil, err
	}
	for _, namespace := range held {
		seen[namespace] = true
	}
	places := outstandingFactor*w.cfg.MaxInFlight - active
	for _, page := range []pager{requested(tx), stale(tx, w.cfg.Staleness)} {
		picked, err := pick(ctx, page, w.page, places-len(due), seen)
		if err != nil {
			return nil, uuid.Nil, err
		}
		due = append(due, picked...)
	}
	if len(due) >= places {
		return due, w.searched, nil
	}
	found, searched, err := missing(ctx, tx, w.searched, w.search)
	for _, namespace := range found {
		if seen[namespace] {
			continue
		}
		if due = append(due, namespace); len(due) == places {
			return due, namespace, nil
		}
	}
	return due, searched, err
}

// outstanding are the namespaces that have a job, and how many of those jobs
// take one of the places. A job in back-off takes none: some namespaces that
// can never be reconciled would otherwise keep out all others.
func outstanding(ctx context.Context, tx pgx.Tx) (seen map[uuid.UUID]bool, active int, err error) {
	rows, err := tx.Query(ctx, `
		SELECT (args ->> 'namespace_id')::uuid, state <> 'retryable'
		FROM river.river_job
		WHERE state IN ('available', 'pending', 'running', 'scheduled', 'retryable')
		  AND queue = $1 AND kind = $2`, QueueNamespaces, NamespaceArgs{}.Kind())
	if err != nil {
		return nil, 0, fmt.Errorf("outstanding jobs: %w", err)
	}
	seen = map[uuid.UUID]bool{}
	var namespace uuid.UUID
	var takesPlace bool
	_, err = pgx.ForEachRow(rows, []any{&namespace, &takesPlace}, func() error {
		seen[namespace] = true
		if takesPlace {
			active++
		}
		return nil
	})
	if err != nil {
		return nil, 0, fmt.Errorf("outstanding jobs: %w", err)
	}
	return seen, active, nil
}

func insert(ctx context.Context, client *river.Client[pgx.Tx], tx pgx.Tx, namespaces []uuid.UUID) (int, error) {
	jobs := make([]river.InsertManyParams, len(namespaces))
	for i, namespace := range namespaces {
		jobs[i].Args = NamespaceArgs{NamespaceID: namespace}
	}
	return client.InsertManyFastTx(ctx, tx, jobs)
}
