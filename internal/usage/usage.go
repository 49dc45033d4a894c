// Package usage reads what a scope stores, as the registry's client and the
// command line show it: the counters of its row, what is still on its way to the
// row, and how far both can be relied on.
package usage

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

// Precision says how far a value can be relied on. ent/entdb documents what
// each promises.
type Precision string

// The precisions.
const (
	Exact    Precision = "exact"
	Buffered Precision = "buffered"
	Unknown  Precision = "unknown"
)

// Usage is what a scope stores.
type Usage struct {
	// ID is the scope's.
	ID uuid.UUID
	// Row are the counters of its row, which a drain or a pass wrote last.
	Row accounting.Counters
	// Pending is what is committed and not in the row yet. It is zero, and means
	// nothing, unless PendingKnown.
	Pending      accounting.Counters
	PendingKnown bool
	// LastReconciledAt is the start of the pass whose result the row holds; 1970
	// when there was none.
	LastReconciledAt time.Time
	// AsOf is the database's time at which the row was read.
	AsOf time.Time
	// RequestedAt is the marker of the open request of the namespace; zero when
	// there is none.
	RequestedAt time.Time
	// Quarantined says that deltas are not added to the row: each makes a request.
	Quarantined bool
}

// Value is Row and Pending together.
func (u Usage) Value() accounting.Counters { return u.Row.Plus(u.Pending) }

// Precision says how far Value can be relied on, and why if it is unknown.
func (u Usage) Precision() (p Precision, why string) {
	switch {
	case !u.PendingKnown:
		return Unknown, "what is buffered could not be read"
	case u.Quarantined:
		return Unknown, "in quarantine"
	case !u.RequestedAt.IsZero():
		return Unknown, "a reconciliation is requested"
	case accounting.MarkerOf(u.LastReconciledAt) <= 0:
		return Unknown, "never reconciled"
	case !u.Pending.IsZero():
		return Buffered, ""
	default:
		return Exact, ""
	}
}

// MarshalJSON names the fields as ent/entdb documents them.
func (u Usage) MarshalJSON() ([]byte, error) {
	precision, why := u.Precision()
	text := struct {
		ID               uuid.UUID            `json:"id"`
		Value            accounting.Counters  `json:"value"`
		Precision        Precision            `json:"precision"`
		Why              string               `json:"why_unknown,omitempty"`
		Row              accounting.Counters  `json:"row"`
		Pending          *accounting.Counters `json:"pending"`
		AsOf             time.Time            `json:"as_of"`
		LastReconciledAt *time.Time           `json:"last_reconciled_at"`
		RequestedAt      *time.Time           `json:"requested_at"`
		Quarantined      bool                 `json:"quarantined"`
	}{
		ID: u.ID, Value: u.Value(), Precision: precision, Why: why, Row: u.Row,
		AsOf: u.AsOf, LastReconciledAt: At(u.LastReconciledAt), RequestedAt: At(u.RequestedAt), Quarantined: u.Quarantined,
	}
	if u.PendingKnown {
		text.Pending = &u.Pending
	}
	return json.Marshal(text)
}

// At is nil for 'epoch', which stands for never, and for the zero time.
func At(t time.Time) *time.Time {
	if t.Unix() <= 0 {
		return nil
	}
	return &t
}

// The two queries read rows with the time and the open request, in one snapshot. The
// array is in a SELECT of its own so that the server cannot see how long it is: a plan
// for exactly so many ids always looks cheaper than the one that it has prepared, so
// that it would plan each read anew, which takes longer than to read.
const (
	namespacesSQL = `
		SELECT s.namespace_id, s.deduplicated_size_bytes, s.components_count, s.last_reconciled_at, clock_timestamp(),
			(SELECT q.marker FROM reconciliation_requests q WHERE q.namespace_id = s.namespace_id)
		FROM namespace_statistics s
		WHERE s.namespace_id = ANY ((SELECT $1::uuid[])::uuid[])`
	repositoriesSQL = `
		SELECT r.id, r.size_bytes, r.artifacts_count, r.last_reconciled_at, clock_timestamp(),
			(SELECT q.marker FROM reconciliation_requests q WHERE q.namespace_id = r.namespace_id)
		FROM repositories r
		WHERE r.id = ANY ((SELECT $1::uuid[])::uuid[])`
)

