package jobqueue

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/stowage-dev/stowage/internal/metrics"
)

// sampleTimeout bounds the look at the queue. It reads what is not over and what
// was given up lately, each by an index.
const sampleTimeout = 5 * time.Second

// SampleArgs asks for a look at the queue itself.
//
//   - Not unique in River: it is inserted and worked by the process that leads,
//     one at a time, and a process that leads no longer withdraws the gauges. So
//     each has one writer.
//   - Attempts: one; the next look is the retry. After a failure the gauges
//     keep their values.
//   - Timeout: sampleTimeout, as a statement timeout in the server.
//   - A kill leaves nothing.
type SampleArgs struct{}

// Kind names the job.
func (SampleArgs) Kind() string { return "jobs_sample" }

// InsertOpts are described at SampleArgs.
func (SampleArgs) InsertOpts() river.InsertOpts { return river.InsertOpts{MaxAttempts: 1} }

// sampler exports the depth and the age of the queue.
type sampler struct {
	river.WorkerDefaults[SampleArgs]
	pool    *pgxpool.Pool
	metrics *metrics.Metrics
	// shown are the series of the look before, which become zero when their jobs
	// are gone: a series that comes and goes cannot be alerted on.
	shown map[jobGroup]bool
}

type jobGroup struct{ Kind, State string }

// depth is a group of jobs: how many, and for how long the first has been ready.
type depth struct {
	jobGroup
	Jobs  int64
	Ready float64
}

const sampleSQL = `
SELECT kind, state::text, count(*),
       coalesce(extract(epoch FROM now() - min(scheduled_at) FILTER (WHERE state = 'available')), 0)::float8
FROM river.river_job
WHERE state IN ('available', 'pending', 'retryable', 'running', 'scheduled')
   OR (state = 'discarded' AND finalized_at > now() - interval '1 hour')
GROUP BY kind, state`

// Work looks and exports.
func (s *sampler) Work(ctx context.Context, _ *river.Job[SampleArgs]) error {
	depths, err := s.look(ctx)
	if err != nil {
		return fmt.Errorf("look at the queue: %w", err)
	}
	s.export(depths)
	return nil
}

func (s *sampler) look(ctx context.Context) (depths []depth, err error) {
	err = pgx.BeginTxFunc(ctx, s.pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL statement_timeout = %d`, sampleTimeout.Milliseconds())); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, sampleSQL)
		if err != nil {
			return err
		}
		depths, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (d depth, err error) {
			return d, row.Scan(&d.Kind, &d.State, &d.Jobs, &d.Ready)
		})
		return err
	})
	return depths, err
}

// The job runs once at a time, so shown needs no lock.
func (s *sampler) export(depths []depth) {
	now := make(map[jobGroup]bool, len(depths))
	for _, d := range depths {
		s.set(d)
		now[d.jobGroup] = true
		s.shown[d.jobGroup] = true
	}
	for group := range s.shown {
		if !now[group] {
			s.set(depth{jobGroup: group})
		}
	}
}

func (s *sampler) set(d depth) {
	switch d.State {
	case "discarded":
		s.metrics.JobsDiscarded.WithLabelValues(d.Kind).Set(float64(d.Jobs))
	case "available":
		s.metrics.JobsOldest.WithLabelValues(d.Kind).Set(d.Ready)
		fallthrough
	default:
		s.metrics.Jobs.WithLabelValues(d.Kind, d.State).Set(float64(d.Jobs))
	}
}

// rescued is what River's rescuer writes into a job that it puts back.
const rescued = "Stuck job rescued by JobRescuer"

// countRescued counts the jobs that a rescue began anew. Nothing tells of a rescue
// itself, and a job with one attempt is not begun anew: it is discarded.
func (q *Queue) countRescued(ctx context.Context, job *rivertype.JobRow, work func(context.Context) error) error {
	if n := len(job.Errors); n > 0 && job.Errors[n-1].Error == rescued {
		q.deps.Metrics.JobsRescued.WithLabelValues(job.Kind).Inc()
	}
	return work(ctx)
}
