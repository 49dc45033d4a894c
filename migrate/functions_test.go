package migrate_test

import (
	"bytes"
	"context"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/dbtest"
)

func TestBucketEqualsAccounting(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	ids := make([]uuid.UUID, 10_000)
	want := make([]int, len(ids))
	for i := range ids {
		ids[i] = uuid.New()
		want[i] = accounting.Bucket(ids[i])
	}
	got := values[int](t, pool, "SELECT stowage_bucket(id) FROM unnest($1::uuid[]) WITH ORDINALITY AS ids (id, n) ORDER BY n", ids)
	require.Equal(t, want, got)
}

func TestMarkerMicrosEqualAccounting(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	random := rand.New(rand.NewPCG(1, 2))
	last := time.Date(9999, 12, 31, 23, 59, 59, 999999000, time.UTC).UnixMicro()
	micros := []int64{0, 1, -1, 999_999, 1_000_000, -1_000_001, 1 << 53, 1<<53 + 1, last}
	for range 10_000 {
		micros = append(micros, random.Int64N(last))
	}

	times := values[time.Time](t, pool, "SELECT stowage_marker_time(m) FROM unnest($1::bigint[]) WITH ORDINALITY AS all_micros (m, n) ORDER BY n", micros)
	for i, instant := range times {
		require.True(t, accounting.Marker(micros[i]).Time().Equal(instant), "%d reads as %s", micros[i], instant)
	}
	require.Equal(t, micros, values[int64](t, pool, "SELECT stowage_marker_micros(at) FROM unnest($1::timestamptz[]) WITH ORDINALITY AS all_times (at, n) ORDER BY n", times))
}

func TestFunctionsAreInlined(t *testing.T) {
	t.Parallel()
	// Inlining needs a body that is as IMMUTABLE as the function says it is, so
	// this also proves that it may stand in an index.
	pool := dbtest.New(t)
	for _, call := range []string{
		"stowage_bucket(id)", "stowage_namespace_lock_key(id)", "stowage_marker_micros(created_at)", "stowage_marker_time(length(slug))",
	} {
		plan := values[string](t, pool, "EXPLAIN (VERBOSE, COSTS OFF) SELECT "+call+" FROM namespaces")
		require.NotContains(t, strings.Join(plan, "\n"), "stowage_", call)
	}
}

// marked is one row of stowage_lock_markers.
type marked struct {
	Namespace uuid.UUID
	Marker    *int64
}

func lockMarkers(ctx context.Context, tx pgx.Tx, ids ...uuid.UUID) ([]marked, error) {
	rows, err := tx.Query(ctx, "SELECT * FROM stowage_lock_markers($1)", ids)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[marked])
}

func begin(t *testing.T, pool *pgxpool.Pool, opts pgx.TxOptions) pgx.Tx {
	t.Helper()
	tx, err := pool.BeginTx(t.Context(), opts)
	require.NoError(t, err)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	// A lock that is wrong must fail the test and not hang it.
	exec(t, tx, "SET LOCAL lock_timeout = '30s'")
	return tx
}

// tryExclusive tells whether a reconciliation would get its lock now.
func tryExclusive(t *testing.T, db execer, namespace uuid.UUID) bool {
	t.Helper()
	return value[bool](t, db, "SELECT pg_try_advisory_xact_lock(stowage_namespace_lock_key($1))", namespace)
}

func TestLockMarkers(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)

	t.Run("one row for each distinct namespace, with its marker", func(t *testing.T) {
		t.Parallel()
		one, other, unknown := newNamespace(t, pool), newNamespace(t, pool), uuid.New()
		marker := accounting.MarkerOf(time.Now())
		exec(t, pool, "UPDATE namespace_statistics SET reconciliation_marker = stowage_marker_time($2) WHERE namespace_id = $1", one, int64(marker))

		got, err := lockMarkers(t.Context(), begin(t, pool, pgx.TxOptions{}), one, unknown, other, one, unknown)
		require.NoError(t, err)
		require.ElementsMatch(t, []marked{{one, new(int64(marker))}, {other, new(int64(0))}, {unknown, nil}}, got)
	})
	t.Run("of no namespace, none", func(t *testing.T) {
		t.Parallel()
		got, err := lockMarkers(t.Context(), begin(t, pool, pgx.TxOptions{}))
		require.NoError(t, err)
		require.Empty(t, got)
	})
	t.Run("the lock is held until COMMIT and shared", func(t *testing.T) {
		t.Parallel()
		namespace := newNamespace(t, pool)
		one, other := begin(t, pool, pgx.TxOptions{}), begin(t, pool, pgx.TxOptions{})
		for _, tx := range []pgx.Tx{one, other} {
			_, err := lockMarkers(t.Context(), tx, namespace)
			require.NoError(t, err)
		}
		require.False(t, tryExclusive(t, pool, namespace))
		require.NoError(t, one.Commit(t.Context()))
		require.False(t, tryExclusive(t, pool, namespace))
		require.NoError(t, other.Commit(t.Context()))
		require.True(t, tryExclusive(t, pool, namespace))
	})
	t.Run("a snapshot that outlives the statement is refused", func(t *testing.T) {
		t.Parallel()
		namespace := newNamespace(t, pool)
		for _, level := range []pgx.TxIsoLevel{pgx.RepeatableRead, pgx.Serializable} {
			_, err := lockMarkers(t.Context(), begin(t, pool, pgx.TxOptions{IsoLevel: level}), namespace)
			require.Contains(t, requireServerError(t, err, invalidTransactionState).Message, string(level))
		}
	})
	t.Run("synchronous_commit is raised for the transaction only, and never lowered", func(t *testing.T) {
		t.Parallel()
		conn, err := pool.Acquire(t.Context())
		require.NoError(t, err)
		defer conn.Release()
		for setting, want := range map[string]string{"off": "on", "local": "on", "remote_write": "on", "on": "on", "remote_apply": "remote_apply"} {
			exec(t, conn, "SELECT set_config('synchronous_commit', $1, false)", setting)
			tx, err := conn.Begin(t.Context())
			require.NoError(t, err)
			_, err = lockMarkers(t.Context(), tx, uuid.New())
			require.NoError(t, err)
			require.Equal(t, want, value[string](t, tx, "SHOW synchronous_commit"), setting)
			require.NoError(t, tx.Commit(t.Context()))
			require.Equal(t, setting, value[string](t, conn, "SHOW synchronous_commit"))
		}
		exec(t, conn, "RESET synchronous_commit")
	})
	t.Run("keys are locked in their order", func(t *testing.T) {
		t.Parallel()
		low, high := keysAgainstIDs(t, pool)
		holder := begin(t, pool, pgx.TxOptions{})
		require.True(t, tryExclusive(t, holder, low))

		waiter := begin(t, pool, pgx.TxOptions{})
		pid := value[int](t, waiter, "SELECT pg_backend_pid()")
		done := make(chan error, 1)
		go func() {
			_, err := lockMarkers(t.Context(), waiter, high, low)
			done <- err
		}()
		requireWaitsForLock(t, pool, pid)
		require.True(t, tryExclusive(t, pool, high), "it holds the higher key while it waits for the lower")
		require.NoError(t, holder.Commit(t.Context()))
		require.NoError(t, <-done)
	})
}

