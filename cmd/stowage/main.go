// Command stowage runs and operates the storage accounting of a registry.
package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := rootCommand().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "stowage:", err)
		os.Exit(1)
	}
}

// rootCommand holds one command per file of this folder. Logs go to stderr,
// results to stdout.
func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:           "stowage",
		Short:         "Storage accounting for a package registry",
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.AddCommand(workerCommand(), migrateCommand(), recoverCommand(), alertsCommand())
	return root
}

// newLogger writes to the command's stderr, so that tests can read it.
func newLogger(cmd *cobra.Command) *slog.Logger {
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
}
