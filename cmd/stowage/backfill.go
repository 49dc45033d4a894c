package main

import (
	"context"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/backfill"
	"github.com/stowage-dev/stowage/internal/collect"
	"github.com/stowage-dev/stowage/internal/jobqueue"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

func backfillCommand() *cobra.Command {
	return group("backfill", "Start, watch and stop changes of very many rows, which the workers do in small batches",
		backfillListCommand(),
		onBackfill("start", "Begin at the first row", func(ctx context.Context, pool *pgxpool.Pool, b backfill.Backfill) error {
			return backfill.Start(ctx, pool, b)
		}),
		onBackfill("pause", "Stop after the batch under way, to go on later", byName(backfill.Pause)),
		onBackfill("resume", "Go on where it was paused", byName(backfill.Resume)),
		onBackfill("cancel", "Stop after the batch under way; what was changed stays", byName(backfill.Cancel)),
	)
}

// backfills are known to the command without their settings, which are the worker's.
func backfills() []backfill.Backfill { return jobqueue.Backfills(collect.Config{}, nil) }

func byName(change func(context.Context, pgdb.DB, string) error) func(context.Context, *pgxpool.Pool, backfill.Backfill) error {
	return func(ctx context.Context, pool *pgxpool.Pool, b backfill.Backfill) error {
		return change(ctx, pool, b.Name)
	}
}

// onBackfill is a command on the backfill that its argument names.
func onBackfill(verb, short string, do func(context.Context, *pgxpool.Pool, backfill.Backfill) error) *cobra.Command {
	var found backfill.Backfill
	cmd := onDatabase(verb+" NAME", short, func(cmd *cobra.Command, pool *pgxpool.Pool) error {
		if err := requireMigrated(cmd.Context(), pool); err != nil {
			return err
		}
		if err := do(cmd.Context(), pool, found); err != nil {
			return err
		}
		p, err := backfill.Read(cmd.Context(), pool, found.Name)
		if err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "backfill %s is %s: %s\n", p.Name, p.State, seen(p))
		return err
	})
	cmd.Args = func(_ *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("give the name of one backfill: %s", names())
		}
		for _, b := range backfills() {
			if b.Name == args[0] {
				found = b
				return nil
			}
		}
		return fmt.Errorf("there is no backfill %q: it is one of %s", args[0], names())
	}
	return cmd
}

func names() string {
	var all []string
	for _, b := range backfills() {
		all = append(all, b.Name)
	}
	return strings.Join(all, ", ")
}

func seen(p backfill.Progress) string {
	if p.State == backfill.NotStarted {
		return "-"
	}
	return fmt.Sprintf("%d of about %d rows seen, %d changed", p.RowsSeen, p.RowsExpected, p.RowsChanged)
}

func backfillListCommand() *cobra.Command {
	return onDatabase("list", "Show all backfills and how far they are", func(cmd *cobra.Command, pool *pgxpool.Pool) error {
		if err := requireMigrated(cmd.Context(), pool); err != nil {
			return err
		}
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "NAME\tSTATE\tROWS\tSTARTED\tUPDATED\tWHAT IT DOES")
		for _, b := range backfills() {
			p, err := backfill.Read(cmd.Context(), pool, b.Name)
			if err != nil {
				return err
			}
			fmt.Fprintf(table, "%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, p.State, seen(p), instant(p.StartedAt), instant(p.UpdatedAt), b.About)
		}
		return table.Flush()
	})
}

func instant(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.UTC().Format(time.RFC3339)
}
