package buffer

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/redistest"
)

// claimAs claims for a holder with a batch of its own.
func (b *bundle) claimAs(t *testing.T, holder string, limit int) Claim {
	t.Helper()
	claim, err := b.Claim(t.Context(), b.bucket, holder, uuid.Must(uuid.NewV7()), limit)
	require.NoError(t, err)
	return claim
}

func (b *bundle) finish(t *testing.T, flushes []accounting.Flush) {
	t.Helper()
	require.NoError(t, b.Finish(t.Context(), b.bucket, flushes))
}

func (b *bundle) newRepository() accounting.Scope {
	return accounting.RepositoryScope(b.namespace.ID, uuid.Must(uuid.NewV7()))
}

func scopesOf(flushes []accounting.Flush) []accounting.Scope {
	scopes := make([]accounting.Scope, len(flushes))
	for i, f := range flushes {
		scopes[i] = f.Scope
	}
	return scopes
}

func TestClaim(t *testing.T) {
	t.Parallel()

	t.Run("AC4 what arrives while a flush is under way goes into the next", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.namespace, 10, 1), delta(b.repository, 10, 1))
		first := b.claim(t)
		require.Len(t, first.Flushes, 2)

		b.emit(t, 0, delta(b.namespace, 5, 1), delta(b.repository, -7, 0))
		require.ElementsMatch(t, first.Flushes, b.claim(t).Flushes, "frozen")
		b.finish(t, first.Flushes)

		second := b.claim(t)
		require.Len(t, second.Flushes, 2)
		for _, f := range second.Flushes {
			require.NotEqual(t, first.Flushes[0].BatchID, f.BatchID)
			require.EqualValues(t, 1, f.Emissions)
			want := accounting.Counters{Bytes: 5, Components: 1}
			if f.Scope == b.repository {
				want = accounting.Counters{Bytes: -7}
			}
			require.Equal(t, want, f.Counters)
		}
		b.finish(t, second.Flushes)
		require.Empty(t, b.claim(t).Flushes)
		require.NoError(t, b.Release(t.Context(), b.bucket, "holder"))
		require.Empty(t, b.dump(t), "nothing is left over")
	}))

	t.Run("freezes the smallest marker first, by number and to the last digit", everywhere(func(t *testing.T, b *bundle) {
		// The third and fourth differ only beyond the 53 bits of a Lua number.
		markers := []accounting.Marker{0, 9, 10, 99_999, 900_719_925_474_099_301, 900_719_925_474_099_302, ceiling - 1}
		for _, i := range []int{5, 2, 0, 6, 4, 1, 3} {
			b.emit(t, markers[i], delta(b.repository, 900_719_925_474_099_300+int64(i), -int64(i)))
		}
		for i, marker := range markers {
			claim := b.claim(t)
			require.Len(t, claim.Flushes, 1)
			f := claim.Flushes[0]
			require.Equal(t, marker, f.Marker)
			require.Equal(t, accounting.Counters{Bytes: 900_719_925_474_099_300 + int64(i), Components: -int64(i)}, f.Counters)
			require.EqualValues(t, 1, f.Emissions)
			require.Len(t, b.members(t, dirtyRepositoryName), min(1, len(markers)-1-i), "dirty while other markers remain")
			require.Len(t, b.members(t, inFlightName), 1)
			b.finish(t, claim.Flushes)
		}
		require.Empty(t, b.claim(t).Flushes)
	}))

	t.Run("E8 a flush of a dead run is returned unchanged, before anything new", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 3, delta(b.repository, 10, 1))
		dead := b.claimAs(t, "dead", 10)
		require.NoError(t, b.Release(t.Context(), b.bucket, "dead"))
		b.emit(t, 2, delta(b.repository, 1, 1), delta(b.namespace, 1, 1))

		require.Equal(t, dead, b.claimAs(t, "next", 1), "also although a smaller marker came later")
		next := b.claimAs(t, "next", 10)
		require.ElementsMatch(t, []accounting.Scope{b.repository, b.namespace}, scopesOf(next.Flushes), "each once")
		require.Contains(t, next.Flushes, dead.Flushes[0])
	}))

	t.Run("E9 two drains at once see one flush, and finishing it twice does no harm", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.repository, 10, 1))
		first := b.claimAs(t, "a", 10)
		b.do(t, "DEL", b.set(leaseName)) // it lapsed
		second := b.claimAs(t, "b", 10)
		require.Equal(t, first, second)

		b.finish(t, second.Flushes)
		b.emit(t, 0, delta(b.repository, 7, 1))
		third := b.claimAs(t, "b", 10)
		b.finish(t, first.Flushes)
		require.Equal(t, third, b.claimAs(t, "b", 10), "the late finish is of another batch")
		require.Equal(t, []string{member(b.repository)}, b.members(t, inFlightName))
	}))

	t.Run("E4 a flush whose deletion failed is seen again by the next claim", func(t *testing.T) {
		t.Parallel()
		b := on(t, redistest.StartAppendOnly(t))
		b.emit(t, 0, delta(b.repository, 10, 1))
		claim := b.claim(t)
		b.server.Stop()
		require.Error(t, b.Finish(t.Context(), b.bucket, claim.Flushes))
		b.server.Restart()
		require.Eventually(t, func() bool { return b.client.Do(t.Context(), b.client.B().Ping().Build()).Error() == nil }, wait, tick)
		require.Equal(t, claim, b.claim(t))
		b.finish(t, claim.Flushes)
		require.Empty(t, b.claim(t).Flushes)
	})

	t.Run("E6 a claim whose answer is lost while it takes leftovers over loses nothing", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(t, 0, delta(b.repository, 10, 1))
		leftover := b.claim(t)
		b.emit(t, 0, delta(b.namespace, 10, 1))

		b.server.Pause()
		lost := uuid.Must(uuid.NewV7())
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		_, err := b.Claim(ctx, b.bucket, "holder", lost, 10)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		b.server.Resume()
		require.Eventually(t, func() bool { return b.pending(t, b.namespace).Flush != nil }, wait, tick, "the claim waited in its connection")

		retry := b.claim(t)
		require.Len(t, retry.Flushes, 2)
		require.Contains(t, retry.Flushes, leftover.Flushes[0])
		for _, f := range retry.Flushes {
			if f.Scope == b.namespace {
				require.Equal(t, lost, f.BatchID, "frozen by the claim nobody heard of")
			}
		}
	})

	t.Run("a lease turns others away until it is released or lapses", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.repository, 10, 1))
		lease := b.set(leaseName)
		require.Len(t, b.claimAs(t, "a", 10).Flushes, 1)
		before := b.dump(t)
		require.Equal(t, Claim{Busy: true}, b.claimAs(t, "b", 10))
		require.Equal(t, before, b.dump(t))
		require.NoError(t, b.Release(t.Context(), b.bucket, "b"))
		require.Equal(t, Claim{Busy: true}, b.claimAs(t, "b", 10), "only the holder releases")

		b.do(t, "PEXPIRE", lease, "5000")
		require.False(t, b.claimAs(t, "a", 10).Busy)
		require.Greater(t, b.ttl(t, lease), 50*time.Second, "each claim renews")

		require.NoError(t, b.Release(t.Context(), b.bucket, "a"))
		require.False(t, b.claimAs(t, "b", 10).Busy)
		b.do(t, "PEXPIRE", lease, "1")
		require.Eventually(t, func() bool { return !b.claimAs(t, "c", 10).Busy }, wait, tick)
	}))

	t.Run("neither dirty set starves the other", everywhere(func(t *testing.T, b *bundle) {
		for range 30 {
			b.emit(t, 0, delta(b.newRepository(), 1, 1))
		}
		kinds := map[accounting.ScopeKind]int{}
		b.spread(t, 30)
		for _, f := range b.claimAs(t, "a", 20).Flushes {
			kinds[f.Scope.Kind]++
		}
		require.Equal(t, map[accounting.ScopeKind]int{accounting.KindNamespace: 10, accounting.KindRepository: 10}, kinds)
	}))

	t.Run("what one dirty set does not need is the other's", func(t *testing.T) {
		t.Parallel()
		for _, few := range []accounting.ScopeKind{accounting.KindNamespace, accounting.KindRepository} {
			b := setup(t)
			if few == accounting.KindNamespace {
				b.spread(t, 3)
				for range 30 {
					b.emit(t, 0, delta(b.newRepository(), 1, 1))
				}
			} else {
				b.spread(t, 30)
				for range 3 {
					b.emit(t, 0, delta(b.newRepository(), 1, 1))
				}
			}
			kinds := map[accounting.ScopeKind]int{}
			for _, f := range b.claimAs(t, "a", 20).Flushes {
				kinds[f.Scope.Kind]++
			}
			require.Equal(t, 3, kinds[few])
			require.Equal(t, 17, kinds[accounting.KindNamespace]+kinds[accounting.KindRepository]-3)
		}
	})

	t.Run("a limit of one serves both sets beside an ever dirty namespace", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.repository, 1, 1))
		served := func() bool {
			b.emit(t, 0, delta(b.namespace, 1, 1))
			claim := b.claimAs(t, "a", 1)
			require.Len(t, claim.Flushes, 1)
			b.finish(t, claim.Flushes)
			return claim.Flushes[0].Scope == b.repository
		}
		for range 1000 {
			if served() {
				return
			}
		}
		require.Fail(t, "the repository starved")
	}))

	t.Run("a limit is kept, above Lua's limit of arguments too", everywhere(func(t *testing.T, b *bundle) {
		const all = 9000
		for range all / 100 {
			deltas := make([]accounting.Delta, 100)
			for i := range deltas {
				deltas[i] = delta(b.newRepository(), 1, 1)
			}
			b.emit(t, 0, deltas...)
		}
		require.Len(t, b.claimAs(t, "a", 7).Flushes, 7)
		require.Len(t, b.claimAs(t, "a", 5).Flushes, 5)
		claim := b.claimAs(t, "a", all)
		require.Len(t, claim.Flushes, all)
		b.finish(t, claim.Flushes)
		sizes, err := b.Sizes(t.Context())
		require.NoError(t, err)
		require.Zero(t, sizes[b.bucket])
	}))

	t.Run("arguments that no claim may have are refused", everywhere(func(t *testing.T, b *bundle) {
		v7, v4 := uuid.Must(uuid.NewV7()), uuid.New()
		for _, tc := range []struct {
			bucket, limit int
			holder        string
			batch         uuid.UUID
			expected      string
		}{
			{-1, 1, "a", v7, "bucket -1: there are buckets 0 to 255"},
			{256, 1, "a", v7, "bucket 256: there are buckets 0 to 255"},
			{0, 1, "", v7, "the holder has no name"},
			{0, 1, "a", v4, "is no UUIDv7"},
			{0, 1, "a", uuid.Nil, "is no UUIDv7"},
			{0, 0, "a", v7, "limit 0: must be at least 1"},
		} {
			_, err := b.Claim(t.Context(), tc.bucket, tc.holder, tc.batch, tc.limit)
			require.ErrorContains(t, err, tc.expected)
		}
		elsewhere := (b.bucket + 1) % accounting.Buckets
		for _, err := range []error{
			b.Finish(t.Context(), elsewhere, []accounting.Flush{{Scope: b.namespace}}),
			b.Forget(t.Context(), elsewhere, []accounting.Scope{b.namespace}),
			b.Quarantine(t.Context(), elsewhere, []accounting.Scope{b.namespace}),
		} {
			require.ErrorContains(t, err, fmt.Sprintf("is of bucket %d, not %d", b.bucket, elsewhere))
		}
	}))

	for _, name := range []string{quarantineName, inFlightName, dirtyNamespaceName, dirtyRepositoryName, leaseName} {
		t.Run("a key of a wrong type is named and nothing is changed: "+name, everywhere(func(t *testing.T, b *bundle) {
			b.emit(t, 0, delta(b.namespace, 1, 1), delta(b.repository, 1, 1))
			b.do(t, "DEL", b.set(name))
			b.do(t, "RPUSH", b.set(name), "text")
			before := b.dump(t)
			_, err := b.Claim(t.Context(), b.bucket, "holder", uuid.Must(uuid.NewV7()), 10)
			require.ErrorContains(t, err, b.set(name)+" is a list")
			require.Equal(t, before, b.dump(t))
		}))
	}
}

