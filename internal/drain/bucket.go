package drain

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/riverqueue/river"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/requests"
	"github.com/stowage-dev/stowage/internal/telemetry"
)

// releaseTimeout bounds giving the lease back. If it fails, the lease expires.
const releaseTimeout = time.Second

// BucketArgs is the job that drains one bucket.
//
// Unique by bucket and tick, in River's default states: a tick cannot insert a
// bucket twice, and a job of an earlier tick, running, stuck or killed, blocks
// nobody. What keeps two drains of a bucket apart is the lease in Redis.
//
// One attempt: the next tick is the retry. Cancelled after Config.JobTimeout.
// A kill leaves the lease, until it expires, and perhaps flushes in the
// in-flight set, which the next drain of the bucket claims first; whether they
// had been applied the ledger knows.
type BucketArgs struct {
	Bucket int       `json:"bucket" river:"unique"`
	Tick   time.Time `json:"tick" river:"unique"`
	// Scopes is how many scopes the tick saw in the bucket's sets, and the most
	// that the job handles: a hot namespace is dirty again at once, and until
	// empty would write hundreds of ledger rows a second for it.
	Scopes int64 `json:"scopes"`
}

// Kind names the job in River.
func (BucketArgs) Kind() string { return "drain_bucket" }

// InsertOpts are the options described above.
func (BucketArgs) InsertOpts() river.InsertOpts {
	return river.InsertOpts{
		Queue: Queue, MaxAttempts: 1,
		UniqueOpts: river.UniqueOpts{ByArgs: true},
	}
}

// BucketWorker drains buckets.
type BucketWorker struct {
	river.WorkerDefaults[BucketArgs]
	Dependencies
	cfg Config
}

// NewBucketWorker makes the worker of BucketArgs.
func NewBucketWorker(cfg Config, deps Dependencies) *BucketWorker {
	return &BucketWorker{Dependencies: deps, cfg: cfg}
}

// Timeout is when River cancels the job.
func (w *BucketWorker) Timeout(*river.Job[BucketArgs]) time.Duration { return w.cfg.JobTimeout }

// Work drains one bucket, unless the job comes too late.
func (w *BucketWorker) Work(ctx context.Context, job *river.Job[BucketArgs]) error {
	started := w.Clock.Now()
	if started.Sub(job.ScheduledAt) > w.cfg.StaleTimeout {
		w.bailOut(ctx, job.Args.Bucket)
		return nil
	}
	defer func() { w.Metrics.DrainDuration.Observe(w.Clock.Since(started).Seconds()) }()
	if err := w.drain(ctx, job.Args, started.Add(w.cfg.StaleTimeout)); err != nil {
		return fmt.Errorf("drain bucket %d: %w", job.Args.Bucket, err)
	}
	return nil
}

// drain handles at most as many scopes as the tick saw, chunk by chunk, until
// the bucket is empty or the time is up.
func (w *BucketWorker) drain(ctx context.Context, args BucketArgs, until time.Time) error {
	r := w.newRun(args.Bucket)
	defer r.release(ctx)
	for left := int(args.Scopes); left > 0; {
		if w.Clock.Now("drain", "chunk").After(until) {
			w.bailOut(ctx, args.Bucket)
			return nil
		}
		handled, err := r.chunk(ctx, min(left, w.cfg.ChunkSize))
		if err != nil || handled == 0 {
			return err
		}
		left -= handled
	}
	return nil
}

// bailOut ends a job that is too late or too long. What it did not apply is
// still dirty or in flight.
func (w *BucketWorker) bailOut(ctx context.Context, bucket int) {
	w.Metrics.DrainFlushes.WithLabelValues(metrics.FlushStale).Inc()
	w.Log.WarnContext(ctx, "drain bailed out: it started too late or ran too long", "bucket", bucket, "stale_timeout", w.cfg.StaleTimeout)
}

func claimed(c buffer.Claim) int {
	return len(c.Flushes) + len(c.Expired) + len(c.Corrupt) + c.Foreign
}

// run is one drain of one bucket, under one name for the lease. Its steps may
// be interrupted anywhere, and interleaved with those of any other run.
type run struct {
	*BucketWorker
	bucket int
	holder string
	// batch is that of the last claim.
	batch uuid.UUID
}

func (w *BucketWorker) newRun(bucket int) *run {
	return &run{BucketWorker: w, bucket: bucket, holder: uuid.NewString()}
}

