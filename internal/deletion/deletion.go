// Package deletion deletes repositories and namespaces with all that is in them, in
// small batches. README.md beside this file says what is not guaranteed.
package deletion

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/paced"
)

// batchSize is how many versions or blobs a transaction removes: it holds their
// locks, and those of what hangs on them, for a fraction of a second.
const batchSize = 1000

// Args asks for some seconds of work on all deletions that were asked for.
//
//   - One at a time in the cluster, as all jobs of the leader; and two that meet
//     take turns by the row of each request.
//   - Attempts: one; the next by the schedule goes on.
//   - Timeout: two minutes; it ends by itself after some seconds.
//   - A kill undoes the batch under way.
type Args struct{}

// Kind names the job.
func (Args) Kind() string { return "deletion" }

// InsertOpts are described at Args.
func (Args) InsertOpts() river.InsertOpts { return river.InsertOpts{MaxAttempts: 1} }

// Deps is what the job works with. All are required.
type Deps struct {
	Pool    *pgxpool.Pool
	DB      *entdb.Client
	Metrics *metrics.Upkeep
	Log     *slog.Logger
	Clock   quartz.Clock
}

// Worker works on deletions.
type Worker struct {
	river.WorkerDefaults[Args]
	deps Deps
	// grace is how long the content of deleted blobs is kept.
	grace time.Duration
	batch int
}

// NewWorker makes the worker of Args. grace is how long the content of a deleted
// namespace's blobs is kept.
func NewWorker(deps Deps, grace time.Duration) *Worker {
	return &Worker{deps: deps, grace: grace, batch: batchSize}
}

// Timeout is described at Args.
func (w *Worker) Timeout(*river.Job[Args]) time.Duration { return paced.Timeout }

// Work is Run.
func (w *Worker) Work(ctx context.Context, _ *river.Job[Args]) error { return w.Run(ctx) }

// request is a deletion that was asked for, and how far it is.
type request struct {
	scope, namespace uuid.UUID
	kind             accounting.ScopeKind
	versions, blobs  int64
}

// maxOpen bounds how many deletions one run takes in turn; the others wait.
const maxOpen = 10

// Run works on the deletions that were asked for, the oldest first, for some seconds
// or until they are done.
func (w *Worker) Run(ctx context.Context) error {
	open, err := w.open(ctx)
	if err != nil {
		return err
	}
	var steps []paced.Step
	for _, r := range open {
		w.deps.Log.InfoContext(ctx, "deletion under way", "namespace_id", r.namespace, "scope_kind", r.kind.String(), "scope_id", r.scope,
			"versions_deleted", r.versions, "blobs_deleted", r.blobs)
		steps = append(steps, func(ctx context.Context) (bool, error) { return w.step(ctx, r) })
	}
	return paced.Run(ctx, w.deps.Clock, steps)
}

func (w *Worker) open(ctx context.Context) ([]request, error) {
	rows, err := w.deps.Pool.Query(ctx, `
		SELECT d.scope_id, coalesce(r.namespace_id, d.scope_id), d.scope_kind, d.versions_deleted, d.blobs_deleted
		FROM deletion_requests d LEFT JOIN repositories r ON r.id = d.scope_id
		ORDER BY d.requested_at, d.scope_id LIMIT $1`, maxOpen)
	if err != nil {
		return nil, fmt.Errorf("open deletions: %w", err)
	}
	open, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r request, err error) {
		return r, row.Scan(&r.scope, &r.namespace, &r.kind, &r.versions, &r.blobs)
	})
	if err != nil {
		return nil, fmt.Errorf("open deletions: %w", err)
	}
	return open, nil
}

// step does one batch.
func (w *Worker) step(ctx context.Context, r request) (goesOn bool, err error) {
	var did done
	err = w.deps.DB.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		if goesOn, err = lock(ctx, tx.Pgx(), r.scope); err != nil || !goesOn {
			return err
		}
		if did, err = w.remove(ctx, tx, r); err != nil {
			return err
		}
		return settle(ctx, tx.Pgx(), r.scope, did)
	})
	if err != nil {
		return false, fmt.Errorf("delete %s %s: %w", r.kind, r.scope, err)
	}
	w.deps.Metrics.DeletedVersions.Add(float64(did.versions))
	w.deps.Metrics.CollectedBlobs.Add(float64(did.blobs))
	w.deps.Metrics.CollectedBytes.Add(float64(did.bytes))
	if did.everything {
		w.deps.Metrics.DeletedScopes.Inc()
		w.deps.Log.InfoContext(ctx, "deletion finished", "namespace_id", r.namespace, "scope_kind", r.kind.String(), "scope_id", r.scope)
	}
	return goesOn && !did.everything, nil
}

// lock keeps everybody else from the request; open is false when it is done, or
// another is at it.
func lock(ctx context.Context, tx pgx.Tx, scope uuid.UUID) (open bool, err error) {
	if err := paced.SetTimeouts(ctx, tx); err != nil {
		return false, err
	}
	err = tx.QueryRow(ctx, `SELECT true FROM deletion_requests WHERE scope_id = $1 FOR UPDATE SKIP LOCKED`, scope).Scan(&open)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	return open, err
}

// settle keeps how far the deletion is, or ends it.
func settle(ctx context.Context, tx pgx.Tx, scope uuid.UUID, did done) error {
	var err error
	if did.everything {
		_, err = tx.Exec(ctx, `DELETE FROM deletion_requests WHERE scope_id = $1`, scope)
	} else {
		_, err = tx.Exec(ctx, `
			UPDATE deletion_requests
			SET versions_deleted = versions_deleted + $2, blobs_deleted = blobs_deleted + $3, updated_at = clock_timestamp()
			WHERE scope_id = $1`, scope, did.versions, did.blobs)
	}
	return err
}
