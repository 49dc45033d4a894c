package migrate_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
)

const guardCounters = "trg_repositories_guard_counters"

// as is a pool whose sessions act as a role of the test's own, which grants give
// privileges; %s stands for the role.
func as(t *testing.T, owner *pgxpool.Pool, grants ...string) *pgxpool.Pool {
	t.Helper()
	// Roles belong to the whole server, and tests run in parallel.
	role := "stowage_test_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	exec(t, owner, "CREATE ROLE "+role)
	for _, grant := range grants {
		exec(t, owner, strings.ReplaceAll(grant, "%s", role))
	}
	t.Cleanup(func() {
		_, err := owner.Exec(context.Background(), "REASSIGN OWNED BY "+role+" TO CURRENT_USER; DROP OWNED BY "+role+"; DROP ROLE "+role)
		require.NoError(t, err)
	})
	cfg := owner.Config()
	cfg.ConnConfig.RuntimeParams["role"] = role
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func TestCountersOfANewRepositoryCannotBeForged(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	namespace := newNamespace(t, pool)
	const insert = "INSERT INTO repositories (id, namespace_id, name, format, kind, size_bytes, artifacts_count, last_reconciled_at) VALUES ($1, $2, gen_random_uuid(), 1, 1, $3, $4, $5)"
	epoch, stamped := time.Unix(0, 0), time.Now()
	// The foreign key's check reads namespaces as their owner.
	const mayInsert = "GRANT INSERT ON repositories TO %s"
	writer := as(t, pool, mayInsert)
	forged := []struct {
		told        string
		bytes       int64
		artifacts   int64
		last        time.Time
		mayUpdateIt *pgxpool.Pool
	}{
		{"size_bytes = -1", -1, 0, epoch, as(t, pool, mayInsert, "GRANT UPDATE (size_bytes) ON repositories TO %s")},
		{"artifacts_count = 7", 0, 7, epoch, as(t, pool, mayInsert, "GRANT UPDATE (artifacts_count) ON repositories TO %s")},
		{"last_reconciled_at = " + stamped.UTC().Format("2006-01-02"), 0, 0, stamped, as(t, pool, mayInsert, "GRANT UPDATE (last_reconciled_at) ON repositories TO %s")},
	}

	t.Run("an insert of other values is refused, again and again", func(t *testing.T) {
		for _, f := range forged {
			id := uuid.New()
			for range 2 {
				_, err := writer.Exec(t.Context(), insert, id, namespace, f.bytes, f.artifacts, f.last)
				message := requireServerError(t, err, insufficientPrivilege).Message
				require.Contains(t, message, "repository "+id.String()+" cannot be inserted with "+f.told)
				require.Contains(t, message, "leave it out")
			}
		}
		require.Zero(t, value[int](t, pool, "SELECT count(*) FROM repositories"))
	})
	t.Run("an upsert is refused too", func(t *testing.T) {
		_, err := writer.Exec(t.Context(), insert+" ON CONFLICT DO NOTHING", uuid.New(), namespace, 1, 0, epoch)
		requireCode(t, err, insufficientPrivilege)
	})
	t.Run("what another trigger sets is refused too", func(t *testing.T) {
		exec(t, pool, `CREATE FUNCTION set_size() RETURNS trigger LANGUAGE plpgsql AS 'BEGIN NEW.size_bytes := 1; RETURN NEW; END'`)
		exec(t, pool, "CREATE TRIGGER z_set_size BEFORE INSERT ON repositories FOR EACH ROW EXECUTE FUNCTION set_size()")
		_, err := writer.Exec(t.Context(), insert, uuid.New(), namespace, 0, 0, epoch)
		requireCode(t, err, insufficientPrivilege)
		exec(t, pool, "DROP TRIGGER z_set_size ON repositories")
	})
	t.Run("a function of the session's own does not stand in for the check", func(t *testing.T) {
		exec(t, pool, `CREATE SCHEMA own; GRANT USAGE ON SCHEMA own TO PUBLIC;
			CREATE FUNCTION own.has_column_privilege(oid, text, text) RETURNS bool LANGUAGE sql AS 'SELECT true'`)
		tx := begin(t, writer, pgx.TxOptions{})
		exec(t, tx, "SET LOCAL search_path = own, pg_catalog, public")
		_, err := tx.Exec(t.Context(), insert, uuid.New(), namespace, 1, 0, epoch)
		requireCode(t, err, insufficientPrivilege)
	})
	t.Run("the start values pass", func(t *testing.T) {
		require.EqualValues(t, 1, exec(t, writer, insert, uuid.New(), namespace, 0, 0, epoch))
	})
	t.Run("a role that may update the column passes", func(t *testing.T) {
		for _, f := range forged {
			require.EqualValues(t, 1, exec(t, f.mayUpdateIt, insert, uuid.New(), namespace, f.bytes, f.artifacts, f.last))
		}
	})
	t.Run("the owner restores a dump", func(t *testing.T) {
		owner := as(t, pool, "ALTER TABLE repositories OWNER TO %s", "GRANT SELECT ON namespaces TO %s", "GRANT ALL ON SCHEMA public TO %s")
		copied, err := owner.CopyFrom(t.Context(), pgx.Identifier{"repositories"},
			[]string{"id", "namespace_id", "name", "format", "kind", "size_bytes", "artifacts_count", "last_reconciled_at"},
			pgx.CopyFromRows([][]any{{uuid.New(), namespace, "restored", 1, 1, 9, 9, stamped}}))
		require.NoError(t, err)
		require.EqualValues(t, 1, copied)
		exec(t, pool, "ALTER TABLE repositories OWNER TO CURRENT_USER")
	})
	t.Run("nothing is refused when the trigger is disabled", func(t *testing.T) {
		setTrigger(t, pool, "repositories", guardCounters, "DISABLE")
		require.EqualValues(t, 1, exec(t, writer, insert, uuid.New(), namespace, 1, 1, stamped))
	})
}
