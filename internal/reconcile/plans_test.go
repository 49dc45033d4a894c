package reconcile

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
)

// plan is a node of EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON).
type plan struct {
	NodeType    string  `json:"Node Type"`
	Relation    string  `json:"Relation Name"`
	Condition   string  `json:"Index Cond"`
	Filter      string  `json:"Filter"`
	ActualLoops float64 `json:"Actual Loops"`
	HeapFetches float64 `json:"Heap Fetches"`
	Hit         int     `json:"Shared Hit Blocks"`
	Read        int     `json:"Shared Read Blocks"`
	Plans       []plan  `json:"Plans"`
}

// buffers is how many pages the statement touched, in memory or not.
func (p plan) buffers() int { return p.Hit + p.Read }

// nodes are p and all below it that ran.
func (p plan) nodes() []plan {
	var all []plan
	if p.ActualLoops > 0 {
		all = append(all, p)
	}
	for _, child := range p.Plans {
		all = append(all, child.nodes()...)
	}
	return all
}

func (p plan) types() []string {
	var types []string
	for _, n := range p.nodes() {
		types = append(types, n.NodeType)
	}
	return types
}

func explain(t *testing.T, pool *pgxpool.Pool, query string, args ...any) plan {
	t.Helper()
	var text []byte
	require.NoError(t, pool.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+query, args...).Scan(&text))
	var plans []struct{ Plan plan }
	require.NoError(t, json.Unmarshal(text, &plans))
	return plans[0].Plan
}

const planStaleness = 24 * time.Hour

// manyNamespaces are 50,000, of which so many are stale.
func manyNamespaces(t *testing.T, stale int) *pgxpool.Pool {
	t.Helper()
	pool := dbtest.New(t)
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

// Budgets in pages of 8 KiB, from what these plans cost when they are as they
// should be. A worse plan, or one index less, is far beyond them.
func TestPlanBudgets(t *testing.T) {
	t.Parallel()

	t.Run("AC27 pages of candidates are read from the index alone", func(t *testing.T) {
		t.Parallel()
		pool := manyNamespaces(t, 25_000)
		first := explain(t, pool, staleSQL, int64(start.At), start.Namespace, pageSize, planStaleness)
		requirePage(t, first)
		require.LessOrEqual(t, first.buffers(), 9)

		page, err := stale(pool, planStaleness)(t.Context(), start, pageSize)
		require.NoError(t, err)
		require.Len(t, page, pageSize)
		last := page[pageSize-1]
		next := explain(t, pool, staleSQL, int64(last.At), last.Namespace, pageSize, planStaleness)
		requirePage(t, next)
		require.LessOrEqual(t, next.buffers(), 10)
	})

	t.Run("AC29 the backlog costs what is due", func(t *testing.T) {
		t.Parallel()
		pool := manyNamespaces(t, 500)
		due := explain(t, pool, `SELECT count(*) FROM namespace_statistics WHERE last_reconciled_at < now() - $1::interval`, planStaleness)
		require.LessOrEqual(t, due.buffers(), 8)
		require.Contains(t, backlogSQL, `SELECT count(*) FROM namespace_statistics WHERE last_reconciled_at < now() - $1::interval`)
	})

	t.Run("a recount scans one partition, and the index alone", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		namespace := uuid.Must(uuid.NewV7())
		_, err := pool.Exec(t.Context(), `
			INSERT INTO blob_storage_blobs_by_namespace (namespace_id, sha256, size_bytes)
			SELECT id, sha256(uuid_send(id) || int4send(n)), 1
			FROM (SELECT gen_random_uuid() FROM generate_series(1, 1000) UNION ALL SELECT $1) AS namespaces (id), generate_series(1, 100) AS n`, namespace)
		require.NoError(t, err)
		_, err = pool.Exec(t.Context(), `VACUUM (ANALYZE) blob_storage_blobs_by_namespace`)
		require.NoError(t, err)

		recount := explain(t, pool, recountBytesSQL, namespace)
		var scans []plan
		for _, n := range recount.nodes() {
			if n.Relation != "" {
				scans = append(scans, n)
			}
		}
		require.Len(t, scans, 1)
		require.Equal(t, "Index Only Scan", scans[0].NodeType)
		require.Zero(t, scans[0].HeapFetches)
		require.True(t, strings.HasPrefix(scans[0].Relation, "blob_storage_blobs_by_namespace_"), scans[0].Relation)
	})
}

// requirePage demands a scan of the index from the cursor on and no further.
func requirePage(t *testing.T, p plan) {
	t.Helper()
	require.Equal(t, []string{"Limit", "Index Only Scan"}, p.types())
	scan := p.Plans[0]
	require.Contains(t, scan.Condition, "ROW(last_reconciled_at, namespace_id) > ROW(")
	require.Empty(t, scan.Filter)
	require.Zero(t, scan.HeapFetches)
}
