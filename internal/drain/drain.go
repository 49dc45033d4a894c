// Package drain moves buffered deltas from Redis into the counters in
// Postgres. README.md beside this file says how, what a crash leaves, and what
// is not guaranteed.
package drain

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/coder/quartz"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/telemetry"
)

// Queue is the River queue of the jobs that may be many or long. The tick is
// not in it: it must not wait behind the buckets of the tick before, nor keep
// them waiting.
const Queue = "drain"

// fetchCooldown is how soon a bucket that is done is followed by the next one. River's
// default of 100 ms would keep small buckets waiting: 256 of them, four at a time, for
// more than six seconds.
const fetchCooldown = 5 * time.Millisecond

// QueueConfig is for a process that drains so many buckets at once.
func QueueConfig(buckets int) river.QueueConfig {
	return river.QueueConfig{MaxWorkers: buckets, FetchCooldown: fetchCooldown}
}

// Config is how draining is paced.
type Config struct {
	// Interval is the time between two ticks, and so the usual age of a counter.
	Interval time.Duration
	// StaleTimeout is how late a job may start after its scheduled time, and how
	// long it may run, before it bails out: by then later ticks have come. It is
	// longer than Interval and not longer than JobTimeout.
	StaleTimeout time.Duration
	// JobTimeout is when River cancels a job that hangs.
	JobTimeout time.Duration
	// ChunkSize is how many scopes one claim takes. Redis serves nobody else
	// meanwhile: about 10 microseconds for each.
	ChunkSize int
	// ClaimTimeout is how long one claim may take. The lease must outlive it.
	ClaimTimeout time.Duration
	// LedgerRetention is how long the ledger keeps its rows. A flush older than
	// half of it is not applied: the row that says that it was may be dropped.
	LedgerRetention time.Duration
}

// DefaultConfig is the configuration of a worker that sets nothing.
func DefaultConfig() Config {
	return Config{
		Interval:        10 * time.Second,
		StaleTimeout:    time.Minute,
		JobTimeout:      2 * time.Minute,
		ChunkSize:       500,
		ClaimTimeout:    5 * time.Second,
		LedgerRetention: 30 * 24 * time.Hour,
	}
}

// Validate returns every mistake, each with the name of its field.
func (c Config) Validate() error {
	var errs []error
	refuse := func(wrong bool, format string, args ...any) {
		if wrong {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	refuse(c.Interval <= 0, "interval: %s must be positive", c.Interval)
	refuse(c.StaleTimeout <= c.Interval, "stale_timeout: %s must be longer than interval (%s), or a job that was only late is thrown away", c.StaleTimeout, c.Interval)
	refuse(c.JobTimeout < c.StaleTimeout, "job_timeout: %s must not be shorter than stale_timeout (%s), or a job is cancelled before it can bail out", c.JobTimeout, c.StaleTimeout)
	refuse(c.ChunkSize < 1 || c.ChunkSize > maxChunkSize, "chunk_size: %d must be between 1 and %d", c.ChunkSize, maxChunkSize)
	refuse(c.ClaimTimeout <= 0, "claim_timeout: %s must be positive", c.ClaimTimeout)
	refuse(c.LedgerRetention <= 0, "ledger_retention: %s must be positive", c.LedgerRetention)
	return errors.Join(errs...)
}

// maxChunkSize bounds how long one claim blocks Redis, to about 50 ms.
const maxChunkSize = 5000

// Dependencies are what every job of this package works with.
type Dependencies struct {
	Pool    *pgxpool.Pool
	Buffer  *buffer.Buffer
	Metrics *metrics.Metrics
	Log     *slog.Logger
	Tracer  telemetry.Tracer
	Clock   quartz.Clock
}
