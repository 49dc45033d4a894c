package exactness

import (
	"math"
	"strconv"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/metrics"
)

func TestBadDataOverflow(t *testing.T) {
	t.Parallel()
	shared := newServers(t)

	t.Run("S2 E14 a sum that Redis cannot hold refuses one scope's emission, and its write succeeds", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		s.redisDo(t, "HSET", keyOf("buf", s.scope()), "0:bytes", strconv.Itoa(math.MaxInt64))
		s.publishes(s.scope(), "1", 10)
		s.requestedInTheEnd()
		s.publishes(s.neighbour(), "1", 20)

		// The namespace's own delta was taken, and so was the neighbour's.
		s.drainAll()
		require.Equal(t, s.recount(s.neighbour()), s.row(s.neighbour()))
		require.NotEqual(t, s.recount(s.scope()), s.row(s.scope()))
		s.requireHealedByRequest()
	})

	t.Run("S2 E14 a delta of which Redis took one counter is counted once, drained before the pass or after it", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		field := func() string { return strconv.FormatInt(int64(s.marker()), 10) + ":components" }
		for _, drain := range []func(){s.drainAll, func() {}} {
			s.redisDo(t, "HSET", keyOf("buf", s.scope()), field(), strconv.Itoa(math.MaxInt64))
			s.publishes(s.scope(), uuid.NewString(), 10)
			s.requestedInTheEnd()
			s.redisDo(t, "HSET", keyOf("buf", s.scope()), field(), "0")
			s.redisDo(t, "SADD", bucketKey(s.bucket, "dirty:repository"), memberOf(s.scope()))
			drain()
			s.requireHealedByRequest()
			s.drainAll()
			s.requireTruth()
		}
	})

	t.Run("S2 a row that would overflow is quarantined alone, counted and healed by the pass that it requests", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		s.exec(`UPDATE repositories SET size_bytes = $2 WHERE id = $1`, s.repository(), int64(math.MaxInt64))
		s.publishes(s.scope(), "1", 10)
		s.publishes(s.neighbour(), "1", 20)
		applied := s.outcome("applied")
		s.drainAll()
		require.EqualValues(t, 1, s.outcome(metrics.FlushQuarantined))
		require.Equal(t, applied+2, s.outcome("applied"), "the neighbour and the namespace")
		require.Equal(t, s.recount(s.neighbour()), s.row(s.neighbour()))
		require.Equal(t, int64(math.MaxInt64), s.row(s.scope()).Bytes)
		require.Equal(t, []string{memberOf(s.scope())}, s.quarantined())
		s.requireHealedByRequest()
		require.Equal(t, int64(110)-math.MaxInt64, s.corrections(s.scope()), "the ledger shows it, signed")

		// In quarantine each write asks for a pass instead.
		s.publishes(s.scope(), "2", 30)
		s.requestedInTheEnd()
		s.drainAll()
		require.NotEqual(t, s.recount(s.scope()), s.row(s.scope()))
		s.requireHealedByRequest()

		// The kept flush comes back, is dropped as counted, and deltas count again.
		s.takeOutOfQuarantine(s.scope())
		counted := s.outcome("counted")
		s.publishes(s.scope(), "3", 40)
		s.drainAll()
		require.Equal(t, counted+1, s.outcome("counted"))
		require.EqualValues(t, s.outcome("counted"), s.entered(accounting.OutcomeCounted), "the ledger shows each drop")
		require.False(t, s.requested())
		s.requireTruth()
		s.requireNoKeys()
	})

	t.Run("S2 E16 a pass and a publish come before the poisoned scope has left its set", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		s.exec(`UPDATE repositories SET size_bytes = $2 WHERE id = $1`, s.repository(), int64(math.MaxInt64))
		s.publishes(s.scope(), "1", 10)
		require.NoError(t, s.drain(atPoint(t, failpoint.DrainFinishes, func() {
			s.pass() // which answers the drain's request
			s.publishes(s.scope(), "2", 30)
		}), s.bucket))
		s.requestedInTheEnd()
		s.requireHealedByRequest()
	})

	t.Run("S2 E13 a flush whose value overflows a row of a namespace is quarantined, and the repositories go on", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		s.exec(`UPDATE namespace_statistics SET components_count = $2 WHERE namespace_id = $1`, s.namespace, int64(math.MaxInt64))
		s.publishes(s.scope(), "1", 10)
		s.drainAll()
		require.EqualValues(t, 1, s.outcome(metrics.FlushQuarantined))
		require.Equal(t, s.recount(s.scope()), s.row(s.scope()))
		s.requireHealedByRequest()
	})

	t.Run("S2 E18 a row that is off by more than a bigint is healed all the same", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		s.publishes(s.scope(), "1", 10)
		s.redisDo(t, "HSET", keyOf("buf", s.scope()), "0:bytes", strconv.Itoa(-math.MaxInt64))
		s.drainAll()
		require.Equal(t, int64(100-math.MaxInt64), s.row(s.scope()).Bytes)
		s.pass()
		s.requireTruth()
		require.Equal(t, int64(math.MaxInt64), s.corrections(s.scope()), "as far as a bigint can show it")
	})
}
