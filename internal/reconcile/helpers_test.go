package reconcile

import (
	"io"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/stretchr/testify/require"
)

func textLogger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

func requireHistogram(t *testing.T, h prometheus.Histogram, count uint64, sum float64) {
	t.Helper()
	var m dto.Metric
	require.NoError(t, h.Write(&m))
	require.Equal(t, count, m.GetHistogram().GetSampleCount())
	require.InDelta(t, sum, m.GetHistogram().GetSampleSum(), 0)
}
