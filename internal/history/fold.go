package history

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
)

// namespaceEntries is the condition of the index on hours: entries of namespaces
// that changed their counters.
const namespaceEntries = `l.scope_kind = 1 AND l.outcome IN (1, 4)`

// hourOf is the expression of that index.
const hourOf = `date_trunc('hour', l.applied_at AT TIME ZONE 'UTC')`

// touchedSQL is the next namespaces that have an entry in the hour. A namespace
// that ended is in the next hour to be rolled up, whichever it ended in.
const touchedSQL = `
SELECT namespace_id FROM (
	(SELECT DISTINCT l.scope_id AS namespace_id FROM storage_ledger l
	WHERE ` + hourOf + ` = $1::timestamptz AT TIME ZONE 'UTC' AND l.scope_id > $2 AND ` + namespaceEntries + `
	ORDER BY 1 LIMIT $3)
	UNION
	(SELECT namespace_id FROM usage_closings
	WHERE closed_at < $1::timestamptz + interval '1 hour' AND namespace_id > $2
	ORDER BY 1 LIMIT $3)
) t ORDER BY namespace_id LIMIT $3`

func touched(ctx context.Context, tx pgx.Tx, p progress, limit int) ([]uuid.UUID, error) {
	rows, err := tx.Query(ctx, touchedSQL, p.hour, p.after, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

// anchorSQL is what the namespace t had at the start of an hour: what its row has
// now, without all that was entered since. Row and ledger change together, so in
// one snapshot this is exact. %s: the hour.
const anchorSQL = `
	SELECT coalesce(s.deduplicated_size_bytes, 0) - coalesce(since.bytes, 0) AS bytes,
	       coalesce(s.components_count, 0) - coalesce(since.components, 0) AS components
	FROM (
		SELECT sum(e.bytes) AS bytes, sum(e.components) AS components FROM (
			SELECT l.bytes, l.components FROM storage_ledger l
			WHERE l.scope_id = t.namespace_id AND ` + namespaceEntries + `
			  AND ` + hourOf + ` = ANY (ARRAY(SELECT generate_series(%s, clock_timestamp() + interval '1 hour', interval '1 hour') AT TIME ZONE 'UTC'))
			UNION ALL
			SELECT -c.bytes, -c.components FROM usage_closings c WHERE c.namespace_id = t.namespace_id
		) e
	) since
	LEFT JOIN namespace_statistics s ON s.namespace_id = t.namespace_id`

// foldSQL rolls up one hour of the namespaces in $2, which are all that have entries
// between the first and the last of them.
//
// An hour begins with what the one before it ended with. A namespace without
// history begins with its anchor; so does every one if $3, in the newest hour, and
// where that differs somebody has changed the row past the ledger. In older hours
// the anchor would be dear, and the newest finds the same.
//
// An entry adds its bytes times what is left of the hour to the integral, in
// whichever order. $4 is how long after it was frozen a flush is not late yet.
var foldSQL = `
WITH t AS (
	SELECT n.namespace_id, last.bytes_end, last.components_end
	FROM unnest($2::uuid[]) AS n (namespace_id)
	LEFT JOIN LATERAL (
		SELECT bytes_end, components_end FROM usage_hours u
		WHERE u.namespace_id = n.namespace_id ORDER BY u.hour DESC LIMIT 1
	) last ON true
), anchor AS (
	SELECT t.namespace_id, a.bytes, a.components
	FROM t CROSS JOIN LATERAL (` + fmt.Sprintf(anchorSQL, `$1::timestamptz`) + `) a
	WHERE $3 OR t.bytes_end IS NULL
), start AS (
	SELECT namespace_id, coalesce(a.bytes, t.bytes_end) AS bytes, coalesce(a.components, t.components_end) AS components,
	       a.bytes - t.bytes_end AS off_bytes, a.components - t.components_end AS off_components
	FROM t LEFT JOIN anchor a USING (namespace_id)
), closing AS (
	DELETE FROM usage_closings WHERE namespace_id = ANY ($2) AND closed_at < $1::timestamptz + interval '1 hour'
	RETURNING namespace_id, greatest(closed_at, $1) AS applied_at, -bytes AS bytes, -components AS components
), entry AS (
	SELECT l.scope_id AS namespace_id, l.applied_at, l.batch_id, l.bytes::numeric, l.components::numeric,
	       CASE WHEN l.outcome = 4 THEN 1 WHEN frozen.at < $1 AND l.applied_at - frozen.at > $4 THEN 2 END AS kind
	FROM storage_ledger l,
	LATERAL (SELECT to_timestamp(('x' || left(replace(l.batch_id::text, '-', ''), 12))::bit(48)::bigint / 1000.0)) AS frozen (at)
	WHERE ` + hourOf + ` = $1::timestamptz AT TIME ZONE 'UTC' AND ` + namespaceEntries + `
	  AND l.scope_id >= $2[1] AND l.scope_id <= $2[cardinality($2)]
	UNION ALL
	SELECT namespace_id, applied_at, '00000000-0000-0000-0000-000000000000', sum(bytes), sum(components), 3
	FROM closing GROUP BY namespace_id, applied_at
), running AS (
	SELECT namespace_id, bytes, components, extract(epoch FROM $1::timestamptz + interval '1 hour' - applied_at) AS seconds_left,
	       sum(bytes) OVER (PARTITION BY namespace_id ORDER BY applied_at, batch_id ROWS UNBOUNDED PRECEDING) AS level
	FROM entry
), change AS (
	SELECT namespace_id, sum(bytes) AS bytes, sum(components) AS components, sum(bytes * seconds_left) AS byte_seconds, max(level) AS level
	FROM running GROUP BY namespace_id
), written AS (
	INSERT INTO usage_hours (namespace_id, hour, bytes_start, components_start, bytes_end, components_end, peak_bytes, byte_seconds)
	SELECT namespace_id, $1, ` + strings.Join([]string{
	fits("s.bytes"), fits("s.components"), fits("s.bytes + c.bytes"), fits("s.components + c.components"), fits("greatest(s.bytes, s.bytes + c.level)"),
}, ", ") + `, s.bytes * 3600 + c.byte_seconds
	FROM start s JOIN change c USING (namespace_id)
), adjusted AS (
	INSERT INTO usage_adjustments (namespace_id, applied_at, kind, batch_id, bytes, components)
	SELECT namespace_id, applied_at, kind, batch_id, bytes, components FROM entry WHERE kind IS NOT NULL
	UNION ALL
	SELECT namespace_id, $1, 4, '00000000-0000-0000-0000-000000000000', ` + fits("off_bytes") + `, ` + fits("off_components") + `
	FROM start WHERE off_bytes <> 0 OR off_components <> 0
)
SELECT count(*) FROM entry`

// fits keeps an absurd counter from stopping the history of all others.
func fits(expression string) string {
	return `least(greatest(` + expression + `, -9223372036854775807), 9223372036854775807)::bigint`
}

// folded is what one step did.
type folded struct {
	rows    int
	entries int64
	// closed says that it was the last of its hour.
	closed bool
}

// fold rolls up the next namespaces of the hour, and closes the hour after the last.
func fold(ctx context.Context, tx pgx.Tx, p progress, limit int, late time.Duration) (f folded, err error) {
	namespaces, err := touched(ctx, tx, p, limit)
	if err != nil {
		return f, fmt.Errorf("namespaces that changed: %w", err)
	}
	next := p.hour.Add(time.Hour)
	f.rows = len(namespaces)
	if f.rows > 0 {
		if err := tx.QueryRow(ctx, foldSQL, p.hour, namespaces, next.Equal(p.sealed), late).Scan(&f.entries); err != nil {
			return f, fmt.Errorf("roll up %d namespaces: %w", f.rows, err)
		}
	}
	if f.rows == limit {
		_, err = tx.Exec(ctx, `UPDATE usage_progress SET after_namespace_id = $1`, namespaces[limit-1])
		return f, err
	}
	f.closed = true
	_, err = tx.Exec(ctx, `UPDATE usage_progress SET hour = $1, after_namespace_id = $2`, next, uuid.Nil)
	return f, err
}
