package entdb

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/google/uuid"
	"github.com/sony/gobreaker/v2"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/entpgx"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/requests"
	"github.com/stowage-dev/stowage/internal/telemetry"
)

// The breaker opens after this many failures in a row, and lets one emission
// try again after this long.
const (
	breakerFailures = 5
	breakerPause    = time.Second
)

// observer emits after COMMIT, and requests a reconciliation for what could
// not be emitted.
type observer struct {
	emitter Emitter
	breaker *gobreaker.CircuitBreaker[struct{}]
	timeout time.Duration
	// decided is after how long a COMMIT without an answer has certainly arrived,
	// or never will.
	decided time.Duration
	writer  *requests.Writer
	metrics *metrics.Metrics
	logger  *slog.Logger
	tracer  telemetry.Tracer
}

func newBreaker(logger *slog.Logger) *gobreaker.CircuitBreaker[struct{}] {
	return gobreaker.NewCircuitBreaker[struct{}](gobreaker.Settings{
		Name:         "emit",
		Timeout:      breakerPause,
		ReadyToTrip:  func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= breakerFailures },
		IsSuccessful: func(err error) bool { return err == nil || errors.Is(err, errScopes) },
		OnStateChange: func(_ string, from, to gobreaker.State) {
			logger.Warn("emit breaker changed", "from", from.String(), "to", to.String())
		},
	})
}

// Committed emits all changes under one deadline, so that a commit is delayed
// by at most that.
func (o *observer) Committed(ctx context.Context, changes []entpgx.Change) {
	started := time.Now()
	ctx, cancel := context.WithTimeout(ctx, o.timeout)
	defer cancel()
	for _, change := range changes {
		if !change.HasRow {
			o.logger.WarnContext(ctx, "namespace without a statistics row: reconciliation requested", "namespace_id", change.Namespace)
			o.request(change.Namespace, change.Marker)
		}
		o.emit(ctx, change)
	}
	o.metrics.EmitDuration.Observe(time.Since(started).Seconds())
}

func (o *observer) emit(ctx context.Context, change entpgx.Change) {
	ctx, span := o.tracer.Start(ctx, "stowage.emit", trace.WithSpanKind(trace.SpanKindProducer))
	if span.IsRecording() {
		span.SetAttributes(telemetry.NamespaceID(change.Namespace),
			attribute.Int64("stowage.marker", int64(change.Marker)), attribute.Int("stowage.scopes", len(change.Deltas)))
	}
	_, err := o.breaker.Execute(func() (struct{}, error) {
		if err := failpoint.Hit(ctx, failpoint.WriterEmits); err != nil {
			return struct{}{}, err
		}
		if err := o.emitter.Emit(ctx, emissionOf(change)); err != nil {
			return struct{}{}, err
		}
		return struct{}{}, failpoint.Hit(ctx, failpoint.WriterEmitted)
	})
	telemetry.End(span, err)
	if err == nil {
		o.metrics.Emissions.Inc()
		return
	}
	o.metrics.EmitFailures.Inc()
	o.logger.WarnContext(ctx, "emission failed: reconciliation requested", "namespace_id", change.Namespace, "error", err)
	o.request(change.Namespace, change.Marker)
}

// Undecided requests a reconciliation of every namespace: its exclusive lock
// waits for the backend that has not decided yet. It does not wait for a COMMIT
// that the network still holds; so they are requested again, when that can arrive
// no more.
func (o *observer) Undecided(ctx context.Context, namespaces []uuid.UUID) {
	for _, id := range namespaces {
		o.logger.WarnContext(ctx, "answer to COMMIT lost: reconciliation requested", "namespace_id", id)
		o.request(id, 0)
		o.writer.AddLater(requests.Request{Namespace: id}, o.decided)
	}
}

func (o *observer) request(namespace uuid.UUID, marker accounting.Marker) {
	o.writer.Add(requests.Request{Namespace: namespace, Marker: marker})
}

func emissionOf(change entpgx.Change) Emission {
	e := Emission{NamespaceID: change.Namespace, Marker: int64(change.Marker), Repositories: make(map[uuid.UUID]Counters)}
	for _, d := range change.Deltas {
		if d.Scope.Kind == accounting.KindNamespace {
			e.Namespace = Counters(d.Counters)
		} else {
			e.Repositories[d.Scope.ID] = Counters(d.Counters)
		}
	}
	return e
}
