package drain

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/requests"
)

// watch compares what Redis says of every bucket with what it said at the tick
// before. A bucket that lost its identity lost its data; one that is served by
// another run of a node may have lost some, or have some again. Which of its
// namespaces are wrong cannot be known, so all are requested, and only when
// that is committed the bucket is taken for good: killed in between, the next
// tick finds the same.
func (w *TickWorker) watch(ctx context.Context) error {
	known, err := w.knownIdentities(ctx)
	if err != nil {
		return err
	}
	found, unread := w.Buffer.Identities(ctx)
	if unread != nil {
		unread = fmt.Errorf("read the identities of the buckets: %w", unread)
	}
	changes := compare(known, found[:])
	if err := w.requestLost(ctx, changes); err != nil {
		return errors.Join(unread, err)
	}
	return errors.Join(unread, w.repair(ctx, changes))
}

// change is a bucket that differs from what Postgres knows of it.
type change struct {
	bucket int
	// reason is that of stowage_buffer_loss_total; empty at first contact, when
	// there was nothing to lose yet.
	reason string
	// identity is what Postgres and Redis shall hold; the run id is the one that
	// was compared, never a newer one, which would hide a restart since.
	identity buffer.Identity
	// renew says that Redis lacks this identity.
	renew bool
}

func compare(known map[int]buffer.Identity, found []buffer.Identity) []change {
	var changes []change
	for bucket, f := range found {
		k, ok := known[bucket]
		switch {
		case f.RunID == "": // could not be read
		case !ok && f.ID == uuid.Nil:
			changes = append(changes, change{bucket: bucket, identity: renewed(f), renew: true})
		case f.ID != k.ID: // also when Postgres does not know the bucket, but Redis does
			changes = append(changes, change{bucket: bucket, reason: metrics.LossIdentity, identity: renewed(f), renew: true})
		case f.RunID != k.RunID:
			changes = append(changes, change{bucket: bucket, reason: metrics.LossRestart, identity: f})
		}
	}
	return changes
}

func renewed(f buffer.Identity) buffer.Identity {
	return buffer.Identity{ID: uuid.New(), RunID: f.RunID}
}

func (w *TickWorker) requestLost(ctx context.Context, changes []change) error {
	var buckets []int
	reasons := map[string]int{}
	for _, c := range changes {
		if c.reason != "" {
			buckets = append(buckets, c.bucket)
			reasons[c.reason]++
		}
	}
	if len(buckets) == 0 {
		return nil
	}
	for reason, n := range reasons {
		w.Metrics.BufferLoss.WithLabelValues(reason).Add(float64(n))
	}
	namespaces, err := requests.RaiseBuckets(ctx, w.Pool, buckets...)
	if err != nil {
		return err
	}
	w.Log.ErrorContext(ctx, "Redis lost data, restarted or failed over: every namespace of these buckets will be reconciled",
		"identity_lost", reasons[metrics.LossIdentity], "restarted", reasons[metrics.LossRestart], "namespaces", namespaces)
	return failpoint.Hit(ctx, failpoint.TickRequested)
}

// repair writes Redis before Postgres; killed in between, the next tick sees a
// loss that was none, which costs background work only.
func (w *TickWorker) repair(ctx context.Context, changes []change) error {
	if len(changes) == 0 {
		return nil
	}
	for _, c := range changes {
		if !c.renew {
			continue
		}
		if err := w.Buffer.SetIdentity(ctx, c.bucket, c.identity.ID); err != nil {
			return fmt.Errorf("write the identity of bucket %d: %w", c.bucket, err)
		}
	}
	if err := failpoint.Hit(ctx, failpoint.TickRenewed); err != nil {
		return err
	}
	return w.rememberIdentities(ctx, changes)
}

func (w *TickWorker) rememberIdentities(ctx context.Context, changes []change) error {
	var buckets []int
	var identities []uuid.UUID
	var runIDs []string
	for _, c := range changes {
		buckets = append(buckets, c.bucket)
		identities = append(identities, c.identity.ID)
		runIDs = append(runIDs, c.identity.RunID)
	}
	_, err := w.Pool.Exec(ctx, `
		INSERT INTO counter_buckets (bucket, identity, run_id)
		SELECT * FROM unnest($1::smallint[], $2::uuid[], $3::text[])
		ON CONFLICT (bucket) DO UPDATE SET identity = excluded.identity, run_id = excluded.run_id`,
		buckets, identities, runIDs)
	if err != nil {
		return fmt.Errorf("remember the identities of the buckets: %w", err)
	}
	return nil
}

func (w *TickWorker) knownIdentities(ctx context.Context) (map[int]buffer.Identity, error) {
	rows, err := w.Pool.Query(ctx, `SELECT bucket, identity, run_id FROM counter_buckets`)
	if err != nil {
		return nil, fmt.Errorf("read the known identities: %w", err)
	}
	known := map[int]buffer.Identity{}
	var bucket int
	var identity buffer.Identity
	_, err = pgx.ForEachRow(rows, []any{&bucket, &identity.ID, &identity.RunID}, func() error {
		known[bucket] = identity
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the known identities: %w", err)
	}
	return known, nil
}
