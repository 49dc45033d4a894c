package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/internal/telemetry"
)

// markerAhead is how far a marker may be ahead of this process's clock before it
// is reported.
const markerAhead = time.Minute

// errSaturated says that no slot is free.
var errSaturated = errors.New("no free slot")

// Pass says how one reconciliation of a namespace ended.
type Pass struct {
	// Result is one of the results of metrics.ReconciliationPasses.
	Result string
	// Batch is that of its rows in the ledger; zero if it did not get as far.
	Batch uuid.UUID
	// Marker is the pass's own; zero if it did not get as far.
	Marker accounting.Marker
	// Scopes is how many scopes were recounted and written back.
	Scopes int
	// Held is how many of them the guard left as they were, and the namespace
	// with them.
	Held int
	// Corrected is how many of their rows were changed. Drifted is how many of
	// those were wrong, and not only behind, and Off by how much together: a sum
	// of absolute values.
	Corrected, Drifted int
	Off                accounting.Counters
}

// Reconcile runs one pass over a namespace: the steps of the section
// "Reconciling" of the protocol. Without an error the Result is done;
// saturated or lock_timeout, when nothing was done and the caller shall come
// again; held, when the guard held corrections, so that the namespace is not
// stamped; fenced, when a newer pass has finished meanwhile; or gone, when there
// is no such namespace. After an error the namespace is not stamped.
func (w *Namespace) Reconcile(ctx context.Context, namespace uuid.UUID) (pass Pass, err error) {
	began := time.Now()
	ctx, span := w.Tracer.Start(ctx, "stowage.reconcile")
	defer func() { telemetry.End(span, err) }()
	pass, err = w.inSlot(ctx, namespace)
	switch {
	case err == nil:
	case errors.Is(err, errSaturated):
		pass.Result, err = metrics.PassSaturated, nil
	case errors.Is(err, errBusy):
		pass.Result, err = metrics.PassLockTimeout, nil
	case errors.Is(err, errGone):
		pass.Result, err = metrics.PassGone, nil
	default:
		pass.Result = metrics.PassFailed
	}
	w.Metrics.ReconciliationPasses.WithLabelValues(pass.Result).Inc()
	span.SetAttributes(telemetry.NamespaceID(namespace), telemetry.BatchID(pass.Batch), attribute.Int64("stowage.marker", int64(pass.Marker)),
		attribute.String("stowage.result", pass.Result), attribute.Int("stowage.scopes", pass.Scopes))
	w.report(ctx, namespace, pass, time.Since(began))
	return pass, err
}

// inSlot runs the pass while it holds one of the cluster's slots.
func (w *Namespace) inSlot(ctx context.Context, namespace uuid.UUID) (Pass, error) {
	slot, err := takeSlot(ctx, w.Pool, w.cfg.MaxInFlight)
	if err != nil {
		return Pass{}, fmt.Errorf("take a slot: %w", err)
	}
	if slot == nil {
		return Pass{}, errSaturated
	}
	defer slot.Release(ctx)
	w.Metrics.ReconciliationInFlight.Inc()
	defer w.Metrics.ReconciliationInFlight.Dec()
	defer prometheus.NewTimer(w.Metrics.ReconciliationDuration).ObserveDuration()

	r := &run{Namespace: w, slot: slot}
	r.id.Namespace, r.id.Review = namespace, r.review
	err = r.pass(ctx)
	return r.done, err
}

// run is a pass that runs.
type run struct {
	*Namespace
	slot *pgdb.Hold
	id   ledger.Pass
	// chunk are the recounted repositories that are not yet written back.
	chunk []ledger.Value
	// drifts are those that the write-back under way corrects.
	drifts []drift
	// holds says that corrections of the namespace were held when the pass began.
	holds bool
	// unanswered says that Redis did not answer this pass once.
	unanswered bool
	done       Pass
}

// pass marks, scans and writes back. Repositories are written back while the
// scan still runs, so memory holds one chunk of them.
func (r *run) pass(ctx context.Context) (err error) {
	if err := failpoint.Hit(ctx, failpoint.PassSlot); err != nil {
		return err
	}
	if r.id.Batch, err = uuid.NewV7(); err != nil {
		return err
	}
	r.done.Batch = r.id.Batch
	scan, err := r.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
	if err != nil {
		return fmt.Errorf("begin scan: %w", err)
	}
	defer func() { _ = scan.Rollback(ctx) }()

	if r.id.Marker, err = mark(ctx, r.Pool, scan, r.id.Namespace, r.lockTimeout); err != nil {
		return err
	}
	r.done.Marker = r.id.Marker
	if r.holds, err = anyHeld(ctx, r.Pool, r.id.Namespace); err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, failpoint.PassMarked); err != nil {
		return err
	}
	total, err := r.repositories(ctx, scan)
	if err != nil {
		return err
	}
	if err := scan.Rollback(ctx); err != nil {
		return fmt.Errorf("end scan: %w", err)
	}
	if err := failpoint.Hit(ctx, failpoint.PassScanned); err != nil {
		return err
	}
	return r.namespace(ctx, total)
}

