package drain

import (
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
)

func TestTick(t *testing.T) {
	t.Parallel()

	t.Run("inserts one job for each bucket that is not empty", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		require.NoError(t, b.tick())
		require.Empty(t, b.inserted())

		b.emit(b.repository, 1)
		b.emit(b.namespace, 1)
		other := b.newNamespace()
		b.emit(other, 1)
		scheduled := time.Now().Add(-time.Second).UTC()
		require.NoError(t, b.tickAt(scheduled))
		require.ElementsMatch(t, []BucketArgs{
			{Bucket: b.bucket, Tick: scheduled, Scopes: 2},
			{Bucket: accounting.Bucket(other.ID), Tick: scheduled, Scopes: 1},
		}, b.inserted())
	})
	t.Run("inserts a job for what a dead run left in flight", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(b.repository, 10)
		_, err := b.worker().newRun(b.bucket).claim(t.Context(), 1)
		require.NoError(t, err)
		require.Equal(t, buffer.Size{InFlight: 1}, b.size())
		b.expireLease()
		b.tickAndDrain()
		require.Equal(t, counters(10, 1), b.row(b.repository))
	})
	t.Run("a job that is stuck blocks its own tick only", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(b.repository, 10)
		first := time.Now()
		require.NoError(t, b.tickAt(first))
		b.exec(`UPDATE river.river_job SET state = 'running', attempt = 1, attempted_at = now()`)
		require.NoError(t, b.tickAt(first), "the same tick once more")
		require.NoError(t, b.tickAt(first.Add(time.Second)))
		require.Len(t, b.inserted(), 2)
	})
	t.Run("that starts too late does nothing", func(t *testing.T) {
		t.Parallel()
		clock := quartz.NewMock(t)
		b := newWorld(t).bundle(t, clock, time.Minute)
		b.emit(b.repository, 10)
		require.NoError(t, b.tickAt(clock.Now().Add(-b.cfg.StaleTimeout-time.Nanosecond)))
		require.Empty(t, b.inserted())
		require.NoError(t, b.tickAt(clock.Now().Add(-b.cfg.StaleTimeout)))
		require.Len(t, b.inserted(), 1)
	})
}

func TestTickFails(t *testing.T) {
	t.Parallel()

	t.Run("E2 AC36 Redis unreachable at the tick, nothing is lost", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(b.repository, 10)
		b.redis.Stop()
		require.ErrorContains(t, b.tick(), "drain tick")
		b.restart()
		b.tickAndDrain()
		require.Equal(t, counters(10, 1), b.row(b.repository))
	})
	t.Run("E10 enqueueing fails after the sets were read, the next tick drains", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(b.repository, 10)
		b.exec(`ALTER TABLE river.river_job RENAME TO broken`)
		require.ErrorContains(t, b.tick(), "insert 1 drains")
		require.Equal(t, buffer.Size{Repositories: 1}, b.size())
		b.exec(`ALTER TABLE river.broken RENAME TO river_job`)
		b.tickAndDrain()
		require.Equal(t, counters(10, 1), b.row(b.repository))
	})
	t.Run("E11 killed after the jobs were inserted, they and the next tick drain once", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(b.repository, 10)
		require.NoError(t, b.tick())
		jobs := b.inserted()
		require.Len(t, jobs, 1)
		b.tickAndDrain()
		require.NoError(t, b.worker().Work(t.Context(), bucketJob(jobs[0], time.Now())))
		require.Equal(t, counters(10, 1), b.row(b.repository))
	})
}

func TestTickGauge(t *testing.T) {
	t.Parallel()
	gauge := func(b *bundle, kind accounting.ScopeKind) float64 {
		return testutil.ToFloat64(b.deps.Metrics.DirtySetSize.WithLabelValues(kind.String()))
	}

	t.Run("AC31 is sampled once a tick, before anything else", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(b.repository, 1)
		b.emit(b.newRepository(b.namespace), 1)
		b.emit(b.namespace, 1)
		b.exec(`ALTER TABLE counter_buckets RENAME TO broken`)
		require.Error(t, b.tick(), "the tick fails at its next step")
		require.EqualValues(t, 2, gauge(b, accounting.KindRepository))
		require.EqualValues(t, 1, gauge(b, accounting.KindNamespace))
		b.exec(`ALTER TABLE broken RENAME TO counter_buckets`)

		b.tickAndDrain()
		require.EqualValues(t, 2, gauge(b, accounting.KindRepository), "draining does not sample")
		require.NoError(t, b.tick())
		require.Zero(t, gauge(b, accounting.KindRepository))
		require.Zero(t, gauge(b, accounting.KindNamespace))
	})
}

