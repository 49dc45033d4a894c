package drain

import (
	"context"
	"errors"
	"strconv"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/metrics"
)

// left is the value of stowage_drain_emissions_total.
func (b *bundle) left(outcome string) float64 {
	return testutil.ToFloat64(b.deps.Metrics.DrainEmissions.WithLabelValues(outcome))
}

// allLeft is the sum over the outcomes.
func (b *bundle) allLeft() (sum float64) {
	b.t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(b.deps.Metrics.DrainEmissions)
	families, err := registry.Gather()
	require.NoError(b.t, err)
	for _, metric := range families[0].GetMetric() {
		sum += metric.GetCounter().GetValue()
	}
	return sum
}

func TestTickSamplesWhatIsPending(t *testing.T) {
	t.Parallel()
	sampled := func(b *bundle, gauge func(*metrics.Metrics) *prometheus.GaugeVec) float64 {
		b.t.Helper()
		require.NoError(b.t, b.tick())
		return testutil.ToFloat64(gauge(b.deps.Metrics).WithLabelValues())
	}
	age := func(m *metrics.Metrics) *prometheus.GaugeVec { return m.PendingAge }
	ago := func(d time.Duration) int64 { return time.Now().Add(-d).UnixMilli() }

	t.Run("AC31 the age of what is buffered, from its first emission on", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		require.Zero(t, sampled(b, age))
		b.emit(b.repository, 1)
		b.command("ZADD", b.key("since"), strconv.FormatInt(ago(time.Hour), 10), "r:"+b.namespace.ID.String()+":"+b.repository.ID.String())
		b.emit(b.repository, 1)
		b.emit(b.namespace, 1)
		require.InDelta(t, time.Hour.Seconds(), sampled(b, age), 60)
		b.tickAndDrain()
		require.Zero(t, sampled(b, age))
	})

	t.Run("the age of what is in flight, from its claim on", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(b.repository, 1)
		batch := uuidAt(time.Now().Add(-2 * time.Hour))
		_, err := b.deps.Buffer.Claim(t.Context(), b.bucket, "killed", batch, 10)
		require.NoError(t, err)
		require.InDelta(t, 2*time.Hour.Seconds(), sampled(b, age), 60)
	})

	t.Run("S2 how many scopes are in quarantine", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		quarantined := func(m *metrics.Metrics) *prometheus.GaugeVec { return m.Quarantined }
		require.Zero(t, sampled(b, quarantined))
		require.NoError(t, b.deps.Buffer.Quarantine(t.Context(), b.bucket, []accounting.Scope{b.repository}))
		require.EqualValues(t, 1, sampled(b, quarantined))
	})

	t.Run("of a part of the buckets there is an age, and no sum", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(b.repository, 1)
		require.NoError(t, b.tick())
		require.Equal(t, 1, testutil.CollectAndCount(b.deps.Metrics.PendingEmissions))
		b.command("ZADD", b.key("since"), strconv.FormatInt(ago(time.Hour), 10), "r:"+b.namespace.ID.String()+":"+b.repository.ID.String())
		b.command("SADD", "stowage:1:{"+strconv.Itoa((b.bucket+1)%accounting.Buckets)+"}:lease", "x")
		require.InDelta(t, time.Hour.Seconds(), sampled(b, age), 60)
		require.Zero(t, testutil.CollectAndCount(b.deps.Metrics.PendingEmissions))
	})
}

// uuidAt is a UUIDv7 of a time.
func uuidAt(at time.Time) uuid.UUID {
	id := uuid.Must(uuid.NewV7())
	ms := at.UnixMilli()
	for i := 5; i >= 0; i-- {
		id[i] = byte(ms)
		ms >>= 8
	}
	return id
}

// What was emitted has left the buffer by one outcome, or is pending: at each
// moment but for what a killed drain has committed and not counted.
func TestConservationOfEmissions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	gone := b.newRepository(b.namespace)
	counted := b.newRepository(b.namespace)
	emitted := 0.0
	emit := func(scope accounting.Scope, times int) {
		for range times {
			b.emit(scope, 1)
			emitted++
		}
	}
	conserved := func() {
		t.Helper()
		require.NoError(t, b.tick())
		b.inserted()
		pending := testutil.ToFloat64(b.deps.Metrics.PendingEmissions.WithLabelValues())
		require.Equal(t, emitted, b.allLeft()+pending)
	}
	emit(b.namespace, 3)
	emit(b.repository, 2)
	emit(gone, 4)
	emit(counted, 5)
	conserved()
	b.exec(`DELETE FROM repositories WHERE id = $1`, gone.ID)
	b.exec(`UPDATE repositories SET last_reconciled_at = now() WHERE id = $1`, counted.ID)
	_, err := b.worker().newRun(b.bucket).claim(t.Context(), 2)
	require.NoError(t, err)
	emit(b.namespace, 1)
	emit(b.repository, 1)
	conserved()
	b.expireLease()
	b.tickAndDrain()
	conserved()
	b.tickAndDrain()
	conserved()
	require.Equal(t, []float64{7, 5, 4}, []float64{b.left("applied"), b.left("counted"), b.left("gone")})

	// Applied, and not finished: replayed by the next drain, and counted once.
	emit(b.repository, 2)
	killed := errors.New("killed")
	ctx := failpoint.With(t.Context(), func(_ context.Context, at failpoint.Point) error {
		if at == failpoint.DrainFinishes {
			return killed
		}
		return nil
	})
	require.ErrorIs(t, b.worker().Work(ctx, bucketJob(BucketArgs{Bucket: b.bucket, Scopes: 1}, time.Now())), killed)
	b.expireLease()
	b.tickAndDrain()
	conserved()
	require.EqualValues(t, 1, b.flushes(metrics.FlushReplayed))

	// Too old to be applied.
	emit(b.repository, 6)
	_, err = b.deps.Buffer.Claim(t.Context(), b.bucket, "killed", uuidAt(time.Now().Add(-b.cfg.LedgerRetention)), 10)
	require.NoError(t, err)
	b.expireLease()
	b.tickAndDrain()
	conserved()
	require.EqualValues(t, 6, b.left(metrics.FlushTooOld))
}
