package usage

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/ledger"
)

// beforeQuery runs something before the query of that number.
type beforeQuery struct {
	*pgxpool.Pool
	number int
	run    func()
}

func (b *beforeQuery) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	if b.number--; b.number == 0 {
		b.run()
	}
	return b.Pool.Query(ctx, sql, args...)
}

// A drain may apply the flush that Redis has told of at any moment: the value is the
// same before, in between and after.
func TestAFlushCountsOnce(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	delta := accounting.Counters{Bytes: 100, Components: 1}
	for _, kind := range []accounting.ScopeKind{accounting.KindNamespace, accounting.KindRepository} {
		for number := range 4 { // 0: never applied
			namespace, repository := uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
			_, err := pool.Exec(t.Context(), `INSERT INTO namespaces (id, slug) VALUES ($1, $2)`, namespace, namespace.String())
			require.NoError(t, err)
			_, err = pool.Exec(t.Context(), `INSERT INTO repositories (id, namespace_id, name, format, kind) VALUES ($1, $2, 'r', 3, 1)`, repository, namespace)
			require.NoError(t, err)
			scope := accounting.NamespaceScope(namespace)
			if kind == accounting.KindRepository {
				scope = accounting.RepositoryScope(namespace, repository)
			}
			flush := accounting.Flush{Scope: scope, BatchID: uuid.Must(uuid.NewV7()), Counters: delta, Emissions: 1}
			apply := func() {
				results, err := ledger.Apply(t.Context(), pool, []accounting.Flush{flush})
				require.NoError(t, err)
				require.Equal(t, ledger.Applied, results[0].Verdict)
			}
			pending := map[accounting.Scope]buffer.Pending{scope: {Flush: &flush}}
			read := func(before int) {
				found, err := Read(t.Context(), &beforeQuery{pool, before, apply}, kind, []accounting.Scope{scope}, pending)
				require.NoError(t, err)
				require.Equal(t, delta, found[scope.ID].Value(), "%s, applied before query %d", kind, before)
			}
			read(number)
			read(0)
		}
	}
}
