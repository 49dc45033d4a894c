package backfill

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/coder/quartz"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/paced"
)

// Args asks for some seconds of work on all backfills that run.
//
//   - One at a time in the cluster, as all jobs of the leader; and two that meet
//     take turns by the row of each backfill.
//   - Attempts: one; the next by the schedule goes on.
//   - Timeout: two minutes; it ends by itself after some seconds.
//   - A kill undoes the batch under way.
type Args struct{}

// Kind names the job.
func (Args) Kind() string { return "backfill" }

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

// Worker works on backfills.
type Worker struct {
	river.WorkerDefaults[Args]
	deps Deps
	all  []Backfill
}

// NewWorker makes the worker of Args for the given backfills.
func NewWorker(deps Deps, all []Backfill) *Worker {
	return &Worker{deps: deps, all: all}
}

// Timeout is described at Args.
func (w *Worker) Timeout(*river.Job[Args]) time.Duration { return paced.Timeout }

// Work is Run.
func (w *Worker) Work(ctx context.Context, _ *river.Job[Args]) error { return w.Run(ctx) }

// Run begins the backfills whose time has come and works on those that run, for some
// seconds or until none does.
func (w *Worker) Run(ctx context.Context) error {
	var errs []error
	var steps []paced.Step
	for _, b := range w.all {
		if b.Every > 0 {
			_, err := begin(ctx, w.deps.Pool, b, b.Every)
			errs = append(errs, err)
		}
		steps = append(steps, func(ctx context.Context) (bool, error) { return w.step(ctx, b) })
	}
	return errors.Join(append(errs, paced.Run(ctx, w.deps.Clock, steps))...)
}

// step does one batch.
func (w *Worker) step(ctx context.Context, b Backfill) (goesOn bool, err error) {
	var page Page
	var progress Progress
	var runs bool
	err = w.deps.DB.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		var after string
		if after, runs, err = lock(ctx, tx.Pgx(), b.Name); err != nil || !runs {
			return err
		}
		if page, err = b.Batch(ctx, tx, after, b.Limit); err != nil {
			return err
		}
		progress, err = keep(ctx, tx.Pgx(), b.Name, page)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("backfill %s: %w", b.Name, err)
	}
	if !runs {
		return false, nil
	}
	w.report(ctx, b, page, progress)
	return !page.Done, nil
}

func (w *Worker) report(ctx context.Context, b Backfill, page Page, p Progress) {
	if page.Committed != nil {
		page.Committed()
	}
	w.deps.Metrics.BackfillRows.WithLabelValues(b.Name, metrics.RowsSeen).Add(float64(page.Seen))
	w.deps.Metrics.BackfillRows.WithLabelValues(b.Name, metrics.RowsChanged).Add(float64(page.Changed))
	log := w.deps.Log.With("backfill", b.Name, "rows_seen", p.RowsSeen, "rows_changed", p.RowsChanged, "rows_expected", p.RowsExpected)
	if page.Done {
		log.InfoContext(ctx, "backfill finished", "duration", p.UpdatedAt.Sub(p.StartedAt))
	} else {
		log.DebugContext(ctx, "backfill goes on")
	}
}

// lock reads where a running backfill stands and keeps everybody else from it; runs
// is false when it does not run, or another is at it.
func lock(ctx context.Context, tx pgx.Tx, name string) (after string, runs bool, err error) {
	if err := paced.SetTimeouts(ctx, tx); err != nil {
		return "", false, err
	}
	err = tx.QueryRow(ctx, `SELECT last_key FROM backfills WHERE name = $1 AND state = $2 FOR UPDATE SKIP LOCKED`, name, Running).Scan(&after)
	if errors.Is(err, pgx.ErrNoRows) {
		return "", false, nil
	}
	return after, err == nil, err
}

func keep(ctx context.Context, tx pgx.Tx, name string, page Page) (Progress, error) {
	state := Running
	if page.Done {
		state = Finished
	}
	p := Progress{Name: name}
	err := tx.QueryRow(ctx, `
		UPDATE backfills
		SET last_key = $2, rows_seen = rows_seen + $3, rows_changed = rows_changed + $4, state = $5,
			updated_at = clock_timestamp(), finished_at = CASE WHEN $6 THEN clock_timestamp() END
		WHERE name = $1
		RETURNING `+progressColumns, name, page.Last, page.Seen, page.Changed, state, page.Done).
		Scan(p.fields()...)
	return p, err
}
