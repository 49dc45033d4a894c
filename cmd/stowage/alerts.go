package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/alerts"
)

func alertsCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "alerts",
		Short: "Print alerting rules for Prometheus",
		Long: "Prints a rule file for Prometheus. It expects that every worker and every process of the registry is scraped.\n" +
			"What to do about each alert is written in internal/alerts/README.md.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprint(cmd.OutOrStdout(), alerts.Rules)
			return err
		},
	}
}
