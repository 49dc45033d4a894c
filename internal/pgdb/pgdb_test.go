package pgdb

import (
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
)

func newPool(t *testing.T, url string, options ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	pool, err := NewPool(t.Context(), url, options...)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func setting(t *testing.T, db DB, name string) string {
	t.Helper()
	var value string
	require.NoError(t, db.QueryRow(t.Context(), `SELECT current_setting($1)`, name).Scan(&value))
	return value
}

func TestNewPool(t *testing.T) {
	t.Parallel()
	url := dbtest.NewEmptyURL(t)

	t.Run("binds connections to public, to UTC and to a name", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, url)
		require.Equal(t, "public", setting(t, pool, "search_path"))
		require.Equal(t, "UTC", setting(t, pool, "timezone"))
		require.Equal(t, "stowage", setting(t, pool, "application_name"))
	})
	t.Run("keeps the application that the URL names", func(t *testing.T) {
		t.Parallel()
		require.Equal(t, "other", setting(t, newPool(t, url+"&application_name=other"), "application_name"))
	})
	t.Run("applies options", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, url, func(c *pgxpool.Config) { c.MaxConns = 7 })
		require.EqualValues(t, 7, pool.Config().MaxConns)
	})
	t.Run("refuses a malformed URL without repeating the password", func(t *testing.T) {
		t.Parallel()
		_, err := NewPool(t.Context(), "postgres://u:secret@h:port/db")
		require.ErrorContains(t, err, "database URL")
		require.NotContains(t, err.Error(), "secret")
	})
}

func TestInTx(t *testing.T) {
	t.Parallel()
	url := dbtest.NewEmptyURL(t)

	t.Run("says READ COMMITTED whatever the default is", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, url+"&default_transaction_isolation=serializable&default_transaction_read_only=on")
		require.NoError(t, InTx(t.Context(), pool, func(tx pgx.Tx) error {
			require.Equal(t, "read committed", setting(t, tx, "transaction_isolation"))
			require.Equal(t, "off", setting(t, tx, "transaction_read_only"))
			return nil
		}))
	})
	for given, want := range map[string]string{
		"off": "on", "local": "on", "remote_write": "on", "on": "on", "remote_apply": "remote_apply",
	} {
		t.Run("R9 makes synchronous_commit "+given+" at least on", func(t *testing.T) {
			t.Parallel()
			pool := newPool(t, url+"&pool_max_conns=1&synchronous_commit="+given)
			require.NoError(t, InTx(t.Context(), pool, func(tx pgx.Tx) error {
				require.Equal(t, want, setting(t, tx, "synchronous_commit"))
				return nil
			}))
			require.Equal(t, given, setting(t, pool, "synchronous_commit"), "only the transaction is changed")
		})
	}
	t.Run("a process that stops while it holds locks is ended", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, url+"&idle_in_transaction_session_timeout=0")
		require.NoError(t, InTx(t.Context(), pool, func(tx pgx.Tx) error {
			require.Equal(t, "30s", setting(t, tx, "idle_in_transaction_session_timeout"))
			return nil
		}))
	})
	t.Run("commits nothing after an error, and returns it", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, url)
		mistake := errors.New("mistake")
		err := InTx(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `CREATE TABLE never ()`)
			require.NoError(t, err)
			return mistake
		})
		require.ErrorIs(t, err, mistake)
		var name *string
		require.NoError(t, pool.QueryRow(t.Context(), `SELECT to_regclass('never')::text`).Scan(&name))
		require.Nil(t, name)
	})
}

