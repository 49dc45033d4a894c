package reconcile

import (
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
)

const planStaleness = 24 * time.Hour

// Budgets in pages of 8 KiB, from what these plans cost when they are as they
// should be. A worse plan, or one index less, is far beyond them.
func TestPlanBudgets(t *testing.T) {
	t.Parallel()

	t.Run("AC27 pages of candidates are read from the index alone", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.ManyNamespaces(t, 25_000)
		first := dbtest.Explain(t, pool, staleSQL, int64(start.At), start.Namespace, pageSize, planStaleness)
		requirePage(t, first)
		require.LessOrEqual(t, first.Buffers(), 9)

		page, err := stale(pool, planStaleness)(t.Context(), start, pageSize)
		require.NoError(t, err)
		require.Len(t, page, pageSize)
		last := page[pageSize-1]
		next := dbtest.Explain(t, pool, staleSQL, int64(last.At), last.Namespace, pageSize, planStaleness)
		requirePage(t, next)
		require.LessOrEqual(t, next.Buffers(), 10)
	})

	t.Run("AC23 namespaces without a row are looked for in a part of them", func(t *testing.T) {
		t.Parallel()
		const part = 1000
		pool := dbtest.ManyNamespaces(t, 25_000)
		all := dbtest.Explain(t, pool, missingSQL, uuid.Nil, 50_000)
		some := dbtest.Explain(t, pool, missingSQL, uuid.Nil, part)
		// A look-up by key reads three or four pages.
		require.LessOrEqual(t, some.Buffers(), 4*part+100)
		require.GreaterOrEqual(t, all.Buffers(), 20*some.Buffers(), "it reads no more than its part")
	})

	t.Run("AC29 the backlog costs what is due", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.ManyNamespaces(t, 500)
		due := dbtest.Explain(t, pool, `SELECT count(*) FROM namespace_statistics WHERE last_reconciled_at < now() - $1::interval`, planStaleness)
		require.LessOrEqual(t, due.Buffers(), 8)
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

		recount := dbtest.Explain(t, pool, recountBytesSQL, namespace)
		var scans []dbtest.Plan
		for _, n := range recount.Nodes() {
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
func requirePage(t *testing.T, p dbtest.Plan) {
	t.Helper()
	require.Equal(t, []string{"Limit", "Index Only Scan"}, p.Types())
	scan := p.Plans[0]
	require.Contains(t, scan.Condition, "ROW(last_reconciled_at, namespace_id) > ROW(")
	require.Empty(t, scan.Filter)
	require.Zero(t, scan.HeapFetches)
}
