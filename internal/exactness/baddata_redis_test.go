package exactness

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/metrics"
)

// Redis is empty, or older than PostgreSQL: a restart without its data, or a
// replica that lagged behind. Nothing but the tick's look at the identities and
// the run ids tells.
func TestBadDataRedisWentBackInTime(t *testing.T) {
	t.Parallel()

	t.Run("AC36 empty: the tick requests every namespace, and their passes bring back what was lost", func(t *testing.T) {
		t.Parallel()
		shared := newServers(t)
		s, other := shared.stage(t), shared.stage(t)
		require.NoError(t, s.tick(t.Context()))
		s.publishes(s.scope(), "1", 10)
		s.claimAndDie()
		s.publishes(s.scope(), "2", 20)
		s.redisDo(t, "FLUSHALL")
		s.publishes(s.scope(), "3", 30)
		s.drainAll()
		require.NotEqual(t, s.recount(s.scope()), s.row(s.scope()))

		require.NoError(t, s.tick(t.Context()))
		require.EqualValues(t, 256, testutil.ToFloat64(s.metrics.BufferLoss.WithLabelValues(metrics.LossIdentity)))
		s.requireHealedByRequest()
		other.requireHealedByRequest()
		s.drainAll()
		s.requireTruth()
	})

	t.Run("AC36 AC8 older: what was applied is there again, what came since is missing", func(t *testing.T) {
		t.Parallel()
		shared := newServers(t)
		s := shared.stage(t)
		s.pass()
		require.NoError(t, s.tick(t.Context()))
		s.publishes(s.scope(), "in flight", 10)
		s.claimAndDie()
		s.publishes(s.scope(), "buffered", 20)
		older := shared.dumpRedis(t)
		s.drainAll() // both are applied, and leave Redis
		s.publishes(s.scope(), "lost", 40)

		shared.restoreRedis(t, older)
		s.exec(`UPDATE counter_buckets SET run_id = 'of the server that failed'`)
		s.drainAll()
		require.NotZero(t, s.outcome(metrics.FlushReplayed), "the flush came back under its batch id: the ledger knows it")
		wrong := s.row(s.scope()).Bytes - s.recount(s.scope()).Bytes
		require.Equal(t, int64(20-40), wrong, "the buffer counts twice, and what came since is not there")

		require.NoError(t, s.tick(t.Context()))
		require.EqualValues(t, 256, testutil.ToFloat64(s.metrics.BufferLoss.WithLabelValues(metrics.LossRestart)))
		s.requireHealedByRequest()
		s.publishes(s.scope(), "later", 80)
		s.drainAll()
		s.requireTruth()
	})
}

// dumpRedis is every key as DUMP shows it.
func (s *servers) dumpRedis(t testing.TB) map[string]string {
	t.Helper()
	reply := s.redisDo(t, "KEYS", "*")
	keys, err := reply.AsStrSlice()
	require.NoError(t, err)
	dump := map[string]string{}
	for _, key := range keys {
		reply := s.redisDo(t, "DUMP", key)
		dump[key], err = reply.ToString()
		require.NoError(t, err)
	}
	return dump
}

func (s *servers) restoreRedis(t testing.TB, dump map[string]string) {
	t.Helper()
	s.redisDo(t, "FLUSHALL")
	for key, value := range dump {
		restore := s.redis.B().Restore().Key(key).Ttl(0).SerializedValue(rueidis.BinaryString([]byte(value))).Build()
		require.NoError(t, s.redis.Do(context.Background(), restore).Error())
	}
}
