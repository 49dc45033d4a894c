package exactness

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
)

// TestDrift: what a pass reports as drift is what was wrong, and nothing that is
// only on its way. The repository of each case is empty at first.
func TestDrift(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	none := accounting.Counters{}

	for name, c := range map[string]struct {
		arrange func(st *stage)
		// drift is that of the repository and the namespace together.
		drift accounting.Counters
	}{
		"nothing is wrong": {func(*stage) {}, none},
		"AC11 a version past the client": {func(st *stage) {
			st.uncounted(st.repository())
		}, bytes(14, 2)},
		"AC11 a counter that was changed by hand": {func(st *stage) {
			st.exec(`UPDATE repositories SET size_bytes = size_bytes - 3, artifacts_count = artifacts_count + 4 WHERE id = $1`, st.repository())
		}, bytes(3, 4)},
		"a delta that is buffered": {func(st *stage) {
			st.published("1", 10)
		}, none},
		"a delta that is frozen": {func(st *stage) {
			st.published("1", 10)
			st.stopsAt(failpoint.DrainClaimed)
		}, none},
		"a delta that is applied and still frozen, and a version past the client": {func(st *stage) {
			st.published("1", 10)
			st.stopsAt(failpoint.DrainFinishes)
			st.uncounted(st.repository())
		}, bytes(14, 2)},
		"one delta that is frozen, another one that is buffered, and a version past the client": {func(st *stage) {
			st.published("1", 10)
			st.stopsAt(failpoint.DrainClaimed)
			st.published("2", 100)
			st.uncounted(st.repository())
		}, bytes(14, 2)},
		"a delta that the pass before has counted, and that is still buffered": {func(st *stage) {
			st.published("1", 10)
			st.pass()
		}, none},
		"that one, and another one since": {func(st *stage) {
			st.published("1", 10)
			st.pass()
			st.published("2", 100)
		}, none},
		"a delta that is lost": {func(st *stage) {
			st.published("1", 10)
			require.NoError(st.t, st.servers.redis.Do(st.t.Context(), st.servers.redis.B().Del().Key(
				bucketKey(st.bucket, "buf:n:"+st.namespace.String())).Build()).Error())
		}, bytes(10, 1)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := s.emptyStage(t)
			c.arrange(st)
			// A process of its own, whose metrics begin at zero.
			measuring := s.process(t)
			require.NoError(t, measuring.reconcile(t.Context(), st.namespace))
			reported := bytes(sumOf(t, measuring.metrics.DiscrepancyBytes), sumOf(t, measuring.metrics.DiscrepancyComponents))
			require.Equal(t, c.drift, reported)
			require.Equal(t, st.truth(t, st.namespace), st.rows(t, st.namespace))
		})
	}
}

func (s *stage) published(version string, size int64) {
	s.t.Helper()
	require.NoError(s.t, s.publish(s.t.Context(), s.repository(), version, size))
}

// stopsAt lets a drain fail at the point.
func (s *stage) stopsAt(at failpoint.Point) {
	s.t.Helper()
	require.ErrorIs(s.t, s.drain(failpoint.With(s.t.Context(), failing(at)), s.bucket), errInjected)
}

func sumOf(t testing.TB, h prometheus.Histogram) int64 {
	t.Helper()
	var m dto.Metric
	require.NoError(t, h.Write(&m))
	return int64(m.GetHistogram().GetSampleSum())
}
