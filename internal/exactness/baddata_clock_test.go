package exactness

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/drain"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/reconcile"
	"github.com/stowage-dev/stowage/internal/requests"
)

// PostgreSQL's clock cannot be set, so what it has written an hour ago, before it
// jumped back, is moved an hour ahead instead.
func TestBadDataDatabaseClockJumpsBack(t *testing.T) {
	t.Parallel()
	shared := newServers(t)
	// jumpBack makes everything of the namespace's last pass an hour younger.
	jumpBack := func(s *stage) {
		s.pass()
		s.exec(`UPDATE namespace_statistics SET reconciliation_marker = reconciliation_marker + interval '1 hour',
			last_reconciled_at = last_reconciled_at + interval '1 hour' WHERE namespace_id = $1`, s.namespace)
		s.exec(`UPDATE repositories SET last_reconciled_at = last_reconciled_at + interval '1 hour' WHERE namespace_id = $1`, s.namespace)
	}

	t.Run("AC8 AC30 deltas before and after passes stay exact, and each pass reports the marker", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		jumpBack(s)
		s.publishes(s.scope(), "1", 10)
		s.drainAll()
		s.requireTruth()

		s.publishes(s.scope(), "2", 10) // counted by the pass and still buffered
		log := s.passLogged()
		require.Contains(t, log, "level=ERROR msg=\"the namespace's marker is in the future")
		s.publishes(s.scope(), "3", 10) // after it
		s.drainAll()
		s.requireTruth()
		s.drainAll()
		s.pass()
		s.requireTruth()
	})

	t.Run("AC27 the namespace is not stale until the clock has caught up, but a request brings it a pass", func(t *testing.T) {
		t.Parallel()
		own := newServers(t) // the trigger looks at every namespace
		s := own.stage(t)
		jumpBack(s)
		require.Empty(t, own.triggered(t))
		require.NoError(t, requests.Raise(t.Context(), s.servers.pool, []requests.Request{{Namespace: s.namespace}}))
		require.Equal(t, []uuid.UUID{s.namespace}, own.triggered(t))
		s.requireHealedByRequest()
	})

	t.Run("R8 one that is raised while a pass has its snapshot, and its marker is not committed, stays open", func(t *testing.T) {
		t.Parallel()
		raise := func(s *stage) {
			require.NoError(t, requests.Raise(t.Context(), s.servers.pool, []requests.Request{{Namespace: s.namespace}}))
		}
		for name, ahead := range map[string]func(s *stage){
			"the namespace's marker is ahead": jumpBack,
			"an open request is ahead": func(s *stage) {
				s.exec(`INSERT INTO reconciliation_requests VALUES ($1, clock_timestamp() + interval '1 hour')`, s.namespace)
			},
			"nothing is ahead": func(*stage) {},
		} {
			s := shared.stage(t)
			ahead(s)
			require.NoError(t, s.reconcile(atPoint(t, failpoint.PassSnapshot, func() { raise(s) }), s.namespace))
			require.True(t, s.requested(), name)
			s.requireHealedByRequest()
		}
	})

	t.Run("a request from before the jump is closed by the first pass after it", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		s.exec(`INSERT INTO reconciliation_requests VALUES ($1, clock_timestamp() + interval '1 hour')`, s.namespace)
		s.publishes(s.scope(), "1", 10)
		s.requireHealedByRequest()
		s.drainAll()
		s.requireTruth()
	})
}

