package inspect

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/ledger"
)

// Ledger is what the ledger says of a scope since its last reconciliation.
type Ledger struct {
	// Rows is how many there are; Entries are the newest of them.
	Rows    int64   `json:"rows"`
	Entries []Entry `json:"entries"`
	// Applied is what was added to the row. Counted is what was not, because the
	// last reconciliation had counted it.
	Applied accounting.Counters `json:"applied"`
	Counted accounting.Counters `json:"counted"`
	// Begins is the day of the oldest entry that is kept of any scope, null when
	// none is. Complete is false when that is later than the last reconciliation.
	Begins   *time.Time `json:"begins"`
	Complete bool       `json:"complete"`
}

// Entry is a row of the ledger.
type Entry struct {
	BatchID uuid.UUID `json:"batch_id"`
	Marker  time.Time `json:"marker"`
	Outcome string    `json:"outcome"`
	accounting.Counters
	Emissions int64     `json:"emissions"`
	AppliedAt time.Time `json:"applied_at"`
}

// What is counted has an older marker, but was decided after the pass. Ordered by
// applied_at, because the order of batch ids tempts the planner to read the primary
// key of the whole ledger backwards.
const (
	sinceSQL = `
FROM storage_ledger
WHERE scope_id = $1 AND (marker >= stowage_marker_time($2) OR outcome = 2 AND applied_at >= stowage_marker_time($2))`
	ledgerSumsSQL = `
SELECT count(*),
       coalesce(sum(bytes) FILTER (WHERE outcome = 1), 0)::bigint, coalesce(sum(components) FILTER (WHERE outcome = 1), 0)::bigint,
       coalesce(sum(bytes) FILTER (WHERE outcome = 2), 0)::bigint, coalesce(sum(components) FILTER (WHERE outcome = 2), 0)::bigint` + sinceSQL
	ledgerEntriesSQL = `
SELECT batch_id, marker, outcome, bytes, components, emissions, applied_at` + sinceSQL + `
ORDER BY applied_at DESC, batch_id DESC LIMIT $3`
)

// readLedger reads what concerns the row as it was measured.
func readLedger(ctx context.Context, tx pgx.Tx, scope uuid.UUID, m measured, limit int) (*Ledger, error) {
	begins, err := ledger.Begins(ctx, tx)
	if err != nil {
		return nil, err
	}
	l := &Ledger{Complete: true, Entries: []Entry{}}
	if !begins.IsZero() {
		l.Begins = &begins
		from := m.createdAt // before that it had no deltas
		if m.since.Time().After(from) {
			from = m.since.Time()
		}
		l.Complete = !begins.After(from)
	}
	err = tx.QueryRow(ctx, ledgerSumsSQL, scope, int64(m.since)).
		Scan(&l.Rows, &l.Applied.Bytes, &l.Applied.Components, &l.Counted.Bytes, &l.Counted.Components)
	if err != nil {
		return nil, fmt.Errorf("sum the ledger: %w", err)
	}
	rows, err := tx.Query(ctx, ledgerEntriesSQL, scope, int64(m.since), limit)
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	var (
		e       Entry
		outcome accounting.Outcome
	)
	_, err = pgx.ForEachRow(rows, []any{&e.BatchID, &e.Marker, &outcome, &e.Bytes, &e.Components, &e.Emissions, &e.AppliedAt}, func() error {
		e.Marker, e.AppliedAt, e.Outcome = e.Marker.UTC(), e.AppliedAt.UTC(), outcome.String()
		l.Entries = append(l.Entries, e)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	return l, nil
}
