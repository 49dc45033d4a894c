// Package metrics declares every metric of Stowage as one struct, built with a
// Registerer: there are no globals. Counters and histograms are present from
// the start with zero; a gauge that has one writer in the cluster appears only
// in the process that writes it, and is withdrawn when it ceases to.
package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// Outcomes of stowage_drain_flushes_total beside those of the ledger.
const (
	// FlushReplayed is a flush that the ledger already knew: nothing changed.
	FlushReplayed = "replayed"
	// FlushTooOld is a flush older than half the ledger's retention.
	FlushTooOld = "too_old"
	// FlushQuarantined is a scope set aside because its data cannot be applied.
	FlushQuarantined = "quarantined"
	// FlushStale is a drain job that bailed out for its age; it stays dirty.
	FlushStale = "stale"
)

// Reasons of stowage_buffer_loss_total.
const (
	LossIdentity = "identity"
	LossRestart  = "restart"
	LossExpired  = "expired"
)

// Results of stowage_reconciliation_passes_total.
const (
	PassDone        = "done"
	PassSaturated   = "saturated"
	PassLockTimeout = "lock_timeout"
	PassHeld        = "held"
	PassFenced      = "fenced"
	PassGone        = "gone"
	PassFailed      = "failed"
)

// Metrics are the metrics of one process.
type Metrics struct {
	// EmitFailures counts emissions that did not reach Redis, a namespace each.
	EmitFailures prometheus.Counter
	// Emissions counts emissions that Redis took, a namespace each; ScopeEmissions
	// the same, a scope each, which is what DrainEmissions counts.
	Emissions, ScopeEmissions prometheus.Counter
	// EmitDuration is the time that a commit spent emitting, in seconds.
	EmitDuration prometheus.Histogram
	// RequestsUnwritten is how many reconciliation requests wait in memory.
	RequestsUnwritten prometheus.Gauge

	// DirtySetSize is the number of dirty scopes by kind, sampled once a tick.
	// One writer: see Withdraw.
	DirtySetSize *prometheus.GaugeVec
	// DrainFlushes counts flushes by what became of them.
	DrainFlushes *prometheus.CounterVec
	// DrainEmissions counts the emissions of a scope that left the buffer by what
	// became of them. What was emitted is counted here or still pending.
	DrainEmissions *prometheus.CounterVec
	// PendingEmissions, PendingAge in seconds, and Quarantined are sampled once a
	// tick. One writer: see Withdraw.
	PendingEmissions, PendingAge, Quarantined *prometheus.GaugeVec
	// DrainDuration is the time of a drain of one bucket, in seconds.
	DrainDuration prometheus.Histogram
	// BufferLoss counts losses of buffered deltas that were noticed.
	BufferLoss *prometheus.CounterVec

	// Jobs is the number of jobs by kind and state, JobsOldest the longest that one
	// has been ready and was not begun, in seconds, and JobsDiscarded how many were
	// given up within the last hour, by kind. One writer: see Withdraw.
	Jobs, JobsOldest, JobsDiscarded *prometheus.GaugeVec
	// JobsRescued counts jobs of this process that began anew because the process
	// that ran them before was gone.
	JobsRescued *prometheus.CounterVec

	// ReconciliationPasses counts passes by how they ended.
	ReconciliationPasses *prometheus.CounterVec
	// ReconciliationInFlight is how many passes this process runs now.
	ReconciliationInFlight prometheus.Gauge
	// ReconciliationDuration is the time of a whole pass, in seconds.
	ReconciliationDuration prometheus.Histogram
	// DiscrepancyBytes and DiscrepancyComponents record what a pass corrected,
	// as absolute values, one observation for each scope whose counter was off.
	DiscrepancyBytes      prometheus.Histogram
	DiscrepancyComponents prometheus.Histogram

	// HistoryRows counts the rows of history that were written: namespaces and hours
	// in which something changed.
	HistoryRows prometheus.Counter

	backlog, held, historyClosed *prometheus.GaugeVec
}

