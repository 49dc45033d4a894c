// Package entdb makes the client that a registry uses. It is the only
// constructor of a wired client: one whose mutations are counted and whose
// counts reach the buffer after COMMIT. See README.md.
package entdb

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/coder/quartz"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"
	"go.opentelemetry.io/otel/trace"

	"github.com/stowage-dev/stowage/ent"
	_ "github.com/stowage-dev/stowage/ent/runtime" // defaults and the hooks of ent/schema
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/enthook"
	"github.com/stowage-dev/stowage/internal/entpgx"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/requests"
	"github.com/stowage-dev/stowage/internal/telemetry"
)

// Defaults of Config.
const (
	DefaultEmitTimeout   = 500 * time.Millisecond
	DefaultCommitTimeout = 30 * time.Second
	DefaultIdleTimeout   = 5 * time.Minute
	DefaultBufferTTL     = 10 * 24 * time.Hour
)

// Config is what a Client is made of.
type Config struct {
	// Pool is the registry's pool on the migrated database, bound to
	// search_path=public. It stays the caller's to close, after the Client.
	Pool *pgxpool.Pool
	// Redis is the client of the buffer's Redis. It stays the caller's to
	// close, after the Client. Leave it nil only when Emitter is given.
	Redis rueidis.Client
	// Emitter takes the place of the Redis buffer, in unit tests. Usage then
	// reads with pending unknown.
	Emitter Emitter
	// Logger is told of failed emissions, with namespace_id.
	Logger *slog.Logger
	// Registerer takes the metrics. Each Client needs one of its own.
	Registerer prometheus.Registerer
	// TracerProvider makes a span of each counted transaction, and of each emission
	// in it. nil makes none, and leaves the caller's spans alone.
	TracerProvider trace.TracerProvider

	// EmitTimeout is the longest time that all emissions of one commit may
	// take. 0 means DefaultEmitTimeout.
	EmitTimeout time.Duration
	// CommitTimeout is the longest time that a COMMIT may take; it goes on
	// when the caller's context is cancelled. 0 means DefaultCommitTimeout.
	CommitTimeout time.Duration
	// IdleTimeout is after how long without a statement the server ends a
	// transaction, in whole milliseconds. A COMMIT that the network holds back
	// cannot arrive later. 0 means DefaultIdleTimeout.
	IdleTimeout time.Duration
	// BufferTTL is how long an undrained buffer lives after its last emission.
	// It must equal the workers' buffer.ttl. 0 means DefaultBufferTTL.
	BufferTTL time.Duration
}

func (c *Config) validate() error {
	var errs []error
	need := func(ok bool, field, what string) {
		if !ok {
			errs = append(errs, fmt.Errorf("entdb.Config.%s: %s", field, what))
		}
	}
	need(c.Pool != nil, "Pool", "is nil: give the registry's pgx pool")
	need(c.Pool == nil || describes(c.Pool), "Pool", "its DefaultQueryExecMode cannot send arrays: use cache_statement (the default of pgx), or cache_describe behind pgbouncer")
	need((c.Redis == nil) != (c.Emitter == nil), "Redis", "give a rueidis client, or an Emitter in its place, and not both")
	need(c.Logger != nil, "Logger", "is nil: give a logger, or slog.New(slog.DiscardHandler)")
	need(c.Registerer != nil, "Registerer", "is nil: give a registerer, or prometheus.NewRegistry()")
	need(c.EmitTimeout >= 0, "EmitTimeout", fmt.Sprintf("%s is below zero", c.EmitTimeout))
	need(c.CommitTimeout >= 0, "CommitTimeout", fmt.Sprintf("%s is below zero", c.CommitTimeout))
	need(c.IdleTimeout == 0 || c.IdleTimeout >= time.Millisecond, "IdleTimeout", fmt.Sprintf("%s is less than a millisecond", c.IdleTimeout))
	need(c.BufferTTL >= 0, "BufferTTL", fmt.Sprintf("%s is below zero", c.BufferTTL))
	return errors.Join(errs...)
}

// describes reports whether the pool asks the server for the types of
// parameters, without which pgx cannot encode an array of ids.
func describes(pool *pgxpool.Pool) bool {
	mode := pool.Config().ConnConfig.DefaultQueryExecMode
	return mode != pgx.QueryExecModeExec && mode != pgx.QueryExecModeSimpleProtocol
}

func (c *Config) setDefaults() {
	if c.EmitTimeout == 0 {
		c.EmitTimeout = DefaultEmitTimeout
	}
	if c.CommitTimeout == 0 {
		c.CommitTimeout = DefaultCommitTimeout
	}
	if c.IdleTimeout == 0 {
		c.IdleTimeout = DefaultIdleTimeout
	}
	if c.BufferTTL == 0 {
		c.BufferTTL = DefaultBufferTTL
	}
}

// Client is the generated client, wired, with counted transactions and usage
// reads. Reads, and mutations that change no counter, may use it directly;
// what changes counters needs WithTx.
type Client struct {
	*ent.Client

	pool     *pgxpool.Pool
	writer   *requests.Writer
	observer *observer
	tracer   telemetry.Tracer
	// buffer is nil when an Emitter took its place.
	buffer *buffer.Buffer
}

// New makes a Client. It asks nothing of the database or of Redis yet. The
// error names every mistake in the configuration.
func New(cfg Config) (*Client, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cfg.setDefaults()
	c := &Client{pool: cfg.Pool, tracer: telemetry.NewTracer(cfg.TracerProvider)}
	m := metrics.Of(cfg.Registerer)
	emitter := cfg.Emitter
	if emitter == nil {
		c.buffer = buffer.New(cfg.Redis, buffer.Config{TTL: cfg.BufferTTL})
		emitter = redisEmitter{buffer: c.buffer, taken: m.ScopeEmissions}
	}
	c.writer = requests.NewWriter(cfg.Pool, m, cfg.Logger, quartz.NewReal())
	c.observer = &observer{
		emitter: emitter,
		breaker: newBreaker(cfg.Logger),
		timeout: cfg.EmitTimeout,
		decided: 2 * cfg.IdleTimeout,
		writer:  c.writer,
		metrics: m,
		logger:  cfg.Logger,
		tracer:  c.tracer,
	}
	c.Client = ent.NewClient(ent.Driver(entpgx.NewDriver(cfg.Pool, entpgx.Timeouts{Commit: cfg.CommitTimeout, Idle: cfg.IdleTimeout}, c.observer)))
	if err := enthook.Register(c.Client); err != nil {
		return nil, errors.Join(fmt.Errorf("entdb: %w", err), c.Close(context.Background()))
	}
	return c, nil
}

// Close writes the reconciliation requests that wait in memory, until ctx
// ends. An error says how many were lost; the namespaces are then healed by
// the next reconciliation of everything that is stale.
func (c *Client) Close(ctx context.Context) error {
	return c.writer.Close(ctx)
}