// keysAgainstIDs are two namespaces whose lock keys are in the order opposite
// to that of their ids.
func keysAgainstIDs(t *testing.T, pool *pgxpool.Pool) (low, high uuid.UUID) {
	t.Helper()
	for {
		low, high = uuid.New(), uuid.New()
		ordered := value[bool](t, pool, "SELECT stowage_namespace_lock_key($1) < stowage_namespace_lock_key($2)", low, high)
		if ordered && bytes.Compare(low[:], high[:]) > 0 {
			return low, high
		}
	}
}

// requireWaitsForLock returns once a backend waits for an advisory lock.
func requireWaitsForLock(t *testing.T, pool *pgxpool.Pool, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var waits bool
		err := pool.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND locktype = 'advisory' AND NOT granted)", pid).Scan(&waits)
		return err == nil && waits
	}, time.Minute, 5*time.Millisecond)
}

// markerSeenAfterWait lets a reconciliation commit a marker while a counted
// transaction waits for its lock, and returns what that transaction then reads.
func markerSeenAfterWait(t *testing.T, pool *pgxpool.Pool, marker accounting.Marker) accounting.Marker {
	t.Helper()
	namespace := newNamespace(t, pool)
	reconciler := begin(t, pool, pgx.TxOptions{})
	exec(t, reconciler, "UPDATE namespace_statistics SET reconciliation_marker = stowage_marker_time($2) WHERE namespace_id = $1", namespace, int64(marker))
	require.True(t, tryExclusive(t, reconciler, namespace))

	writer := begin(t, pool, pgx.TxOptions{})
	newRepository(t, writer, namespace)
	pid := value[int](t, writer, "SELECT pg_backend_pid()")
	type answer struct {
		marked []marked
		err    error
	}
	answers := make(chan answer, 1)
	go func() {
		got, err := lockMarkers(t.Context(), writer, namespace)
		answers <- answer{got, err}
	}()
	requireWaitsForLock(t, pool, pid)
	require.NoError(t, reconciler.Commit(t.Context()))

	got := <-answers
	require.NoError(t, got.err)
	require.Len(t, got.marked, 1)
	return accounting.Marker(*got.marked[0].Marker)
}

func TestLockMarkersReadsAfterItWaited(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	marker := accounting.MarkerOf(time.Now())

	t.Run("a marker committed while it waited is seen", func(t *testing.T) {
		require.Equal(t, marker, markerSeenAfterWait(t, pool, marker))
	})
	// The check above must be able to fail.
	t.Run("a STABLE function would not see it", func(t *testing.T) {
		exec(t, pool, "ALTER FUNCTION stowage_lock_markers STABLE")
		require.Zero(t, markerSeenAfterWait(t, pool, marker))
	})
	t.Run("lock and read in one statement would not see it", func(t *testing.T) {
		exec(t, pool, `CREATE OR REPLACE FUNCTION stowage_lock_markers(namespace_ids uuid[]) RETURNS TABLE (namespace_id uuid, marker bigint) LANGUAGE plpgsql VOLATILE AS $$
			BEGIN
				RETURN QUERY SELECT s.namespace_id, stowage_marker_micros(s.reconciliation_marker)
				FROM (SELECT i AS id, pg_advisory_xact_lock_shared(stowage_namespace_lock_key(i)) FROM unnest(namespace_ids) AS i OFFSET 0) AS locked
				JOIN namespace_statistics AS s ON s.namespace_id = locked.id;
			END $$`)
		require.Zero(t, markerSeenAfterWait(t, pool, marker))
	})
}
