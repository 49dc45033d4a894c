package history

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/coder/quartz"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

const (
	// stepSize is how many namespaces one transaction rolls up. Each may have as
	// many entries as an hour has ticks.
	stepSize = 500
	// A run that has much to do ends after runTime, in order, and the next one goes
	// on. runTimeout is when River cancels one that hangs.
	runTime    = 5 * time.Minute
	runTimeout = 2 * runTime
	// logEvery is the pause between two lines of progress.
	logEvery = 10 * time.Second
	// stuckAfter is how long after its end an hour that is still open is reported.
	stuckAfter = 15 * time.Minute
)

// Config is what history keeps, and how it judges.
type Config struct {
	// Retention is how long closed hours are kept; 0 keeps them forever.
	Retention time.Duration
	// Late is how long after it was frozen a flush may be applied in a later hour
	// and still belong to ordinary traffic: the time that a drain may take.
	Late time.Duration
}

// Validate returns what is wrong, with the name of its field.
func (c Config) Validate() error {
	if c.Retention != 0 && c.Retention < 24*time.Hour {
		return fmt.Errorf("retention: %s must be at least 24h, or 0 to keep history forever", c.Retention)
	}
	if c.Late <= 0 {
		return fmt.Errorf("late: %s must be positive", c.Late)
	}
	return nil
}

// RollupArgs is the job, of the process that leads, that rolls up what the ledger
// has of the hours that are over, and forgets what is older than the retention.
//
// Not unique in River: the job queue lets one run at a time, and two of them would
// wait for each other's steps. One attempt: the next minute's job is the retry.
// Ends by itself after runTime, cancelled after runTimeout. A kill leaves whole
// steps, each a transaction with the progress that it made.
type RollupArgs struct{}

// Kind names the job in River.
func (RollupArgs) Kind() string { return "history_rollup" }

// InsertOpts are the options described above.
func (RollupArgs) InsertOpts() river.InsertOpts { return river.InsertOpts{MaxAttempts: 1} }

// Deps is what the roll-up works with.
type Deps struct {
	DB      DB
	Metrics *metrics.Metrics
	Log     *slog.Logger
	Clock   quartz.Clock
}

// RollupWorker rolls up.
type RollupWorker struct {
	river.WorkerDefaults[RollupArgs]
	Deps
	cfg  Config
	size int
}

// NewRollupWorker makes the worker of RollupArgs.
func NewRollupWorker(cfg Config, deps Deps) *RollupWorker {
	return &RollupWorker{Deps: deps, cfg: cfg, size: stepSize}
}

// Timeout is when River cancels the job.
func (w *RollupWorker) Timeout(*river.Job[RollupArgs]) time.Duration { return runTimeout }

// Work is one run.
func (w *RollupWorker) Work(ctx context.Context, _ *river.Job[RollupArgs]) error {
	if err := w.Run(ctx); err != nil {
		return fmt.Errorf("history: %w", err)
	}
	return nil
}

// run is one run: what it has done, for the log.
type run struct {
	*RollupWorker
	progress progress
	closed   int
	rows     int
	entries  int64
	reported time.Time
}

// Run does all that can be done now, for as long as runTime. To seal hours and to
// roll them up it takes two runs when other transactions are open meanwhile.
func (w *RollupWorker) Run(ctx context.Context) error {
	start := w.Clock.Now()
	if err := begin(ctx, w.DB, start); err != nil {
		return fmt.Errorf("begin: %w", err)
	}
	r := &run{RollupWorker: w, reported: start}
	for _, step := range []func(context.Context, pgx.Tx) (bool, error){r.step, r.forget} {
		for more := true; more && w.Clock.Since(start) < runTime; {
			var err error
			if more, err = r.commit(ctx, step); err != nil {
				return err
			}
			r.report(ctx)
		}
	}
	w.Metrics.SetHistoryClosed(r.progress.hour)
	if r.closed > 0 {
		w.Log.InfoContext(ctx, "history: hours closed", "hours", r.closed, "until", r.progress.hour, "rows", r.rows, "entries", r.entries)
	}
	return nil
}

// commit runs one step. Its first statement locks the progress.
func (r *run) commit(ctx context.Context, step func(context.Context, pgx.Tx) (bool, error)) (more bool, err error) {
	err = pgdb.InTx(ctx, r.DB, func(tx pgx.Tx) error {
		if r.progress, err = lockProgress(ctx, tx); err != nil {
			return fmt.Errorf("lock the progress: %w", err)
		}
		if more, err = step(ctx, tx); err != nil {
			return err
		}
		return failpoint.Hit(ctx, failpoint.HistoryWritten)
	})
	if err != nil {
		return false, err
	}
	return more, failpoint.Hit(ctx, failpoint.HistoryCommitted)
}

// step seals, when all that is sealed is rolled up, or else rolls up.
func (r *run) step(ctx context.Context, tx pgx.Tx) (more bool, err error) {
	p := r.progress
	if !p.hour.Before(p.sealed) {
		return seal(ctx, tx, p, r.Clock.Now())
	}
	writing, err := unsettled(ctx, tx)
	if err != nil || len(writing) > 0 {
		r.reportWriting(ctx, writing)
		return false, err
	}
	f, err := fold(ctx, tx, p, r.size, r.cfg.Late)
	if err != nil {
		return false, fmt.Errorf("hour %s: %w", p.hour.Format(time.RFC3339), err)
	}
	r.rows += f.rows
	r.entries += f.entries
	if f.closed {
		r.closed++
		r.progress.hour = p.hour.Add(time.Hour)
	}
	r.Metrics.HistoryRows.Add(float64(f.rows))
	return true, nil
}

// report logs how far a long run is.
func (r *run) report(ctx context.Context) {
	if r.Clock.Since(r.reported) < logEvery {
		return
	}
	r.reported = r.Clock.Now()
	r.Log.InfoContext(ctx, "history: rolling up", "until", r.progress.hour, "hours_left", int(r.progress.sealed.Sub(r.progress.hour).Hours()),
		"rows", r.rows, "entries", r.entries, "kept_since", r.progress.since)
}

func (r *run) reportWriting(ctx context.Context, pids []int32) {
	if late := r.progress.clock.Sub(r.progress.sealed); late > stuckAfter {
		r.Log.WarnContext(ctx, "history: hours stay open while transactions last that were writing the ledger when they ended",
			"open_since", r.progress.hour, "late", late, "pids", pids)
	}
}
