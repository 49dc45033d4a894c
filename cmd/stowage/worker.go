package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"github.com/coder/quartz"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/admin"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/collect"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/drain"
	"github.com/stowage-dev/stowage/internal/history"
	"github.com/stowage-dev/stowage/internal/jobqueue"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/internal/reconcile"
	"github.com/stowage-dev/stowage/internal/redisconn"
	"github.com/stowage-dev/stowage/internal/telemetry"
	"github.com/stowage-dev/stowage/migrate"
)

// startTimeout bounds what a worker checks before it starts.
const startTimeout = 30 * time.Second

// closeTimeout bounds what it writes when it stops.
const closeTimeout = 10 * time.Second

func workerCommand() *cobra.Command {
	var validate bool
	cmd := &cobra.Command{
		Use:   "worker",
		Short: "Drain the buffers and reconcile the counters, until SIGTERM or SIGINT",
		Long: "Runs the jobs that move buffered changes into the counters and recompute them. Any number of workers may run at once.\n" +
			"On SIGTERM or SIGINT it takes no more jobs, lets those under way end for shutdown.timeout, cancels the rest and exits with 0; with 1 if a job did not end even then.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.Load(cmd.Flags(), os.Environ())
			if err != nil {
				return badConfiguration(err)
			}
			if validate {
				return printConfig(cmd.OutOrStdout(), cfg)
			}
			return runWorker(cmd.Context(), cfg, workerLogger(cmd.ErrOrStderr(), cfg.Log))
		},
	}
	config.AddFlags(cmd.Flags())
	cmd.Flags().BoolVar(&validate, "validate", false, "check the configuration, print it without its secrets, and exit")
	return cmd
}

func printConfig(w io.Writer, cfg *config.Config) error {
	text, err := cfg.Dump()
	if err != nil {
		return err
	}
	_, err = io.WriteString(w, text)
	return err
}

func workerLogger(w io.Writer, cfg config.Log) *slog.Logger {
	options := &slog.HandlerOptions{Level: cfg.Level}
	if cfg.Format == "json" {
		return slog.New(telemetry.LogHandler{Handler: slog.NewJSONHandler(w, options)})
	}
	return slog.New(telemetry.LogHandler{Handler: slog.NewTextHandler(w, options)})
}

// runWorker puts the worker together, works until ctx ends, and takes it apart
// in reverse.
func runWorker(ctx context.Context, cfg *config.Config, log *slog.Logger) error {
	for _, warning := range cfg.Warnings() {
		log.WarnContext(ctx, "unsafe setting", "warning", warning)
	}
	pool, err := pgdb.NewPool(ctx, cfg.Database.URL.Reveal(), func(p *pgxpool.Config) { p.MaxConns = int32(cfg.Database.MaxConnections) })
	if err != nil {
		return err
	}
	defer pool.Close()
	redis, err := openRedis(cfg.Redis, "stowage-worker")
	if err != nil {
		return err
	}
	defer redis.Close()

	buf := buffer.New(redis, buffer.Config{TTL: cfg.Buffer.TTL, LeaseTTL: cfg.Drain.Lease})
	checks := []admin.Check{
		{Name: "stopping", Run: func(context.Context) error { return context.Cause(ctx) }},
		{Name: "database", Run: pool.Ping},
		{Name: "migrations", Run: func(ctx context.Context) error { return requireMigrated(ctx, pool) }},
		{Name: "redis", Run: buf.Check},
	}
	if err := prepare(ctx, pool, checks); err != nil {
		return err
	}

	tracing, stopTracing, err := startTracing(ctx, cfg.Telemetry, log)
	if err != nil {
		return err
	}
	defer stopTracing()
	registry := prometheus.NewRegistry()
	m := metrics.New(registry)
	db, err := entdb.New(entdb.Config{
		Pool: pool, Redis: redis, Logger: log, Registerer: metrics.Shared{Metrics: m}, BufferTTL: cfg.Buffer.TTL,
		TracerProvider: tracing,
	})
	if err != nil {
		return err
	}
	defer closeClient(ctx, db, log)
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	jobs, err := jobqueue.New(jobqueue.Deps{
		Pool: pool, DB: db, Buffer: buf, Metrics: m, Upkeep: metrics.NewUpkeep(registry), Log: log, Clock: quartz.NewReal(),
		TracerProvider: tracing,
	}, jobConfig(cfg))
	if err != nil {
		return err
	}
	server, err := admin.Listen(ctx, admin.Config{
		Listen: cfg.Admin.Listen, Token: cfg.Admin.Token.Reveal(), Gatherer: registry, Checks: checks, Log: log,
	})
	if err != nil {
		return err
	}
	log.InfoContext(ctx, "worker started", "admin", server.URL())
	defer log.InfoContext(ctx, "worker stopped")
	return serve(ctx, jobs, server)
}

