package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/requests"
)

const (
	// pollInterval is how often Wait looks.
	pollInterval = time.Second / 2
	// bucketsAtOnce is how many buckets' namespaces are requested between two calls
	// of the progress. Each time the table of namespaces is read once.
	bucketsAtOnce = accounting.Buckets / 8
)

// Requested is what was asked for, to be waited for.
type Requested struct {
	// Namespaces is how many were requested.
	Namespaces int64
	// namespace is nil when it was all of them.
	namespace *uuid.UUID
	// from is the database's time before the first request was written, to the
	// newest marker of a request afterwards.
	from, to time.Time
}

// Request asks for a reconciliation of a namespace.
func (i *Inspector) Request(ctx context.Context, namespace uuid.UUID) (Requested, error) {
	return i.request(ctx, &namespace, func() (int64, error) {
		return 1, requests.Raise(ctx, i.Pool, []requests.Request{{Namespace: namespace}})
	})
}

// RequestAll asks for a reconciliation of every namespace. progress is told how
// many are requested so far. After an error some are requested; it may be called
// again.
func (i *Inspector) RequestAll(ctx context.Context, progress func(namespaces int64)) (Requested, error) {
	return i.request(ctx, nil, func() (total int64, err error) {
		for first := 0; first < accounting.Buckets; first += bucketsAtOnce {
			buckets := make([]int, bucketsAtOnce)
			for b := range buckets {
				buckets[b] = first + b
			}
			n, err := requests.RaiseBuckets(ctx, i.Pool, buckets...)
			total += n
			if err != nil {
				return total, err
			}
			progress(total)
		}
		return total, nil
	})
}

func (i *Inspector) request(ctx context.Context, namespace *uuid.UUID, raise func() (int64, error)) (Requested, error) {
	r := Requested{namespace: namespace}
	if err := i.Pool.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&r.from); err != nil {
		return r, fmt.Errorf("read the clock: %w", err)
	}
	var err error
	if r.Namespaces, err = raise(); err != nil {
		return r, err
	}
	err = i.Pool.QueryRow(ctx, `
		SELECT greatest(clock_timestamp(), max(marker)) FROM reconciliation_requests
		WHERE namespace_id = $1 OR $1 IS NULL`, namespace).Scan(&r.to)
	if err != nil {
		return r, fmt.Errorf("read the requests: %w", err)
	}
	return r, nil
}

// remainingSQL counts the requests that are open still. One that was raised again
// since, by somebody else, is another, and ours is answered when a pass has ended
// that began after it.
const remainingSQL = `
SELECT count(*) FROM reconciliation_requests q
LEFT JOIN namespace_statistics s ON s.namespace_id = q.namespace_id
WHERE (q.namespace_id = $1 OR $1 IS NULL)
  AND (q.marker <= $3 OR coalesce(s.last_reconciled_at, 'epoch') <= $2)`

// Wait waits until passes have answered all that was requested. progress is told
// again and again how many are left, and since when that number has not fallen.
func (i *Inspector) Wait(ctx context.Context, r Requested, progress func(left int64, since time.Duration)) error {
	last, changed := int64(-1), time.Now()
	for {
		var left int64
		if err := i.Pool.QueryRow(ctx, remainingSQL, r.namespace, r.from, r.to).Scan(&left); err != nil {
			return fmt.Errorf("count open requests: %w", err)
		}
		if left != last {
			last, changed = left, time.Now()
		}
		progress(left, time.Since(changed))
		if left == 0 {
			return nil
		}
		if err := sleep(ctx, pollInterval); err != nil {
			return err
		}
	}
}
