// Package jobqueue puts River together: every kind of job, the queues, the
// schedule of the process that leads, and how a process stops. README.md beside
// this file says what is not guaranteed.
package jobqueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/quartz"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"go.opentelemetry.io/otel/trace"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/backfill"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/collect"
	"github.com/stowage-dev/stowage/internal/deletion"
	"github.com/stowage-dev/stowage/internal/drain"
	"github.com/stowage-dev/stowage/internal/history"
	"github.com/stowage-dev/stowage/internal/lead"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/reconcile"
	"github.com/stowage-dev/stowage/internal/telemetry"
)

const (
	schema = "river"
	// leaderQueue is worked by the process that leads and by no other.
	leaderQueue = "leader"
	// leaderWorkers is more than there are kinds of job in the leader's queue,
	// so a sweep that takes long does not hold up a tick.
	leaderWorkers = 12
	// jobTimeout is that of kinds that name none. rescueAfter is when a job that
	// is still marked as running counts as a dead process's: River wants it to
	// be longer, and waits for a kind's own timeout where that is longer still.
	jobTimeout  = time.Minute
	rescueAfter = 90 * time.Second
	// completedRetention is how long finished jobs can be looked at. There may
	// be hundreds at each tick.
	completedRetention = time.Hour
	// hardStop is how long a job gets to return once its context was canceled.
	hardStop = 10 * time.Second
)

// leadership is the lock of the process that leads, and its pace: a killed
// leader is replaced within about six seconds.
func leadership() lead.Config {
	return lead.Config{Class: 0x73746f20, Interval: time.Second, Timeout: 3 * time.Second}
}

// Config of the jobs of one process.
type Config struct {
	Drain drain.Config
	// DrainWorkers is how many buckets this process drains at once.
	DrainWorkers int
	Reconcile    reconcile.Config
	Partitions   ledger.PartitionsConfig
	Collect      collect.Config
	History      history.Config
	// SoftStop is how long running jobs get to end by themselves when the
	// process stops. Then their contexts are canceled.
	SoftStop time.Duration
}

// Deps is what the jobs work with. All are required but TracerProvider.
type Deps struct {
	Pool *pgxpool.Pool
	// DB makes the counted transactions of jobs that delete.
	DB      *entdb.Client
	Buffer  *buffer.Buffer
	Metrics *metrics.Metrics
	Upkeep  *metrics.Upkeep
	// Log shows the job of each line if it is over a telemetry.LogHandler.
	Log   *slog.Logger
	Clock quartz.Clock
	// TracerProvider makes spans of jobs, drains and passes; nil makes none.
	TracerProvider trace.TracerProvider
}

// Queue works jobs in one process.
type Queue struct {
	deps      Deps
	cfg       Config
	client    *river.Client[pgx.Tx]
	candidate *lead.Candidate
	schedule  []entry
	// term is the context of the current or last term of leadership; it is set
	// before the leader's queue is first worked.
	term atomic.Pointer[context.Context]
	// running are the kinds of the leader's jobs that run now.
	running sync.Map
}

// New registers every kind of job. A process registers all of them, because the
// one that River elects rescues, and discards, what it does not know.
func New(deps Deps, cfg Config) (*Queue, error) {
	if err := errors.Join(cfg.Drain.Validate(), cfg.Reconcile.Validate(), cfg.Partitions.Validate(), cfg.Collect.Validate(), cfg.History.Validate()); err != nil {
		return nil, fmt.Errorf("job queue: %w", err)
	}
	q := &Queue{
		deps: deps, cfg: cfg,
		candidate: lead.New(deps.Pool, deps.Clock, deps.Log, leadership()),
		schedule:  schedule(cfg),
	}
	workers, err := registered(deps, cfg)
	if err != nil {
		return nil, err
	}
	q.client, err = river.NewClient(riverpgxv5.New(deps.Pool), &river.Config{
		Schema:  schema,
		Logger:  deps.Log,
		Workers: workers,
		Queues: map[string]river.QueueConfig{
			drain.Queue:               drain.QueueConfig(cfg.DrainWorkers),
			reconcile.QueueNamespaces: {MaxWorkers: cfg.Reconcile.MaxInFlight},
		},
		Plugins:                     plugins(deps.TracerProvider),
		Middleware:                  []rivertype.Middleware{river.WorkerMiddlewareFunc(nameJob), river.WorkerMiddlewareFunc(q.countRescued), river.WorkerMiddlewareFunc(q.inTerm)},
		ErrorHandler:                &errorHandler{deps.Log},
		JobTimeout:                  jobTimeout,
		RescueStuckJobsAfter:        rescueAfter,
		CompletedJobRetentionPeriod: completedRetention,
		SoftStopTimeout:             cfg.SoftStop,
	})
	if err != nil {
		return nil, fmt.Errorf("job queue: %w", err)
	}
	return q, nil
}

