package reconcile

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/internal/requests"
)

// pageSize is how many candidates one query reads.
const pageSize = 1000

// cursor is a candidate and its place in the order of its pages.
type cursor struct {
	At        accounting.Marker
	Namespace uuid.UUID
}

// start is before every candidate, one at 'epoch' with a zero id included.
var start = cursor{At: -1}

// pager reads the candidates that follow a cursor, at most limit of them; less
// than limit means that there are no more.
type pager func(ctx context.Context, after cursor, limit int) ([]cursor, error)

// requested pages over the open requests, the oldest first.
func requested(db pgdb.DB) pager {
	return func(ctx context.Context, after cursor, limit int) ([]cursor, error) {
		open, err := requests.Open(ctx, db, requests.Request{Namespace: after.Namespace, Marker: after.At}, limit)
		page := make([]cursor, len(open))
		for i, r := range open {
			page[i] = cursor{At: r.Marker, Namespace: r.Namespace}
		}
		return page, err
	}
}

const staleSQL = `
SELECT stowage_marker_micros(last_reconciled_at), namespace_id FROM namespace_statistics
WHERE (last_reconciled_at, namespace_id) > (stowage_marker_time($1), $2)
  AND last_reconciled_at < now() - $4::interval
ORDER BY last_reconciled_at, namespace_id LIMIT $3`

// stale pages over the namespaces that were not reconciled for the given time,
// or never, the longest first.
func stale(db pgdb.DB, staleness time.Duration) pager {
	return func(ctx context.Context, after cursor, limit int) ([]cursor, error) {
		rows, err := db.Query(ctx, staleSQL, int64(after.At), after.Namespace, limit, staleness)
		return collect(rows, err, "stale namespaces")
	}
}

// A part of the namespaces, in one row: its last if the part is full, and those that
// have no statistics row. Each is looked up by a query of its own. NOT EXISTS would be
// a join, which may read all of namespace_statistics.
const missingSQL = `
WITH part AS MATERIALIZED (SELECT id FROM namespaces WHERE id > $1 ORDER BY id LIMIT $2)
SELECT (SELECT id FROM part ORDER BY id OFFSET $2::bigint - 1 LIMIT 1), ARRAY (
	SELECT id FROM part
	WHERE (SELECT s.namespace_id FROM namespace_statistics s WHERE s.namespace_id = part.id) IS NULL
	ORDER BY id)`

// missing looks through the limit namespaces that follow after, for those without a
// statistics row. The last one is where to go on; uuid.Nil, which is before all others,
// when there are no more.
func missing(ctx context.Context, db pgdb.DB, after uuid.UUID, limit int) (found []uuid.UUID, last uuid.UUID, err error) {
	var end *uuid.UUID
	if err := db.QueryRow(ctx, missingSQL, after, limit).Scan(&end, &found); err != nil {
		return nil, uuid.Nil, fmt.Errorf("namespaces without a statistics row: %w", err)
	}
	if end != nil {
		last = *end
	}
	return found, last, nil
}

func collect(rows pgx.Rows, err error, what string) ([]cursor, error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	page, err := pgx.CollectRows(rows, pgx.RowToStructByPos[cursor])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return page, nil
}

// pick takes up to n candidates that are not in seen, page by page, and adds
// them to seen.
func pick(ctx context.Context, page pager, limit, n int, seen map[uuid.UUID]bool) ([]uuid.UUID, error) {
	var picked []uuid.UUID
	after := start
	for len(picked) < n {
		candidates, err := page(ctx, after, limit)
		if err != nil {
			return nil, err
		}
		for _, c := range candidates {
			if len(picked) < n && !seen[c.Namespace] {
				seen[c.Namespace] = true
				picked = append(picked, c.Namespace)
			}
		}
		if len(candidates) < limit {
			break
		}
		after = candidates[len(candidates)-1]
	}
	return picked, nil
}
