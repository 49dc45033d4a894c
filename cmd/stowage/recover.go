package main

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/internal/recovery"
)

func recoverCommand() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "After PostgreSQL was restored or failed over: set the buffers aside and request every namespace",
		Long: "Run it once PostgreSQL answers again after it was restored from a backup, or failed over to an asynchronous standby:\n" +
			"Redis may then know changes that PostgreSQL has forgotten. Everything in Redis is set aside, to keys that expire after\n" +
			"buffer.ttl, and a reconciliation of every namespace is requested. Workers and registries may run meanwhile.\n" +
			"It exits with 0 when all is requested: the counters are right once the workers have worked the requests off. It exits\n" +
			"with 1 when it was not confirmed, and nothing was changed, or when it failed or was interrupted: then run it again.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			cfg, err := config.LoadStores(cmd.Flags(), os.Environ())
			if err != nil {
				return badConfiguration(err)
			}
			if !yes {
				if err := confirm(cmd, "Set every buffer in Redis aside and reconcile every namespace"); err != nil {
					return err
				}
			}
			return runRecover(cmd, cfg)
		},
	}
	config.AddStoreFlags(cmd.Flags())
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask; needed without a terminal")
	return cmd
}

// confirm asks on the terminal. Without one nobody could answer.
func confirm(cmd *cobra.Command, what string) error {
	in, isFile := cmd.InOrStdin().(*os.File)
	if !isFile || !term.IsTerminal(int(in.Fd())) {
		return errors.New("there is no terminal to ask on: give --yes. Nothing was changed")
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s? Type yes: ", what)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(in).ReadString('\n')
		answer <- strings.TrimSpace(line)
	}()
	select {
	case text := <-answer:
		if text == "yes" {
			return nil
		}
	case <-cmd.Context().Done(): // the read cannot be interrupted; the process ends
	}
	return errors.New("not confirmed: nothing was changed")
}

func runRecover(cmd *cobra.Command, cfg *config.Config) error {
	ctx := cmd.Context()
	pool, err := pgdb.NewPool(ctx, cfg.Database.URL.Reveal())
	if err != nil {
		return err
	}
	defer pool.Close()
	// Before anything is set aside: without the tables nothing can be requested.
	if err := requireMigrated(ctx, pool); err != nil {
		return fmt.Errorf("nothing was changed: %w", err)
	}
	redis, err := openRedis(cfg.Redis, "stowage-recover")
	if err != nil {
		return err
	}
	defer redis.Close()

	result, err := recovery.Run(ctx, recovery.Deps{
		Pool: pool, Buffer: buffer.New(redis, buffer.Config{TTL: cfg.Buffer.TTL}), Log: newLogger(cmd),
	})
	if err != nil {
		return fmt.Errorf("not complete, run it again (%d scopes set aside, %d namespaces requested): %w", result.Scopes, result.Namespaces, err)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "set aside %d scopes, in the keys stowage:1:*:aside:%s:* for %s\nrequested a reconciliation of %d namespaces\n",
		result.Scopes, result.ID, cfg.Buffer.TTL, result.Namespaces)
	return err
}
