package chaos

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/reconcile"
	"github.com/stowage-dev/stowage/internal/requests"
)

const (
	// waitTimeout is how long anything may take to come right once nothing
	// disturbs it any more; it takes seconds.
	waitTimeout  = 2 * time.Minute
	pollInterval = 50 * time.Millisecond
	// retryTimeout bounds one step that may meet a connection that was cut.
	retryTimeout = 30 * time.Second
)

// heal ends the load, puts the workers on a good footing with passes held back,
// and returns when everything that was emitted is in the counters.
func (s *storm) heal(ctx context.Context) error {
	if err := s.writers.dismiss(s.writerEnded); err != nil {
		return err
	}
	if err := s.workers.dismiss(s.workerEnded); err != nil {
		return err
	}
	err := retry(ctx, func(ctx context.Context) error { return s.queue.QueuePause(ctx, reconcile.QueueNamespaces, nil) })
	if err != nil {
		return fmt.Errorf("hold back the passes: %w", err)
	}
	if err := retry(ctx, s.putBackJobs); err != nil {
		return fmt.Errorf("put back the jobs: %w", err)
	}
	if err := s.workers.launch(s.Workers); err != nil {
		return err
	}
	return s.wait(ctx, "what Redis holds is known and drained", s.settled)
}

// putBackJobs makes the jobs of passes whose worker was killed, or that were put
// off, available at once: no worker lives, so none of them runs. River does the
// same, after the two minutes in which a worker might still come back.
func (s *storm) putBackJobs(ctx context.Context) error {
	_, err := s.pool.Exec(ctx, `
		UPDATE river.river_job SET state = 'available', scheduled_at = now()
		WHERE queue = $1 AND state IN ('running', 'retryable', 'scheduled')`, reconcile.QueueNamespaces)
	return err
}

// settled says that a tick has seen this Redis, so that losses are requested,
// and that nothing is buffered.
func (s *storm) settled(ctx context.Context) (bool, error) {
	if noticed, err := s.noticed(ctx); err != nil || !noticed {
		return false, err
	}
	sizes, err := s.buffer.Sizes(ctx)
	if err != nil {
		return false, err
	}
	for _, size := range sizes {
		if size != (buffer.Size{}) {
			return false, nil
		}
	}
	return true, nil
}

func (s *storm) noticed(ctx context.Context) (bool, error) {
	identities, err := s.buffer.Identities(ctx)
	if err != nil {
		return false, err
	}
	ids := make([]uuid.UUID, len(identities))
	runs := make([]string, len(identities))
	for bucket, identity := range identities {
		ids[bucket], runs[bucket] = identity.ID, identity.RunID
	}
	var known int
	err = s.pool.QueryRow(ctx, `
		SELECT count(*) FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS found (identity, run_id, number)
		JOIN counter_buckets USING (identity, run_id) WHERE bucket = number - 1`, ids, runs).Scan(&known)
	return known == accounting.Buckets, err
}

// letPassesRun returns when all requests are worked off.
func (s *storm) letPassesRun(ctx context.Context) error {
	err := retry(ctx, func(ctx context.Context) error { return s.queue.QueueResume(ctx, reconcile.QueueNamespaces, nil) })
	if err != nil {
		return fmt.Errorf("let the passes run: %w", err)
	}
	return s.waitForPasses(ctx)
}

// passOverAll requests every namespace and returns when all are reconciled.
func (s *storm) passOverAll(ctx context.Context) error {
	buckets := make([]int, accounting.Buckets)
	for i := range buckets {
		buckets[i] = i
	}
	if _, err := requests.RaiseBuckets(ctx, s.pool, buckets...); err != nil {
		return err
	}
	return s.waitForPasses(ctx)
}

func (s *storm) waitForPasses(ctx context.Context) error {
	return s.wait(ctx, "requested passes are done", func(ctx context.Context) (bool, error) {
		var open bool
		err := s.pool.QueryRow(ctx, `
			SELECT EXISTS (SELECT FROM reconciliation_requests) OR EXISTS (
				SELECT FROM river.river_job WHERE queue = $1 AND state IN ('available', 'pending', 'running', 'retryable', 'scheduled'))`,
			reconcile.QueueNamespaces).Scan(&open)
		if err != nil || open {
			return false, err
		}
		return s.settled(ctx)
	})
}

// requested are the namespaces with an open request.
func (s *storm) requested(ctx context.Context) (map[uuid.UUID]bool, error) {
	rows, err := s.pool.Query(ctx, `SELECT namespace_id FROM reconciliation_requests`)
	if err != nil {
		return nil, err
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, err
	}
	open := make(map[uuid.UUID]bool, len(ids))
	for _, id := range ids {
		open[id] = true
	}
	return open, nil
}

// wait looks until done, and replaces workers meanwhile. What fails is tried
// again.
func (s *storm) wait(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	err := poll(ctx, waitTimeout, func(ctx context.Context) (bool, error) {
		if err := s.workers.mend(s.workerDied); err != nil {
			return false, err
		}
		return done(ctx)
	})
	if err != nil {
		return fmt.Errorf("wait until %s: %w%s", what, err, s.workerTails())
	}
	return nil
}

func (s *storm) workerTails() string {
	var tails strings.Builder
	for i, p := range s.workers.members {
		fmt.Fprintf(&tails, "\nlast lines of worker %d:\n%s", i+1, p.LogTail())
	}
	return tails.String()
}

func retry(ctx context.Context, do func(context.Context) error) error {
	return poll(ctx, retryTimeout, func(ctx context.Context) (bool, error) {
		err := do(ctx)
		return err == nil, err
	})
}

// poll looks until done. The error has the last one of done.
func poll(ctx context.Context, timeout time.Duration, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		ok, err := done(ctx)
		if err == nil && ok {
			return nil
		}
		select {
		case <-ctx.Done():
			if err != nil {
				return fmt.Errorf("%w: %w", context.Cause(ctx), err)
			}
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}
