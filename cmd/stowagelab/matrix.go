package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/devstack"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/migrate"
)

// matrixRows is how many namespaces, and as many repositories, migrations are
// timed on.
const matrixRows = 100_000

func matrixCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "matrix -- command [argument ...]",
		Short: "Run a command beside each version of PostgreSQL, and time the migrations on it",
		Long: "For each version of PostgreSQL, with stock settings: runs a command, for instance\n" +
			"go test, with " + testDatabaseVariable + " set to a server without fsync, then times\n" +
			"each migration on one with it, on an empty database and on one with " + fmt.Sprint(matrixRows) + " namespaces and as many repositories.\n" +
			"Prints a table at the end. The servers come from: stowagelab setup --postgres",
		Example: "  stowagelab matrix -- go test ./migrate",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var columns []column
			for _, version := range devstack.PostgresVersions() {
				cmd.PrintErrf("== PostgreSQL %d: %s\n", version, strings.Join(args, " "))
				c, err := runOnVersion(cmd.Context(), version, args)
				if err != nil {
					return fmt.Errorf("PostgreSQL %d: %w", version, err)
				}
				columns = append(columns, c)
			}
			return writeMatrix(cmd.OutOrStdout(), columns)
		},
	}
}

// column is what was timed on one server.
type column struct {
	server  string
	command time.Duration
	empty   []step
	full    []step
}

// step is a migration, or its way back.
type step struct {
	name string
	took time.Duration
}

func runOnVersion(ctx context.Context, version int, args []string) (c column, err error) {
	err = onServer(ctx, devstack.PostgresOptions{Version: version, Stock: true}, func(url string) error {
		start := time.Now()
		defer func() { c.command = time.Since(start) }()
		return runChild(ctx, args, testDatabaseVariable+"="+url)
	})
	if err != nil {
		return c, err
	}
	err = onServer(ctx, devstack.PostgresOptions{Version: version, Stock: true, Durable: true}, func(url string) (err error) {
		if c.server, err = serverVersion(ctx, url); err != nil {
			return err
		}
		if c.empty, err = timeMigrations(ctx, url, "timed_empty", 0); err != nil {
			return err
		}
		c.full, err = timeMigrations(ctx, url, "timed_full", matrixRows)
		return err
	})
	return c, err
}

func onServer(ctx context.Context, opts devstack.PostgresOptions, do func(url string) error) (err error) {
	postgres, err := devstack.StartPostgres(ctx, opts)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, postgres.Close()) }()
	return do(postgres.URL())
}

func serverVersion(ctx context.Context, url string) (version string, err error) {
	pool, err := pgdb.NewPool(ctx, url)
	if err != nil {
		return "", err
	}
	defer pool.Close()
	err = pool.QueryRow(ctx, "SHOW server_version").Scan(&version)
	return version, err
}

// timeMigrations applies the migrations one by one to a database of its own, with
// rows made after the first, then takes the newest down and applies it again.
func timeMigrations(ctx context.Context, server, name string, rows int) ([]step, error) {
	if err := execute(ctx, server, "CREATE DATABASE "+name); err != nil {
		return nil, err
	}
	url, err := inDatabase(server, name)
	if err != nil {
		return nil, err
	}
	pool, err := pgdb.NewPool(ctx, url)
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	state, err := migrate.Status(ctx, pool)
	if err != nil {
		return nil, err
	}
	var w stopwatch
	for i, m := range state.Pending {
		w.time(m.Description, func() error { return migrate.Apply(ctx, pool, migrate.Options{To: m.Version}) })
		if i == 0 && w.err == nil {
			w.err = insertRows(ctx, pool, rows)
		}
	}
	w.time("the newest down", func() error { return migrate.Down(ctx, pool, migrate.DownOptions{}) })
	w.time("and up again", func() error { return migrate.Apply(ctx, pool, migrate.Options{}) })
	w.time("verify", func() error { return migrate.Verify(ctx, pool) })
	return w.steps, w.err
}

func insertRows(ctx context.Context, pool *pgxpool.Pool, rows int) error {
	_, err := pool.Exec(ctx, `WITH made AS (INSERT INTO namespaces (id, slug) SELECT gen_random_uuid(), n::text FROM generate_series(1, $1::int) AS n RETURNING id)
		INSERT INTO repositories (id, namespace_id, name, format, kind) SELECT gen_random_uuid(), id, 'repository', 1, 1 FROM made`, rows)
	return err
}

// stopwatch times steps until one fails.
type stopwatch struct {
	steps []step
	err   error
}

func (w *stopwatch) time(name string, do func() error) {
	if w.err != nil {
		return
	}
	start := time.Now()
	if err := do(); err != nil {
		w.err = fmt.Errorf("%s: %w", name, err)
		return
	}
	w.steps = append(w.steps, step{name, time.Since(start)})
}

// writeMatrix writes a line for each step and a column for each server.
func writeMatrix(out io.Writer, columns []column) error {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	line := func(name string, cell func(column) string) {
		cells := []string{name}
		for _, c := range columns {
			cells = append(cells, cell(c))
		}
		fmt.Fprintln(table, strings.Join(cells, "\t")+"\t")
	}
	line("PostgreSQL", func(c column) string { return c.server })
	for i, s := range columns[0].empty {
		line(s.name, func(c column) string {
			return fmt.Sprintf("%d / %d ms", c.empty[i].took.Milliseconds(), c.full[i].took.Milliseconds())
		})
	}
	line("the command", func(c column) string { return c.command.Round(time.Second).String() })
	if err := table.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(out, "milliseconds on an empty database / on one with %d namespaces and as many repositories\n", matrixRows)
	return err
}
