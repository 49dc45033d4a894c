// Package reconcile recomputes the counters of namespaces from the source
// tables and writes them back beside concurrent writers and drains. It holds
// the River jobs that do so and the SQL of the recount. README.md beside this
// file says what is not guaranteed.
package reconcile

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/telemetry"
)

// Classes of the locks of this package in the two-int key space of PostgreSQL.
// They are stored nowhere, but all processes of a cluster must agree on them.
const (
	// classSlot holds one key for each pass that may run, from 0.
	classSlot int32 = 0x73746f10 + iota
	// classTrigger has the one key 0.
	classTrigger
)

// Config of the reconciliation of namespaces.
type Config struct {
	// MaxInFlight is how many passes run at once in the whole cluster, at
	// least 1. While processes disagree about it, the largest value counts.
	MaxInFlight int
	// ChunkSize is how many repositories one write-back locks; some hundreds.
	ChunkSize int
	// Staleness is the age from which on a namespace is reconciled again.
	Staleness time.Duration
	// Timeout bounds one pass.
	Timeout time.Duration
	// TriggerInterval is how often candidates are looked for.
	TriggerInterval time.Duration
	// Guard holds corrections that lower a counter by much.
	Guard Guard
}

// Validate returns every mistake, each with the name of its field.
func (c Config) Validate() error {
	var errs []error
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"max_in_flight", int64(c.MaxInFlight)},
		{"chunk_size", int64(c.ChunkSize)},
		{"staleness", int64(c.Staleness)},
		{"timeout", int64(c.Timeout)},
		{"trigger_interval", int64(c.TriggerInterval)},
		{"guard.percent", int64(c.Guard.Percent)},
		{"guard.bytes", c.Guard.Bytes},
		{"guard.components", c.Guard.Components},
		{"guard.confirm_after", int64(c.Guard.ConfirmAfter)},
	} {
		if f.value < 1 {
			errs = append(errs, fmt.Errorf("%s: %d must be positive", f.name, f.value))
		}
	}
	return errors.Join(errs...)
}

// Deps is what the jobs of this package share.
type Deps struct {
	// Pool lends a pass up to three connections at once: for its slot, its
	// scan, and its writes.
	Pool *pgxpool.Pool
	// Buffer tells drift from what is only buffered.
	Buffer  *buffer.Buffer
	Metrics *metrics.Metrics
	Log     *slog.Logger
	Tracer  telemetry.Tracer
}

// jitter is between half and one and a half of d, so that jobs that were put
// off together do not come back together.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d)
}
