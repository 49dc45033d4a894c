package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/schemareview"
)

func migrateReviewCommand() *cobra.Command {
	var opts schemareview.Options
	var format string
	cmd := &cobra.Command{
		Use:   "review",
		Short: "Review the migrations that the working tree adds to a git ref",
		Long: "Runs the migrations that the working tree adds to a git ref on a throw-away\n" +
			"database with rows, and writes for a merge request what they change, which locks\n" +
			"they take, what they do to rows, and what is against them.\n" +
			"A finding that blocks is something wrong: exit code 1. The comment is on stdout.",
		Example: "  stowage migrate review --base origin/main --dev-url postgres://localhost/postgres",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			write, ok := reviewFormats[format]
			if !ok {
				return usageError{fmt.Errorf("--format %q: want markdown or json", format)}
			}
			opts.Logger = newLogger(cmd)
			report, err := schemareview.Review(cmd.Context(), opts)
			if needs, ok := errors.AsType[*schemareview.NeedsError](err); ok {
				return usageError{needs}
			}
			if err != nil {
				return err
			}
			if err := write(report, cmd.OutOrStdout()); err != nil {
				return err
			}
			if report.Blocking > 0 {
				return fmt.Errorf("findings that block: %d", report.Blocking)
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&opts.Base, "base", "", "git ref to compare with: what is deployed, or the branch to merge into")
	cmd.Flags().StringVar(&format, "format", "markdown", "markdown or json")
	rootFlag(cmd, &opts.Root)
	devURLFlag(cmd, &opts.DevURL)
	return required(cmd, "base")
}

var reviewFormats = map[string]func(*schemareview.Report, io.Writer) error{
	"markdown": (*schemareview.Report).WriteMarkdown,
	"json": func(r *schemareview.Report, w io.Writer) error {
		encoder := json.NewEncoder(w)
		encoder.SetIndent("", "  ")
		return encoder.Encode(r)
	},
}