// closeClient writes the reconciliation requests that wait in memory.
func closeClient(ctx context.Context, db *entdb.Client, log *slog.Logger) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := db.Close(ctx); err != nil {
		log.ErrorContext(ctx, "worker stopped too early", "error", err)
	}
}

// serve answers on the admin server until the last job has ended, so that a
// process that is stopping can be watched.
func serve(ctx context.Context, jobs *jobqueue.Queue, server *admin.Server) error {
	serving, stopServing := context.WithCancel(context.WithoutCancel(ctx))
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return server.Serve(serving) })
	group.Go(func() error {
		defer stopServing()
		return jobs.Run(ctx)
	})
	return group.Wait()
}

// prepare refuses to start on what the worker cannot work with, all at once,
// and makes the partitions that its first writes need.
func prepare(ctx context.Context, pool *pgxpool.Pool, checks []admin.Check) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	var errs []error
	for _, check := range checks {
		if err := check.Run(ctx); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", check.Name, err))
		}
	}
	if len(errs) > 0 {
		return fmt.Errorf("cannot start:\n%w", errors.Join(errs...))
	}
	now := time.Now()
	return ledger.EnsurePartitions(ctx, pool, now, now.AddDate(0, 0, 1))
}

// requireMigrated does not mind migrations of a newer build: the database is
// migrated before the processes are replaced.
func requireMigrated(ctx context.Context, pool *pgxpool.Pool) error {
	state, err := migrate.Status(ctx, pool)
	if err != nil {
		return err
	}
	if n := len(state.Pending); n > 0 {
		return fmt.Errorf("%d migrations of this build are not applied, from %s on: run stowage migrate apply", n, state.Pending[0].Version)
	}
	return nil
}

// openRedis names the connections, for those who look at the server.
func openRedis(cfg config.Redis, name string) (rueidis.Client, error) {
	option, err := cfg.ClientOption()
	if err != nil {
		return nil, err
	}
	return redisconn.Open(option, name)
}

func collectConfig(cfg *config.Config) collect.Config {
	return collect.Config{Grace: cfg.Collect.Grace, Interval: cfg.Collect.Interval, BatchSize: cfg.Collect.BatchSize}
}

func jobConfig(cfg *config.Config) jobqueue.Config {
	return jobqueue.Config{
		Drain: drain.Config{
			Interval:        cfg.Drain.Interval,
			StaleTimeout:    cfg.Drain.StaleTimeout,
			JobTimeout:      cfg.Drain.JobTimeout,
			ChunkSize:       cfg.Drain.ChunkSize,
			ClaimTimeout:    cfg.Buffer.ClaimTimeout,
			LedgerRetention: cfg.Ledger.Retention,
		},
		DrainWorkers: cfg.Drain.Workers,
		Reconcile: reconcile.Config{
			MaxInFlight:     cfg.Reconciliation.MaxInFlight,
			ChunkSize:       cfg.Reconciliation.WriteBackChunk,
			Staleness:       cfg.Reconciliation.Staleness,
			Timeout:         cfg.Reconciliation.JobTimeout,
			TriggerInterval: cfg.Reconciliation.Interval,
			Guard: reconcile.Guard{
				Percent:      cfg.Reconciliation.Guard.Percent,
				Bytes:        int64(cfg.Reconciliation.Guard.Bytes),
				Components:   int64(cfg.Reconciliation.Guard.Components),
				ConfirmAfter: cfg.Reconciliation.Guard.ConfirmAfter,
			},
		},
		Partitions: ledger.PartitionsConfig{Retention: cfg.Ledger.Retention},
		Collect:    collectConfig(cfg),
		// A flush is applied by the job that froze it, or by a later one if that died.
		History:  history.Config{Retention: cfg.History.Retention, Late: cfg.Drain.JobTimeout},
		SoftStop: cfg.Shutdown.Timeout,
	}
}
