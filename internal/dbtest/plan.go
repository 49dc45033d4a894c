package dbtest

import (
	"encoding/json"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
)

// Plan is a node of EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON).
type Plan struct {
	NodeType    string  `json:"Node Type"`
	Relation    string  `json:"Relation Name"`
	Condition   string  `json:"Index Cond"`
	Filter      string  `json:"Filter"`
	ActualLoops float64 `json:"Actual Loops"`
	HeapFetches float64 `json:"Heap Fetches"`
	Hit         int     `json:"Shared Hit Blocks"`
	Read        int     `json:"Shared Read Blocks"`
	Plans       []Plan  `json:"Plans"`
}

// Buffers is how many pages the statement touched, in memory or not.
func (p Plan) Buffers() int { return p.Hit + p.Read }

// Nodes are p and all below it that ran.
func (p Plan) Nodes() []Plan {
	var all []Plan
	if p.ActualLoops > 0 {
		all = append(all, p)
	}
	for _, child := range p.Plans {
		all = append(all, child.Nodes()...)
	}
	return all
}

// Types are those of Nodes.
func (p Plan) Types() []string {
	var types []string
	for _, n := range p.Nodes() {
		types = append(types, n.NodeType)
	}
	return types
}

// Explain runs a query and says how.
func Explain(t testing.TB, pool *pgxpool.Pool, query string, args ...any) Plan {
	t.Helper()
	var text []byte
	require.NoError(t, pool.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+query, args...).Scan(&text))
	var plans []struct{ Plan Plan }
	require.NoError(t, json.Unmarshal(text, &plans))
	return plans[0].Plan
}

// ManyNamespaces are 50,000, of which so many are stale.
func ManyNamespaces(t testing.TB, stale int) *pgxpool.Pool {
	t.Helper()
	pool := New(t)
	for _, sql := range []string{
		`INSERT INTO namespaces (id, slug) SELECT gen_random_uuid(), 'n' || n FROM generate_series(1, 50000) AS n`,
		`DELETE FROM namespace_statistics`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	_, err := pool.Exec(t.Context(), `
		INSERT INTO namespace_statistics (namespace_id, last_reconciled_at)
		SELECT id, CASE WHEN row_number() OVER (ORDER BY id) > $1 THEN now() ELSE now() - interval '30 days' - random() * interval '30 days' END
		FROM namespaces`, stale)
	require.NoError(t, err)
	for _, sql := range []string{
		// The rows came in one go and in no order: as passes write them, page by
		// page, the index is denser.
		`REINDEX TABLE namespace_statistics`,
		`VACUUM (ANALYZE) namespace_statistics`,
		`VACUUM (ANALYZE) namespaces`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	return pool
}