// repositories scans the namespace, writes its repositories back and returns
// the counters of the namespace itself.
func (r *run) repositories(ctx context.Context, scan pgx.Tx) (accounting.Counters, error) {
	// After an error the rest of the scan is broken off instead of read.
	scanCtx, breakOff := context.WithCancel(ctx)
	defer breakOff()
	total, err := Recount(scanCtx, scan, r.id.Namespace, func(repository uuid.UUID, counters accounting.Counters) error {
		err := r.add(ctx, repository, counters)
		if err != nil {
			breakOff()
		}
		return err
	})
	if err != nil {
		return accounting.Counters{}, err
	}
	return total, r.flush(ctx)
}

func (r *run) add(ctx context.Context, repository uuid.UUID, counters accounting.Counters) error {
	if err := failpoint.Hit(ctx, failpoint.PassScans); err != nil {
		return err
	}
	scope := accounting.RepositoryScope(r.id.Namespace, repository)
	r.chunk = append(r.chunk, ledger.Value{Scope: scope, Counters: counters})
	if len(r.chunk) < r.cfg.ChunkSize {
		return nil
	}
	return r.flush(ctx)
}

// flush writes the chunk back.
func (r *run) flush(ctx context.Context) error {
	if len(r.chunk) == 0 {
		return nil
	}
	if err := r.alive(ctx); err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, failpoint.PassWrites); err != nil {
		return err
	}
	back, err := ledger.WriteBackRepositories(ctx, r.Pool, r.id, r.chunk)
	if err != nil {
		return err
	}
	r.record(back, len(r.chunk))
	r.chunk = r.chunk[:0]
	return nil
}

// namespace writes the namespace's own row, which stamps it as reconciled. It
// comes after every repository, so a stamp never promises too much.
func (r *run) namespace(ctx context.Context, total accounting.Counters) error {
	if err := r.alive(ctx); err != nil {
		return err
	}
	if err := failpoint.Hit(ctx, failpoint.PassWrites); err != nil {
		return err
	}
	back, err := ledger.WriteBackNamespace(ctx, r.Pool, r.id, total)
	if err != nil {
		return err
	}
	r.record(back, 1)
	switch {
	case back.Gone > 0:
		return errGone
	case r.done.Held > 0:
		r.done.Result = metrics.PassHeld
	case back.Fenced > 0:
		r.done.Result = metrics.PassFenced
	default:
		r.done.Result = metrics.PassDone
	}
	return nil
}

// alive refuses to go on when the slot's connection broke: another pass may
// have the slot by now.
func (r *run) alive(ctx context.Context) error {
	if err := r.slot.Alive(ctx); err != nil {
		return fmt.Errorf("slot of the pass: %w", err)
	}
	return nil
}

// record counts what was written back. Bytes and components are different
// units, so each has a histogram of its own.
func (r *run) record(back ledger.WriteBack, scopes int) {
	r.done.Scopes += scopes
	r.done.Held += back.Held
	r.done.Corrected += len(back.Corrections)
	for _, drift := range r.drifts {
		off := accounting.Counters{Bytes: abs(drift.off.Bytes), Components: abs(drift.off.Components)}
		r.done.Drifted++
		r.done.Off = r.done.Off.Plus(off)
		if off.Bytes != 0 {
			r.Metrics.DiscrepancyBytes.Observe(float64(off.Bytes))
		}
		if off.Components != 0 {
			r.Metrics.DiscrepancyComponents.Observe(float64(off.Components))
		}
	}
	r.drifts = nil
}

func abs(n int64) int64 { return max(n, -n) }

// report logs the pass. An error is logged by who runs the pass.
func (w *Namespace) report(ctx context.Context, namespace uuid.UUID, pass Pass, took time.Duration) {
	log := w.Log.With("namespace_id", namespace, "batch_id", pass.Batch)
	if ahead := time.Until(pass.Marker.Time()); ahead > markerAhead {
		log.ErrorContext(ctx, "the namespace's marker is in the future: the database's clock was set back, and until it has caught up the namespace does not become stale",
			"marker", pass.Marker.Time(), "ahead", ahead)
	}
	level := slog.LevelDebug
	if pass.Drifted > 0 {
		level = slog.LevelInfo
	}
	if pass.Held > 0 {
		log.ErrorContext(ctx, "corrections that would lower counters by much are held: they are written by a pass that still finds them, or after stowage namespace approve",
			"held", pass.Held, "confirm_after", w.cfg.Guard.ConfirmAfter)
	}
	log.Log(ctx, level, "reconciliation pass", "result", pass.Result, "marker", pass.Marker.Time(), "took", took,
		"scopes", pass.Scopes, "corrected", pass.Corrected, "drifted", pass.Drifted, "bytes_off", pass.Off.Bytes, "components_off", pass.Off.Components)
}
