package drain

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/ledger"
)

// TickArgs is the job that starts the drains, every Config.Interval. The process
// that leads inserts it and runs it.
//
// Not unique: a killed tick stays "running" until it is rescued, and must not
// block the next one. The job queue lets no two ticks run at once: they could
// leave different identities in Redis and in Postgres, which the next tick
// would take for a loss. A tick that
// starts after Config.StaleTimeout does nothing, so that a queue that stood
// still does not work off its ticks at once.
//
// One attempt: the next tick is the retry. Cancelled after Config.JobTimeout.
// A kill leaves nothing: no scope leaves its set by a tick, and identities are
// repaired only after the requests are committed.
type TickArgs struct{}

// Kind names the job in River.
func (TickArgs) Kind() string { return "drain_tick" }

// InsertOpts are the options described above.
func (TickArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{MaxAttempts: 1}
}

// TickWorker samples the buffer and inserts a job for each bucket that is not
// empty.
type TickWorker struct {
	river.WorkerDefaults[TickArgs]
	Dependencies
	cfg Config
}

// NewTickWorker makes the worker of TickArgs.
func NewTickWorker(cfg Config, deps Dependencies) *TickWorker {
	return &TickWorker{Dependencies: deps, cfg: cfg}
}

// Timeout is when River cancels the job.
func (w *TickWorker) Timeout(*river.Job[TickArgs]) time.Duration { return w.cfg.JobTimeout }

// Work is one tick.
func (w *TickWorker) Work(ctx context.Context, job *river.Job[TickArgs]) error {
	if late := w.Clock.Since(job.ScheduledAt); late > w.cfg.StaleTimeout {
		w.Log.WarnContext(ctx, "drain tick skipped: it started too late", "late", late)
		return nil
	}
	if err := w.tick(ctx, job.ScheduledAt); err != nil {
		return fmt.Errorf("drain tick: %w", err)
	}
	return nil
}

// tick samples the sizes before anything else, so that the gauge shows what
// piled up and not what drains have left of it. Buckets that cannot be read, of
// a node of a cluster that is down, make it fail in the end and stop no others.
func (w *TickWorker) tick(ctx context.Context, scheduled time.Time) error {
	sizes, unread := w.Buffer.Sizes(ctx)
	if unread != nil {
		unread = fmt.Errorf("sample the buffer: %w", unread)
	} else {
		w.sample(sizes) // a part of them would look like drains that caught up
	}
	if err := failpoint.Hit(ctx, failpoint.TickSampled); err != nil {
		return err
	}
	w.samplePending(ctx)
	// The drains first: after a loss, to request every namespace takes long.
	return errors.Join(unread, w.insert(ctx, scheduled, sizes), w.watch(ctx))
}

// sample exports the sizes of the dirty sets. The ticks run in the process that
// leads, and it withdraws them when it does no longer.
func (w *TickWorker) sample(sizes [accounting.Buckets]buffer.Size) {
	var namespaces, repositories int64
	for _, size := range sizes {
		namespaces += size.Namespaces
		repositories += size.Repositories
	}
	w.Metrics.DirtySetSize.WithLabelValues(accounting.KindNamespace.String()).Set(float64(namespaces))
	w.Metrics.DirtySetSize.WithLabelValues(accounting.KindRepository.String()).Set(float64(repositories))
}

// samplePending exports what is pending, and for how long: a flush for as long as its
// batch is old. No drain waits for that, so it fails nothing. Of buckets that cannot
// be read nothing is known, and the sum without them would be none.
func (w *TickWorker) samplePending(ctx context.Context) {
	states, err := w.Buffer.States(ctx)
	var emissions, quarantined int64
	var oldest time.Duration
	for _, s := range states {
		emissions += s.Emissions
		quarantined += s.Quarantined
		oldest = max(oldest, s.DirtyFor)
		if s.OldestFlush != uuid.Nil {
			oldest = max(oldest, w.Clock.Since(ledger.BatchTime(s.OldestFlush)))
		}
	}
	if err != nil {
		w.Log.WarnContext(ctx, "what is pending is not known of every bucket", "error", err)
		w.Metrics.PendingEmissions.Reset()
	} else {
		w.Metrics.PendingEmissions.WithLabelValues().Set(float64(emissions))
	}
	w.Metrics.PendingAge.WithLabelValues().Set(oldest.Seconds())
	w.Metrics.Quarantined.WithLabelValues().Set(float64(quarantined))
}

// insert needs a context that carries the River client, as Work's does.
func (w *TickWorker) insert(ctx context.Context, scheduled time.Time, sizes [accounting.Buckets]buffer.Size) error {
	var jobs []river.InsertManyParams
	for bucket, size := range sizes {
		if scopes := size.Namespaces + size.Repositories + size.InFlight; scopes > 0 {
			jobs = append(jobs, river.InsertManyParams{Args: BucketArgs{Bucket: bucket, Tick: scheduled, Scopes: scopes}})
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	client, err := river.ClientFromContextSafely[pgx.Tx](ctx)
	if err != nil {
		return err
	}
	if _, err := client.InsertMany(ctx, jobs); err != nil {
		return fmt.Errorf("insert %d drains: %w", len(jobs), err)
	}
	return failpoint.Hit(ctx, failpoint.TickInserted)
}
