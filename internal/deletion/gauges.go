package deletion

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"github.com/stowage-dev/stowage/internal/paced"
)

// GaugesInterval is how often GaugesArgs should be inserted.
const GaugesInterval = time.Minute

// GaugesArgs asks for a count of the open deletions, and of the content that the
// registry has yet to delete.
//
//   - One at a time in the cluster, as all jobs of the leader.
//   - Attempts: one; the next by the schedule counts.
//   - Timeout: that of any job; its statement has one that is shorter.
//   - A kill leaves nothing.
type GaugesArgs struct{}

// Kind names the job.
func (GaugesArgs) Kind() string { return "deletion_gauges" }

// InsertOpts are described at GaugesArgs.
func (GaugesArgs) InsertOpts() river.InsertOpts { return river.InsertOpts{MaxAttempts: 1} }

// Gauges exports how much is to be deleted.
type Gauges struct {
	river.WorkerDefaults[GaugesArgs]
	deps Deps
}

// NewGauges makes the worker of GaugesArgs.
func NewGauges(deps Deps) *Gauges { return &Gauges{deps: deps} }

// Work counts and exports.
func (w *Gauges) Work(ctx context.Context, _ *river.Job[GaugesArgs]) error {
	var deletions, content int64
	err := pgx.BeginTxFunc(ctx, w.deps.Pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := paced.SetTimeouts(ctx, tx); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT (SELECT count(*) FROM deletion_requests), (SELECT count(*) FROM blob_storage_deletions)`).Scan(&deletions, &content)
	})
	if err != nil {
		return fmt.Errorf("count what is to be deleted: %w", err)
	}
	w.deps.Metrics.SetOpen(deletions, content)
	return nil
}
