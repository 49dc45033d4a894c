package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"time"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/chaos"
	"github.com/stowage-dev/stowage/internal/devstack"
)

// chaosWriter is the command of a writer's process; nobody else calls it.
const chaosWriter = "chaos-writer"

// chaosOptions are the flags of the storm.
type chaosOptions struct {
	duration                     time.Duration
	seed                         uint64
	writers, workers, namespaces int
}

func chaosCommand() *cobra.Command {
	var opts chaosOptions
	cmd := &cobra.Command{
		Use:   "chaos",
		Short: "Kill, crash, cut and empty everything under load, heal it, and check every counter",
		Long: "Starts throw-away servers, writers and workers, and while they work kills processes, restarts PostgreSQL in immediate mode,\n" +
			"restarts Redis with its data, without and with older ones, and cuts connections. Then it lets everything heal and compares each\n" +
			"counter with a recount. Exits with 0 if all is exact, and with 1 and the mistakes otherwise.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.validate(); err != nil {
				return err
			}
			if opts.seed == 0 {
				opts.seed = 1 + uint64(rand.Uint32())
			}
			return runChaos(cmd.Context(), cmd.OutOrStdout(), opts)
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&opts.duration, "duration", time.Minute, "how long the storm lasts; healing takes some 20 s more")
	flags.Uint64Var(&opts.seed, "seed", 0, "number that makes the plan and what the writers do; 0 is a random one, which is printed")
	flags.IntVar(&opts.writers, "writers", 6, "processes that write")
	flags.IntVar(&opts.workers, "workers", 3, "processes that drain and reconcile")
	flags.IntVar(&opts.namespaces, "namespaces", 30, "namespaces that are written to, the first one most")
	return cmd
}

func (o chaosOptions) validate() error {
	var errs []error
	if o.duration < 5*time.Second {
		errs = append(errs, fmt.Errorf("--duration %s: want 5s or more", o.duration))
	}
	for _, f := range []struct {
		name         string
		value, least int
	}{{"writers", o.writers, 1}, {"workers", o.workers, 1}, {"namespaces", o.namespaces, 2}} {
		if f.value < f.least {
			errs = append(errs, fmt.Errorf("--%s %d: want %d or more", f.name, f.value, f.least))
		}
	}
	return errors.Join(errs...)
}

// runChaos brings the servers up, lets the storm rage on them, and takes them
// down. They are as durable as it needs: no machine crashes, and what a process
// has written the kernel keeps.
func runChaos(ctx context.Context, out io.Writer, opts chaosOptions) (err error) {
	var down cleanups
	defer func() { err = errors.Join(err, down.run()) }()
	program, err := workerProgram()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	redis, err := devstack.StartRedis(ctx, devstack.RedisOptions{AppendOnly: true})
	if err != nil {
		return err
	}
	down.add(redis.Close)
	postgres, err := devstack.StartPostgres(ctx, devstack.PostgresOptions{})
	if err != nil {
		return err
	}
	down.add(postgres.Close)
	if err := migrateDatabase(ctx, postgres.URL()); err != nil {
		return err
	}
	return chaos.Run(ctx, chaos.Config{
		Duration: opts.duration, Seed: opts.seed,
		Writers: opts.writers, Workers: opts.workers, Namespaces: opts.namespaces,
		Postgres: postgres, Redis: redis,
		Worker: func() *exec.Cmd {
			return chaosWorkerCmd(program, postgres.URL(), rueidis.ClientOption{InitAddress: []string{redis.Addr()}})
		},
		Writer: func(number int) *exec.Cmd {
			return exec.Command(self, chaosWriter,
				"--database-url", postgres.URL(), "--redis-address", redis.Addr(),
				"--seed", strconv.FormatUint(opts.seed, 10), "--number", strconv.Itoa(number))
		},
		Out: out, Progress: progress(out),
	})
}

// chaosWorkerCmd is a worker that drains often, so that much is hit half-way, and
// forgets a killed one soon.
func chaosWorkerCmd(program, database string, redis rueidis.ClientOption) *exec.Cmd {
	return workerCmd(program, database, redis,
		"--drain-interval", "200ms", "--buffer-claim-timeout", "1s", "--drain-lease", "2s",
		"--drain-stale-timeout", "5s", "--drain-job-timeout", "10s",
		"--reconciliation-max-in-flight", "4", "--reconciliation-job-timeout", "30s")
}

func chaosWriterCommand() *cobra.Command {
	var cfg chaos.WriterConfig
	cmd := &cobra.Command{
		Use:    chaosWriter,
		Short:  "A writer of the storm",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg.Out, cfg.Log = cmd.OutOrStdout(), cmd.ErrOrStderr()
			return chaos.Write(cmd.Context(), cfg)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&cfg.DatabaseURL, "database-url", "", "PostgreSQL")
	flags.StringVar(&cfg.RedisAddress, "redis-address", "", "Redis, as host:port")
	flags.Uint64Var(&cfg.Seed, "seed", 0, "the storm's")
	flags.IntVar(&cfg.Number, "number", 0, "the writer's own")
	return cmd
}
