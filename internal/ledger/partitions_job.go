package ledger

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/coder/quartz"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
)

const (
	partitionsTimeout = time.Minute
	// partitionsAhead is how many days after today have a partition: the job may
	// fail for a whole weekend before Apply has to make one.
	partitionsAhead = 3
)

// PartitionsConfig is how long the ledger remembers.
type PartitionsConfig struct {
	// Retention is how long rows are kept, to the day. It is longer than twice
	// the longest reconciliation pass and twice the life of a buffer: what is
	// older than half of it is not applied any more.
	Retention time.Duration
}

// Validate refuses a retention that partitions of a day cannot keep.
func (c PartitionsConfig) Validate() error {
	if c.Retention < 2*24*time.Hour {
		return fmt.Errorf("retention: %s must be at least 48h: the ledger is dropped by the day", c.Retention)
	}
	return nil
}

// PartitionsArgs is the hourly job, of the process that leads, that makes the
// ledger's partitions ahead and drops those older than the retention.
//
// Unique by kind until it is over. Three attempts, then the next hour's job.
// Cancelled after a minute. A kill leaves whole partitions or none, because
// each is made or dropped in a transaction.
type PartitionsArgs struct{}

// Kind names the job in River.
func (PartitionsArgs) Kind() string { return "ledger_partitions" }

// InsertOpts are the options described above.
func (PartitionsArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{
		MaxAttempts: 3,
		UniqueOpts: river.UniqueOpts{ByState: []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRunning,
			rivertype.JobStateRetryable, rivertype.JobStateScheduled,
		}},
	}
}

// PartitionsWorker keeps the ledger's partitions.
type PartitionsWorker struct {
	river.WorkerDefaults[PartitionsArgs]
	db    DB
	log   *slog.Logger
	clock quartz.Clock
	cfg   PartitionsConfig
}

// NewPartitionsWorker makes the worker of PartitionsArgs.
func NewPartitionsWorker(cfg PartitionsConfig, db DB, log *slog.Logger, clock quartz.Clock) *PartitionsWorker {
	return &PartitionsWorker{db: db, log: log, clock: clock, cfg: cfg}
}

// Timeout is when River cancels the job.
func (w *PartitionsWorker) Timeout(*river.Job[PartitionsArgs]) time.Duration {
	return partitionsTimeout
}

// Work makes and drops. Each is tried although the other fails.
func (w *PartitionsWorker) Work(ctx context.Context, _ *river.Job[PartitionsArgs]) error {
	now := w.clock.Now()
	made := EnsurePartitions(ctx, w.db, now, now.AddDate(0, 0, partitionsAhead))
	dropped, kept, err := DropPartitions(ctx, w.db, now.Add(-w.cfg.Retention))
	if dropped > 0 {
		w.log.InfoContext(ctx, "dropped ledger partitions older than the retention", "dropped", dropped, "retention", w.cfg.Retention)
	}
	if kept > 0 {
		w.log.WarnContext(ctx, "ledger partitions are older than the retention and not rolled up into the history of usage yet: they are kept until then", "kept", kept, "retention", w.cfg.Retention)
	}
	return errors.Join(made, err)
}
