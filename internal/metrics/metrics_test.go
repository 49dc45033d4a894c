package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// Every counter and histogram is there from the start, with zero; the gauges that
// have one writer in the cluster are not, until it writes them.
func TestAC33MetricsAreZeroFromTheStart(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m := New(registry)
	require.Equal(t, map[string]int{
		"stowage_counter_emissions_total":               1,
		"stowage_counter_emit_failures_total":           1,
		"stowage_counter_emit_duration_seconds":         1,
		"stowage_reconciliation_requests_unwritten":     1,
		"stowage_drain_flushes_total":                   7,
		"stowage_drain_duration_seconds":                1,
		"stowage_buffer_loss_total":                     3,
		"stowage_reconciliation_passes_total":           7,
		"stowage_reconciliation_in_flight":              1,
		"stowage_reconciliation_duration_seconds":       1,
		"stowage_reconciliation_discrepancy_bytes":      1,
		"stowage_reconciliation_discrepancy_components": 1,
	}, series(t, registry))

	m.SetBacklog(3)
	m.DirtySetSize.WithLabelValues("namespace").Set(4)
	require.Equal(t, 1, series(t, registry)["stowage_reconciliation_backlog"])
	require.Equal(t, 1, series(t, registry)["stowage_counter_dirty_set_size"])
	m.Withdraw()
	require.NotContains(t, series(t, registry), "stowage_reconciliation_backlog")
	require.NotContains(t, series(t, registry), "stowage_counter_dirty_set_size")
}

// series is how many there are of each metric. None of them has a value but
// those that the test has set.
func series(t *testing.T, registry *prometheus.Registry) map[string]int {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	all := map[string]int{}
	for _, family := range families {
		all[family.GetName()] = len(family.GetMetric())
		for _, metric := range family.GetMetric() {
			require.Zero(t, metric.GetCounter().GetValue(), family.GetName())
			require.Zero(t, metric.GetHistogram().GetSampleCount(), family.GetName())
		}
	}
	return all
}
