package main

import (
	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/devstack"
)

func setupCommand() *cobra.Command {
	var tests, postgres bool
	cmd := &cobra.Command{
		Use:   "setup",
		Short: "Install what is missing on this machine (as root), or say which packages to install",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			needs := devstack.Servers()
			if tests {
				needs = append(needs, devstack.RaceDetector(), devstack.Promtool(), devstack.PgFormat())
			}
			if tests || postgres {
				needs = append(needs, devstack.Npm())
			}
			if err := devstack.Setup(cmd.Context(), cmd.OutOrStdout(), needs...); err != nil {
				return err
			}
			if tests {
				if err := devstack.FetchLinters(cmd.Context(), cmd.OutOrStdout()); err != nil {
					return err
				}
			}
			if !postgres {
				return nil
			}
			return devstack.FetchPostgres(cmd.Context(), cmd.OutOrStdout())
		},
	}
	cmd.Flags().BoolVar(&tests, "tests", false, "also what the tests need beside the servers")
	cmd.Flags().BoolVar(&postgres, "postgres", false, "also a PostgreSQL of each version that migrations are tested on, for stowagelab matrix")
	return cmd
}