// spread makes n namespaces of the bundle's bucket dirty.
func (b *bundle) spread(t *testing.T, n int) {
	t.Helper()
	for n > 0 {
		id := uuid.Must(uuid.NewV7())
		if accounting.Bucket(id) == b.bucket {
			_, err := b.Emit(t.Context(), id, 0, []accounting.Delta{delta(accounting.NamespaceScope(id), 1, 1)})
			require.NoError(t, err)
			n--
		}
	}
}

func TestExpired(t *testing.T) {
	t.Parallel()

	t.Run("AC13 a dirty scope whose buffer expired is reported until it is forgotten", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.namespace, 1, 1), delta(b.repository, 1, 1))
		for _, s := range []accounting.Scope{b.namespace, b.repository} {
			key := bufferKey(b.bucket, member(s))
			b.do(t, "PEXPIRE", key, "1")
			require.Eventually(t, func() bool { return !b.exists(t, key) }, wait, tick)
		}
		for range 3 {
			claim := b.claim(t)
			require.Empty(t, claim.Flushes)
			require.ElementsMatch(t, []accounting.Scope{b.namespace, b.repository}, claim.Expired)
		}
		require.NoError(t, b.Forget(t.Context(), b.bucket, []accounting.Scope{b.namespace, b.repository}))
		require.Equal(t, Claim{}, b.claim(t))
	}))

	t.Run("AC13 what was emitted before the scope is forgotten stays", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.repository, 1, 1))
		b.do(t, "DEL", bufferKey(b.bucket, member(b.repository)))
		expired := b.claim(t).Expired
		b.emit(t, 0, delta(b.repository, 5, 1))
		require.NoError(t, b.Forget(t.Context(), b.bucket, expired))
		claim := b.claim(t)
		require.Len(t, claim.Flushes, 1)
		require.EqualValues(t, 5, claim.Flushes[0].Bytes)
		require.NoError(t, b.Forget(t.Context(), b.bucket, expired))
		require.Equal(t, claim, b.claim(t), "frozen meanwhile: nothing to forget")
	}))

	t.Run("a flush that vanished is reported, and the buffer waits for it", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.repository, 1, 1))
		b.claim(t)
		b.emit(t, 0, delta(b.repository, 5, 1))
		b.do(t, "DEL", flushKey(b.bucket, member(b.repository)))
		for range 2 {
			require.Equal(t, Claim{Expired: []accounting.Scope{b.repository}}, b.claim(t))
		}
		require.NoError(t, b.Forget(t.Context(), b.bucket, []accounting.Scope{b.repository}))
		claim := b.claim(t)
		require.Len(t, claim.Flushes, 1)
		require.EqualValues(t, 5, claim.Flushes[0].Bytes)
	}))

	t.Run("a buffer that expired behind a flush is reported after it", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.repository, 1, 1))
		first := b.claim(t)
		b.emit(t, 0, delta(b.repository, 5, 1))
		b.do(t, "DEL", bufferKey(b.bucket, member(b.repository)))
		require.Equal(t, first, b.claim(t))
		b.finish(t, first.Flushes)
		require.Equal(t, Claim{Expired: []accounting.Scope{b.repository}}, b.claim(t))
	}))
}

