package main

import (
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/internal/schemadiff"
	"github.com/stowage-dev/stowage/migrate"
)

func migrateCommand() *cobra.Command {
	return group("migrate", "Bring a database to this build's schema, and write migrations",
		migrateApplyCommand(),
		migrateStatusCommand(),
		migrateVerifyCommand(),
		migrateDownCommand(),
		migrateDiffCommand(),
		migrateReviewCommand(),
		migrateHashCommand(),
		migrateSchemaCommand(),
		migrateRolesCommand(),
	)
}

func migrateApplyCommand() *cobra.Command {
	var opts migrate.Options
	cmd := onDatabase("apply", "Apply the pending migrations", func(cmd *cobra.Command, pool *pgxpool.Pool) error {
		opts.Logger = newLogger(cmd)
		return migrate.Apply(cmd.Context(), pool, opts)
	})
	cmd.Flags().StringVar(&opts.To, "to", "", "version to stop after (default the newest)")
	lockTimeoutFlag(cmd, &opts.LockTimeout)
	return cmd
}

func lockTimeoutFlag(cmd *cobra.Command, timeout *time.Duration) {
	cmd.Flags().DurationVar(timeout, "lock-timeout", migrate.DefaultLockTimeout, "how long a migration waits for a table's lock before it is tried again, a few times")
}

func migrateStatusCommand() *cobra.Command {
	return onDatabase("status", "Show which migrations are applied and which are pending", func(cmd *cobra.Command, pool *pgxpool.Pool) error {
		state, err := migrate.Status(cmd.Context(), pool)
		if err != nil {
			return err
		}
		table := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "VERSION\tDESCRIPTION\tAPPLIED AT")
		for _, m := range state.Applied {
			fmt.Fprintf(table, "%s\t%s\t%s\n", m.Version, m.Description, m.AppliedAt.UTC().Format(time.RFC3339))
		}
		for _, m := range state.Pending {
			line := "pending"
			if m.Failed != "" {
				line += ": " + m.Failed
			}
			fmt.Fprintf(table, "%s\t%s\t%s\n", m.Version, m.Description, line)
		}
		return table.Flush()
	})
}

func migrateVerifyCommand() *cobra.Command {
	return onDatabase("verify", "Check that the database is exactly what the migrations leave", func(cmd *cobra.Command, pool *pgxpool.Pool) error {
		if err := migrate.Verify(cmd.Context(), pool); err != nil {
			return err
		}
		_, err := fmt.Fprintln(cmd.OutOrStdout(), "the database is what the migrations leave")
		return err
	})
}

func migrateRolesCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "roles",
		Short: "Print the SQL that makes the roles and grants each what its programs need",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), migrate.Roles)
			return err
		},
	}
}

func migrateDownCommand() *cobra.Command {
	var opts migrate.DownOptions
	cmd := onDatabase("down", "Take back the newest migration: for development and tests", func(cmd *cobra.Command, pool *pgxpool.Pool) error {
		opts.Logger = newLogger(cmd)
		return migrate.Down(cmd.Context(), pool, opts)
	})
	cmd.Long = "Takes back the newest migration of this build. For development and tests: in\n" +
		"production the next migration undoes what one did. It refuses to lose rows."
	cmd.Flags().BoolVar(&opts.AllowDataLoss, "allow-data-loss", false, "take it back with the rows that it holds")
	lockTimeoutFlag(cmd, &opts.LockTimeout)
	return cmd
}

// onDatabase is a command on one database.
func onDatabase(use, short string, run func(*cobra.Command, *pgxpool.Pool) error) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			database, err := config.LoadDatabase(cmd.Flags(), os.Environ())
			if err != nil {
				return badConfiguration(err)
			}
			pool, err := pgdb.NewPool(cmd.Context(), database.URL.Reveal())
			if err != nil {
				return err
			}
			defer pool.Close()
			return run(cmd, pool)
		},
	}
	config.AddDatabaseFlags(cmd.Flags())
	return cmd
}

// The commands below are for a checkout of the project: they write files.

func migrateDiffCommand() *cobra.Command {
	var devURL, root, name string
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "Write the migration from the directory to the declared schema",
		Long:  "Compares the directory of migrations with the Ent entities and the declared SQL, and writes what is missing as the next migration. Writes nothing when they agree.",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			changes, err := schemadiff.Diff(cmd.Context(), devURL, root)
			if err != nil {
				return err
			}
			if len(changes) == 0 {
				_, err := fmt.Fprintln(cmd.OutOrStdout(), "the directory agrees with what is declared: nothing to write")
				return err
			}
			file, err := schemadiff.Write(root, name, changes)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "wrote %s: read it, give the reasons in comments, then run stowage migrate hash and stowage migrate schema\n", file)
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "what it does, as verb_object, for the file's name")
	rootFlag(cmd, &root)
	devURLFlag(cmd, &devURL)
	return required(cmd, "name")
}

func migrateSchemaCommand() *cobra.Command {
	var devURL, root string
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Write schema.sql from the directory of migrations",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			dump, err := schemadiff.Dump(cmd.Context(), devURL, root)
			if err != nil {
				return err
			}
			return os.WriteFile(filepath.Join(root, "schema.sql"), []byte(dump), 0o644)
		},
	}
	rootFlag(cmd, &root)
	devURLFlag(cmd, &devURL)
	return cmd
}

func migrateHashCommand() *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:   "hash",
		Short: "Write atlas.sum for the directory of migrations as it is",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return schemadiff.Hash(root) },
	}
	rootFlag(cmd, &root)
	return cmd
}

func rootFlag(cmd *cobra.Command, root *string) {
	cmd.Flags().StringVar(root, "root", "migrate", "the folder of package migrate")
}

func devURLFlag(cmd *cobra.Command, devURL *string) {
	cmd.Flags().StringVar(devURL, "dev-url", "", "PostgreSQL URL of a server where databases may be made and dropped")
	required(cmd, "dev-url")
}

func required(cmd *cobra.Command, flag string) *cobra.Command {
	if err := cmd.MarkFlagRequired(flag); err != nil {
		panic(err) // only for a flag that was not declared above
	}
	return cmd
}
