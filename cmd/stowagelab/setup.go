package main

import (
	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/devstack"
)

func setupCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "setup",
		Short: "Install the servers that are missing (as root), or say which packages to install",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return devstack.Setup(cmd.Context(), cmd.OutOrStdout())
		},
	}
}
