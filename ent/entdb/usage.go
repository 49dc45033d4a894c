package entdb

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/sony/gobreaker/v2"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/usage"
)

// Precision says how far a Usage can be relied on. In JSON and in the output of
// `stowage namespace show` it is the same word.
type Precision string

const (
	// PrecisionExact promises that Redis answered, that every emission is in Row
	// or left it unchanged in sum, and that no loss is known: no reconciliation is
	// requested. It does not know of a commit whose emission is under way (it ends
	// within Config.EmitTimeout, or becomes a request), of one whose process was
	// killed before the emission, of data that Redis lost since the workers' last
	// tick, and of changes past the client; the next reconciliation does.
	PrecisionExact Precision = "exact"
	// PrecisionBuffered is PrecisionExact but for Pending, which the next drains
	// add to Row. A drain between the two reads may make Total count a delta twice
	// in this one answer.
	PrecisionBuffered Precision = "buffered"
	// PrecisionUnknown promises nothing: Redis did not answer, or holds damaged
	// keys of the scope; or a reconciliation of the namespace is requested, because
	// a delta was or may be lost; or there was no reconciliation yet; or the scope
	// is in quarantine. Row is then the last value that was known, and a
	// reconciliation makes it right.
	PrecisionUnknown Precision = "unknown"
)

// Usage is what a namespace or a repository stores. As JSON it is
//
//	{"id": "...", "value": {"bytes": 1, "components": 1}, "precision": "unknown",
//	 "why_unknown": "never reconciled", "row": {...}, "pending": {...}, "as_of": "...",
//	 "last_reconciled_at": null, "requested_at": null, "quarantined": false}
//
// where value is Total, why_unknown is there only if precision is unknown, pending
// is null if PendingKnown is false, and a time is null where there is none.
type Usage struct {
	// ID is the namespace's or the repository's.
	ID uuid.UUID
	// Row is what the database holds: bytes and components as of the last
	// drain.
	Row Counters
	// Pending is what is buffered and not in Row yet. It is zero and means
	// nothing unless PendingKnown.
	Pending Counters
	// PendingKnown is false when Redis did not answer in time, or holds damaged
	// keys.
	PendingKnown bool
	// LastReconciledAt is the start of the reconciliation whose result Row
	// holds; 1970-01-01 UTC when there was none yet.
	LastReconciledAt time.Time
	// AsOf is the database's time at which Row was read.
	AsOf time.Time
	// RequestedAt is when the reconciliation of the namespace was requested that no
	// pass has answered yet; the zero time when none is.
	RequestedAt time.Time
	// Quarantined says that a delta could not be added to Row, and none is from then
	// on: each write requests a reconciliation instead.
	Quarantined bool
}

// Total is Row and Pending together; Row alone when pending is unknown.
func (u Usage) Total() Counters { return Counters(u.internal().Value()) }

// Precision says how far Total can be relied on.
func (u Usage) Precision() Precision {
	precision, _ := u.internal().Precision()
	return Precision(precision)
}

// MarshalJSON is described at Usage.
func (u Usage) MarshalJSON() ([]byte, error) { return json.Marshal(u.internal()) }

func (u Usage) internal() usage.Usage {
	return usage.Usage{
		ID: u.ID, Row: accounting.Counters(u.Row), Pending: accounting.Counters(u.Pending), PendingKnown: u.PendingKnown,
		LastReconciledAt: u.LastReconciledAt, AsOf: u.AsOf, RequestedAt: u.RequestedAt, Quarantined: u.Quarantined,
	}
}

func publicUsage(u usage.Usage) Usage {
	return Usage{
		ID: u.ID, Row: Counters(u.Row), Pending: Counters(u.Pending), PendingKnown: u.PendingKnown,
		LastReconciledAt: u.LastReconciledAt, AsOf: u.AsOf, RequestedAt: u.RequestedAt, Quarantined: u.Quarantined,
	}
}

// NamespaceUsage reads one namespace. Errors: ErrNilID before anything is
// asked; ErrNotFound when there is no statistics row.
func (c *Client) NamespaceUsage(ctx context.Context, id uuid.UUID) (Usage, error) {
	return one(ctx, id, "namespace", c.NamespaceUsages)
}

// NamespaceUsages reads many namespaces in one call, by id. Those without a
// statistics row are missing from the result. Error: ErrNilID.
func (c *Client) NamespaceUsages(ctx context.Context, ids []uuid.UUID) (map[uuid.UUID]Usage, error) {
	if err := refuseNil(ids, "namespace"); err != nil {
		return nil, err
	}
	scopes := make([]accounting.Scope, 0, len(ids))
	for _, id := range ids {
		scopes = append(scopes, accounting.NamespaceScope(id))
	}
	return c.usages(ctx, accounting.KindNamespace, scopes)
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
	return c.usages(ctx, accounting.KindRepository, scopes)
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

func (c *Client) usages(ctx context.Context, kind accounting.ScopeKind, scopes []accounting.Scope) (map[uuid.UUID]Usage, error) {
	found, err := usage.Read(ctx, c.pool, kind, scopes, c.pending(ctx, scopes))
	if err != nil {
		return nil, err
	}
	usages := make(map[uuid.UUID]Usage, len(found))
	for id, u := range found {
		usages[id] = publicUsage(u)
	}
	return usages, nil
}

// pending is nil when Redis does not answer in time.
func (c *Client) pending(ctx context.Context, scopes []accounting.Scope) map[accounting.Scope]buffer.Pending {
	if c.buffer == nil || len(scopes) == 0 {
		return nil
	}
	// Reads heed the breaker but do not move it: one that its caller gave up
	// must not keep emissions from Redis.
	if c.observer.breaker.State() == gobreaker.StateOpen {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.observer.timeout)
	defer cancel()
	pending, err := c.buffer.Pending(ctx, scopes)
	if err != nil {
		c.observer.logger.WarnContext(ctx, "usage reads without what is pending: Redis did not answer", "error", err)
	}
	return pending
}
