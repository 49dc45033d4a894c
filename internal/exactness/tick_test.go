package exactness

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/drain"
	"github.com/stowage-dev/stowage/internal/failpoint"
)

// tickCrashes are the points of a tick that meets a Redis which has lost the
// identity of every bucket, and a buffer which it has still. Each heals by the
// next tick: it requests every namespace, and inserts the drains.
var tickCrashes = []crash{
	{"E10 E11", ticker, failpoint.TickSampled, byRequest, byRequest, byRequest},
	{"E11", ticker, failpoint.TickInserted, byRequest, byRequest, byRequest},
	// The other process answers the request for its namespace.
	{"E11 AC36", ticker, failpoint.TickRequested, byRequest, byRequest, byDrain},
	{"E11 AC36", ticker, failpoint.TickRenewed, byRequest, byRequest, byDrain},
}

// TestTickCrashes has servers of its own for each case: a tick concerns every
// bucket.
func TestTickCrashes(t *testing.T) {
	t.Parallel()
	for _, c := range tickCrashes {
		t.Run(c.criteria+" "+string(c.who)+" at "+string(c.at), func(t *testing.T) {
			t.Parallel()
			s := newServers(t)
			c.fail(t, c.stage(t, s)).healedByTick(c.afterError)
			c.kill(t, c.stage(t, s)).healedByTick(c.afterKill)
			c.pause(t, c.stage(t, s)).healedByTick(c.afterPause)
		})
	}
}

// stage leaves a tick a buffer, and a loss to notice.
func (c crash) stage(t *testing.T, s *servers) *stage {
	t.Helper()
	st := s.stage(t)
	require.NoError(t, st.tick(t.Context()), "first contact")
	require.NoError(t, st.publish(t.Context(), st.repository(), "buffered", 1000))
	for bucket := range accounting.Buckets {
		require.NoError(t, s.redis.Do(t.Context(), s.redis.B().Del().Key(bucketKey(bucket, "identity")).Build()).Error())
	}
	st.uncounted(st.repository())
	return st
}

// healedByTick works the next tick and its drains.
func (s *stage) healedByTick(by heal) {
	s.t.Helper()
	require.NoError(s.t, s.tick(context.Background()))
	rows, err := s.servers.pool.Query(context.Background(), `DELETE FROM river.river_job WHERE kind = 'drain_bucket' RETURNING args`)
	require.NoError(s.t, err)
	inserted, err := pgx.CollectRows(rows, pgx.RowTo[drain.BucketArgs])
	require.NoError(s.t, err)
	for _, args := range inserted {
		require.NoError(s.t, s.drain(context.Background(), args.Bucket))
	}
	sizes, err := s.buffer.Sizes(context.Background())
	require.NoError(s.t, err)
	require.Zero(s.t, sizes[s.bucket], "no drain was inserted")
	s.healed(by)
}