func TestCorrupt(t *testing.T) {
	t.Parallel()
	batch := uuid.Must(uuid.NewV7()).String()
	flush := []string{"HSET", "FLUSH", "batch", batch, "marker", "0", "bytes", "1", "components", "1", "emissions", "1"}
	with := func(field, value string) []string { return append(slices.Clone(flush), field, value) }

	for name, spoil := range map[string][]string{
		"buffer of a wrong type":    {"SET", "BUF", "text"},
		"foreign field":             {"HSET", "BUF", "colour", "1"},
		"unknown counter":           {"HSET", "BUF", "0:colour", "1"},
		"no marker":                 {"HSET", "BUF", ":bytes", "1"},
		"negative marker":           {"HSET", "BUF", "-1:bytes", "1"},
		"marker with leading zero":  {"HSET", "BUF", "01:bytes", "1"},
		"counter with a tail":       {"HSET", "BUF", "0:bytes:x", "1"},
		"text for a number":         {"HSET", "BUF", "0:bytes", "many"},
		"minus zero":                {"HSET", "BUF", "0:bytes", "-0"},
		"plus sign":                 {"HSET", "BUF", "0:bytes", "+1"},
		"fraction":                  {"HSET", "BUF", "0:bytes", "1.5"},
		"number beyond 64 bits":     {"HSET", "BUF", "0:bytes", "99999999999999999999"},
		"marker beyond 64 bits":     {"HSET", "BUF", "99999999999999999999:bytes", "1"},
		"marker beyond Emit's":      {"HSET", "BUF", "1000000000000000000:bytes", "1"},
		"flush of a wrong type":     {"SET", "FLUSH", "text"},
		"flush without a field":     flush[:len(flush)-2],
		"flush with a field more":   with("colour", "1"),
		"flush with a bad batch":    with("batch", "1"),
		"flush with a v4 batch":     with("batch", someRepository[:14]+"4"+someRepository[15:]),
		"flush with a loud batch":   with("batch", strings.ToUpper(batch)),
		"flush with a past marker":  with("marker", "-1"),
		"flush with a huge marker":  with("marker", "1000000000000000000"),
		"flush with a bad marker":   with("marker", "now"),
		"flush with a bad counter":  with("bytes", "1.5"),
		"flush with a counter else": with("components", ""),
	} {
		t.Run("one corrupt scope stops no other: "+name, everywhere(func(t *testing.T, b *bundle) {
			buf, fl := bufferKey(b.bucket, member(b.repository)), flushKey(b.bucket, member(b.repository))
			words := slices.Clone(spoil)
			words[1] = map[string]string{"BUF": buf, "FLUSH": fl}[words[1]]
			b.do(t, words[0], words[1], words[2:]...)
			b.do(t, "SADD", b.set(dirtyRepositoryName), member(b.repository))
			b.emit(t, 0, delta(b.namespace, 1, 1))

			for range 2 {
				claim := b.claim(t)
				require.Equal(t, []accounting.Scope{b.namespace}, scopesOf(claim.Flushes))
				require.Equal(t, []accounting.Scope{b.repository}, claim.Corrupt)
				require.Empty(t, claim.Expired)
			}
			all, err := b.Pending(t.Context(), []accounting.Scope{b.namespace, b.repository})
			require.NoError(t, err)
			require.Contains(t, all, b.namespace)
			require.NotContains(t, all, b.repository)

			before := b.dump(t)
			require.NoError(t, b.Quarantine(t.Context(), b.bucket, []accounting.Scope{b.repository}))
			require.Equal(t, []accounting.Scope{b.repository}, b.claim(t).Corrupt, "until it is forgotten")
			require.NoError(t, b.Forget(t.Context(), b.bucket, []accounting.Scope{b.repository}))
			require.Empty(t, b.claim(t).Corrupt)
			after := b.dump(t)
			require.Equal(t, before[buf], after[buf], "kept")
			require.Equal(t, before[fl], after[fl], "kept")
			require.Equal(t, []string{member(b.repository)}, b.members(t, quarantineName))
			failed, err := b.Emit(t.Context(), b.namespace.ID, 0, []accounting.Delta{delta(b.repository, 1, 1)})
			require.NoError(t, err)
			require.Equal(t, []accounting.Scope{b.repository}, failed)
		}))
	}

	t.Run("a counter that a buffer lacks is zero", everywhere(func(t *testing.T, b *bundle) {
		b.do(t, "HSET", bufferKey(b.bucket, member(b.repository)), "4:bytes", "7")
		b.do(t, "SADD", b.set(dirtyRepositoryName), member(b.repository))
		require.Equal(t, []MarkedCounters{marked(4, 7, 0, 0)}, b.pending(t, b.repository).Buffered)
		claim := b.claim(t)
		require.Len(t, claim.Flushes, 1)
		require.Equal(t, accounting.Counters{Bytes: 7}, claim.Flushes[0].Counters)
	}))

	t.Run("a quarantined scope in another set is reported until it is forgotten", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.repository, 1, 1))
		b.do(t, "SADD", b.set(quarantineName), member(b.repository))
		for range 2 {
			require.Equal(t, Claim{Corrupt: []accounting.Scope{b.repository}}, b.claim(t))
		}
		require.NoError(t, b.Forget(t.Context(), b.bucket, []accounting.Scope{b.repository}))
		require.Equal(t, Claim{}, b.claim(t))
		require.Empty(t, b.members(t, dirtyRepositoryName))
	}))

	t.Run("members that name no scope of the bucket are set aside and counted", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.repository, 1, 1))
		elsewhere := member(accounting.NamespaceScope(uuid.MustParse(someNamespace)))
		foreign := []string{"", "text", elsewhere, "n:", "r:" + b.namespace.ID.String()}
		for i, m := range foreign {
			b.do(t, "SADD", b.set([]string{dirtyNamespaceName, dirtyRepositoryName, inFlightName}[i%3]), m)
		}
		b.do(t, "HSET", b.set("buf:text"), "0:bytes", "1")
		claim := b.claim(t)
		require.Equal(t, []accounting.Scope{b.repository}, scopesOf(claim.Flushes))
		require.Equal(t, len(foreign), claim.Foreign)
		require.Empty(t, claim.Expired)
		require.Empty(t, claim.Corrupt)
		require.ElementsMatch(t, foreign, b.members(t, quarantineName))
		again := b.claim(t)
		require.Equal(t, claim.Flushes, again.Flushes)
		require.Zero(t, again.Foreign)
	}))
}

func TestFullRedisCanBeDrained(t *testing.T) {
	t.Parallel()
	everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 0, delta(b.namespace, 10, 1))
		b.onEveryNode(t, "CONFIG", "SET", "maxmemory", "1")
		_, err := b.Emit(t.Context(), b.namespace.ID, 0, []accounting.Delta{delta(b.namespace, 1, 1)})
		require.ErrorContains(t, err, "OOM")
		claim, err := b.Claim(t.Context(), b.bucket, "holder", uuid.Must(uuid.NewV7()), 10)
		require.NoError(t, err)
		require.Len(t, claim.Flushes, 1)
		require.Equal(t, int64(10), claim.Flushes[0].Bytes)
		require.NoError(t, b.Finish(t.Context(), b.bucket, claim.Flushes))
		require.NoError(t, b.Release(t.Context(), b.bucket, "holder"))
	})(t)
}
