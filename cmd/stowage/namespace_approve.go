package main

import (
	"cmp"
	"os/user"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/inspect"
	"github.com/stowage-dev/stowage/internal/reconcile"
)

func namespaceApproveCommand() *cobra.Command {
	var (
		asJSON, yes bool
		by          string
	)
	cmd := &cobra.Command{
		Use:   "approve <slug or id>",
		Short: "Let the corrections be written that are held because they lower a counter by much",
		Long: "Shows the corrections of a namespace that reconciliation.guard holds: what each counter is expected to be, and\n" +
			"what the content says. Find out first why the content says so little: an emptied table, a bad restore? Once the\n" +
			"content is mended nothing needs to be approved. Approved, the next pass writes them, within reconciliation.interval.\n" +
			"A correction that has grown by much since it was shown stays held.\n" +
			"Exit code 0 when they are approved, or when none is held; 1 when it was not confirmed, or failed.\n" +
			"It needs the role stowage_worker, and not Redis.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, err := openDatabase(cmd)
			if err != nil {
				return err
			}
			defer pool.Close()
			result, err := approve(cmd, pool, args[0], yes, cmp.Or(by, currentUser()))
			if err != nil {
				return err
			}
			return printed(cmd, asJSON, result, func(p *printer) {
				printHeld(p, result.Held)
				p.line("approved %s", plural(int64(result.Approved), "correction"))
			})
		},
	}
	config.AddDatabaseFlags(cmd.Flags())
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask; needed without a terminal")
	cmd.Flags().StringVar(&by, "by", "", "who approves, for the record; without it the user of this process")
	return cmd
}

// approve asks for the corrections that it has read, and approves no others.
func approve(cmd *cobra.Command, pool *pgxpool.Pool, namespace string, yes bool, by string) (a approval, err error) {
	n, err := (&inspect.Inspector{Pool: pool}).Namespace(cmd.Context(), namespace)
	if err != nil {
		return approval{}, err
	}
	held, err := reconcile.HeldOf(cmd.Context(), pool, n.ID)
	if err != nil {
		return approval{}, err
	}
	a = approvalOf(held)
	if len(held) > 0 && !yes {
		printHeld(&printer{out: cmd.ErrOrStderr()}, a.Held)
		if err := confirm(cmd, "Lower these counters"); err != nil {
			return approval{}, err
		}
	}
	a.Approved, err = reconcile.Approve(cmd.Context(), pool, held, by)
	return a, err
}

// currentUser is empty where the user has no name, as in some containers.
func currentUser() string {
	u, err := user.Current()
	if err != nil {
		return ""
	}
	return u.Username
}

type approval struct {
	Held     []heldCorrection `json:"held"`
	Approved int              `json:"approved"`
}

type heldCorrection struct {
	Kind     string              `json:"kind"`
	ID       uuid.UUID           `json:"id"`
	Since    time.Time           `json:"since"`
	Expected accounting.Counters `json:"expected"`
	Counted  accounting.Counters `json:"counted"`
}

func approvalOf(held []reconcile.Held) approval {
	a := approval{Held: []heldCorrection{}}
	for _, h := range held {
		a.Held = append(a.Held, heldCorrection{
			Kind: h.Scope.Kind.String(), ID: h.Scope.ID, Since: h.Seen.Time(), Expected: h.Expected, Counted: h.Counted,
		})
	}
	return a
}

func printHeld(p *printer, held []heldCorrection) {
	if len(held) == 0 {
		p.line("nothing is held")
		return
	}
	rows := [][]string{{"HELD SINCE (UTC)", "SCOPE", "ID", "EXPECTED", "COUNTED", "COMPONENTS", "COUNTED"}}
	for _, h := range held {
		rows = append(rows, []string{
			h.Since.UTC().Format(time.DateTime), h.Kind, h.ID.String(), size(h.Expected.Bytes), size(h.Counted.Bytes),
			number(h.Expected.Components), number(h.Counted.Components),
		})
	}
	p.table(rows)
}
