package migrate_test

import (
	"context"
	"crypto/sha256"
	"embed"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/migrate"
)

// asMigrator holds the URL of the database that the test binary migrates instead
// of running tests, so that a test can kill it.
const asMigrator = "STOWAGE_TEST_AS_MIGRATOR"

func TestMain(m *testing.M) {
	if url := os.Getenv(asMigrator); url != "" {
		if err := beMigrator(url); err != nil {
			panic(err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

func beMigrator(url string) error {
	pool, err := pgxpool.New(context.Background(), url)
	if err != nil {
		return err
	}
	defer pool.Close()
	return migrate.Apply(context.Background(), pool, migrate.Options{LockTimeout: time.Hour})
}

// The versions of the directory, by what they make.
const (
	versionNamespaces     = "20261130100001"
	versionStatistics     = "20261130100002"
	versionLastReconciled = "20261130100003"
	versionContent        = "20261130100004"
	versionBlobs          = "20261130100005"
	versionAccounting     = "20261130100006"
	versionRiver          = "20261130100007"
	versionGuard          = "20261130100008"
)

//go:embed migrations down
var directory embed.FS

// newest is the directory's newest migration, and the version before it.
func newest(t *testing.T) (last migrate.Migration, before string) {
	t.Helper()
	all := migrations(t)
	return all[len(all)-1], all[len(all)-2].Version
}

// migrations are those of the directory, oldest first.
func migrations(t *testing.T) (all []migrate.Migration) {
	t.Helper()
	entries, err := directory.ReadDir("migrations")
	require.NoError(t, err)
	for _, entry := range entries {
		if name, isMigration := strings.CutSuffix(entry.Name(), ".sql"); isMigration {
			version, description, _ := strings.Cut(name, "_")
			all = append(all, migrate.Migration{Version: version, Description: description})
		}
	}
	return all
}

// execer is a pool, a connection or a transaction.
type execer interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

func exec(t *testing.T, db execer, sql string, args ...any) int64 {
	t.Helper()
	tag, err := db.Exec(t.Context(), sql, args...)
	require.NoError(t, err)
	return tag.RowsAffected()
}

func value[T any](t *testing.T, db execer, sql string, args ...any) (v T) {
	t.Helper()
	require.NoError(t, db.QueryRow(t.Context(), sql, args...).Scan(&v))
	return v
}

func values[T any](t *testing.T, pool *pgxpool.Pool, sql string, args ...any) []T {
	t.Helper()
	rows, err := pool.Query(t.Context(), sql, args...)
	require.NoError(t, err)
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	require.NoError(t, err)
	return all
}

// bounded is the test's context with a deadline: what waits for a lock forever
// must fail the test and not hang it.
func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// migratedTo is a database at a version of the directory.
func migratedTo(t *testing.T, version string) *pgxpool.Pool {
	t.Helper()
	pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
	advance(t, pool, version)
	return pool
}

func advance(t *testing.T, pool *pgxpool.Pool, version string) {
	t.Helper()
	require.NoError(t, migrate.Apply(bounded(t), pool, migrate.Options{To: version}))
}

func newNamespace(t *testing.T, db execer) uuid.UUID {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	exec(t, db, "INSERT INTO namespaces (id, slug) VALUES ($1, $2)", id, id.String())
	return id
}

func newRepository(t *testing.T, db execer, namespace uuid.UUID) uuid.UUID {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	exec(t, db, "INSERT INTO repositories (id, namespace_id, name, format, kind) VALUES ($1, $2, $3, 1, 1)", id, namespace, id.String())
	return id
}

func digest(content string) []byte {
	sum := sha256.Sum256([]byte(content))
	return sum[:]
}

func newBlob(t *testing.T, db execer, namespace uuid.UUID, content string) {
	t.Helper()
	exec(t, db, "INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) VALUES ($1, $2, $3)", namespace, digest(content), len(content))
}

// setTrigger enables or disables a trigger on a table.
func setTrigger(t *testing.T, db execer, table, trigger, state string) {
	t.Helper()
	exec(t, db, fmt.Sprintf("ALTER TABLE %s %s TRIGGER %s", table, state, trigger))
}

// requireCode requires the SQLSTATE of a server's error.
func requireCode(t *testing.T, err error, code string) {
	t.Helper()
	_ = requireServerError(t, err, code)
}

func requireServerError(t *testing.T, err error, code string) *pgconn.PgError {
	t.Helper()
	var pgErr *pgconn.PgError
	require.ErrorAs(t, err, &pgErr)
	require.Equal(t, code, pgErr.Code, pgErr.Message)
	return pgErr
}

const (
	restrictViolation       = "23001"
	foreignKeyViolation     = "23503"
	uniqueViolation         = "23505"
	invalidTransactionState = "25000"
	insufficientPrivilege   = "42501"
)

// stmt is one statement and the comments before it.
type stmt = *atlas.Stmt

// statements are those of one migration, with the comments before each.
func statements(t *testing.T, version string) []stmt {
	t.Helper()
	entries, err := directory.ReadDir("migrations")
	require.NoError(t, err)
	for _, entry := range entries {
		content, err := directory.ReadFile("migrations/" + entry.Name())
		require.NoError(t, err)
		if file := atlas.NewLocalFile(entry.Name(), content); file.Version() == version {
			all, err := file.StmtDecls()
			require.NoError(t, err)
			return all
		}
	}
	require.FailNow(t, "no such migration", version)
	return nil
}
