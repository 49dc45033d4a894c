// Command stowage runs and operates the storage accounting of a registry.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/pgdb"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := execute(ctx, rootCommand())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "stowage:", err)
		os.Exit(exitCode(err))
	}
}

// rootCommand holds one command per file of this folder. Logs go to stderr,
// results to stdout.
func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "stowage",
		Short: "Storage accounting for a package registry",
		Long: "Storage accounting for a package registry.\n\n" +
			"Exit codes, of every command: 0 when it did what was asked and found nothing wrong; 1 when it failed, was\n" +
			"interrupted, or found something wrong; 2 when it was called in a wrong way and did nothing: an unknown command\n" +
			"or flag, wrong arguments, an invalid configuration.",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(workerCommand(), migrateCommand(), recoverCommand(), alertsCommand(), namespaceCommand(), bufferCommand(), backfillCommand())
	return root
}

// group holds commands. It does nothing itself but print its help.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.NoArgs, // the name of a command that is not there
		RunE:  func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(commands...)
	return cmd
}

// usageError is a mistake in how a command was called.
type usageError struct{ error }

// Unwrap is for errors.Is and errors.As.
func (e usageError) Unwrap() error { return e.error }

// execute runs the command. What fails before the command itself runs is a
// mistake in the call; what the command finds out by itself it wraps.
func execute(ctx context.Context, root *cobra.Command) error {
	running := false
	noteWhenItRuns(root, &running)
	err := root.ExecuteContext(ctx)
	if err != nil && !running {
		return usageError{err}
	}
	return withWayOut(err)
}

// withWayOut adds what to do to errors of the server that any command may have.
func withWayOut(err error) error {
	switch {
	case pgdb.IsNoTable(err):
		return fmt.Errorf("%w: the database is not migrated as far as this build needs: run stowage migrate apply", err)
	case pgdb.IsNoPrivilege(err):
		return fmt.Errorf("%w: connect as the role that --help of the command names; stowage migrate roles grants them", err)
	default:
		return err
	}
}

func noteWhenItRuns(cmd *cobra.Command, running *bool) {
	if run := cmd.RunE; run != nil {
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			*running = true
			return run(cmd, args)
		}
	}
	for _, child := range cmd.Commands() {
		noteWhenItRuns(child, running)
	}
}

func exitCode(err error) int {
	if _, misused := errors.AsType[usageError](err); misused {
		return 2
	}
	return 1
}

// badConfiguration is what config.Load and its like return, for people.
func badConfiguration(err error) error {
	return usageError{fmt.Errorf("configuration:\n%w", err)}
}

// newLogger writes to the command's stderr, so that tests can read it.
func newLogger(cmd *cobra.Command) *slog.Logger {
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
}
