package jobqueue

import (
	"context"
	"log/slog"

	"github.com/riverqueue/river/rivertype"
	"github.com/riverqueue/rivercontrib/otelriver"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"

	"github.com/stowage-dev/stowage/internal/telemetry"
)

// nameJob lets each line that a job logs say which job it was.
func nameJob(ctx context.Context, job *rivertype.JobRow, work func(context.Context) error) error {
	return work(telemetry.With(ctx, slog.Int64("job_id", job.ID), slog.String("kind", job.Kind)))
}

// plugins make a span of each job, with a link to the one in which it was inserted.
// Metrics come from elsewhere.
func plugins(provider trace.TracerProvider) []rivertype.Plugin {
	if provider == nil {
		return nil
	}
	return []rivertype.Plugin{otelriver.NewMiddleware(&otelriver.MiddlewareConfig{
		EnableTracePropagation:      true,
		EnableWorkSpanJobKindSuffix: true,
		MeterProvider:               noop.NewMeterProvider(),
		TracerProvider:              provider,
	})}
}
