package backfill

import (
	"context"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/ent/entdb"
)

// Statistics makes the statistics rows of namespaces that have none: of those that
// were restored with triggers disabled. Their first reconciliation would make them
// too, one by one. The rows begin as all rows do, and are due at once.
//
// A namespace that is deleted meanwhile fails the batch, which is then done again
// without it.
func Statistics() Backfill {
	return Backfill{
		Name:  "namespace_statistics",
		About: "statistics rows of namespaces that were restored with triggers disabled",
		Table: "namespaces",
		Limit: 1000,
		Batch: makeStatistics,
	}
}

func makeStatistics(ctx context.Context, tx *entdb.Tx, after string, limit int) (Page, error) {
	var key uuid.UUID
	if after != "" {
		var err error
		if key, err = uuid.Parse(after); err != nil {
			return Page{}, err
		}
	}
	page := Page{Last: after}
	err := tx.Pgx().QueryRow(ctx, `
		WITH page AS MATERIALIZED (
			SELECT id FROM namespaces WHERE id > $1 ORDER BY id LIMIT $2),
		made AS (
			INSERT INTO namespace_statistics (namespace_id)
			SELECT id FROM page WHERE NOT EXISTS (SELECT FROM namespace_statistics s WHERE s.namespace_id = page.id)
			ON CONFLICT (namespace_id) DO NOTHING
			RETURNING namespace_id)
		SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM made),
			coalesce((SELECT id::text FROM page ORDER BY id DESC LIMIT 1), $3)`, key, limit, after).
		Scan(&page.Seen, &page.Changed, &page.Last)
	page.Done = page.Seen < int64(limit)
	return page, err
}
