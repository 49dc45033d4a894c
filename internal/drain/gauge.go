package drain

import (
	"time"

	"github.com/coder/quartz"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
)

// sampleGauge exports the sizes of the dirty sets. Any worker may run the next
// tick, so a sample is withdrawn when the next but one is due and this process
// has not taken it: an old sample must not stand beside the new one of another
// process for ever.
type sampleGauge struct {
	gauge    *prometheus.GaugeVec
	lifetime time.Duration
	withdraw *quartz.Timer
}

func newSampleGauge(cfg Config, deps Dependencies) *sampleGauge {
	g := &sampleGauge{gauge: deps.Metrics.DirtySetSize, lifetime: 2 * cfg.Interval}
	g.withdraw = deps.Clock.AfterFunc(g.lifetime, g.gauge.Reset, "drain", "gauge")
	return g
}

func (g *sampleGauge) set(sizes [accounting.Buckets]buffer.Size) {
	var namespaces, repositories int64
	for _, size := range sizes {
		namespaces += size.Namespaces
		repositories += size.Repositories
	}
	g.withdraw.Reset(g.lifetime, "drain", "gauge")
	g.gauge.WithLabelValues(accounting.KindNamespace.String()).Set(float64(namespaces))
	g.gauge.WithLabelValues(accounting.KindRepository.String()).Set(float64(repositories))
}
