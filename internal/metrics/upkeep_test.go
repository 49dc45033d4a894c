package metrics

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

func TestAC33UpkeepIsZeroFromTheStart(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	u := NewUpkeep(registry)
	require.Equal(t, map[string]int{
		"stowage_deleted_versions_total": 1,
		"stowage_deleted_scopes_total":   1,
		"stowage_collected_blobs_total":  1,
		"stowage_collected_bytes_total":  1,
	}, series(t, registry))
	u.SetOpen(3, 4)
	require.Equal(t, 1, series(t, registry)["stowage_deletions_open"])
	require.Equal(t, 1, series(t, registry)["stowage_content_waiting"])
	u.Withdraw()
	require.NotContains(t, series(t, registry), "stowage_deletions_open")
	require.NotContains(t, series(t, registry), "stowage_content_waiting")
}

func TestSharedMetricsAreNotMadeAgain(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	m := New(registry)
	require.Same(t, m, Of(Shared{Metrics: m}))
	require.NotSame(t, m, Of(prometheus.NewRegistry()))
}
