package entdb

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/sony/gobreaker/v2"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
)

// Usage is what a namespace or a repository stores.
type Usage struct {
	// ID is the namespace's or the repository's.
	ID uuid.UUID
	// Row is what the database holds: bytes and components as of the last
	// drain.
	Row Counters
	// Pending is what is buffered and not in Row yet. It is zero and means
	// nothing unless PendingKnown.
	Pending Counters
	// PendingKnown is false when Redis did not answer in time.
	PendingKnown bool
	// LastReconciledAt is the start of the reconciliation whose result Row
	// holds; 1970-01-01 UTC when there was none yet.
	LastReconciledAt time.Time
	// AsOf is the database's time at which Row was read.
	AsOf time.Time
}

// Total is Row and Pending together; Row alone when pending is unknown. A drain
// that applies a delta between the two reads may make it count that delta twice
// for this one answer; Row alone is never affected.
func (u Usage) Total() Counters {
	return Counters(accounting.Counters(u.Row).Plus(accounting.Counters(u.Pending)))
}

// NamespaceUsage reads one namespace. Errors: ErrNilID before anything is
// asked; ErrNotFound when there is no statistics row.
func (c *Client) NamespaceUsage(ctx context.Context, id uuid.UUID) (Usage, error) {
	return one(ctx, id, "namespace", c.NamespaceUsages)
}

// NamespaceUsages reads many namespaces in one call, by id. Those without a
// statistics row are missing from the result. Error: ErrNilID.
func (c *Client) NamespaceUsages(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]Usage, error) {
	scopes := make([]accounting.Scope, 0, len(ids))
	for _, id := range ids {
		scopes = append(scopes, accounting.NamespaceScope(id))
	}
	return c.usages(ctx, "namespace", namespaceUsage, ids, scopes)
}

// RepositoryUsage reads one repository. Errors: ErrNilID before anything is
// asked; ErrNotFound.
func (c *Client) RepositoryUsage(ctx context.Context, id uuid.UUID) (Usage, error) {
	return one(ctx, id, "repository", c.RepositoryUsages)
}

// RepositoryUsages reads many repositories in one call, by id. Those that are
// not there are missing from the result. Error: ErrNilID.
func (c *Client) RepositoryUsages(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]Usage, error) {
	if err := refuseNil(ids, "repository"); err != nil {
		return nil, err
	}
	// The buffer's keys are grouped by namespace.
	found, err := c.pool.Query(ctx, `SELECT namespace_id, id FROM repositories WHERE id = ANY ($1)`, ids)
	if err != nil {
		return nil, fmt.Errorf("repository usage: %w", err)
	}
	scopes, err := pgx.CollectRows(found, func(row pgx.CollectableRow) (accounting.Scope, error) {
		var namespace, id uuid.UUID
		err := row.Scan(&namespace, &id)
		return accounting.RepositoryScope(namespace, id), err
	})
	if err != nil {
		return nil, fmt.Errorf("repository usage: %w", err)
	}
	return c.usages(ctx, "repository", repositoryUsage, ids, scopes)
}

func one(ctx context.Context, id uuid.UUID, what string, read func(context.Context, []uuid.UUID) (map[uuid.UUID]Usage, error)) (Usage, error) {
	usages, err := read(ctx, []uuid.UUID{id})
	if err != nil {
		return Usage{}, err
	}
	usage, ok := usages[id]
	if !ok {
		return Usage{}, fmt.Errorf("%s usage: %w", what, ErrNotFound)
	}
	return usage, nil
}

func refuseNil(ids []uuid.UUID, what string) error {
	if slices.Contains(ids, uuid.Nil) {
		return fmt.Errorf("%s usage: %w", what, ErrNilID)
	}
	return nil
}

// The two queries read rows with the time, and for each whether the flush that
// was seen in Redis is applied already, in one snapshot.
const (
	namespaceUsage = `
		SELECT s.namespace_id, s.deduplicated_size_bytes, s.components_count, s.last_reconciled_at, clock_timestamp(),
			EXISTS (SELECT FROM storage_ledger l WHERE l.batch_id = asked.batch_id AND l.scope_id = asked.id)
		FROM unnest($1::uuid[], $2::uuid[]) AS asked (id, batch_id)
		JOIN namespace_statistics s ON s.namespace_id = asked.id`
	repositoryUsage = `
		SELECT r.id, r.size_bytes, r.artifacts_count, r.last_reconciled_at, clock_timestamp(),
			EXISTS (SELECT FROM storage_ledger l WHERE l.batch_id = asked.batch_id AND l.scope_id = asked.id)
		FROM unnest($1::uuid[], $2::uuid[]) AS asked (id, batch_id)
		JOIN repositories r ON r.id = asked.id`
)

func (c *Client) usages(ctx context.Context, what, query string, ids []uuid.UUID, scopes []accounting.Scope) (map[uuid.UUID]Usage, error) {
	if err := refuseNil(ids, what); err != nil {
		return nil, err
	}
	pending, known := c.pending(ctx, scopes)
	byID := make(map[uuid.UUID]buffer.Pending, len(pending))
	for scope, p := range pending {
		byID[scope.ID] = p
	}
	batches := make([]*uuid.UUID, len(ids))
	for i, id := range ids {
		if flush := byID[id].Flush; flush != nil {
			batches[i] = &flush.BatchID
		}
	}
	found, err := c.pool.Query(ctx, query, ids, batches)
	if err != nil {
		return nil, fmt.Errorf("%s usage: %w", what, err)
	}
	usages := make(map[uuid.UUID]Usage, len(ids))
	var u Usage
	var applied bool
	_, err = pgx.ForEachRow(found, []any{&u.ID, &u.Row.Bytes, &u.Row.Components, &u.LastReconciledAt, &u.AsOf, &applied}, func() error {
		u.LastReconciledAt, u.AsOf = u.LastReconciledAt.UTC(), u.AsOf.UTC()
		u.Pending, u.PendingKnown = sumPending(byID[u.ID], accounting.MarkerOf(u.LastReconciledAt), applied), known
		usages[u.ID] = u
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s usage: %w", what, err)
	}
	return usages, nil
}

// pending asks the buffer first and the database after it: the other way
// round, a delta that is drained in between would be missing from both.
func (c *Client) pending(ctx context.Context, scopes []accounting.Scope) (pending map[accounting.Scope]buffer.Pending, known bool) {
	if c.buffer == nil || len(scopes) == 0 {
		return nil, false
	}
	// Reads heed the breaker but do not move it: one that its caller gave up
	// must not keep emissions from Redis.
	if c.observer.breaker.State() == gobreaker.StateOpen {
		return nil, false
	}
	ctx, cancel := context.WithTimeout(ctx, c.observer.timeout)
	defer cancel()
	pending, err := c.buffer.Pending(ctx, scopes)
	if err != nil {
		c.observer.logger.Warn("usage reads without what is pending: Redis did not answer", "error", err)
		return nil, false
	}
	return pending, true
}

// sumPending adds up what the row lacks: deltas that the last reconciliation
// has counted, and a flush that is applied, are in it already.
func sumPending(p buffer.Pending, reconciled accounting.Marker, applied bool) Counters {
	var sum accounting.Counters
	for _, b := range p.Buffered {
		if b.Marker >= reconciled {
			sum = sum.Plus(b.Counters)
		}
	}
	if p.Flush != nil && p.Flush.Marker >= reconciled && !applied {
		sum = sum.Plus(p.Flush.Counters)
	}
	return Counters(sum)
}