// A worker's clock is behind, or ahead, of everybody else's: its batch ids tell
// another time, and so do its deadlines.
func TestBadDataWorkersClock(t *testing.T) {
	t.Parallel()
	shared := newServers(t)

	for name, off := range map[string]time.Duration{
		"an hour behind": -time.Hour, "an hour ahead": time.Hour,
		"a day behind": -25 * time.Hour, "a week ahead": 7 * 24 * time.Hour,
	} {
		t.Run("E8 a batch finds its partition and counts once, of a worker whose clock is "+name, func(t *testing.T) {
			t.Parallel()
			s := shared.stage(t)
			s.publishes(s.scope(), "1", 10)
			s.expireLease()
			batch := batchOf(time.Now().Add(off))
			claim, err := s.buffer.Claim(t.Context(), s.bucket, "dead", batch, 100)
			require.NoError(t, err)
			require.Len(t, claim.Flushes, 2)

			_, err = ledger.Apply(t.Context(), s.servers.pool, claim.Flushes) // and died before it could finish
			require.NoError(t, err)
			s.drainAll()
			require.EqualValues(t, 2, s.outcome(metrics.FlushReplayed))
			s.requireExact()

			// What it applied is not forgotten before its time.
			partitions := ledger.NewPartitionsWorker(ledger.PartitionsConfig{Retention: 30 * 24 * time.Hour},
				s.servers.pool, slog.New(slog.DiscardHandler), quartz.NewReal())
			require.NoError(t, partitions.Work(t.Context(), &river.Job[ledger.PartitionsArgs]{JobRow: &rivertype.JobRow{}}))
			s.requireExact()
		})
	}

	t.Run("AC5 E7 a worker whose clock is ahead by the stale timeout drains nothing and says so, another drains", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		clock := quartz.NewMock(t)
		clock.Set(time.Now().Add(time.Hour))
		ahead := s.drainsAt(clock)
		s.publishes(s.scope(), "1", 10)
		require.NoError(t, ahead.Work(t.Context(), s.bucketJob()))
		require.EqualValues(t, 1, s.outcome(metrics.FlushStale))
		require.NotEqual(t, s.recount(s.scope()), s.row(s.scope()))
		s.drainAll()
		s.requireExact()
	})

	t.Run("E8 a worker whose clock is behind drains as ever", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		clock := quartz.NewMock(t)
		clock.Set(time.Now().Add(-time.Hour))
		s.publishes(s.scope(), "1", 10)
		require.NoError(t, s.drainsAt(clock).Work(t.Context(), s.bucketJob()))
		s.requireExact()
		s.requireNoKeys()
	})

	t.Run("S2 E8 a flush too old to apply, as its clock says, is dropped, counted and healed by a pass", func(t *testing.T) {
		t.Parallel()
		s := shared.stage(t)
		s.publishes(s.scope(), "1", 10)
		s.expireLease()
		_, err := s.buffer.Claim(t.Context(), s.bucket, "dead", batchOf(time.Now().Add(-16*24*time.Hour)), 100)
		require.NoError(t, err)
		s.drainAll()
		require.EqualValues(t, 2, s.outcome(metrics.FlushTooOld))
		require.NotEqual(t, s.recount(s.scope()), s.row(s.scope()))
		s.requireHealedByRequest()
		s.requireNoKeys()
	})
}

// batchOf is a batch id that was made at the given time.
func batchOf(t time.Time) uuid.UUID {
	id := uuid.Must(uuid.NewV7())
	ms := t.UnixMilli()
	for i := 5; i >= 0; i-- {
		id[i] = byte(ms)
		ms >>= 8
	}
	return id
}

// drainsAt is a worker with another clock and the stage's metrics.
func (s *stage) drainsAt(clock quartz.Clock) *drain.BucketWorker {
	return drain.NewBucketWorker(drain.DefaultConfig(), drain.Dependencies{
		Pool: s.process.pool.Pool, Buffer: s.buffer, Metrics: s.metrics, Log: slog.New(slog.DiscardHandler), Clock: clock,
	})
}

// passLogged runs a pass and returns its log.
func (s *stage) passLogged() string {
	s.t.Helper()
	var log strings.Builder
	worker := reconcile.NewNamespace(
		reconcile.Deps{Pool: s.process.pool.Pool, Buffer: s.buffer, Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.NewTextHandler(&log, nil))},
		reconcile.Config{MaxInFlight: 64, ChunkSize: chunk, Staleness: time.Hour, Timeout: time.Minute, TriggerInterval: time.Minute, Guard: reconcile.DefaultGuard()})
	pass, err := worker.Reconcile(context.Background(), s.namespace)
	require.NoError(s.t, err)
	require.Equal(s.t, metrics.PassDone, pass.Result)
	require.Greater(s.t, pass.Marker, accounting.MarkerOf(time.Now()))
	return log.String()
}
