package metrics

import "github.com/prometheus/client_golang/prometheus"

// What stowage_backfill_rows_total counts.
const (
	RowsSeen    = "seen"
	RowsChanged = "changed"
)

// Upkeep are the metrics of the jobs that work through very many rows: backfills,
// deletions, and the collection of blobs.
type Upkeep struct {
	// BackfillRows counts rows by backfill and by whether they were only seen.
	BackfillRows *prometheus.CounterVec
	// DeletedVersions and DeletedScopes count what deletions of repositories and
	// namespaces removed.
	DeletedVersions prometheus.Counter
	DeletedScopes   prometheus.Counter
	// CollectedBlobs and CollectedBytes count blobs that nothing referred to.
	CollectedBlobs prometheus.Counter
	CollectedBytes prometheus.Counter

	// They are vectors without labels, because a plain gauge cannot be withdrawn
	// from the exposition.
	deletions *prometheus.GaugeVec
	content   *prometheus.GaugeVec
}

// NewUpkeep registers the metrics, as New does.
func NewUpkeep(reg prometheus.Registerer) *Upkeep {
	u := &Upkeep{
		BackfillRows: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "stowage_backfill_rows_total", Help: "Rows that backfills have seen and changed.",
		}, []string{"backfill", "rows"}),
		DeletedVersions: counter("stowage_deleted_versions_total", "Versions that deletions of repositories and namespaces removed."),
		DeletedScopes:   counter("stowage_deleted_scopes_total", "Repositories and namespaces whose deletion has ended."),
		CollectedBlobs:  counter("stowage_collected_blobs_total", "Blobs that were removed because nothing referred to them."),
		CollectedBytes:  counter("stowage_collected_bytes_total", "Bytes of the blobs that were removed because nothing referred to them."),
		deletions: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stowage_deletions_open", Help: "Repositories and namespaces that are being deleted.",
		}, nil),
		content: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "stowage_content_waiting", Help: "Collected blobs whose content the registry has not deleted yet, in grace or overdue.",
		}, nil),
	}
	reg.MustRegister(u.BackfillRows, u.DeletedVersions, u.DeletedScopes, u.CollectedBlobs, u.CollectedBytes, u.deletions, u.content)
	return u
}

// SetOpen exports how many deletions are open, and how many collected blobs wait for
// the deletion of their content.
func (u *Upkeep) SetOpen(deletions, content int64) {
	u.deletions.WithLabelValues().Set(float64(deletions))
	u.content.WithLabelValues().Set(float64(content))
}

// Withdraw is as that of Metrics.
func (u *Upkeep) Withdraw() {
	u.deletions.Reset()
	u.content.Reset()
}
