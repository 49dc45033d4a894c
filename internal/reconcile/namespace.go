package reconcile

import (
	"context"
	"time"

	"github.com/google/uuid"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/stowage-dev/stowage/internal/metrics"
)

const (
	// QueueNamespaces is the queue of the passes.
	QueueNamespaces = "reconcile"
	// saturatedSnooze is how long a pass waits that found no free slot.
	saturatedSnooze = 2 * time.Second
	// lockSnooze is how long a pass waits that writers kept from the lock. Each
	// attempt may hold writers up for markLockTimeout, so they are kept rare.
	lockSnooze = 5 * time.Second
	// maxRetryPause caps the back-off of a namespace that cannot be reconciled.
	maxRetryPause = time.Hour
	// maxAttempts is about three weeks of retries. Then the row, which keeps
	// every attempt's error, is discarded, and the next trigger makes a new one.
	maxAttempts = 500
)

// NamespaceArgs asks for a reconciliation of one namespace.
//
//   - Unique by namespace, in the states available, pending, running, scheduled
//     and retryable: a namespace has at most one outstanding job. An insert
//     that is skipped for it needs no care, because a request stays open until
//     a pass that began after it has ended.
//   - Attempts: as good as unlimited; the pause doubles up to an hour. Snoozes
//     (no free slot, lock timeout) cost no attempt. No slot is held meanwhile.
//   - Timeout: Config.Timeout.
//   - A kill leaves the rows as they were, or some repositories already written
//     and the namespace not stamped; both are valid. The slot and the locks go
//     with the connections. The job stays running until River's rescuer finds
//     that it is older than the timeout, and so long nothing reconciles the
//     namespace.
type NamespaceArgs struct {
	NamespaceID uuid.UUID `json:"namespace_id" river:"unique"`
}

// Kind names the job.
func (NamespaceArgs) Kind() string { return "reconcile_namespace" }

// InsertOpts are described at NamespaceArgs.
func (NamespaceArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{
		Queue:       QueueNamespaces,
		MaxAttempts: maxAttempts,
		UniqueOpts: river.UniqueOpts{
			ByArgs: true,
			ByState: []rivertype.JobState{
				rivertype.JobStateAvailable,
				rivertype.JobStatePending,
				rivertype.JobStateRunning,
				rivertype.JobStateScheduled,
				rivertype.JobStateRetryable,
			},
		},
	}
}

// Namespace reconciles namespaces.
type Namespace struct {
	river.WorkerDefaults[NamespaceArgs]
	Deps
	cfg         Config
	lockTimeout time.Duration
}

// NewNamespace makes the worker of NamespaceArgs.
func NewNamespace(deps Deps, cfg Config) *Namespace {
	return &Namespace{Deps: deps, cfg: cfg, lockTimeout: markLockTimeout}
}

// Timeout bounds one pass.
func (w *Namespace) Timeout(*river.Job[NamespaceArgs]) time.Duration { return w.cfg.Timeout }

// NextRetry doubles the pause with each failed attempt, up to an hour.
func (w *Namespace) NextRetry(job *river.Job[NamespaceArgs]) time.Time {
	pause := min(time.Second<<min(job.Attempt, 16), maxRetryPause)
	return time.Now().Add(min(jitter(pause), maxRetryPause))
}

// Work reconciles the namespace, or puts the job off.
func (w *Namespace) Work(ctx context.Context, job *river.Job[NamespaceArgs]) error {
	pass, err := w.Reconcile(ctx, job.Args.NamespaceID)
	switch {
	case err != nil:
		return err
	case pass.Result == metrics.PassSaturated:
		return river.JobSnooze(jitter(saturatedSnooze))
	case pass.Result == metrics.PassLockTimeout:
		return river.JobSnooze(jitter(lockSnooze))
	default:
		return nil
	}
}
