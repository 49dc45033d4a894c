package migrate_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	osexec "os/exec"
	"strings"
	"testing"
	"time"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/migrate"
)

// shortLockTimeout is long enough for a loaded machine to see who holds the lock.
const shortLockTimeout = 400 * time.Millisecond

// onRecord is a logger that calls a function with each record, as text.
func onRecord(do func(record string)) *slog.Logger {
	return slog.New(slog.NewTextHandler(writerFunc(func(p []byte) { do(string(p)) }), nil))
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// holder is a transaction of another session, and how the server calls that.
func holder(t *testing.T, pool *pgxpool.Pool, statement string) (tx pgx.Tx, session string) {
	t.Helper()
	tx = begin(t, pool, pgx.TxOptions{})
	exec(t, tx, "SET application_name = 'holder'")
	exec(t, tx, statement)
	return tx, fmt.Sprintf("session %d (user postgres, application holder, idle in transaction, in a transaction since ", value[int](t, tx, "SELECT pg_backend_pid()"))
}

func TestD5LockTimeout(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ file, hold, finally string }{
		"D5 a file in a transaction is tried again as a whole": {
			file:    "INSERT INTO log VALUES (1);\nALTER TABLE a ADD COLUMN b int;",
			hold:    "LOCK TABLE a IN ACCESS SHARE MODE",
			finally: "SELECT count(*) = 1 FROM log",
		},
		"D5 a file without a transaction is tried again at its statement": {
			file:    "-- atlas:txmode none\n\nINSERT INTO log VALUES (1);\nALTER TABLE a ADD COLUMN b int;",
			hold:    "LOCK TABLE a IN ACCESS SHARE MODE",
			finally: "SELECT count(*) = 1 FROM log",
		},
		"D5 an index that was begun concurrently is begun anew": {
			file:    "-- atlas:txmode none\n\nCREATE INDEX CONCURRENTLY index_a ON a (id);",
			hold:    "INSERT INTO a VALUES (1)",
			finally: "SELECT indisvalid FROM pg_index WHERE indexrelid = 'index_a'::regclass",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
			exec(t, pool, "CREATE TABLE a (id int); CREATE TABLE log (n int)")
			tx, session := holder(t, pool, tc.hold)
			told := false
			logger := onRecord(func(record string) {
				if !told && strings.Contains(record, "tried again") && strings.Contains(record, session) {
					told = true
					_ = tx.Rollback(context.Background())
				}
			})
			dir := newDir(t, map[string]string{"1_a.sql": tc.file})
			require.NoError(t, migrate.ApplyDir(bounded(t), pool, dir, migrate.Options{LockTimeout: shortLockTimeout, Logger: logger}))
			require.True(t, told, "the session that held the lock must be named")
			require.True(t, value[bool](t, pool, tc.finally))
		})
	}
}

func addColumn(t *testing.T) atlas.Dir {
	t.Helper()
	return newDir(t, map[string]string{"1_a.sql": "ALTER TABLE a ADD COLUMN b int;"})
}

func TestD5LockTimeoutInTheEnd(t *testing.T) {
	t.Parallel()
	t.Run("D5 the error names the session", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
		exec(t, pool, "CREATE TABLE a (id int)")
		tx, session := holder(t, pool, "LOCK TABLE a")
		err := migrate.ApplyDir(bounded(t), pool, addColumn(t), migrate.Options{LockTimeout: shortLockTimeout})
		require.ErrorContains(t, err, "migration 1_a.sql: a lock was held for longer than 400ms, 6 times in a row, by "+session)
		require.NoError(t, tx.Rollback(t.Context()))
		require.NoError(t, migrate.ApplyDir(bounded(t), pool, addColumn(t), migrate.Options{}))
	})
	t.Run("D5 a pool of one connection names nobody", func(t *testing.T) {
		t.Parallel()
		url := dbtest.NewEmptyURL(t)
		pool := dbtest.Open(t, url)
		exec(t, pool, "CREATE TABLE a (id int)")
		holder(t, pool, "LOCK TABLE a")
		single, err := pgxpool.New(t.Context(), url+"&pool_max_conns=1")
		require.NoError(t, err)
		defer single.Close()
		err = migrate.ApplyDir(bounded(t), single, addColumn(t), migrate.Options{LockTimeout: 20 * time.Millisecond})
		require.ErrorContains(t, err, "by a session that could not be seen")
	})
	t.Run("D5 no further attempt when the context has ended", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
		exec(t, pool, "CREATE TABLE a (id int)")
		holder(t, pool, "LOCK TABLE a")
		ctx, cancel := context.WithCancel(bounded(t))
		attempts := 0
		logger := onRecord(func(string) { attempts++; cancel() })
		err := migrate.ApplyDir(ctx, pool, addColumn(t), migrate.Options{LockTimeout: 20 * time.Millisecond, Logger: logger})
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, 1, attempts)
	})
}

