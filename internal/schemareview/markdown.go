package schemareview

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
)

// sort puts what blocks first, then by place.
func (r *Report) sort() {
	if r.Findings == nil {
		r.Findings = []Finding{}
	}
	slices.SortFunc(r.Findings, func(a, b Finding) int {
		blocking := func(f Finding) int {
			if f.Blocking {
				return 0
			}
			return 1
		}
		return cmp.Or(cmp.Compare(blocking(a), blocking(b)), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Rule, b.Rule), cmp.Compare(a.Message, b.Message))
	})
	r.Findings = slices.Compact(r.Findings)
}

// WriteMarkdown writes the report as a comment in a merge request. The same change
// gives the same text on a server of the same version.
func (r *Report) WriteMarkdown(w io.Writer) error {
	var b strings.Builder
	r.headline(&b)
	r.findings(&b)
	if len(r.Files) > 0 {
		r.objects(&b)
		r.statements(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (r *Report) headline(b *strings.Builder) {
	statements := 0
	for _, f := range r.Files {
		statements += len(f.Statements)
	}
	switch {
	case len(r.Files) == 0 && r.Blocking == 0:
		fmt.Fprintf(b, "## Schema review: no migrations changed\n\nThe directory is as at `%s`.\n", r.Base)
		return
	case r.Blocking == 0:
		b.WriteString("## Schema review: passed\n\n")
	default:
		fmt.Fprintf(b, "## Schema review: blocked by %s\n\n", count(r.Blocking, "finding"))
	}
	if len(r.Files) == 0 {
		fmt.Fprintf(b, "Against `%s`. The rest of the review was not made: it would describe a history that no database has.\n", r.Base)
		return
	}
	with := "without rows, because they fail on rows"
	if r.WithRows {
		with = "with rows in every table"
	}
	if r.WithRows && len(r.NoRows) > 0 {
		with = "with rows in all tables but those below"
	}
	fmt.Fprintf(b, "Against `%s`: %s with %s, measured on PostgreSQL %d %s. %s\n", r.Base, count(len(r.Files), "new migration"), count(statements, "statement"), r.Server, with, r.compatibility())
	for _, n := range r.NoRows {
		fmt.Fprintf(b, "- no rows could be made in `%s`: %s\n", n.Table, n.Why)
	}
}

// compatibility says whether the previous version of the application goes on.
func (r *Report) compatibility() string {
	breaks := func(blocking bool) bool {
		return slices.ContainsFunc(r.Findings, func(f Finding) bool {
			return f.Blocking == blocking && strings.HasPrefix(f.Rule, "compat/")
		})
	}
	switch {
	case slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Rule == ruleFails }):
		return "Whether the previous version of the application works on this schema is not known, because they fail."
	case breaks(true):
		return "The previous version of the application **does not work** on this schema."
	case breaks(false):
		return "That the previous version of the application works on this schema rests on the reasons given." + r.notCompared()
	}
	return "The previous version of the application finds all that it needs in this schema." + r.notCompared()
}

// notCompared names the functions that stand as before and may do something else.
func (r *Report) notCompared() string {
	var changed []string
	for _, c := range r.Objects {
		if c.Kind == "function" && c.Change == "changed" {
			changed = append(changed, "`"+c.Name+"`")
		}
	}
	if len(changed) == 0 {
		return ""
	}
	return " Whether it can do with the new body of " + strings.Join(changed, ", ") + " is for a reader to say."
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (r *Report) findings(b *strings.Builder) {
	if len(r.Findings) == 0 {
		return
	}
	b.WriteString("\n### Findings\n\n| | Rule | Where | What |\n| --- | --- | --- | --- |\n")
	for _, f := range r.Findings {
		mark, what := "blocks", f.Message
		if !f.Blocking {
			mark, what = "allowed", f.Message+". Reason: "+f.Reason
		}
		where := f.File
		if f.Line > 0 {
			where = fmt.Sprintf("%s:%d", f.File, f.Line)
		}
		fmt.Fprintf(b, "| %s | `%s` | `%s` | %s |\n", mark, f.Rule, where, cell(what))
	}
}

func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(text)
}

func (r *Report) objects(b *strings.Builder) {
	b.WriteString("\n### Objects\n\n")
	if len(r.Objects) == 0 {
		b.WriteString("None is added, changed or dropped.\n")
		return
	}
	for _, c := range r.Objects {
		fmt.Fprintf(b, "<details><summary>%s: %s <code>%s</code></summary>\n", c.Change, c.Kind, c.Name)
		if c.Before != "" && c.After != "" {
			b.WriteString("\n" + fenced("diff", difference(c.Before, c.After)))
		} else {
			b.WriteString("\n" + fenced("sql", c.Before+c.After))
		}
		b.WriteString("\n</details>\n")
	}
}

// difference is the old text and the new one, with what begins and ends both once.
func difference(before, after string) string {
	a, z := strings.Split(before, "\n"), strings.Split(after, "\n")
	head := 0
	for head < min(len(a), len(z)) && a[head] == z[head] {
		head++
	}
	tail := 0
	for tail < min(len(a), len(z))-head && a[len(a)-1-tail] == z[len(z)-1-tail] {
		tail++
	}
	var lines []string
	add := func(mark string, text []string) {
		for _, line := range text {
			lines = append(lines, mark+line)
		}
	}
	add(" ", a[:head])
	add("-", a[head:len(a)-tail])
	add("+", z[head:len(z)-tail])
	add(" ", a[len(a)-tail:])
	return strings.Join(lines, "\n")
}

func fenced(language, text string) string {
	fence := "```"
	for strings.Contains(text, fence) {
		fence += "`"
	}
	return fence + language + "\n" + strings.TrimSpace(text) + "\n" + fence + "\n"
}

func (r *Report) statements(b *strings.Builder) {
	b.WriteString("\n### Statements\n")
	for _, f := range r.Files {
		mode := "one transaction: every lock is held to its end"
		if !f.Transaction {
			mode = "no transaction"
		}
		fmt.Fprintf(b, "\n`%s`, %s\n\n", f.Name, mode)
		for _, s := range f.Statements {
			fmt.Fprintf(b, "<details><summary>line %d: <code>%s</code>: %s</summary>\n\n%s\n", s.Line, title(s.SQL), s.summary(), fenced("sql", s.SQL))
			for _, line := range s.details() {
				fmt.Fprintf(b, "- %s\n", line)
			}
			b.WriteString("\n</details>\n")
		}
	}
}

// title is the beginning of a statement.
func title(statement string) string {
	const most = 60
	words := strings.Join(strings.Fields(statement), " ")
	if runes := []rune(words); len(runes) > most {
		words = strings.TrimSpace(string(runes[:most])) + "…"
	}
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;").Replace(words)
}

func (s *Statement) summary() string {
	if !s.Measured {
		return "not measured, because a statement failed"
	}
	var parts []string
	if len(s.Locks) > 0 {
		l := s.Locks[0]
		parts = append(parts, fmt.Sprintf("%s on %s", l.Mode, l.Table))
		if more := len(s.Locks) - 1; more > 0 {
			parts[0] += fmt.Sprintf(" and locks on %d more", more)
		}
	}
	if len(s.Rewritten) > 0 {
		parts = append(parts, "rewrites "+strings.Join(s.Rewritten, ", "))
	} else if len(s.Scanned) > 0 {
		parts = append(parts, "scans "+strings.Join(s.Scanned, ", "))
	}
	if len(parts) == 0 {
		return "no lock on a table that stands"
	}
	return strings.Join(parts, ", ")
}

func (s *Statement) details() (lines []string) {
	if !s.Measured {
		return nil
	}
	for _, l := range s.Locks {
		lines = append(lines, fmt.Sprintf("takes %s on `%s`: %s", l.Mode, l.Table, l.Effect))
	}
	if len(s.Locks) == 0 {
		lines = append(lines, "takes no lock on a table that stands"+ifAny(s.Held, " beyond those held"))
	}
	for _, held := range byMode(s.Held) {
		lines = append(lines, held+", taken before, still held")
	}
	for _, t := range s.Rewritten {
		lines = append(lines, "rewrites `"+t+"`")
	}
	for _, t := range s.Scanned {
		lines = append(lines, "scans `"+t+"`")
	}
	for _, c := range s.Rows {
		lines = append(lines, fmt.Sprintf("rows of `%s`: %d inserted, %d updated, %d deleted", c.Table, c.Inserted, c.Updated, c.Deleted))
	}
	return lines
}

// byMode puts the tables of each mode into one line.
func byMode(locks []Lock) (lines []string) {
	for i, l := range locks {
		if i > 0 && locks[i-1].Mode == l.Mode {
			lines[len(lines)-1] += fmt.Sprintf(", `%s`", l.Table)
			continue
		}
		lines = append(lines, fmt.Sprintf("%s on `%s`", l.Mode, l.Table))
	}
	return lines
}

func ifAny[T any](all []T, text string) string {
	if len(all) == 0 {
		return ""
	}
	return text
}
