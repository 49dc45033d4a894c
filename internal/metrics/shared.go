package metrics

import "github.com/prometheus/client_golang/prometheus"

// Shared is the Registerer for a part of the process that would make metrics of its
// own: with it, Of gives it those that the process has.
type Shared struct {
	prometheus.Registerer
	Metrics *Metrics
}

// Of is New, unless the Registerer is Shared.
func Of(reg prometheus.Registerer) *Metrics {
	if shared, ok := reg.(Shared); ok {
		return shared.Metrics
	}
	return New(reg)
}
