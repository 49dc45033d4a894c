package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/alerts"
)

func TestAlerts(t *testing.T) {
	t.Parallel()
	out, _, err := run(t, "alerts")
	require.NoError(t, err)
	require.Equal(t, alerts.Rules, out)
	_, _, err = run(t, "alerts", "all")
	require.ErrorContains(t, err, `"all"`)
}