func registered(deps Deps, cfg Config) (*river.Workers, error) {
	tracer := telemetry.NewTracer(deps.TracerProvider)
	draining := drain.Dependencies{Pool: deps.Pool, Buffer: deps.Buffer, Metrics: deps.Metrics, Log: deps.Log, Tracer: tracer, Clock: deps.Clock}
	reconciling := reconcile.Deps{Pool: deps.Pool, Buffer: deps.Buffer, Metrics: deps.Metrics, Log: deps.Log, Tracer: tracer}
	backfilling := backfill.Deps{Pool: deps.Pool, DB: deps.DB, Metrics: deps.Upkeep, Log: deps.Log, Clock: deps.Clock}
	deleting := deletion.Deps{Pool: deps.Pool, DB: deps.DB, Metrics: deps.Upkeep, Log: deps.Log, Clock: deps.Clock}
	workers := river.NewWorkers()
	err := errors.Join(
		river.AddWorkerSafely(workers, drain.NewTickWorker(cfg.Drain, draining)),
		river.AddWorkerSafely(workers, drain.NewBucketWorker(cfg.Drain, draining)),
		river.AddWorkerSafely(workers, drain.NewSweepWorker(draining)),
		river.AddWorkerSafely(workers, reconcile.NewTrigger(reconciling, cfg.Reconcile)),
		river.AddWorkerSafely(workers, reconcile.NewNamespace(reconciling, cfg.Reconcile)),
		river.AddWorkerSafely(workers, reconcile.NewBacklog(reconciling, cfg.Reconcile)),
		river.AddWorkerSafely(workers, ledger.NewPartitionsWorker(cfg.Partitions, deps.Pool, deps.Log, deps.Clock)),
		river.AddWorkerSafely(workers, &sampler{pool: deps.Pool, metrics: deps.Metrics, shown: map[jobGroup]bool{}}),
		river.AddWorkerSafely(workers, backfill.NewWorker(backfilling, Backfills(cfg.Collect, deps.Upkeep))),
		river.AddWorkerSafely(workers, deletion.NewWorker(deleting, cfg.Collect.Grace)),
		river.AddWorkerSafely(workers, deletion.NewGauges(deleting)),
		river.AddWorkerSafely(workers, history.NewRollupWorker(cfg.History, history.Deps{DB: deps.Pool, Metrics: deps.Metrics, Log: deps.Log, Clock: deps.Clock})),
	)
	if err != nil {
		return nil, fmt.Errorf("job queue: %w", err)
	}
	return workers, nil
}

// Backfills are all that the workers know.
func Backfills(cfg collect.Config, m *metrics.Upkeep) []backfill.Backfill {
	return []backfill.Backfill{backfill.Statistics(), collect.Backfill(cfg, m)}
}

// Run works jobs until ctx ends, and then stops: it fetches no more, lets the
// running jobs end for SoftStop, cancels those that are left, and returns. It
// returns an error if it could not start, or if some job ignored its canceled
// context; such a job is rescued by another process.
func (q *Queue) Run(ctx context.Context) error {
	if err := q.client.Start(context.WithoutCancel(ctx)); err != nil {
		return fmt.Errorf("job queue: %w", err)
	}
	q.candidate.Run(ctx, func(term context.Context) { q.serve(ctx, term) })
	return q.stop(ctx)
}

func (q *Queue) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), q.cfg.SoftStop+hardStop)
	defer cancel()
	if err := q.client.Stop(ctx); err != nil {
		return fmt.Errorf("job queue: some job has not ended %s after it was canceled: %w", hardStop, err)
	}
	return nil
}