// chunk handles at most limit scopes and returns how many there were; 0 when the
// bucket is empty, or another's.
func (r *run) chunk(ctx context.Context, limit int) (handled int, err error) {
	ctx, span := r.Tracer.Start(ctx, "stowage.drain")
	defer func() { telemetry.End(span, err) }()
	claim, err := r.claim(ctx, limit)
	span.SetAttributes(attribute.Int("stowage.bucket", r.bucket), telemetry.BatchID(r.batch), attribute.Int("stowage.flushes", len(claim.Flushes)))
	if err != nil || claim.Busy || claimed(claim) == 0 {
		return 0, err
	}
	settled, err := r.apply(ctx, claim)
	if err != nil {
		return 0, err
	}
	return claimed(claim), r.finish(ctx, settled)
}

// claim takes or renews the lease. The batch id is new for every call: one that
// timed out may have frozen flushes under its own.
func (r *run) claim(ctx context.Context, limit int) (buffer.Claim, error) {
	var err error
	if r.batch, err = uuid.NewV7(); err != nil {
		return buffer.Claim{}, fmt.Errorf("batch id: %w", err)
	}
	if err := failpoint.Hit(ctx, failpoint.DrainClaims); err != nil {
		return buffer.Claim{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, r.cfg.ClaimTimeout)
	defer cancel()
	claim, err := r.Buffer.Claim(ctx, r.bucket, r.holder, r.batch, limit)
	if err != nil {
		return buffer.Claim{}, err
	}
	return claim, failpoint.Hit(ctx, failpoint.DrainClaimed)
}

// settled is what can leave Redis, because Postgres has it, or has a request
// instead of it.
type settled struct {
	// done are flushes to delete.
	done []accounting.Flush
	// poisoned are flushes that nobody can apply, corrupt are scopes whose keys
	// hold something else. Both go into quarantine.
	poisoned []accounting.Flush
	corrupt  []accounting.Scope
	// expired are scopes without data. They are to be forgotten, as what is in
	// quarantine is.
	expired []accounting.Scope
}

// unusable are the scopes that go into quarantine.
func (s settled) unusable() []accounting.Scope {
	scopes := slices.Clone(s.corrupt)
	for _, f := range s.poisoned {
		scopes = append(scopes, f.Scope)
	}
	return scopes
}

// apply commits a claim in Postgres: first the deltas, then the requests for
// the scopes whose deltas are lost.
func (r *run) apply(ctx context.Context, c buffer.Claim) (settled, error) {
	began := time.Now()
	fresh, tooOld := r.splitByAge(c.Flushes)
	results, err := ledger.Apply(ctx, r.Pool, fresh)
	if err != nil {
		return settled{}, err
	}
	s := settled{done: tooOld, corrupt: c.Corrupt, expired: c.Expired}
	for _, result := range results {
		r.tell(ctx, result, began)
		if result.Verdict == ledger.Poisoned {
			s.poisoned = append(s.poisoned, result.Flush)
			r.left(metrics.FlushQuarantined, result.Flush)
			continue
		}
		s.done = append(s.done, result.Flush)
		r.Metrics.DrainFlushes.WithLabelValues(result.Verdict.String()).Inc()
		if result.Verdict != ledger.Replayed { // counted by whoever entered it
			r.left(result.Verdict.String(), result.Flush)
		}
	}
	r.left(metrics.FlushTooOld, tooOld...)
	// Before the request: what a writer adds after it would be in nobody's count.
	if err := r.Buffer.Quarantine(ctx, r.bucket, s.unusable()); err != nil {
		return settled{}, err
	}
	if err := requests.Raise(ctx, r.Pool, lost(tooOld, s.unusable(), s.expired)); err != nil {
		return settled{}, err
	}
	r.reportLost(ctx, tooOld, s, c.Foreign)
	return s, nil
}

// tell says what became of one flush, for who follows a change from its emission to
// its row: the ledger has the batch too. There may be thousands in a second, so as
// logs they are for debugging.
func (r *run) tell(ctx context.Context, result ledger.Result, began time.Time) {
	f := result.Flush
	_, span := r.Tracer.Start(ctx, "stowage.flush", trace.WithTimestamp(began))
	defer span.End()
	if span.IsRecording() {
		span.SetAttributes(telemetry.NamespaceID(f.Scope.Namespace), telemetry.BatchID(f.BatchID),
			attribute.String("stowage.scope_id", f.Scope.ID.String()), attribute.String("stowage.scope_kind", f.Scope.Kind.String()),
			attribute.Int64("stowage.marker", int64(f.Marker)), attribute.Int64("stowage.emissions", f.Emissions),
			attribute.String("stowage.outcome", result.Verdict.String()))
	}
	if r.Log.Enabled(ctx, slog.LevelDebug) {
		r.Log.DebugContext(ctx, "flush settled", append(aboutFlush(f), "outcome", result.Verdict.String(), "bytes", f.Bytes, "components", f.Components, "emissions", f.Emissions)...)
	}
}

func aboutFlush(f accounting.Flush) []any {
	return append(aboutScope(f.Scope), "batch_id", f.BatchID)
}

func aboutScope(s accounting.Scope) []any {
	return []any{"namespace_id", s.Namespace, "scope_id", s.ID, "scope_kind", s.Kind.String()}
}

// left counts the emissions of flushes that leave the buffer.
func (r *run) left(outcome string, flushes ...accounting.Flush) {
	for _, f := range flushes {
		r.Metrics.DrainEmissions.WithLabelValues(outcome).Add(float64(f.Emissions))
	}
}

// splitByAge tells the flushes that may be applied from those too old for it.
func (r *run) splitByAge(flushes []accounting.Flush) (fresh, tooOld []accounting.Flush) {
	oldest := r.Clock.Now().Add(-r.cfg.LedgerRetention / 2)
	for _, f := range flushes {
		if ledger.BatchTime(f.BatchID).Before(oldest) {
			tooOld = append(tooOld, f)
		} else {
			fresh = append(fresh, f)
		}
	}
	return fresh, tooOld
}

// lost requests the namespaces whose deltas will not be applied.
func lost(tooOld []accounting.Flush, scopes ...[]accounting.Scope) []requests.Request {
	var reqs []requests.Request
	for _, f := range tooOld {
		reqs = append(reqs, requests.Request{Namespace: f.Scope.Namespace, Marker: f.Marker})
	}
	for _, some := range scopes {
		for _, scope := range some {
			reqs = append(reqs, requests.Request{Namespace: scope.Namespace})
		}
	}
	return reqs
}

// reportLost counts and logs what was lost. If the step after it fails, the
// next drain meets the same scopes and counts them again: better twice than
// never.
func (r *run) reportLost(ctx context.Context, tooOld []accounting.Flush, s settled, foreign int) {
	quarantined := len(s.corrupt) + len(s.poisoned) + foreign
	r.Metrics.DrainFlushes.WithLabelValues(metrics.FlushTooOld).Add(float64(len(tooOld)))
	r.Metrics.DrainFlushes.WithLabelValues(metrics.FlushQuarantined).Add(float64(quarantined))
	r.Metrics.BufferLoss.WithLabelValues(metrics.LossExpired).Add(float64(len(s.expired)))
	log := r.Log.With("bucket", r.bucket)
	for _, f := range s.poisoned {
		log.ErrorContext(ctx, "scope quarantined: its sum does not fit its row, a reconciliation is requested", aboutFlush(f)...)
	}
	for _, f := range tooOld {
		log.WarnContext(ctx, "flush too old to apply, a reconciliation is requested", aboutFlush(f)...)
	}
	log = log.With("batch_id", r.batch)
	for _, scope := range s.corrupt {
		log.ErrorContext(ctx, "scope quarantined: its keys hold foreign data, a reconciliation is requested", aboutScope(scope)...)
	}
	for _, scope := range s.expired {
		log.WarnContext(ctx, "buffer expired undrained, a reconciliation is requested", aboutScope(scope)...)
	}
	if foreign > 0 {
		log.ErrorContext(ctx, "members of a set in Redis name no scope and are quarantined", "members", foreign)
	}
}

// finish takes out of Redis what is settled.
func (r *run) finish(ctx context.Context, s settled) error {
	if err := failpoint.Hit(ctx, failpoint.DrainFinishes); err != nil {
		return err
	}
	if err := r.Buffer.Forget(ctx, r.bucket, slices.Concat(s.expired, s.unusable())); err != nil {
		return err
	}
	if err := r.Buffer.Finish(ctx, r.bucket, s.done); err != nil {
		return err
	}
	return failpoint.Hit(ctx, failpoint.DrainFinished)
}

// release gives the lease back, also after a cancellation.
func (r *run) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := r.Buffer.Release(ctx, r.bucket, r.holder); err != nil {
		r.Log.WarnContext(ctx, "lease not released, it expires by itself", "bucket", r.bucket, "batch_id", r.batch, "error", err)
	}
}
