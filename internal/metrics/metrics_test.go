package metrics

import (
	"testing"
	"time"

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
		"stowage_counter_scope_emissions_total":         1,
		"stowage_counter_emit_failures_total":           1,
		"stowage_counter_emit_duration_seconds":         1,
		"stowage_reconciliation_requests_unwritten":     1,
		"stowage_drain_flushes_total":                   7,
		"stowage_drain_emissions_total":                 5,
		"stowage_drain_duration_seconds":                1,
		"stowage_buffer_loss_total":                     3,
		"stowage_reconciliation_passes_total":           7,
		"stowage_reconciliation_in_flight":              1,
		"stowage_reconciliation_duration_seconds":       1,
		"stowage_reconciliation_discrepancy_bytes":      1,
		"stowage_reconciliation_discrepancy_components": 1,
		"stowage_history_rows_total":                    1,
	}, series(t, registry))

	before := series(t, registry)
	m.SetBacklog(3)
	m.SetHeld(1)
	m.SetHistoryClosed(time.Unix(1, 0))
	m.DirtySetSize.WithLabelValues("namespace").Set(4)
	for _, gauge := range []*prometheus.GaugeVec{m.PendingEmissions, m.PendingAge, m.Quarantined} {
		gauge.WithLabelValues().Set(5)
	}
	m.Jobs.WithLabelValues("drain_tick", "running").Set(6)
	m.JobsOldest.WithLabelValues("drain_tick").Set(7)
	m.JobsDiscarded.WithLabelValues("drain_tick").Set(8)
	for _, name := range []string{
		"stowage_reconciliation_backlog", "stowage_reconciliation_held", "stowage_counter_dirty_set_size",
		"stowage_counter_pending_emissions", "stowage_counter_pending_age_seconds", "stowage_counter_quarantined_scopes",
		"stowage_jobs", "stowage_jobs_oldest_seconds", "stowage_jobs_discarded",
	} {
		require.NotContains(t, before, name)
		require.Equal(t, 1, series(t, registry)[name], name)
	}
	m.Withdraw()
	require.Equal(t, before, series(t, registry), "a process that leads no longer exports none of them")
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
