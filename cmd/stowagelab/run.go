package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/devstack"
)

// The variables that tell a command where its servers are. On the database a
// superuser may make others.
const (
	testDatabaseVariable = "STOWAGE_TEST_DATABASE_URL"
	testRedisVariable    = "STOWAGE_TEST_REDIS_ADDRESS"
)

func runCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "run -- command [argument ...]",
		Short: "Run a command, for instance go test, beside throw-away servers",
		Long: "Runs a command with " + testDatabaseVariable + " and " + testRedisVariable + "\n" +
			"set to a throw-away PostgreSQL and Redis, and PATH extended by what setup --tests fetched.\n" +
			"Signals go on to the command and its children; the exit code is the command's.",
		Example: "  stowagelab run -- go test ./...",
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return runBesideServers(cmd.Context(), args)
		},
	}
}

func runBesideServers(ctx context.Context, args []string) (err error) {
	postgres, err := devstack.StartPostgres(ctx, devstack.PostgresOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, postgres.Close()) }()
	redis, err := devstack.StartRedis(ctx, devstack.RedisOptions{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, redis.Close()) }()
	linters, err := devstack.LinterPath()
	if err != nil {
		return err
	}
	return runChild(ctx, args, testDatabaseVariable+"="+postgres.URL(), testRedisVariable+"="+redis.Addr(),
		"PATH="+os.Getenv("PATH")+string(os.PathListSeparator)+linters)
}

// childError is the failure of the command itself, and of no other process.
type childError struct{ *exec.ExitError }

func childFailure(err error) error {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return childError{exit}
	}
	return err
}

// runChild runs the command in a process group of its own, so that each signal
// reaches all of it exactly once, whether it came from a terminal or by kill.
func runChild(ctx context.Context, args []string, env ...string) error {
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer signal.Stop(signals)
	if err := ctx.Err(); err != nil {
		return err
	}
	child := exec.Command(args[0], args[1:]...)
	child.Env = append(os.Environ(), env...)
	child.Stdin, child.Stdout, child.Stderr = os.Stdin, os.Stdout, os.Stderr
	child.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := child.Start(); err != nil {
		return fmt.Errorf("run %s: %w", args[0], err)
	}
	done := make(chan error, 1)
	go func() { done <- child.Wait() }()
	for {
		select {
		case err := <-done:
			return childFailure(err)
		case s := <-signals:
			// The group may have ended just now: then there is nobody to tell.
			_ = syscall.Kill(-child.Process.Pid, s.(syscall.Signal))
		}
	}
}
