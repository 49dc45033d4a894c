package exactness

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/metrics"
)

// In each case a hand has put something into the keys of one scope that has
// deltas, buffered or claimed by a drain that died. README.md of the buffer
// says what is damage.
func TestBadDataInAScopesKeys(t *testing.T) {
	t.Parallel()
	shared := newServers(t)
	const text = "Stowage did not write this"

	cases := map[string]struct {
		inFlight bool
		damage   func(s *stage)
	}{
		"a buffer that is a string": {damage: func(s *stage) {
			s.redisDo(s.t, "SET", keyOf("buf", s.scope()), text)
		}},
		"a buffer that is a list": {damage: func(s *stage) {
			s.redisDo(s.t, "DEL", keyOf("buf", s.scope()))
			s.redisDo(s.t, "RPUSH", keyOf("buf", s.scope()), text)
		}},
		"a foreign field in a buffer": {damage: func(s *stage) {
			s.redisDo(s.t, "HSET", keyOf("buf", s.scope()), text, "1")
		}},
		"a counter that is no number": {damage: func(s *stage) {
			s.redisDo(s.t, "HSET", keyOf("buf", s.scope()), "0:bytes", "1e6")
		}},
		"a marker beyond all digits": {damage: func(s *stage) {
			s.redisDo(s.t, "HSET", keyOf("buf", s.scope()), "99999999999999999999:bytes", "1")
			s.redisDo(s.t, "HDEL", keyOf("buf", s.scope()), "0:bytes", "0:components", "0:emissions")
		}},
		"a flush that is a string": {inFlight: true, damage: func(s *stage) {
			s.redisDo(s.t, "SET", keyOf("flush", s.scope()), text)
		}},
		"a flush with a foreign field": {inFlight: true, damage: func(s *stage) {
			s.redisDo(s.t, "HSET", keyOf("flush", s.scope()), text, "1")
		}},
		"a flush whose batch is no UUIDv7": {inFlight: true, damage: func(s *stage) {
			s.redisDo(s.t, "HSET", keyOf("flush", s.scope()), "batch", uuid.NewString())
		}},
		"a flush without its marker": {inFlight: true, damage: func(s *stage) {
			s.redisDo(s.t, "HDEL", keyOf("flush", s.scope()), "marker")
		}},
	}
	for name, c := range cases {
		t.Run("AC36 S2 one poisoned scope stops no other: "+name, func(t *testing.T) {
			t.Parallel()
			s := shared.stage(t)
			s.publishes(s.scope(), "1", 10)
			if c.inFlight {
				s.claimAndDie()
			}
			c.damage(s)
			s.publishes(s.neighbour(), "1", 20)

			s.drainAll()
			require.EqualValues(t, 1, s.outcome(metrics.FlushQuarantined))
			require.Equal(t, []string{memberOf(s.scope())}, s.quarantined())
			for _, scope := range []accounting.Scope{s.neighbour(), accounting.NamespaceScope(s.namespace)} {
				require.Equal(t, s.recount(scope), s.row(scope))
			}
			require.NotEqual(t, s.recount(s.scope()), s.row(s.scope()))
			s.requireHealedByRequest()

			// By hand, as the buffer's README says.
			s.redisDo(t, "DEL", keyOf("buf", s.scope()), keyOf("flush", s.scope()))
			s.takeOutOfQuarantine(s.scope())
			s.publishes(s.scope(), "2", 30)
			s.drainAll()
			require.False(t, s.requested())
			s.requireExact()
			s.requireNoKeys()
		})
	}

	t.Run("AC36 S2 foreign members of the sets are quarantined and counted, and concern no namespace", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		s.publishes(s.scope(), "1", 10)
		for _, set := range []string{"dirty:namespace", "dirty:repository", "inflight"} {
			s.redisDo(t, "SADD", bucketKey(s.bucket, set), text+" in "+set, "n:"+uuid.NewString())
		}
		s.drainAll()
		require.EqualValues(t, 6, s.outcome(metrics.FlushQuarantined))
		require.Len(t, s.quarantined(), 6)
		require.False(t, s.requested())
		s.requireExact()
	})

	t.Run("AC13 AC36 a buffer that somebody deleted is noticed by the claim and healed", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		s.publishes(s.scope(), "1", 10)
		s.redisDo(t, "DEL", keyOf("buf", s.scope()))
		s.drainAll()
		require.EqualValues(t, 1, testutil.ToFloat64(s.metrics.BufferLoss.WithLabelValues(metrics.LossExpired)))
		s.requireHealedByRequest()
	})
}

