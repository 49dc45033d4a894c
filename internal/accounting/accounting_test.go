package accounting_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// The vectors pin what the SQL function stowage_bucket must compute too: a
// change of either would strand every key that stands in Redis.
func TestBucketVectors(t *testing.T) {
	t.Parallel()
	for id, bucket := range map[string]int{
		"00000000-0000-0000-0000-000000000000": 0x37,
		"ffffffff-ffff-ffff-ffff-ffffffffffff": 0x5a,
		"01936b2e-5f3a-7c4d-8e21-0a1b2c3d4e5f": 0xa3,
	} {
		require.Equal(t, bucket, accounting.Bucket(uuid.MustParse(id)), "%s", id)
	}
}

// Ids made one after the other share their leading bytes, and must spread all
// the same. The bounds are five standard deviations around the mean of 400.
func TestBucketSpreadsConsecutiveIDs(t *testing.T) {
	t.Parallel()
	const perBucket = 400
	var sizes [accounting.Buckets]int
	id := uuid.MustParse("01936b2e-5f3a-7c4d-8e21-0a1b00000000")
	for n := range perBucket * accounting.Buckets {
		id[13], id[14], id[15] = byte(n>>16), byte(n>>8), byte(n)
		sizes[accounting.Bucket(id)]++
	}
	for bucket, size := range sizes {
		require.InDelta(t, perBucket, size, 5*math.Sqrt(perBucket), "bucket %d", bucket)
	}
}

func TestMarkerRoundTrips(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := accounting.Marker(rapid.Int64Range(-62_135_596_800_000_000, 253_402_300_799_999_999).Draw(t, "micros"))
		require.Equal(t, m, accounting.MarkerOf(m.Time()))
		require.Equal(t, time.UTC, m.Time().Location())
		within := time.Duration(rapid.IntRange(0, 999).Draw(t, "ns"))
		require.Equal(t, m, accounting.MarkerOf(m.Time().Add(within)), "cut to the microsecond")
	})
}

func TestMarkerOrdersAsInstants(t *testing.T) {
	t.Parallel()
	epoch := accounting.MarkerOf(time.Unix(0, 0))
	require.Equal(t, accounting.Marker(0), epoch, "'epoch', the marker of a scope never reconciled")
	newYork := time.FixedZone("", -5*60*60)
	require.Equal(t, epoch, accounting.MarkerOf(time.Unix(0, 0).In(newYork)))
	require.Less(t, epoch, accounting.MarkerOf(time.Unix(0, 1000)))
	require.Less(t, accounting.MarkerOf(time.Time{}), epoch,
		"the zero time lies before 'epoch': a delta that carried it would never be added")
}

func TestCountersAddUp(t *testing.T) {
	t.Parallel()
	counters := rapid.Custom(func(t *rapid.T) accounting.Counters {
		return accounting.Counters{Bytes: rapid.Int64().Draw(t, "bytes"), Components: rapid.Int64().Draw(t, "components")}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := counters.Draw(t, "a"), counters.Draw(t, "b")
		require.Equal(t, a.Plus(b), b.Plus(a))
		require.Equal(t, a, a.Plus(b).Minus(b))
		require.True(t, a.Minus(a).IsZero())
	})
	sum := accounting.Counters{Bytes: 5, Components: 1}.Plus(accounting.Counters{Bytes: -7, Components: 2})
	require.Equal(t, accounting.Counters{Bytes: -2, Components: 3}, sum)
	require.False(t, accounting.Counters{Bytes: 1}.IsZero())
	require.False(t, accounting.Counters{Components: -1}.IsZero())
}

func TestScopes(t *testing.T) {
	t.Parallel()
	namespace, repository := uuid.New(), uuid.New()
	require.Equal(t, accounting.Scope{Kind: accounting.KindNamespace, ID: namespace, Namespace: namespace},
		accounting.NamespaceScope(namespace))
	require.Equal(t, accounting.Scope{Kind: accounting.KindRepository, ID: repository, Namespace: namespace},
		accounting.RepositoryScope(namespace, repository))
}

// The numbers stand in storage_ledger and may never change; the names are
// label values of metrics.
func TestStoredNumbersAndNames(t *testing.T) {
	t.Parallel()
	kinds := map[int16]string{1: "namespace", 2: "repository", 3: "scope_kind(3)"}
	for number, name := range kinds {
		require.Equal(t, name, accounting.ScopeKind(number).String())
	}
	outcomes := map[int16]string{1: "applied", 2: "counted", 3: "gone", 4: "correction", 5: "outcome(5)"}
	for number, name := range outcomes {
		require.Equal(t, name, accounting.Outcome(number).String())
	}
}
