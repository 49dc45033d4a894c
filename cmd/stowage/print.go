package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/inspect"
	"github.com/stowage-dev/stowage/internal/usage"
)

// printed writes a result to stdout, as JSON or for people.
func printed(cmd *cobra.Command, asJSON bool, result any, human func(*printer)) error {
	if asJSON {
		encoder := json.NewEncoder(cmd.OutOrStdout())
		encoder.SetIndent("", "  ")
		return encoder.Encode(result)
	}
	p := &printer{out: cmd.OutOrStdout()}
	human(p)
	return p.err
}

// printer writes for people and remembers the first error.
type printer struct {
	out io.Writer
	err error
}

func (p *printer) line(format string, args ...any) {
	if _, err := fmt.Fprintf(p.out, format+"\n", args...); p.err == nil {
		p.err = err
	}
}

// table aligns rows of cells.
func (p *printer) table(rows [][]string) {
	w := tabwriter.NewWriter(p.out, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		if _, err := fmt.Fprintln(w, strings.TrimRight(strings.Join(row, "\t"), "\t")); p.err == nil {
			p.err = err
		}
	}
	if err := w.Flush(); p.err == nil {
		p.err = err
	}
}

// size is a number of bytes in binary units, and exactly.
func size(n int64) string {
	exact := humanize.Comma(n)
	switch {
	case n > -1024 && n < 1024:
		return exact + " B"
	case n < 0:
		return "-" + humanize.IBytes(uint64(-n)) + " (" + exact + ")"
	default:
		return humanize.IBytes(uint64(n)) + " (" + exact + ")"
	}
}

// signed is a change.
func signed(text string) string {
	if strings.HasPrefix(text, "-") {
		return text
	}
	return "+" + text
}

func number(n int64) string { return humanize.Comma(n) }

func plural(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return number(n) + " " + what
}

