package telemetry_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os/exec"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/stowage-dev/stowage/internal/telemetry"
)

func TestLogHandlerAddsWhatTheContextCarries(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	log := slog.New(telemetry.LogHandler{Handler: slog.NewTextHandler(&out, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})})
	job := telemetry.With(t.Context(), slog.Int64("job_id", 7))
	batch := telemetry.With(job, slog.String("batch_id", "b"))

	log.With("bucket", 3).InfoContext(batch, "inside", "flushes", 2)
	log.InfoContext(job, "beside it")
	log.InfoContext(t.Context(), "outside")
	ctx, span := sdktrace.NewTracerProvider().Tracer("t").Start(job, "s")
	log.InfoContext(ctx, "traced")
	require.Equal(t, `level=INFO msg=inside bucket=3 flushes=2 job_id=7 batch_id=b
level=INFO msg="beside it" job_id=7
level=INFO msg=outside
level=INFO msg=traced job_id=7 trace_id=`+span.SpanContext().TraceID().String()+"\n", out.String())
}

func TestTracer(t *testing.T) {
	t.Parallel()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))

	t.Run("off, it leaves the caller's span alone", func(t *testing.T) {
		t.Parallel()
		ctx, outer := provider.Tracer("registry").Start(t.Context(), "request")
		inner, span := telemetry.NewTracer(nil).Start(ctx, "stowage.x")
		telemetry.End(span, errors.New("no"))
		require.Equal(t, outer, trace.SpanFromContext(inner))
	})
	t.Run("on, an error fails the span", func(t *testing.T) {
		t.Parallel()
		id := uuid.New()
		_, span := telemetry.NewTracer(provider).Start(context.Background(), "stowage.failing")
		span.SetAttributes(telemetry.NamespaceID(id), telemetry.BatchID(id))
		telemetry.End(span, errors.New("broken"))
		for _, ended := range recorder.Ended() {
			if ended.Name() == "stowage.failing" {
				require.Equal(t, sdktrace.Status{Code: codes.Error, Description: "broken"}, ended.Status())
				require.ElementsMatch(t, ended.Attributes(), []any{telemetry.NamespaceID(id), telemetry.BatchID(id)})
				return
			}
		}
		require.Fail(t, "no span")
	})
}

func BenchmarkOff(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		_, span := telemetry.Tracer{}.Start(b.Context(), "stowage.x")
		telemetry.End(span, nil)
	}
}

// A registry decides what exports its spans, and must not inherit ours.
func TestRegistriesInheritTheAPIOnly(t *testing.T) {
	t.Parallel()
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "../../ent/entdb", "../../ent/entpublish", "../../migrate").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "go.opentelemetry.io/otel/trace\n")
	for _, heavy := range []string{"go.opentelemetry.io/otel/sdk", "go.opentelemetry.io/otel/exporters", "go.opentelemetry.io/proto", "google.golang.org/grpc", "otelriver"} {
		require.NotContains(t, string(out), heavy)
	}
}
