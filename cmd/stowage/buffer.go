package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/inspect"
)

func bufferCommand() *cobra.Command {
	return group("buffer", "Look at what is buffered in Redis", bufferShowCommand())
}

// limitFlag bounds a list.
func limitFlag(cmd *cobra.Command, limit *int, value int, help string) {
	cmd.Flags().IntVar(limit, "limit", value, help)
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if *limit < 1 {
			return fmt.Errorf("--limit %d: must be at least 1", *limit)
		}
		return nil
	}
}

func bufferShowCommand() *cobra.Command {
	var (
		asJSON        bool
		bucket, limit int
	)
	cmd := onStores(&cobra.Command{
		Use:   "show",
		Short: "Show what the buckets hold, or with --bucket the members of one",
		Long: "Shows the buckets that hold something, or whose identity is not that of the last tick. Ages are lower bounds:\n" +
			"how long ago the oldest flush was frozen, or since when a buffer has had no emission, by the workers' clocks and\n" +
			"buffer.ttl; of a sample when a set is large. Exit code 1 when a bucket could not be read.\n" +
			"Redis must allow INFO, EVALSHA and EVAL, and what only reads, on the keys stowage:1:*; reading the database needs\n" +
			"the role stowage_reader.",
		Args: cobra.NoArgs,
	}, true, func(cmd *cobra.Command, _ []string, i *inspect.Inspector) error {
		if cmd.Flags().Changed("bucket") {
			return showBucket(cmd, i, bucket, limit, asJSON)
		}
		return showBuckets(cmd, i, asJSON)
	})
	jsonFlag(cmd, &asJSON)
	limitFlag(cmd, &limit, 100, "members of each set to show at most, with --bucket")
	cmd.Flags().IntVar(&bucket, "bucket", 0, "show the members of this bucket; stowage namespace show names a namespace's")
	return cmd
}

// shownBuckets is the JSON of the summary.
type shownBuckets struct {
	DirtyNamespaces   int64            `json:"dirty_namespaces"`
	DirtyRepositories int64            `json:"dirty_repositories"`
	InFlight          int64            `json:"in_flight"`
	Quarantined       int64            `json:"quarantined"`
	OldestSeconds     float64          `json:"oldest_seconds_at_least"`
	Buckets           []inspect.Bucket `json:"buckets"`
}

func showBuckets(cmd *cobra.Command, i *inspect.Inspector, asJSON bool) error {
	all, unread := i.Buckets(cmd.Context())
	if all == nil {
		return unread
	}
	shown := shownBuckets{Buckets: []inspect.Bucket{}}
	for _, b := range all {
		shown.DirtyNamespaces += b.DirtyNamespaces
		shown.DirtyRepositories += b.DirtyRepositories
		shown.InFlight += b.InFlight
		shown.Quarantined += b.Quarantined
		shown.OldestSeconds = max(shown.OldestSeconds, b.OldestSeconds)
		if !b.Quiet() {
			shown.Buckets = append(shown.Buckets, b)
		}
	}
	return cmp.Or(printed(cmd, asJSON, shown, func(p *printer) { printBuckets(p, shown) }), unread)
}

func printBuckets(p *printer, s shownBuckets) {
	if len(s.Buckets) > 0 {
		rows := [][]string{{"BUCKET", "DIRTY NAMESPACES", "DIRTY REPOSITORIES", "IN FLIGHT", "QUARANTINE", "OLDEST, AT LEAST", "LEASE", "IDENTITY"}}
		for _, b := range s.Buckets {
			rows = append(rows, []string{
				fmt.Sprint(b.Bucket), number(b.DirtyNamespaces), number(b.DirtyRepositories), number(b.InFlight), number(b.Quarantined),
				seconds(b.OldestSeconds), lease(b), b.Identity,
			})
		}
		p.table(rows)
	}
	p.line("%d of %d buckets: %s and %s dirty, %s in flight, %s in quarantine, oldest at least %s", len(s.Buckets), accounting.Buckets,
		plural(s.DirtyNamespaces, "namespace"), repositories(s.DirtyRepositories), number(s.InFlight), number(s.Quarantined), seconds(s.OldestSeconds))
}

func repositories(n int64) string {
	if n == 1 {
		return "1 repository"
	}
	return number(n) + " repositories"
}

func lease(b inspect.Bucket) string {
	if b.LeaseHolder == "" {
		return "free"
	}
	return b.LeaseHolder + " for " + seconds(b.LeaseSeconds)
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Second / 10).String()
}

// shownMembers is the JSON of one bucket.
type shownMembers struct {
	Bucket  int              `json:"bucket"`
	Members []inspect.Member `json:"members"`
	More    bool             `json:"more"`
}

func showBucket(cmd *cobra.Command, i *inspect.Inspector, bucket, limit int, asJSON bool) error {
	if bucket < 0 || bucket >= accounting.Buckets {
		return usageError{fmt.Errorf("--bucket %d: there are buckets 0 to %d", bucket, accounting.Buckets-1)}
	}
	members, more, err := i.Members(cmd.Context(), bucket, limit)
	if err != nil {
		return err
	}
	shown := shownMembers{Bucket: bucket, Members: members, More: more}
	return printed(cmd, asJSON, shown, func(p *printer) { printMembers(p, shown) })
}

func printMembers(p *printer, s shownMembers) {
	rows := [][]string{{"MEMBER", "SETS", "BYTES", "COMPONENTS", "EMISSIONS", "FROZEN", "QUIET FOR"}}
	for _, m := range s.Members {
		row := []string{m.Name, flags(flag(m.Dirty, "dirty"), flag(m.InFlight, "in flight"), flag(m.Quarantined, "quarantined"))}
		if m.Pending == nil {
			row = append(row, "not readable", "", "")
		} else {
			row = append(row, signed(size(m.Pending.Bytes)), signed(number(m.Pending.Components)), number(m.Emissions))
		}
		frozen := "no"
		if m.FrozenAt != nil {
			frozen = when(m.FrozenAt)
		}
		rows = append(rows, append(row, frozen, seconds(m.QuietSeconds)))
	}
	if len(s.Members) > 0 {
		p.table(rows)
	}
	p.line("bucket %d: %s%s", s.Bucket, plural(int64(len(s.Members)), "member"), flag(s.More, ", and more with --limit"))
}
