package main

import (
	"context"
	"fmt"
	"log/slog"
	"strings"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/stowage-dev/stowage/internal/config"
)

// startTracing sends spans to the collector. Without one the provider is nil, and
// stop does nothing. stop sends what has not been sent.
func startTracing(ctx context.Context, cfg config.Telemetry, log *slog.Logger) (provider trace.TracerProvider, stop func(), err error) {
	if cfg.OTLPEndpoint == "" {
		return nil, func() {}, nil
	}
	exporter, err := otlptracehttp.New(ctx, otlptracehttp.WithEndpointURL(strings.TrimSuffix(cfg.OTLPEndpoint, "/")+"/v1/traces"))
	if err != nil {
		return nil, nil, fmt.Errorf("telemetry.otlp_endpoint: %w", err)
	}
	// The variables come last, so OTEL_SERVICE_NAME wins.
	about, err := resource.New(ctx, resource.WithAttributes(attribute.String("service.name", "stowage-worker")), resource.WithFromEnv())
	if err != nil {
		return nil, nil, fmt.Errorf("OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	// The SDK has one place for the whole process to tell that spans were not sent.
	otel.SetErrorHandler(otel.ErrorHandlerFunc(func(err error) { log.WarnContext(ctx, "spans not sent", "error", err) }))
	sdk := sdktrace.NewTracerProvider(sdktrace.WithBatcher(exporter), sdktrace.WithResource(about))
	return sdk, func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		if err := sdk.Shutdown(ctx); err != nil {
			log.WarnContext(ctx, "the last spans were not sent", "error", err)
		}
	}, nil
}