// withFlushes adds to a query whether the flush of a row is applied. It must be the
// same snapshot: a flush that is applied after the one look and before the other would
// count twice, or not at all. Few scopes have a flush, so the ledger is asked only then.
func withFlushes(query string) string {
	return `
		SELECT scope.*, EXISTS (
			SELECT FROM unnest($2::uuid[], $3::uuid[]) AS flush (scope_id, batch_id)
			JOIN storage_ledger l ON l.batch_id = flush.batch_id AND l.scope_id = flush.scope_id
			WHERE flush.scope_id = scope.id)
		FROM (` + query + `) AS scope (id, bytes, components, last_reconciled_at, as_of, requested)`
}

// Read reads the rows of scopes, all of one kind, by id; those without a row are
// missing from the result. Pending is what buffer.Pending said just before, not
// after: the other way round, a delta that is drained in between would be
// missing from both. It is nil when Redis did not answer.
func Read(ctx context.Context, db pgdb.DB, kind accounting.ScopeKind, scopes []accounting.Scope, pending map[accounting.Scope]buffer.Pending) (map[uuid.UUID]Usage, error) {
	query := repositoriesSQL
	if kind == accounting.KindNamespace {
		query = namespacesSQL
	}
	c, byID := columnsOf(scopes, pending)
	var (
		u         Usage
		requested *time.Time
		applied   bool
	)
	args, row := []any{c.ids}, []any{(*[16]byte)(&u.ID), &u.Row.Bytes, &u.Row.Components, &u.LastReconciledAt, &u.AsOf, &requested}
	if len(c.flushes) > 0 {
		query, args, row = withFlushes(query), append(args, c.flushes, c.batches), append(row, &applied)
	}
	rows, err := db.Query(ctx, query, args...)
	if err != nil {
		return nil, fmt.Errorf("%s usage: %w", kind, err)
	}
	usages := make(map[uuid.UUID]Usage, len(scopes))
	_, err = pgx.ForEachRow(rows, row, func() error {
		p, known := pending[byID[u.ID]]
		u.setTimes(requested)
		u.PendingKnown, u.Quarantined = known, p.Quarantined
		u.Pending = Outstanding(p, accounting.MarkerOf(u.LastReconciledAt), applied)
		usages[u.ID] = u
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("%s usage: %w", kind, err)
	}
	return usages, nil
}

// columns are ids as the statements take them. As plain bytes pgx takes and gives them
// without the detour over their text.
type columns struct {
	ids [][16]byte
	// flushes are those of the scopes that have a flush, and batches its batch.
	flushes, batches [][16]byte
}

func columnsOf(scopes []accounting.Scope, pending map[accounting.Scope]buffer.Pending) (columns, map[uuid.UUID]accounting.Scope) {
	c, byID := columns{ids: make([][16]byte, 0, len(scopes))}, make(map[uuid.UUID]accounting.Scope, len(scopes))
	for _, s := range scopes {
		byID[s.ID] = s
		c.ids = append(c.ids, s.ID)
		if flush := pending[s].Flush; flush != nil {
			c.flushes, c.batches = append(c.flushes, s.ID), append(c.batches, flush.BatchID)
		}
	}
	return c, byID
}

func (u *Usage) setTimes(requested *time.Time) {
	u.LastReconciledAt, u.AsOf, u.RequestedAt = u.LastReconciledAt.UTC(), u.AsOf.UTC(), time.Time{}
	if requested != nil {
		u.RequestedAt = requested.UTC()
	}
}

// Outstanding adds up what a row lacks: deltas that its last pass has counted,
// and a flush that is applied, are in it already.
func Outstanding(p buffer.Pending, reconciled accounting.Marker, applied bool) accounting.Counters {
	var sum accounting.Counters
	for _, b := range p.Buffered {
		if b.Marker >= reconciled {
			sum = sum.Plus(b.Counters)
		}
	}
	if p.Flush != nil && p.Flush.Marker >= reconciled && !applied {
		sum = sum.Plus(p.Flush.Counters)
	}
	return sum
}
