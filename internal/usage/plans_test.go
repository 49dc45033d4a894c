package usage

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/dbtest"
)

// Budgets in pages of 8 KiB, at 50,000 namespaces of which half are stale, each with
// an open request. Scopes without a flush, as nearly all are, ask the ledger nothing.
func TestPlanBudgets(t *testing.T) {
	t.Parallel()
	pool := dbtest.ManyNamespaces(t, 25_000)
	for _, sql := range []string{
		`INSERT INTO reconciliation_requests (namespace_id, marker) SELECT namespace_id, now() FROM namespace_statistics`,
		`VACUUM (ANALYZE) reconciliation_requests`,
	} {
		_, err := pool.Exec(t.Context(), sql)
		require.NoError(t, err)
	}
	var id uuid.UUID
	require.NoError(t, pool.QueryRow(t.Context(), `SELECT namespace_id FROM namespace_statistics ORDER BY random() LIMIT 1`).Scan(&id))

	t.Run("statistics by id cost at most four pages, and so does the open request", func(t *testing.T) {
		t.Parallel()
		plan := dbtest.Explain(t, pool, namespacesSQL, [][16]byte{id})
		buffers := map[string]int{}
		for _, n := range plan.Nodes() {
			if n.Relation != "" {
				require.NotEqual(t, "Seq Scan", n.NodeType, n.Relation)
				buffers[n.Relation] += n.Buffers()
			}
		}
		require.Len(t, buffers, 2, "the ledger is not asked")
		requests := buffers["reconciliation_requests"]
		require.LessOrEqual(t, requests, 4)
		require.LessOrEqual(t, buffers["namespace_statistics"]-requests, 4, "a node's pages are also those of the nodes below it")
	})

	t.Run("a read is planned once", func(t *testing.T) {
		t.Parallel()
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		for range 10 { // the server tries five plans of its own for each statement first
			found, err := Read(t.Context(), conn, accounting.KindNamespace, []accounting.Scope{accounting.NamespaceScope(id)}, nil)
			require.NoError(t, err)
			require.Len(t, found, 1)
		}
		var generic, custom int
		require.NoError(t, conn.QueryRow(t.Context(), `SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement = $1`, namespacesSQL).Scan(&generic, &custom))
		require.Equal(t, []int{5, 5}, []int{generic, custom})
	})
}
