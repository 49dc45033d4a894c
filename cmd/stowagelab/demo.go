package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/redis/rueidis"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/stowage-dev/stowage/internal/demo"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/internal/redisconn"
	"github.com/stowage-dev/stowage/migrate"
)

// demoOptions are the flags of the demo.
type demoOptions struct {
	databaseURL, redisURL, data string
	repeat, writers             int
	keep                        bool
}

func demoCommand() *cobra.Command {
	var opts demoOptions
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Publish, delete and publish again on real input, and check every counter",
		Long: "Starts throw-away servers and a worker, runs the main job in five stages, and prints after each what every counter holds,\n" +
			"what a recount gives and what it must be. Exits with 0 if all are equal, and with 1 at the first stage where one is not.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := opts.validate(); err != nil {
				return err
			}
			return runDemo(cmd.Context(), cmd.OutOrStdout(), opts)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&opts.databaseURL, "database-url", "", "PostgreSQL server to use; the demo makes a database of its own there and drops it (default a throw-away server)")
	flags.StringVar(&opts.redisURL, "redis-url", "", "Redis to use, as redis://user:password@host:port; its keys are removed at the end (default a throw-away server)")
	flags.StringVar(&opts.data, "data", "testdata/publishes", "folder of the publishes")
	flags.IntVar(&opts.repeat, "repeat", 1, "how many times to publish the input, with other digests and versions each time")
	flags.IntVar(&opts.writers, "writers", 8, "how many transactions run at once")
	flags.BoolVar(&opts.keep, "keep", false, "when done, print the URLs and leave everything running until Ctrl-C")
	return cmd
}

func (o demoOptions) validate() error {
	var errs []error
	if o.repeat < 1 {
		errs = append(errs, fmt.Errorf("--repeat %d: want 1 or more", o.repeat))
	}
	if o.writers < 1 {
		errs = append(errs, fmt.Errorf("--writers %d: want 1 or more", o.writers))
	}
	if _, err := os.Stat(o.data); err != nil {
		errs = append(errs, fmt.Errorf("--data: %w: run in the root of the repository, or name the folder", err))
	}
	return errors.Join(errs...)
}

// runDemo brings everything up, runs the demo, and takes everything down again
// in reverse.
func runDemo(ctx context.Context, out io.Writer, opts demoOptions) (err error) {
	var down cleanups
	defer func() { err = errors.Join(err, down.run()) }()
	program, err := workerProgram()
	if err != nil {
		return err
	}
	redis, err := startRedis(ctx, opts, &down)
	if err != nil {
		return err
	}
	database, err := startDatabase(ctx, opts, &down)
	if err != nil {
		return err
	}
	worker, err := startWorker(program, database, redis, &down)
	if err != nil {
		return err
	}
	ctx, stop := withWorker(ctx, worker)
	defer stop()

	err = demonstrate(ctx, out, opts, database, redis)
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		err = fmt.Errorf("%w\nlast lines of the worker's log:\n%s", err, worker.LogTail())
	}
	if opts.keep {
		fmt.Fprintf(out, "database: %s\nredis: %s\nlog of the worker: %s\nrunning until Ctrl-C\n", database, redis.InitAddress[0], worker.LogPath())
		<-ctx.Done()
	}
	return err
}

// demonstrate runs the demo on servers that are up.
func demonstrate(ctx context.Context, out io.Writer, opts demoOptions, database string, reach rueidis.ClientOption) error {
	pool, err := pgdb.NewPool(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	redis, err := redisconn.Open(reach, "stowage-demo")
	if err != nil {
		return err
	}
	defer redis.Close()
	return demo.Run(ctx, demo.Config{
		Pool: pool, Redis: redis, Data: os.DirFS(opts.data), Repeat: opts.repeat, Writers: opts.writers,
		Out: out, Progress: progress(out), Logger: slog.New(slog.NewTextHandler(os.Stderr, nil)),
	})
}

// progress is a bar on a terminal and plain lines elsewhere.
func progress(out io.Writer) demo.Progress {
	if file, ok := out.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		return demo.NewBar(out)
	}
	return demo.NewLines(out)
}

func migrateDatabase(ctx context.Context, database string) error {
	pool, err := pgdb.NewPool(ctx, database)
	if err != nil {
		return err
	}
	defer pool.Close()
	return migrate.Apply(ctx, pool, migrate.Options{})
}