func TestTickNoticesLoss(t *testing.T) {
	t.Parallel()
	known := func(t *testing.T, b *bundle) map[int]buffer.Identity {
		t.Helper()
		k, err := NewTickWorker(b.cfg, b.deps).knownIdentities(t.Context())
		require.NoError(t, err)
		return k
	}
	// agree says that Postgres and Redis hold the same identities, all of them.
	agree := func(t *testing.T, b *bundle) {
		t.Helper()
		found, err := b.deps.Buffer.Identities(t.Context())
		require.NoError(t, err)
		k := known(t, b)
		require.Len(t, k, accounting.Buckets)
		for bucket, f := range found {
			require.NotEqual(t, uuid.Nil, f.ID)
			require.Equal(t, k[bucket], f)
		}
	}
	calm := func(t *testing.T, b *bundle) {
		t.Helper()
		agree(t, b)
		before := known(t, b)
		identity, restart := b.loss("identity"), b.loss("restart")
		require.NoError(t, b.tick())
		require.Equal(t, before, known(t, b))
		require.Equal(t, identity, b.loss("identity"))
		require.Equal(t, restart, b.loss("restart"))
	}

	t.Run("first contact is no loss", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		require.NoError(t, b.tick())
		calm(t, b)
		require.Empty(t, b.requested())
		require.Zero(t, b.loss("identity")+b.loss("restart"))
	})
	t.Run("a bucket without its identity has lost its data", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.newNamespace()
		require.NoError(t, b.tick())
		before := known(t, b)[b.bucket].ID
		b.command("DEL", b.key("identity"))
		require.NoError(t, b.tick())
		require.EqualValues(t, 1, b.loss("identity"))
		require.Equal(t, []uuid.UUID{b.namespace.ID}, b.requested())
		var all int
		require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM reconciliation_requests`).Scan(&all))
		require.Equal(t, 1, all, "none of another bucket")
		require.NotEqual(t, before, known(t, b)[b.bucket].ID)
		calm(t, b)
	})
	t.Run("as has one whose identity is another's", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		require.NoError(t, b.tick())
		require.NoError(t, b.deps.Buffer.SetIdentity(t.Context(), b.bucket, uuid.New()))
		require.NoError(t, b.tick())
		require.EqualValues(t, 1, b.loss("identity"))
		require.Equal(t, []uuid.UUID{b.namespace.ID}, b.requested())
		calm(t, b)
	})
	t.Run("an identity that Postgres does not know is no first contact", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		require.NoError(t, b.tick())
		b.exec(`DELETE FROM counter_buckets WHERE bucket = $1`, b.bucket)
		require.NoError(t, b.tick())
		require.EqualValues(t, 1, b.loss("identity"))
		require.Equal(t, []uuid.UUID{b.namespace.ID}, b.requested())
		calm(t, b)
	})
	t.Run("AC36 a restart may have lost something, in every bucket", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		require.NoError(t, b.tick())
		before := known(t, b)[b.bucket]
		b.restart()
		require.NoError(t, b.tick())
		require.EqualValues(t, accounting.Buckets, b.loss("restart"))
		require.Zero(t, b.loss("identity"))
		require.Len(t, b.requested(), 1)
		require.Equal(t, before.ID, known(t, b)[b.bucket].ID, "the data are still the bucket's")
		require.NotEqual(t, before.RunID, known(t, b)[b.bucket].RunID)
		calm(t, b)
	})
	t.Run("AC36 a Redis that comes back empty", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		require.NoError(t, b.tick())
		b.emit(b.repository, 10)
		b.command("FLUSHALL")
		b.restart()
		require.NoError(t, b.tick())
		require.EqualValues(t, accounting.Buckets, b.loss("identity"))
		require.Zero(t, b.loss("restart"), "each bucket is counted once")
		require.Equal(t, []uuid.UUID{b.namespace.ID}, b.requested())
		calm(t, b)
	})
	t.Run("E11 nothing is repaired before the requests are committed", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		require.NoError(t, b.tick())
		before := known(t, b)
		b.command("DEL", b.key("identity"))
		b.exec(`ALTER TABLE reconciliation_requests RENAME TO broken`)
		require.Error(t, b.tick())
		require.Equal(t, before, known(t, b))
		require.NotContains(t, b.keys(), b.key("identity"))
		b.exec(`ALTER TABLE broken RENAME TO reconciliation_requests`)
		require.NoError(t, b.tick())
		require.Equal(t, []uuid.UUID{b.namespace.ID}, b.requested())
		calm(t, b)
	})
	t.Run("E11 killed between Redis and Postgres, the next tick repairs", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.exec(`ALTER TABLE counter_buckets ADD CONSTRAINT ck_never CHECK (bucket < 0) NOT VALID`)
		require.Error(t, b.tick(), "Redis has its identities")
		b.exec(`ALTER TABLE counter_buckets DROP CONSTRAINT ck_never`)
		require.NoError(t, b.tick())
		require.EqualValues(t, accounting.Buckets, b.loss("identity"), "a loss that was none")
		calm(t, b)
	})
}

func TestCompareRemembersTheRunThatItSaw(t *testing.T) {
	t.Parallel()
	id := uuid.New()
	changes := compare(map[int]buffer.Identity{0: {ID: id, RunID: "old"}}, []buffer.Identity{{ID: id, RunID: "new"}, {RunID: "new"}})
	require.Equal(t, change{bucket: 0, reason: "restart", identity: buffer.Identity{ID: id, RunID: "new"}}, changes[0])
	require.Equal(t, 1, changes[1].bucket)
	require.Empty(t, changes[1].reason)
	require.True(t, changes[1].renew)
	require.Equal(t, "new", changes[1].identity.RunID)
	require.NotEqual(t, uuid.Nil, changes[1].identity.ID)
}