func when(t *time.Time) string {
	if t == nil {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

func requestedText(at *time.Time) string {
	if at == nil {
		return "no"
	}
	return when(at)
}

func flags(set ...string) string {
	var named []string
	for _, f := range set {
		if f != "" {
			named = append(named, f)
		}
	}
	return strings.Join(named, ", ")
}

func flag(on bool, name string) string {
	if on {
		return name
	}
	return ""
}

func printOverview(p *printer, o *inspect.Overview) {
	n := o.Namespace
	p.line("namespace %s  id %s  bucket %d%s", n.Slug, n.ID, n.Bucket, flag(n.SoftDeletedAt != nil, "  soft-deleted "+when(n.SoftDeletedAt)))
	if o.Usage == nil {
		p.line("no statistics row: its next reconciliation makes one")
	} else {
		printUsage(p, o.Usage)
	}
	if u := o.Unreferenced; u != nil {
		p.line("unreferenced: %s in %s to be collected, which count; %s of %s to be deleted from storage, which do not",
			size(u.Unattached.Bytes), plural(u.Unattached.Blobs, "blob"), size(u.Content.Bytes), plural(u.Content.Blobs, "collected blob"))
	}
	if len(o.Repositories) == 0 {
		return
	}
	p.line("")
	rows := [][]string{{"REPOSITORY", "FORMAT", "KIND", "BYTES", "COMPONENTS", "PRECISION", "PENDING", "RECONCILED", "FLAGS"}}
	for _, r := range o.Repositories {
		rows = append(rows, repositoryRow(r))
	}
	p.table(rows)
	if o.Next != "" {
		p.line("more with --after %q", o.Next)
	}
}

func repositoryRow(r inspect.RepositoryUsage) []string {
	precision, _ := r.Usage.Precision()
	value := r.Usage.Value()
	return []string{
		r.Name, r.FormatName, r.KindName, size(value.Bytes), number(value.Components), string(precision), pendingText(r.Usage),
		when(usage.At(r.Usage.LastReconciledAt)), flags(flag(r.SoftDeletedAt != nil, "soft-deleted"), flag(r.Usage.Quarantined, "quarantined")),
	}
}

func pendingText(u *usage.Usage) string {
	switch {
	case !u.PendingKnown:
		return "not known"
	case u.Pending.IsZero():
		return "none"
	default:
		return signed(size(u.Pending.Bytes)) + ", " + signed(number(u.Pending.Components))
	}
}

func printUsage(p *printer, u *usage.Usage) {
	precision, why := u.Precision()
	value := u.Value()
	rows := [][]string{
		{"bytes", size(value.Bytes)},
		{"components", number(value.Components)},
		{"precision", string(precision) + flag(why != "", ": "+why)},
		{"pending", pendingText(u)},
		{"as of", u.AsOf.UTC().Format(time.RFC3339)},
		{"last reconciled", when(usage.At(u.LastReconciledAt))},
	}
	if !u.RequestedAt.IsZero() {
		rows = append(rows, []string{"requested", when(&u.RequestedAt)})
	}
	if u.Quarantined {
		rows = append(rows, []string{"quarantine", "yes"})
	}
	p.table(rows)
}

func printTotals(p *printer, t *inspect.Totals) {
	if len(t.Off) > 0 {
		rows := [][]string{{"WHY", "KIND", "NAME", "ID", "BYTES", "DIFFERENCE", "COMPONENTS", "DIFFERENCE", "REQUESTED"}}
		for _, o := range t.Off {
			rows = append(rows, []string{
				o.Why, o.Kind, o.Name, o.ID.String(), size(o.Value.Bytes), signed(size(o.Difference.Bytes)),
				number(o.Value.Components), signed(number(o.Difference.Components)), requestedText(o.RequestedAt),
			})
		}
		p.table(rows)
	}
	for id, why := range t.Failed {
		p.line("namespace %s cannot be recounted: %s", id, why)
	}
	p.line("verified %s with %s: %d wrong, %d undecided, %d without a row", plural(t.Done, "namespace"), plural(t.Scopes, "scope"),
		t.Wrong(inspect.WhyDrift), t.Wrong(inspect.WhyUndecided), t.Wrong(inspect.WhyNoRow))
}

func printExplanation(p *printer, e *inspect.Explanation) {
	if e.Repository != nil {
		p.line("repository %s of namespace %s  id %s%s", e.Repository.Name, e.Namespace.Slug, e.Repository.ID,
			flag(e.Repository.SoftDeletedAt != nil, "  soft-deleted "+when(e.Repository.SoftDeletedAt)))
	} else {
		p.line("namespace %s  id %s  bucket %d", e.Namespace.Slug, e.Namespace.ID, e.Namespace.Bucket)
	}
	p.line("as of %s  reads are told: %s  redis: %s  requested: %s%s", when(&e.AsOf), e.Precision, e.Redis, requestedText(e.RequestedAt), flag(e.Quarantined, "  in quarantine"))
	p.line("")
	row := func(name string, cell func(inspect.Counter, func(int64) string) string) []string {
		return []string{name, cell(e.Bytes, size), cell(e.Components, number)}
	}
	p.table([][]string{
		{"", "BYTES", "COMPONENTS"},
		row("at the last reconciliation, "+when(e.LastReconciledAt), func(c inspect.Counter, f func(int64) string) string { return f(c.Reconciled) }),
		row("applied since", func(c inspect.Counter, f func(int64) string) string { return signed(f(c.Applied)) }),
		row("= row", func(c inspect.Counter, f func(int64) string) string { return f(c.Row) }),
		row("in flight", func(c inspect.Counter, f func(int64) string) string { return signed(f(c.InFlight)) }),
		row("buffered", func(c inspect.Counter, f func(int64) string) string { return signed(f(c.Buffered)) }),
		row("= value", func(c inspect.Counter, f func(int64) string) string { return f(c.Value) }),
		row("recount", func(c inspect.Counter, f func(int64) string) string { return f(c.Recount) }),
		row("difference", func(c inspect.Counter, f func(int64) string) string { return signed(f(c.Difference)) }),
	})
	printPending(p, e)
	printLedger(p, e.Ledger)
	printVerdicts(p, e)
}

func printPending(p *printer, e *inspect.Explanation) {
	if e.InFlight == nil && len(e.Buffered) == 0 {
		return
	}
	p.line("")
	rows := [][]string{{"IN REDIS", "MARKER", "BYTES", "COMPONENTS", "EMISSIONS", "COUNTS"}}
	if f := e.InFlight; f != nil {
		counts := counted(f.Counts)
		if f.InLedger {
			counts = "no, the ledger has it"
		}
		rows = append(rows, deltaRow("frozen "+f.FrozenAt.Format(time.RFC3339)+", batch "+f.BatchID.String(), f.Delta, counts))
	}
	for _, d := range e.Buffered {
		rows = append(rows, deltaRow("buffered", d, counted(d.Counts)))
	}
	p.table(rows)
}

func counted(counts bool) string {
	if counts {
		return "yes"
	}
	return "no, the last reconciliation counted it"
}

func deltaRow(what string, d inspect.Delta, counts string) []string {
	return []string{what, marker(d.Marker), signed(size(d.Bytes)), signed(number(d.Components)), number(d.Emissions), counts}
}

func marker(t time.Time) string {
	if usage.At(t) == nil {
		return "before the first reconciliation"
	}
	return t.Format("2006-01-02T15:04:05.000000Z")
}

func printLedger(p *printer, l *inspect.Ledger) {
	if l.Rows == 0 {
		return
	}
	p.line("")
	rows := [][]string{{"LEDGER", "OUTCOME", "BYTES", "COMPONENTS", "EMISSIONS", "MARKER", "BATCH"}}
	for _, x := range l.Entries {
		rows = append(rows, []string{
			x.AppliedAt.Format(time.RFC3339), x.Outcome, signed(size(x.Bytes)), signed(number(x.Components)), number(x.Emissions), marker(x.Marker), x.BatchID.String(),
		})
	}
	p.table(rows)
	if more := l.Rows - int64(len(l.Entries)); more > 0 {
		p.line("and %s before, with --limit", plural(more, "row"))
	}
}

func printVerdicts(p *printer, e *inspect.Explanation) {
	p.line("")
	p.line("bytes: %s", e.Bytes.Text)
	p.line("components: %s", e.Components.Text)
	if h := e.Held; h != nil {
		p.line("Held since %s: a correction by %s and %s.", when(&h.Since), signed(size(h.Correction.Bytes)), signed(plural(h.Correction.Components, "component")))
	}
	for _, note := range e.Notes {
		p.line("%s", note)
	}
}
