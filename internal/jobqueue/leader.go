package jobqueue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/stowage-dev/stowage/internal/backfill"
	"github.com/stowage-dev/stowage/internal/deletion"
	"github.com/stowage-dev/stowage/internal/drain"
	"github.com/stowage-dev/stowage/internal/history"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/paced"
	"github.com/stowage-dev/stowage/internal/reconcile"
)

const (
	// backlogInterval is the least time between two counts of the backlog.
	backlogInterval = time.Minute
	// sampleInterval is the time between two looks at the queue.
	sampleInterval  = 15 * time.Second
	partitionsEvery = time.Hour
	historyEvery    = time.Minute
	sweepEvery      = 24 * time.Hour
	// insertRetry is the pause after a failed insert of a job whose next turn
	// would come later.
	insertRetry = 10 * time.Second
	// removeTimeout is how long the leader's jobs get to return when the term
	// is over, until that is reported.
	removeTimeout = 10 * time.Second
)

// entry is a job that the leader inserts every so often.
type entry struct {
	args  river.JobArgs
	every time.Duration
	// atOnce inserts it when a term begins, too.
	atOnce bool
}

// schedule is what the leader inserts. It is not River's list of periodic jobs,
// because that is kept by the process that River elects: after a kill it stands
// still for up to twenty seconds, and the process that it moves to need not be
// the one that works the leader's queue.
func schedule(cfg Config) []entry {
	return []entry{
		{args: drain.TickArgs{}, every: cfg.Drain.Interval, atOnce: true},
		{args: reconcile.TriggerArgs{}, every: cfg.Reconcile.TriggerInterval, atOnce: true},
		// Not at once: the former leader may just have counted.
		{args: reconcile.BacklogArgs{}, every: backlogInterval},
		{args: SampleArgs{}, every: sampleInterval},
		{args: history.RollupArgs{}, every: historyEvery, atOnce: true},
		{args: ledger.PartitionsArgs{}, every: partitionsEvery, atOnce: true},
		{args: drain.SweepArgs{}, every: sweepEvery, atOnce: true},
		{args: backfill.Args{}, every: paced.Interval, atOnce: true},
		{args: deletion.Args{}, every: paced.Interval, atOnce: true},
		{args: deletion.GaugesArgs{}, every: deletion.GaugesInterval},
	}
}

var (
	// errTermOver is the cause with which the leader's jobs are canceled.
	errTermOver = errors.New("this process leads no longer")
	// errOverlap ends a job of the leader's queue whose like still runs.
	errOverlap = errors.New("the job before it still runs")
)

// serve works the leader's queue until the term ends. The gauges that have one
// writer are withdrawn at once, and again when the last job that could set them
// has returned.
func (q *Queue) serve(ctx, term context.Context) {
	q.term.Store(&term)
	if err := q.client.Queues().Add(leaderQueue, river.QueueConfig{MaxWorkers: leaderWorkers}); err != nil {
		q.deps.Log.ErrorContext(ctx, "cannot work the leader's queue", "error", err)
	} else {
		q.keepSchedule(term)
	}
	q.withdraw()
	q.removeQueue(ctx)
	q.withdraw()
}

func (q *Queue) withdraw() {
	q.deps.Metrics.Withdraw()
	q.deps.Upkeep.Withdraw()
}

// removeQueue returns when no job of the leader's queue runs any more, or, if
// the process stops, after removeTimeout.
func (q *Queue) removeQueue(ctx context.Context) {
	for {
		removing, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
		err := q.client.Queues().Remove(removing, leaderQueue)
		cancel()
		if err == nil || ctx.Err() != nil {
			return
		}
		q.deps.Log.ErrorContext(ctx, "jobs of the leader's queue do not end", "error", err)
	}
}

func (q *Queue) keepSchedule(term context.Context) {
	var entries sync.WaitGroup
	for _, e := range q.schedule {
		entries.Go(func() { q.keep(term, e) })
	}
	entries.Wait()
}

// keep inserts the entry's job every so often until the term ends.
func (q *Queue) keep(term context.Context, e entry) {
	wait := e.every
	if e.atOnce {
		wait = 0
	}
	timer := q.deps.Clock.NewTimer(wait)
	defer timer.Stop()
	for {
		select {
		case <-term.Done():
			return
		case <-timer.C:
		}
		wait = e.every
		if _, err := q.client.Insert(term, e.args, &river.InsertOpts{Queue: leaderQueue}); err != nil && term.Err() == nil {
			wait = min(e.every, insertRetry)
			q.deps.Log.WarnContext(term, "job not inserted, will retry", "kind", e.args.Kind(), "pause", wait, "error", err)
		}
		timer.Reset(wait)
	}
}

// inTerm lets a job of the leader's queue run if none of its kind runs, and
// cancels it when the term ends in which it was begun. So in the whole cluster
// each kind runs once at a time. A job that is ended by either is over: the next
// one comes by the schedule.
func (q *Queue) inTerm(ctx context.Context, job *rivertype.JobRow, work func(context.Context) error) error {
	if job.Queue != leaderQueue {
		return work(ctx)
	}
	if _, overlaps := q.running.LoadOrStore(job.Kind, true); overlaps {
		return river.JobCancel(errOverlap)
	}
	defer q.running.Delete(job.Kind)
	term := *q.term.Load()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(term, func() { cancel(errTermOver) })
	defer stop()
	err := work(ctx)
	if err != nil && term.Err() != nil {
		return river.JobCancel(errTermOver)
	}
	return err
}
