// Command stowagelab is for trying Stowage out and for testing it: it starts
// throw-away servers and stops them again. It is not part of a deployment.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() { os.Exit(run()) }

func run() int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	err := command().ExecuteContext(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "stowagelab:", err)
	}
	return exitCode(err)
}

func command() *cobra.Command {
	root := &cobra.Command{
		Use:           "stowagelab",
		Short:         "Try Stowage out, and run its tests, on throw-away servers",
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(setupCommand(), runCommand(), matrixCommand(), demoCommand(), chaosCommand(), chaosWriterCommand())
	return root
}

// exitCode is 0 for success, the code of the command of `run` that failed (128
// and the signal's number if a signal ended it, as in a shell), and 1 for the
// rest.
func exitCode(err error) int {
	if err == nil {
		return 0
	}
	var child childError
	if !errors.As(err, &child) {
		return 1
	}
	if status, ok := child.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal())
	}
	return child.ExitCode()
}
