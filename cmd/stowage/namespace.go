package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/inspect"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

func namespaceCommand() *cobra.Command {
	return group("namespace", "See, explain, check and repair what a namespace's counters say",
		namespaceShowCommand(),
		namespaceExplainCommand(),
		namespaceVerifyCommand(),
		namespaceReconcileCommand(),
		namespaceHistoryCommand(),
		namespaceApproveCommand(),
	)
}

// onStores is a command that looks into the database and Redis. Where Redis cannot
// be reached, one that needs it fails, and the others go on without it.
func onStores(cmd *cobra.Command, needsRedis bool, run func(cmd *cobra.Command, args []string, i *inspect.Inspector) error) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		cfg, err := config.LoadStores(cmd.Flags(), os.Environ())
		if err != nil {
			return badConfiguration(err)
		}
		pool, err := openReader(cmd, cfg.Database)
		if err != nil {
			return err
		}
		defer pool.Close()
		i := &inspect.Inspector{Pool: pool}
		redis, err := openRedis(cfg.Redis, "stowage-inspect")
		switch {
		case err == nil:
			defer redis.Close()
			i.Buffer = buffer.New(redis, buffer.Config{TTL: cfg.Buffer.TTL})
		case needsRedis:
			return err
		default:
			newLogger(cmd).WarnContext(cmd.Context(), "going on without what is buffered", "error", err)
		}
		return run(cmd, args, i)
	}
	config.AddStoreFlags(cmd.Flags())
	return cmd
}

// openReader needs two connections at most.
func openReader(cmd *cobra.Command, database config.Database) (*pgxpool.Pool, error) {
	return pgdb.NewPool(cmd.Context(), database.URL.Reveal(), func(p *pgxpool.Config) {
		p.MaxConns = 2
		p.ConnConfig.RuntimeParams["application_name"] = "stowage-inspect"
	})
}

// openDatabase is openReader for a command that needs no Redis.
func openDatabase(cmd *cobra.Command) (*pgxpool.Pool, error) {
	database, err := config.LoadDatabase(cmd.Flags(), os.Environ())
	if err != nil {
		return nil, badConfiguration(err)
	}
	return openReader(cmd, *database)
}

// oneOrAll is the argument of a command for one namespace, or for --all of them.
func oneOrAll(all *bool) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch {
		case *all && len(args) > 0:
			return errors.New("give a namespace or --all, not both")
		case !*all && len(args) != 1:
			return errors.New("give the slug or the id of one namespace, or --all")
		}
		return nil
	}
}

func jsonFlag(cmd *cobra.Command, asJSON *bool) {
	cmd.Flags().BoolVar(asJSON, "json", false, "print JSON, whose field names stay as they are")
}

func namespaceShowCommand() *cobra.Command {
	var (
		asJSON, unreferenced bool
		after                string
		limit                int
	)
	cmd := onStores(&cobra.Command{
		Use:   "show <slug or id>",
		Short: "Show the counters of a namespace and its repositories, and how precise they are",
		Long: "Shows what a namespace and its repositories store, and how far each number can be relied on:\n" +
			"  exact     nothing is on its way to it, and no loss is known\n" +
			"  buffered  what is on its way is known, and part of the value\n" +
			"  unknown   it is the last that was known: Redis did not answer, a reconciliation is requested, or there was\n" +
			"            none yet, or it is in quarantine\n" +
			"The precision is that of NamespaceUsage and RepositoryUsage in Go. Reading needs the role stowage_reader.",
		Args: cobra.ExactArgs(1),
	}, false, func(cmd *cobra.Command, args []string, i *inspect.Inspector) error {
		n, err := i.Namespace(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		overview, err := i.Show(cmd.Context(), n, after, limit)
		if err != nil {
			return err
		}
		if unreferenced {
			if overview.Unreferenced, err = i.Unreferenced(cmd.Context(), n); err != nil {
				return err
			}
		}
		return printed(cmd, asJSON, overview, func(p *printer) { printOverview(p, overview) })
	})
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&unreferenced, "unreferenced", false, "show what no version needs, too; reads the keys of all blobs")
	cmd.Flags().StringVar(&after, "after", "", "go on after the repository of this name")
	limitFlag(cmd, &limit, 50, "repositories to show at most")
	return cmd
}

func namespaceExplainCommand() *cobra.Command {
	var (
		asJSON     bool
		repository string
		limit      int
	)
	cmd := onStores(&cobra.Command{
		Use:   "explain <slug or id>",
		Short: "Explain why the counters of a namespace or a repository are what they are",
		Long: "Shows where each counter's value comes from: its value at the last reconciliation, the ledger since, what is\n" +
			"buffered and in flight, and what a recount says at this moment. A difference that is not soon gone is wrong.\n" +
			"Exit code 1 when a counter is wrong. Reading needs the role stowage_reader.",
		Args: cobra.ExactArgs(1),
	}, false, func(cmd *cobra.Command, args []string, i *inspect.Inspector) error {
		n, err := i.Namespace(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		var r *inspect.Repository
		if repository != "" {
			found, err := i.Repository(cmd.Context(), n.ID, repository)
			if err != nil {
				return err
			}
			r = &found
		}
		e, err := i.Explain(cmd.Context(), n, r, limit)
		if err != nil {
			return err
		}
		if err := printed(cmd, asJSON, e, func(p *printer) { printExplanation(p, e) }); err != nil {
			return err
		}
		if e.Bytes.Verdict == inspect.VerdictWrong || e.Components.Verdict == inspect.VerdictWrong {
			return errors.New("a counter is wrong")
		}
		return nil
	})
	jsonFlag(cmd, &asJSON)
	cmd.Flags().StringVar(&repository, "repository", "", "name or id of a repository; without it the namespace's own counters are explained")
	limitFlag(cmd, &limit, 20, "ledger entries to show at most, the newest")
	return cmd
}

func namespaceVerifyCommand() *cobra.Command {
	var asJSON, all bool
	cmd := onStores(&cobra.Command{
		Use:   "verify {<slug or id> | --all}",
		Short: "Recount a namespace, or all, and compare: exit code 1 on drift",
		Long: "Recounts from the source tables and compares with the counters and what is on its way to them, beside writers\n" +
			"and workers, for whom it is not there. It writes nothing. A difference counts as drift when it stays the same\n" +
			"for about 1.5 s; \"undecided\" is a scope that was written to all the time.\n" +
			"Exit code 0 when everything is right; 1 when something is wrong or undecided, or when it failed or was\n" +
			"interrupted. Reading needs the role stowage_reader.",
		Args: oneOrAll(&all),
	}, true, func(cmd *cobra.Command, args []string, i *inspect.Inspector) error {
		return runVerify(cmd, i, args, asJSON)
	})
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&all, "all", false, "verify every namespace")
	return cmd
}

