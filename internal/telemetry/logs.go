package telemetry

import (
	"context"
	"log/slog"
	"slices"

	"go.opentelemetry.io/otel/trace"
)

type attrsKey struct{}

// With is a context whose log lines carry attrs too, if they are logged by a logger
// over a LogHandler and with the context.
func With(ctx context.Context, attrs ...slog.Attr) context.Context {
	return context.WithValue(ctx, attrsKey{}, slices.Concat(attrsOf(ctx), attrs))
}

func attrsOf(ctx context.Context) []slog.Attr {
	attrs, _ := ctx.Value(attrsKey{}).([]slog.Attr)
	return attrs
}

// LogHandler adds to each line what With put into its context, and the trace_id of
// its span.
type LogHandler struct{ slog.Handler }

// Handle is slog.Handler's.
func (h LogHandler) Handle(ctx context.Context, record slog.Record) error {
	attrs := attrsOf(ctx)
	if span := trace.SpanContextFromContext(ctx); span.IsValid() {
		attrs = append(slices.Clip(attrs), slog.String("trace_id", span.TraceID().String()))
	}
	if len(attrs) > 0 {
		record = record.Clone()
		record.AddAttrs(attrs...)
	}
	return h.Handler.Handle(ctx, record)
}

// WithAttrs is slog.Handler's.
func (h LogHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return LogHandler{h.Handler.WithAttrs(attrs)}
}

// WithGroup is slog.Handler's.
func (h LogHandler) WithGroup(name string) slog.Handler {
	return LogHandler{h.Handler.WithGroup(name)}
}
