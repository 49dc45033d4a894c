package main

import "github.com/spf13/cobra"

func namespaceCommand() *cobra.Command {
	return group("namespace", "See, explain, check and repair what a namespace's counters say")
}
