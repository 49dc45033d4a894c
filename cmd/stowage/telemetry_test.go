package main

import (
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"
	coltrace "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/telemetry"
)

// collector takes what a worker exports.
type collector struct {
	mu    sync.Mutex
	spans []*tracepb.Span
}

func (c *collector) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	var request coltrace.ExportTraceServiceRequest
	if err != nil || r.URL.Path != "/v1/traces" || proto.Unmarshal(body, &request) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		for _, scope := range resource.ScopeSpans {
			c.spans = append(c.spans, scope.Spans...)
		}
	}
}

// find is the span with that name and, unless it is empty, that value of the attribute.
func (c *collector) find(t *testing.T, name, key, value string) *tracepb.Span {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, span := range c.spans {
		names = append(names, span.Name)
		if span.Name == name && (key == "" || valueOf(span, key) == value) {
			return span
		}
	}
	require.FailNow(t, "no such span", "%s with %s=%s among %v", name, key, value, names)
	return nil
}

func (c *collector) byID(t *testing.T, id []byte) *tracepb.Span {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	i := slices.IndexFunc(c.spans, func(s *tracepb.Span) bool { return string(s.SpanId) == string(id) })
	require.GreaterOrEqual(t, i, 0, "the span was not exported")
	return c.spans[i]
}

func valueOf(span *tracepb.Span, key string) string {
	for _, a := range span.Attributes {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// registry publishes one version of one byte by way of the client.
func (s *services) registry(provider trace.TracerProvider) (db *entdb.Client, publish func(ctx context.Context, namespace, repository uuid.UUID)) {
	s.t.Helper()
	db, err := entdb.New(entdb.Config{
		Pool: s.pool, Redis: s.redis.Client(s.t), Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(), TracerProvider: provider,
	})
	require.NoError(s.t, err)
	s.t.Cleanup(func() { require.NoError(s.t, db.Close(context.Background())) })
	return db, func(ctx context.Context, namespace, repository uuid.UUID) {
		require.NoError(s.t, db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
			return tx.NPMVersion.Create().SetNamespaceID(namespace).SetRepositoryID(repository).
				SetName("x").SetVersion(uuid.NewString()).SetSizeBytes(1).Exec(ctx)
		}))
	}
}

// One publish is followed from its transaction to the row, by spans and by log lines.
func TestTelemetry(t *testing.T) {
	t.Parallel()
	s := newServices(t)
	namespace, repository := s.namespace()
	recorder := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(recorder))

	_, untraced := s.registry(nil)
	ctx, outer := provider.Tracer("registry").Start(t.Context(), "request")
	untraced(ctx, namespace, repository)
	require.Empty(t, recorder.Ended(), "off, a client makes no span")
	_, publish := s.registry(provider)
	publish(ctx, namespace, repository)
	outer.End()
	spans := recorder.Ended()
	require.Len(t, spans, 3)
	emit, transaction := spans[0], spans[1]
	require.Equal(t, "stowage.emit", emit.Name())
	require.Equal(t, "stowage.transaction", transaction.Name())
	require.Equal(t, transaction.SpanContext().SpanID(), emit.Parent().SpanID())
	require.Equal(t, outer.SpanContext().SpanID(), transaction.Parent().SpanID())
	require.Contains(t, emit.Attributes(), telemetry.NamespaceID(namespace))

	collected := &collector{}
	server := httptest.NewServer(collected)
	defer server.Close()
	const password = "hunter2hunter2"
	address, err := url.Parse(s.url)
	require.NoError(t, err)
	address.User = url.UserPassword(address.User.Username(), password)
	s.url = address.String()
	w := s.process(s.args("--telemetry-otlp-endpoint", server.URL, "--log-format", "json", "--log-level", "debug")...)
	s.counted(namespace, repository, 2)
	require.Eventually(t, func() bool {
		return strings.Contains(w.log.String(), `"msg":"reconciliation pass"`) && strings.Contains(w.log.String(), `"msg":"flush settled"`)
	}, patience, often)
	require.NoError(t, w.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, w.exit(), w.log)

	var batch string
	require.NoError(t, s.pool.QueryRow(t.Context(), `SELECT batch_id::text FROM storage_ledger WHERE scope_id = $1 AND outcome < 4 LIMIT 1`, repository).Scan(&batch))
	flush := collected.find(t, "stowage.flush", "stowage.scope_id", repository.String())
	require.Equal(t, namespace.String(), valueOf(flush, "stowage.namespace_id"))
	require.Equal(t, batch, valueOf(flush, "stowage.batch_id"))
	drain := collected.byID(t, flush.ParentSpanId)
	require.Equal(t, "stowage.drain", drain.Name)
	job := collected.byID(t, drain.ParentSpanId)
	require.Equal(t, "river.work/drain_bucket", job.Name)
	require.Len(t, job.Links, 1)
	insert := collected.byID(t, job.Links[0].SpanId)
	require.Equal(t, "river.work/drain_tick", collected.byID(t, insert.ParentSpanId).Name)
	pass := collected.find(t, "stowage.reconcile", "stowage.namespace_id", namespace.String())
	require.Equal(t, "river.work/reconcile_namespace", collected.byID(t, pass.ParentSpanId).Name)

	require.NotContains(t, w.log.String(), password)
	settled := w.line(t, "flush settled", "scope_id", repository.String())
	require.Equal(t, namespace.String(), settled["namespace_id"])
	require.Equal(t, batch, settled["batch_id"])
	require.Equal(t, "drain_bucket", settled["kind"])
	require.IsType(t, 0.0, settled["job_id"])
	require.Regexp(t, `^[0-9a-f]{32}$`, settled["trace_id"])
	passed := w.line(t, "reconciliation pass", "namespace_id", namespace.String())
	require.Equal(t, "reconcile_namespace", passed["kind"])
	require.Contains(t, passed, "job_id")
	require.Contains(t, passed, "batch_id")
}

// line is the line of JSON with that message and value, after every line was looked at.
func (w *worker) line(t *testing.T, msg, key, value string) map[string]any {
	t.Helper()
	snake := regexp.MustCompile(`^[a-z][a-z0-9_]*$`)
	var found map[string]any
	for text := range strings.Lines(w.log.String()) {
		var line map[string]any
		require.NoError(t, json.Unmarshal([]byte(text), &line), text)
		for name := range line {
			require.Regexp(t, snake, name, text)
		}
		if line["msg"] == msg && line[key] == value {
			found = line
		}
	}
	require.NotNil(t, found, "no line %q with %s=%s", msg, key, value)
	return found
}