// atLastReconciled is a database where a migrator must wait in the middle: the
// holder keeps the table from the third migration.
func atLastReconciled(t *testing.T) (url string, pool *pgxpool.Pool, hold pgx.Tx) {
	t.Helper()
	url = dbtest.NewEmptyURL(t)
	pool = dbtest.Open(t, url)
	advance(t, pool, versionNamespaces)
	newRepository(t, pool, newNamespace(t, pool))
	hold, _ = holder(t, pool, "LOCK TABLE repositories IN ACCESS SHARE MODE")
	return url, pool, hold
}

const waitsForRepositories = "SELECT count(*) = 1 FROM pg_locks WHERE relation = 'repositories'::regclass AND NOT granted"

func requireSoon(t *testing.T, pool *pgxpool.Pool, query string) {
	t.Helper()
	require.Eventually(t, func() bool { return value[bool](t, pool, query) }, time.Minute, 20*time.Millisecond, query)
}

func TestD5KilledMigrator(t *testing.T) {
	t.Parallel()
	url, pool, hold := atLastReconciled(t)
	migrator := osexec.Command(os.Args[0])
	migrator.Env = append(os.Environ(), asMigrator+"="+url)
	require.NoError(t, migrator.Start())
	t.Cleanup(func() { _ = migrator.Process.Kill() })
	requireSoon(t, pool, waitsForRepositories)
	require.NoError(t, migrator.Process.Kill())
	require.ErrorContains(t, migrator.Wait(), "signal: killed")
	require.NoError(t, hold.Rollback(t.Context()))

	// It waits for what the dead one's session still does.
	require.NoError(t, migrate.Apply(bounded(t), pool, migrate.Options{To: versionStatistics}))
	state, err := migrate.Status(t.Context(), pool)
	require.NoError(t, err)
	require.Equal(t, versionStatistics, state.Current(), "of the file in which it was killed nothing is left")
	require.NoError(t, migrate.Apply(bounded(t), pool, migrate.Options{}))
	require.NoError(t, migrate.Verify(t.Context(), pool))
	require.Equal(t, 1, value[int](t, pool, "SELECT count(*) FROM repositories WHERE last_reconciled_at = 'epoch'"))
}

func TestD5TwoMigratorsAtOnce(t *testing.T) {
	t.Parallel()
	url, pool, hold := atLastReconciled(t)
	apply := func(name string) (log *bytes.Buffer, done chan error) {
		log, done = &bytes.Buffer{}, make(chan error, 1)
		other := dbtest.Open(t, url+"&application_name="+name)
		logger := slog.New(slog.NewTextHandler(log, nil))
		ctx := bounded(t)
		go func() { done <- migrate.Apply(ctx, other, migrate.Options{Logger: logger, LockTimeout: time.Minute}) }()
		return log, done
	}
	first, firstDone := apply("first")
	requireSoon(t, pool, waitsForRepositories)
	second, secondDone := apply("second")
	requireSoon(t, pool, "SELECT count(*) = 1 FROM pg_stat_activity WHERE application_name = 'second' AND query LIKE '%pg_try_advisory_lock%'")
	require.NoError(t, hold.Rollback(t.Context()))

	require.NoError(t, <-firstDone)
	require.NoError(t, <-secondDone)
	require.Equal(t, len(migrations(t))-1, strings.Count(first.String(), "migration applied"))
	require.Contains(t, second.String(), "no migration is pending")
	require.NoError(t, migrate.Verify(t.Context(), pool))
}
