package migrate_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
)

const createStatistics = "trg_namespaces_create_statistics"

// seedStatement is the seed, lifted from the migration.
func seedStatement(t *testing.T) string {
	t.Helper()
	all := statements(t, versionStatistics)
	seed := slices.IndexFunc(all, func(s stmt) bool { return strings.HasPrefix(s.Text, "INSERT INTO namespace_statistics") })
	require.GreaterOrEqual(t, seed, 0)
	return all[seed].Text
}

func TestD4TriggerBeforeSeed(t *testing.T) {
	t.Parallel()
	all := statements(t, versionStatistics)
	trigger := slices.IndexFunc(all, func(s stmt) bool { return strings.HasPrefix(s.Text, "CREATE TRIGGER "+createStatistics) })
	seed := slices.IndexFunc(all, func(s stmt) bool { return strings.HasPrefix(s.Text, "INSERT INTO namespace_statistics") })

	t.Run("D4 trigger AFTER INSERT ON namespaces", func(t *testing.T) {
		t.Parallel()
		require.GreaterOrEqual(t, trigger, 0)
		require.Contains(t, strings.Join(strings.Fields(all[trigger].Text), " "), "AFTER INSERT ON namespaces FOR EACH ROW")
	})
	t.Run("D4 before the seed in the same file", func(t *testing.T) {
		t.Parallel()
		require.Greater(t, seed, trigger)
	})
	t.Run("D4 no DO block", func(t *testing.T) {
		t.Parallel()
		require.NotContains(t, slices.Collect(func(yield func(string) bool) {
			for _, s := range all {
				if !yield(strings.Fields(s.Text)[0]) {
					return
				}
			}
		}), "DO")
	})
}

// seedAgain runs a statement on a table with counters and tells what it changed.
func seedAgain(ctx context.Context, pool *pgxpool.Pool, seed string) error {
	before, err := statisticsRows(ctx, pool)
	if err != nil {
		return err
	}
	if _, err := pool.Exec(ctx, seed); err != nil {
		return fmt.Errorf("the seed fails: %w", err)
	}
	after, err := statisticsRows(ctx, pool)
	if err != nil {
		return err
	}
	if !slices.Equal(before, after) {
		return fmt.Errorf("the seed changed rows:\n%s\nwas\n%s", strings.Join(after, "\n"), strings.Join(before, "\n"))
	}
	return nil
}

// statisticsRows are the rows as text, with the transaction that wrote each: an
// update that sets what is there already shows too.
func statisticsRows(ctx context.Context, pool *pgxpool.Pool) ([]string, error) {
	rows, err := pool.Query(ctx, "SELECT s::text || ' ' || xmin::text FROM namespace_statistics AS s ORDER BY namespace_id")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[string])
}

func TestD4SeedAgainChangesNothing(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	for range 3 {
		newNamespace(t, pool)
	}
	exec(t, pool, "UPDATE namespace_statistics SET deduplicated_size_bytes = 7, components_count = 3, last_reconciled_at = now()")
	seed := seedStatement(t)
	const clause = "ON CONFLICT (namespace_id)\n    DO NOTHING"
	require.Contains(t, seed, clause)

	t.Run("D4 the seed run again changes nothing", func(t *testing.T) {
		require.NoError(t, seedAgain(t.Context(), pool, seed))
	})
	// The check above must be able to fail.
	t.Run("D4 with DO UPDATE the check is red", func(t *testing.T) {
		mutant := strings.Replace(seed, "DO NOTHING", "DO UPDATE SET deduplicated_size_bytes = 0", 1)
		require.ErrorContains(t, seedAgain(t.Context(), pool, mutant), "the seed changed rows")
	})
	t.Run("D4 without the clause the check is red", func(t *testing.T) {
		mutant := strings.Replace(seed, clause, "", 1)
		requireCode(t, seedAgain(t.Context(), pool, mutant), uniqueViolation)
	})
}

