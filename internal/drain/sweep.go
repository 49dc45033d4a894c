package drain

import (
	"context"
	"fmt"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

const sweepTimeout = 10 * time.Minute

// SweepArgs is the daily job, of the process that leads, that looks for buffers
// and flushes that stand in no set, which nothing here leaves behind, but a hand
// or a half-restored Redis may.
//
// Unique by kind until it is over: it reads every key, and once is enough.
// Three attempts. Cancelled after ten minutes. A kill leaves nothing; the
// rescuer or the next day's job begins anew.
type SweepArgs struct{}

// Kind names the job in River.
func (SweepArgs) Kind() string { return "buffer_sweep" }

// InsertOpts are the options described above.
func (SweepArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{
		Queue: Queue, MaxAttempts: 3,
		UniqueOpts: river.UniqueOpts{ByState: []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRunning,
			rivertype.JobStateRetryable, rivertype.JobStateScheduled,
		}},
	}
}

// SweepWorker sweeps the buffer.
type SweepWorker struct {
	river.WorkerDefaults[SweepArgs]
	Dependencies
}

// NewSweepWorker makes the worker of SweepArgs.
func NewSweepWorker(deps Dependencies) *SweepWorker { return &SweepWorker{Dependencies: deps} }

// Timeout is when River cancels the job.
func (w *SweepWorker) Timeout(*river.Job[SweepArgs]) time.Duration { return sweepTimeout }

// Work puts what it finds back into the sets; the next tick drains it.
func (w *SweepWorker) Work(ctx context.Context, _ *river.Job[SweepArgs]) error {
	found, err := w.Buffer.Sweep(ctx)
	if err != nil {
		return fmt.Errorf("sweep the buffer: %w", err)
	}
	if found > 0 {
		w.Log.WarnContext(ctx, "sweep found buffers or flushes in no set and put them back", "found", found)
	}
	return nil
}