// New registers the metrics. A Registerer that holds them already panics, as
// MustRegister does: two sets in one process would each tell half.
func New(reg prometheus.Registerer) *Metrics {
	m := &Metrics{
		EmitFailures:      counter("stowage_counter_emit_failures_total", "Emissions that did not reach Redis; a reconciliation of the namespace was requested for each."),
		Emissions:         counter("stowage_counter_emissions_total", "Emissions that Redis took, one a namespace and transaction."),
		ScopeEmissions:    counter("stowage_counter_scope_emissions_total", "Emissions that Redis took, one a scope and transaction."),
		EmitDuration:      histogram("stowage_counter_emit_duration_seconds", "Time a commit spent emitting.", prometheus.ExponentialBuckets(0.0002, 2, 12)),
		RequestsUnwritten: gauge("stowage_reconciliation_requests_unwritten", "Reconciliation requests of this process that wait in memory to be written."),
		DirtySetSize:      oneWriter("stowage_counter_dirty_set_size", "Scopes with buffered deltas, sampled once per drain tick before anything is claimed.", "scope"),
		DrainFlushes: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stowage_drain_flushes_total", Help: "Flushes by what became of them.",
		}, []string{"outcome"}),
		DrainEmissions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stowage_drain_emissions_total", Help: "Emissions, one a scope and transaction, that left the buffer, by what became of them.",
		}, []string{"outcome"}),
		PendingEmissions: oneWriter("stowage_counter_pending_emissions", "Emissions, one a scope and transaction, that are buffered or in flight, sampled once per drain tick."),
		PendingAge:       oneWriter("stowage_counter_pending_age_seconds", "How long the oldest pending emission has waited, sampled once per drain tick."),
		Quarantined:      oneWriter("stowage_counter_quarantined_scopes", "Scopes that are set aside because their data cannot be applied, sampled once per drain tick."),
		DrainDuration:    histogram("stowage_drain_duration_seconds", "Time of a drain of one bucket.", prometheus.ExponentialBuckets(0.001, 2, 16)),
		BufferLoss: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stowage_buffer_loss_total", Help: "Noticed losses of buffered deltas: buckets for identity and restart, scopes for expired.",
		}, []string{"reason"}),
		Jobs:          oneWriter("stowage_jobs", "Jobs that are not over, by kind and state.", "kind", "state"),
		JobsOldest:    oneWriter("stowage_jobs_oldest_seconds", "How long the job that was ready first has not been begun, by kind.", "kind"),
		JobsDiscarded: oneWriter("stowage_jobs_discarded", "Jobs that were given up within the last hour, by kind.", "kind"),
		JobsRescued: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stowage_jobs_rescued_total", Help: "Jobs that began anew because the process that ran them before was gone, by kind.",
		}, []string{"kind"}),
		ReconciliationPasses: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stowage_reconciliation_passes_total", Help: "Reconciliation passes by how they ended.",
		}, []string{"result"}),
		ReconciliationInFlight: gauge("stowage_reconciliation_in_flight", "Reconciliation passes that this process runs now."),
		ReconciliationDuration: histogram("stowage_reconciliation_duration_seconds", "Time of a reconciliation pass.", prometheus.ExponentialBuckets(0.005, 2, 16)),
		DiscrepancyBytes:       histogram("stowage_reconciliation_discrepancy_bytes", "Bytes by which a counter was wrong, and not only behind, when it was reconciled.", prometheus.ExponentialBuckets(1, 16, 12)),
		DiscrepancyComponents:  histogram("stowage_reconciliation_discrepancy_components", "Components by which a counter was wrong, and not only behind, when it was reconciled.", prometheus.ExponentialBuckets(1, 4, 12)),
		backlog:                oneWriter("stowage_reconciliation_backlog", "Namespaces that are due for a reconciliation."),
		held:                   oneWriter("stowage_reconciliation_held", "Scopes with a correction that would lower a counter by much and waits to be confirmed."),
		HistoryRows:            counter("stowage_history_rows_total", "Rows of usage history that were written: namespaces and hours in which something changed."),
		historyClosed:          oneWriter("stowage_history_closed_until_timestamp_seconds", "Until when the hours of usage history are closed."),
	}
	m.zero()
	reg.MustRegister(m.EmitFailures, m.Emissions, m.ScopeEmissions, m.EmitDuration, m.RequestsUnwritten,
		m.DirtySetSize, m.PendingEmissions, m.PendingAge, m.Quarantined,
		m.DrainFlushes, m.DrainEmissions, m.DrainDuration, m.BufferLoss,
		m.Jobs, m.JobsOldest, m.JobsDiscarded, m.JobsRescued,
		m.ReconciliationPasses, m.ReconciliationInFlight, m.ReconciliationDuration,
		m.DiscrepancyBytes, m.DiscrepancyComponents, m.backlog, m.held,
		m.HistoryRows, m.historyClosed)
	return m
}

// zero makes every labelled counter present, so that an alert on an increase
// sees the first one.
func (m *Metrics) zero() {
	for _, outcome := range []string{
		accounting.OutcomeApplied.String(), accounting.OutcomeCounted.String(), accounting.OutcomeGone.String(),
		FlushReplayed, FlushTooOld, FlushQuarantined, FlushStale,
	} {
		m.DrainFlushes.WithLabelValues(outcome)
	}
	for _, outcome := range []string{
		accounting.OutcomeApplied.String(), accounting.OutcomeCounted.String(), accounting.OutcomeGone.String(), FlushTooOld, FlushQuarantined,
	} {
		m.DrainEmissions.WithLabelValues(outcome)
	}
	for _, reason := range []string{LossIdentity, LossRestart, LossExpired} {
		m.BufferLoss.WithLabelValues(reason)
	}
	for _, result := range []string{PassDone, PassSaturated, PassLockTimeout, PassHeld, PassFenced, PassGone, PassFailed} {
		m.ReconciliationPasses.WithLabelValues(result)
	}
}

// SetBacklog exports the number of namespaces that are due.
func (m *Metrics) SetBacklog(n int64) { m.backlog.WithLabelValues().Set(float64(n)) }

// SetHeld exports the number of scopes whose correction is held.
func (m *Metrics) SetHeld(n int64) { m.held.WithLabelValues().Set(float64(n)) }

// SetHistoryClosed exports until when the hours of history are closed.
func (m *Metrics) SetHistoryClosed(until time.Time) {
	m.historyClosed.WithLabelValues().Set(float64(until.Unix()))
}

// Withdraw takes the gauges that have one writer in the cluster out of this
// process's exposition. Call it when the process ceases to be that writer.
func (m *Metrics) Withdraw() {
	for _, gauge := range []*prometheus.GaugeVec{
		m.DirtySetSize, m.PendingEmissions, m.PendingAge, m.Quarantined, m.Jobs, m.JobsOldest, m.JobsDiscarded, m.backlog, m.held,
		m.historyClosed,
	} {
		gauge.Reset()
	}
}

func counter(name, help string) prometheus.Counter {
	return prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
}

func gauge(name, help string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{Name: name, Help: help})
}

// oneWriter is a gauge of the process that leads. It is a vector also without
// labels, because a plain gauge cannot be withdrawn from the exposition.
func oneWriter(name, help string, labels ...string) *prometheus.GaugeVec {
	return prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels)
}

func histogram(name, help string, buckets []float64) prometheus.Histogram {
	return prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
}