// zeroedRows counts the statistics rows, and those that are all zero.
func requireZeroedRows(t *testing.T, db execer, want int) {
	t.Helper()
	require.Equal(t, want, value[int](t, db, "SELECT count(*) FROM namespace_statistics"))
	require.Equal(t, want, value[int](t, db, `SELECT count(*) FROM namespace_statistics JOIN namespaces ON id = namespace_id
		WHERE (deduplicated_size_bytes, components_count, last_reconciled_at, reconciliation_marker) = (0, 0, 'epoch', 'epoch')`))
}

func TestAC16EveryNamespaceHasAZeroedRow(t *testing.T) {
	t.Parallel()

	t.Run("AC16 by the trigger, whose repetition changes nothing", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		id := newNamespace(t, pool)
		requireZeroedRows(t, pool, 1)
		require.Zero(t, exec(t, pool, "INSERT INTO namespaces (id, slug) VALUES ($1, $2) ON CONFLICT DO NOTHING", id, id.String()))
		requireZeroedRows(t, pool, 1)

		setTrigger(t, pool, "namespaces", createStatistics, "DISABLE")
		newNamespace(t, pool)
		requireZeroedRows(t, pool, 1)
	})
	t.Run("AC16 by the seed", func(t *testing.T) {
		t.Parallel()
		pool := migratedTo(t, versionNamespaces)
		for range 10 {
			newNamespace(t, pool)
		}
		advance(t, pool, versionStatistics)
		requireZeroedRows(t, pool, 10)
	})
	t.Run("AC16 together with the seed, or with another hand that was first, it makes one row", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		newNamespace(t, pool)
		exec(t, pool, seedStatement(t))
		requireZeroedRows(t, pool, 1)

		// As the client's hook could: the row stands before the trigger fires.
		exec(t, pool, `WITH made AS (INSERT INTO namespaces (id, slug) VALUES ($1, 'a') RETURNING id)
			INSERT INTO namespace_statistics (namespace_id) SELECT id FROM made`, uuid.Must(uuid.NewV7()))
		requireZeroedRows(t, pool, 2)
	})
	t.Run("AC16 50,000 inserts make exactly 50,000 rows", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		exec(t, pool, "INSERT INTO namespaces (id, slug) SELECT gen_random_uuid(), n::text FROM generate_series(1, 50000) AS n")
		requireZeroedRows(t, pool, 50000)
	})
}

func TestSlugIsImmutable(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	id := newNamespace(t, pool)
	const update = "UPDATE namespaces SET slug = $2 WHERE id = $1"

	t.Run("a change is refused, again and again", func(t *testing.T) {
		for range 2 {
			_, err := pool.Exec(t.Context(), update, id, "other")
			require.Contains(t, requireServerError(t, err, restrictViolation).Message, id.String())
		}
		require.Equal(t, id.String(), value[string](t, pool, "SELECT slug FROM namespaces"))
	})
	t.Run("an update that leaves the slug passes", func(t *testing.T) {
		require.EqualValues(t, 1, exec(t, pool, update, id, id.String()))
		require.EqualValues(t, 1, exec(t, pool, "UPDATE namespaces SET created_at = now()"))
	})
	t.Run("a change by another trigger is refused too", func(t *testing.T) {
		exec(t, pool, `CREATE FUNCTION change_slug() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.slug := ''other''; RETURN NEW; END'`)
		exec(t, pool, "CREATE TRIGGER a_change_slug BEFORE UPDATE ON namespaces FOR EACH ROW EXECUTE FUNCTION change_slug()")
		_, err := pool.Exec(t.Context(), "UPDATE namespaces SET created_at = now()")
		requireCode(t, err, restrictViolation)
	})
	t.Run("nothing is refused when the trigger is disabled", func(t *testing.T) {
		setTrigger(t, pool, "namespaces", "trg_namespaces_slug_immutable", "DISABLE")
		require.EqualValues(t, 1, exec(t, pool, update, id, "other"))
	})
}
