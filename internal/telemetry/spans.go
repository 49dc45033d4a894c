// Package telemetry is how the write path and the jobs say what they do: spans of
// OpenTelemetry, and attributes of log lines. It knows the API of OpenTelemetry only,
// because registries import it; what exports spans is made by the commands. README.md
// beside this file says what can be followed.
package telemetry

import (
	"context"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
	"go.opentelemetry.io/otel/trace/noop"
)

const scope = "github.com/stowage-dev/stowage"

// Tracer starts spans. The zero Tracer starts none, at the cost of a comparison, and
// leaves the context alone: the caller's own span stays the current one.
type Tracer struct{ tracer trace.Tracer }

// NewTracer is a Tracer of the provider; nil is the zero Tracer.
func NewTracer(provider trace.TracerProvider) Tracer {
	if provider == nil {
		return Tracer{}
	}
	return Tracer{provider.Tracer(scope)}
}

// Start starts a span, a child of the context's. End it with End.
func (t Tracer) Start(ctx context.Context, name string, options ...trace.SpanStartOption) (context.Context, trace.Span) {
	if t.tracer == nil {
		return ctx, noop.Span{}
	}
	return t.tracer.Start(ctx, name, options...)
}

// End ends a span; an error makes it a failed one.
func End(span trace.Span, err error) {
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	span.End()
}

// NamespaceID is the attribute by which the spans of a namespace are found.
func NamespaceID(id uuid.UUID) attribute.KeyValue {
	return attribute.String("stowage.namespace_id", id.String())
}

// BatchID is the attribute of what one claim of a drain froze, or one pass wrote. The
// ledger has it too.
func BatchID(id uuid.UUID) attribute.KeyValue {
	return attribute.String("stowage.batch_id", id.String())
}
