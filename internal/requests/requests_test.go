package requests_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/internal/requests"
)

func newNamespace(t *testing.T, db pgdb.DB) uuid.UUID {
	t.Helper()
	id := uuid.Must(uuid.NewV7())
	_, err := db.Exec(t.Context(), `INSERT INTO namespaces (id, slug) VALUES ($1, $2)`, id, id.String())
	require.NoError(t, err)
	return id
}

// open are all open requests.
func open(t *testing.T, db pgdb.DB) map[uuid.UUID]accounting.Marker {
	t.Helper()
	page, err := requests.Open(t.Context(), db, requests.Request{}, 10_000)
	require.NoError(t, err)
	markers := map[uuid.UUID]accounting.Marker{}
	for _, r := range page {
		markers[r.Namespace] = r.Marker
	}
	return markers
}

func clock(t *testing.T, db pgdb.DB) accounting.Marker {
	t.Helper()
	var micros int64
	require.NoError(t, db.QueryRow(t.Context(), `SELECT stowage_marker_micros(clock_timestamp())`).Scan(&micros))
	return accounting.Marker(micros)
}

func setMarker(t *testing.T, db pgdb.DB, namespace uuid.UUID, m accounting.Marker) {
	t.Helper()
	_, err := db.Exec(t.Context(), `UPDATE namespace_statistics SET reconciliation_marker = stowage_marker_time($2) WHERE namespace_id = $1`, namespace, int64(m))
	require.NoError(t, err)
}

func TestRaise(t *testing.T) {
	t.Parallel()
	setup := func(t *testing.T) *pgxpool.Pool {
		t.Helper()
		t.Parallel()
		return dbtest.New(t)
	}
	future := accounting.MarkerOf(time.Now().Add(24 * time.Hour))

	t.Run("stores at least the time of writing", func(t *testing.T) {
		db := setup(t)
		namespace := newNamespace(t, db)
		before := clock(t, db)
		require.NoError(t, requests.Raise(t.Context(), db, []requests.Request{{Namespace: namespace, Marker: 1}}))
		require.Greater(t, open(t, db)[namespace], before)
		require.Less(t, open(t, db)[namespace], clock(t, db))
	})
	t.Run("stores a later marker that the caller saw", func(t *testing.T) {
		db := setup(t)
		namespace := newNamespace(t, db)
		require.NoError(t, requests.Raise(t.Context(), db, []requests.Request{{Namespace: namespace, Marker: future}}))
		require.Equal(t, future, open(t, db)[namespace])
	})
	t.Run("stores more than the namespace's own marker if a clock jump left it ahead", func(t *testing.T) {
		db := setup(t)
		namespace := newNamespace(t, db)
		setMarker(t, db, namespace, future)
		require.NoError(t, requests.Raise(t.Context(), db, []requests.Request{{Namespace: namespace}}))
		require.Equal(t, future+1, open(t, db)[namespace])
	})
	t.Run("raises an open request, also one that is ahead", func(t *testing.T) {
		db := setup(t)
		namespace := newNamespace(t, db)
		raise := func(m accounting.Marker) accounting.Marker {
			require.NoError(t, requests.Raise(t.Context(), db, []requests.Request{{Namespace: namespace, Marker: m}}))
			return open(t, db)[namespace]
		}
		first := raise(0)
		require.Greater(t, raise(0), first)
		require.Equal(t, future, raise(future))
		require.Equal(t, future+1, raise(0))
	})
	t.Run("takes a namespace several times, one without a row, and none", func(t *testing.T) {
		db := setup(t)
		namespace, unknown := newNamespace(t, db), uuid.Must(uuid.NewV7())
		require.NoError(t, requests.Raise(t.Context(), db, nil))
		require.Empty(t, open(t, db))
		require.NoError(t, requests.Raise(t.Context(), db, []requests.Request{
			{Namespace: namespace}, {Namespace: unknown}, {Namespace: namespace, Marker: future},
		}))
		require.Len(t, open(t, db), 2)
		require.Equal(t, future, open(t, db)[namespace])
	})
}

func TestRaiseBuckets(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	// More than a page, so that a page that follows another is proven too.
	rows, err := db.Query(t.Context(), `
		INSERT INTO namespaces (id, slug) SELECT gen_random_uuid(), i::text FROM generate_series(1, 2500) i
		RETURNING id`)
	require.NoError(t, err)
	byBucket := map[int][]uuid.UUID{}
	for rows.Next() {
		var id uuid.UUID
		require.NoError(t, rows.Scan(&id))
		byBucket[accounting.Bucket(id)] = append(byBucket[accounting.Bucket(id)], id)
	}
	require.NoError(t, rows.Err())

	n, err := requests.RaiseBuckets(t.Context(), db)
	require.NoError(t, err)
	require.Zero(t, n)

	n, err = requests.RaiseBuckets(t.Context(), db, 7, 8)
	require.NoError(t, err)
	requested := open(t, db)
	require.EqualValues(t, len(byBucket[7])+len(byBucket[8]), n)
	require.Len(t, requested, int(n))
	for _, id := range append(byBucket[7], byBucket[8]...) {
		require.Contains(t, requested, id)
	}

	var all []int
	for b := range accounting.Buckets {
		all = append(all, b)
	}
	n, err = requests.RaiseBuckets(t.Context(), db, all...)
	require.NoError(t, err)
	require.EqualValues(t, 2500, n)
	require.Len(t, open(t, db), 2500)
}

func TestOpenIsAKeyset(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	var oldestFirst []uuid.UUID
	for range 5 {
		oldestFirst = append(oldestFirst, newNamespace(t, db))
	}
	slices.Reverse(oldestFirst) // not the order of the ids
	for _, id := range oldestFirst {
		require.NoError(t, requests.Raise(t.Context(), db, []requests.Request{{Namespace: id}}))
	}
	var seen []uuid.UUID
	var after requests.Request
	for {
		page, err := requests.Open(t.Context(), db, after, 2)
		require.NoError(t, err)
		if len(page) == 0 {
			break
		}
		require.LessOrEqual(t, len(page), 2)
		for _, r := range page {
			seen = append(seen, r.Namespace)
		}
		after = page[len(page)-1]
	}
	require.Equal(t, oldestFirst, seen)
}

func TestClose(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	namespace, other := newNamespace(t, db), newNamespace(t, db)
	require.NoError(t, requests.Raise(t.Context(), db, []requests.Request{{Namespace: namespace}, {Namespace: other}}))
	marker := open(t, db)[namespace]

	require.NoError(t, requests.Close(t.Context(), db, namespace, marker))
	require.Len(t, open(t, db), 2, "R8: a request with the pass's own marker was made after the pass began")
	require.NoError(t, requests.Close(t.Context(), db, namespace, marker+1))
	require.NotContains(t, open(t, db), namespace)
	require.Contains(t, open(t, db), other)

	require.NoError(t, requests.Drop(t.Context(), db, other))
	require.Empty(t, open(t, db))
}