func runVerify(cmd *cobra.Command, i *inspect.Inspector, args []string, asJSON bool) error {
	totals, err := verify(cmd, i, args)
	if totals == nil {
		return err
	}
	if e := printed(cmd, asJSON, totals, func(p *printer) { printTotals(p, totals) }); e != nil {
		return e
	}
	switch {
	case err != nil:
		return fmt.Errorf("not complete: %w", err)
	case !totals.OK():
		return fmt.Errorf("%d scopes are wrong, %d are undecided, %d have no row, %d namespaces cannot be recounted",
			totals.Wrong(inspect.WhyDrift), totals.Wrong(inspect.WhyUndecided), totals.Wrong(inspect.WhyNoRow), len(totals.Failed))
	}
	return nil
}

func verify(cmd *cobra.Command, i *inspect.Inspector, args []string) (*inspect.Totals, error) {
	if len(args) == 0 {
		progress := newProgress(cmd.ErrOrStderr())
		defer progress.end()
		return i.VerifyAll(cmd.Context(), func(t *inspect.Totals) {
			progress.show(fmt.Sprintf("verified %d of %d namespaces, %d scopes off", t.Done, t.Namespaces, len(t.Off)))
		})
	}
	n, err := i.Namespace(cmd.Context(), args[0])
	if err != nil {
		return nil, err
	}
	v, err := i.Verify(cmd.Context(), n.ID)
	totals := inspect.NewTotals()
	totals.Namespaces = 1
	if err := totals.Add(n.ID, v, err); err != nil {
		return nil, err
	}
	return totals, nil
}

// stalledAfter is after how long without an answered request something may be wrong.
const stalledAfter = 30 * time.Second

func namespaceReconcileCommand() *cobra.Command {
	var asJSON, all, wait bool
	cmd := &cobra.Command{
		Use:   "reconcile {<slug or id> | --all}",
		Short: "Request a reconciliation of a namespace, or of all",
		Long: "Writes a request, which the workers answer. With --wait it waits until a pass that began after the request has\n" +
			"ended. Interrupted, the requests that are written stay.\n" +
			"Exit code 0 when it is requested, or with --wait when it is done; 1 when it failed or was interrupted.\n" +
			"It needs the role stowage_worker, and not Redis.",
		Args: oneOrAll(&all),
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, err := openDatabase(cmd)
			if err != nil {
				return err
			}
			defer pool.Close()
			return runReconcile(cmd, &inspect.Inspector{Pool: pool}, args, wait, asJSON)
		},
	}
	config.AddDatabaseFlags(cmd.Flags())
	jsonFlag(cmd, &asJSON)
	cmd.Flags().BoolVar(&all, "all", false, "request every namespace")
	cmd.Flags().BoolVar(&wait, "wait", false, "wait until it is done")
	return cmd
}

func runReconcile(cmd *cobra.Command, i *inspect.Inspector, args []string, wait, asJSON bool) error {
	progress := newProgress(cmd.ErrOrStderr())
	defer progress.end()
	requested, err := request(cmd, i, args, progress)
	if err != nil {
		return err
	}
	if wait {
		err = i.Wait(cmd.Context(), requested, func(left int64, since time.Duration) {
			text := fmt.Sprintf("%d of %d namespaces reconciled", requested.Namespaces-left, requested.Namespaces)
			if since > stalledAfter {
				text += fmt.Sprintf(", none for %s: does no worker run, or are corrections held (stowage namespace explain)?", since.Round(time.Second))
			}
			progress.show(text)
		})
		if err != nil {
			return fmt.Errorf("not done yet; the requests stay, and the workers answer them: %w", err)
		}
	}
	progress.end()
	result := struct {
		Requested int64 `json:"requested"`
		Done      bool  `json:"done"`
	}{requested.Namespaces, wait}
	return printed(cmd, asJSON, result, func(p *printer) {
		if wait {
			p.line("reconciled %s", plural(requested.Namespaces, "namespace"))
		} else {
			p.line("requested a reconciliation of %s", plural(requested.Namespaces, "namespace"))
		}
	})
}

func request(cmd *cobra.Command, i *inspect.Inspector, args []string, progress *progress) (inspect.Requested, error) {
	if len(args) == 0 {
		return i.RequestAll(cmd.Context(), func(namespaces int64) {
			progress.show(fmt.Sprintf("requested %d namespaces", namespaces))
		})
	}
	n, err := i.Namespace(cmd.Context(), args[0])
	if err != nil {
		return inspect.Requested{}, err
	}
	return i.Request(cmd.Context(), n.ID)
}