func TestHold(t *testing.T) {
	t.Parallel()
	url := dbtest.NewEmptyURL(t)

	t.Run("is one holder's until it is released", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, url)
		hold, held, err := TryHold(t.Context(), pool, 1, 1)
		require.NoError(t, err)
		require.True(t, held)
		require.NoError(t, hold.Alive(t.Context()))

		_, held, err = TryHold(t.Context(), pool, 1, 1)
		require.NoError(t, err)
		require.False(t, held)
		other, held, err := TryHold(t.Context(), pool, 1, 2)
		require.NoError(t, err)
		require.True(t, held)
		other.Release(t.Context())

		hold.Release(t.Context())
		hold.Release(t.Context())
		again, held, err := TryHold(t.Context(), pool, 1, 1)
		require.NoError(t, err)
		require.True(t, held)
		again.Release(t.Context())
		require.EqualValues(t, 0, pool.Stat().AcquiredConns(), "connections went back")
	})
	t.Run("is not lost to a timeout for idle transactions", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, url+"&idle_in_transaction_session_timeout=1")
		hold, held, err := TryHold(t.Context(), pool, 2, 1)
		require.NoError(t, err)
		require.True(t, held)
		require.Equal(t, "0", setting(t, hold.conn, "idle_in_transaction_session_timeout"))
		hold.Release(t.Context())
	})
	t.Run("pins no snapshot", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, url+"&application_name=hold")
		hold, _, err := TryHold(t.Context(), pool, 3, 1)
		require.NoError(t, err)
		require.NoError(t, hold.Alive(t.Context()))
		var pinned, holders int
		require.NoError(t, newPool(t, url).QueryRow(t.Context(), `
			SELECT count(*), count(coalesce(backend_xmin, backend_xid)) FROM pg_stat_activity
			WHERE application_name = 'hold' AND state = 'idle in transaction'`).Scan(&holders, &pinned))
		require.Equal(t, 1, holders)
		require.Zero(t, pinned)
		hold.Release(t.Context())
	})
	t.Run("is dead when its connection is, and another may take it", func(t *testing.T) {
		t.Parallel()
		pool := newPool(t, url+"&application_name=victim")
		hold, _, err := TryHold(t.Context(), pool, 4, 1)
		require.NoError(t, err)
		other := newPool(t, url)
		_, err = other.Exec(t.Context(), `SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'victim'`)
		require.NoError(t, err)
		require.ErrorContains(t, hold.Alive(t.Context()), "lock lost")
		require.ErrorContains(t, hold.Alive(t.Context()), "lock lost", "and stays so")
		next, held, err := TryHold(t.Context(), other, 4, 1)
		require.NoError(t, err)
		require.True(t, held)
		next.Release(t.Context())
		hold.Release(t.Context())
		require.Eventually(t, func() bool { return pool.Stat().AcquiredConns() == 0 }, time.Minute, time.Millisecond)
	})
}

func TestErrors(t *testing.T) {
	t.Parallel()
	pool := newPool(t, dbtest.NewEmptyURL(t))
	_, err := pool.Exec(t.Context(), `
		CREATE TABLE parent (id int PRIMARY KEY, small smallint CHECK (small > 0));
		CREATE TABLE child (id int REFERENCES parent);
		CREATE TABLE parted (id int) PARTITION BY RANGE (id);
		INSERT INTO parent VALUES (1, 1)`)
	require.NoError(t, err)

	predicates := map[string]func(error) bool{
		"lock timeout": IsLockTimeout,
		"foreign key":  IsForeignKeyViolation, "no partition": IsNoPartition, "data": IsDataException,
	}
	for name, c := range map[string]struct{ sql, want string }{
		"a key that exists is none":    {`INSERT INTO parent VALUES (1, 1)`, ""},
		"a row that is missing":        {`INSERT INTO child VALUES (2)`, "foreign key"},
		"a failed CHECK is not one":    {`INSERT INTO parent VALUES (2, 0)`, ""},
		"a partition that is missing":  {`INSERT INTO parted VALUES (1)`, "no partition"},
		"a sum that does not fit":      {`SELECT 9223372036854775807 + 1::bigint`, "data"},
		"a syntax error is none of it": {`SELEC`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := pool.Exec(t.Context(), c.sql)
			require.Error(t, err)
			for predicate, holds := range predicates {
				require.Equal(t, predicate == c.want, holds(err), "%s: %v", predicate, err)
			}
		})
	}
	t.Run("a lock that somebody else has", func(t *testing.T) {
		t.Parallel()
		require.NoError(t, InTx(t.Context(), pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `LOCK TABLE child`)
			require.NoError(t, err)
			err = InTx(t.Context(), pool, func(other pgx.Tx) error {
				require.NoError(t, SetLockTimeout(t.Context(), other, time.Millisecond))
				_, err := other.Exec(t.Context(), `SELECT FROM child`)
				return err
			})
			require.True(t, IsLockTimeout(err), "%v", err)
			return nil
		}))
	})
	t.Run("no error is none of them", func(t *testing.T) {
		t.Parallel()
		for predicate, holds := range predicates {
			require.False(t, holds(nil), predicate)
		}
	})
}