// claimAndDie is a drain that is killed after its claim.
func (s *stage) claimAndDie() {
	s.t.Helper()
	s.expireLease()
	claim, err := s.buffer.Claim(context.Background(), s.bucket, "dead", uuid.Must(uuid.NewV7()), 100)
	require.NoError(s.t, err)
	require.NotEmpty(s.t, claim.Flushes)
	s.expireLease()
}

// A key that a whole bucket shares: the bucket stands still, with an error that
// names the key, until somebody has deleted or renamed it. Its writes succeed, and ask
// for passes if they need the key. The other buckets go on.
func TestBadDataInABucketsKeys(t *testing.T) {
	t.Parallel()
	// One after the other: a tick looks at every bucket.
	shared := newServers(t)
	for _, name := range []string{"dirty:namespace", "dirty:repository", "inflight", "quarantine", "lease"} {
		t.Run("AC36 E2 a key of a wrong type stops its own bucket only: "+name, func(t *testing.T) {
			s, other := shared.stage(t), shared.stage(t)
			s.publishes(s.scope(), "1", 10)
			other.publishes(other.scope(), "1", 10)
			key := bucketKey(s.bucket, name)
			s.redisDo(t, "DEL", key)
			s.redisDo(t, "ZADD", key, "1", "text")

			s.publishes(s.scope(), "2", 10)
			if name != "lease" && name != "inflight" { // emitting does not need these
				s.requestedInTheEnd()
			}
			// The tick reports the sets that it cannot read, and makes the other
			// buckets' drains all the same.
			err := s.tick(context.Background())
			if name == "lease" { // a tick does not need it either
				require.NoError(t, err)
			} else {
				require.ErrorContains(t, err, key+" is a zset, not a set")
			}
			require.Contains(t, shared.drainsInserted(t), other.bucket)
			require.NoError(t, other.workJob())
			require.Equal(t, other.truth(t, other.namespace), other.rows(t, other.namespace))

			require.ErrorContains(t, s.workJob(), key+" is a zset")

			// By hand: the error names the key. What stood in the set is found by
			// the daily sweep, or by the request.
			s.redisDo(t, "DEL", key)
			_, err = s.buffer.Sweep(context.Background())
			require.NoError(t, err)
			s.drainAll()
			if s.requested() {
				s.pass()
			}
			s.requireTruth()
		})
	}

	t.Run("AC36 S2 an identity of a wrong type is a lost one", func(t *testing.T) {
		s := shared.stage(t)
		require.NoError(t, s.tick(context.Background()))
		s.publishes(s.scope(), "1", 10)
		key := bucketKey(s.bucket, "identity")
		s.redisDo(t, "DEL", key)
		s.redisDo(t, "RPUSH", key, "text")
		require.NoError(t, s.tick(context.Background()))
		require.EqualValues(t, 1, testutil.ToFloat64(s.metrics.BufferLoss.WithLabelValues(metrics.LossIdentity)))
		s.drainAll()
		s.requireHealedByRequest()
		require.NoError(t, s.tick(context.Background()))
		require.EqualValues(t, 1, testutil.ToFloat64(s.metrics.BufferLoss.WithLabelValues(metrics.LossIdentity)), "it has a new one")
	})
}
