package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// report is what a run found.
type report struct {
	Machine machine   `json:"machine"`
	At      time.Time `json:"at"`
	Scale   float64   `json:"scale"`
	Results []result  `json:"results"`
	Growth  []growth  `json:"growth,omitempty"`
}

// machine is what the figures depend on.
type machine struct {
	CPU        string `json:"cpu"`
	Cores      int    `json:"cores"`
	MemoryGiB  int    `json:"memory_gib"`
	OS         string `json:"os"`
	Go         string `json:"go"`
	PostgreSQL string `json:"postgresql"`
	Redis      string `json:"redis"`
	// Commit is of the tree that was measured, with a + when it was changed.
	Commit string `json:"commit"`
}

// thisMachine leaves out what the system does not tell.
func thisMachine() machine {
	m := machine{Cores: runtime.NumCPU(), OS: runtime.GOOS + "/" + runtime.GOARCH, Go: runtime.Version()}
	m.CPU = fieldOf("/proc/cpuinfo", "model name")
	var kib int
	if _, err := fmt.Sscanf(fieldOf("/proc/meminfo", "MemTotal"), "%d kB", &kib); err == nil {
		m.MemoryGiB = int(math.Round(float64(kib) / (1 << 20)))
	}
	return m
}

// fieldOf is the value of the first line "name: value" of a file of the kernel.
func fieldOf(file, name string) string {
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

func (m machine) String() string {
	return fmt.Sprintf("%d cores of %s, %d GiB, %s; PostgreSQL %s, Redis %s, %s; commit %s",
		m.Cores, m.CPU, m.MemoryGiB, m.OS, m.PostgreSQL, m.Redis, m.Go, m.Commit)
}

// missed are the ids of the measures, and the names of the growths, that do not come
// to what they must.
func (r report) missed() []string {
	var names []string
	for _, m := range r.Results {
		if !m.Met {
			names = append(names, m.ID)
		}
	}
	for _, g := range r.Growth {
		if !g.Met {
			names = append(names, g.Name)
		}
	}
	return names
}

// json is for machines, and for a comparison with another day's.
func (r report) json(out io.Writer) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

// table is for a terminal.
func (r report) table(out io.Writer) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, t := range r.tables() {
		for _, row := range append([][]string{t.head}, t.rows...) {
			fmt.Fprintln(w, strings.Join(row, "\t")+"\t")
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// markdown is for people: README.md links it.
func (r report) markdown(out io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "# Measured on %s\n\n", r.At.Format(time.DateOnly))
	fmt.Fprintf(&text, "%s.\n", r.Machine)
	if r.Scale != 1 {
		fmt.Fprintf(&text, "\nAt scale %g: these figures mean nothing.\n", r.Scale)
	}
	for _, t := range r.tables() {
		fmt.Fprintln(&text)
		writeRow(&text, t.head)
		fmt.Fprintln(&text, strings.Repeat("| --- ", len(t.head))+"|")
		for _, row := range t.rows {
			writeRow(&text, row)
		}
	}
	for _, g := range r.Growth {
		fmt.Fprintf(&text, "\n![Cost of %s](%s)\n", g.What, g.file())
	}
	_, err := io.WriteString(out, text.String())
	return err
}

func writeRow(out io.Writer, cells []string) {
	fmt.Fprintf(out, "| %s |\n", strings.Join(cells, " | "))
}

// table is a head and rows of as many cells.
type table struct {
	head []string
	rows [][]string
}

// tables are those that have rows.
func (r report) tables() []table {
	measured := table{head: resultHead()}
	for _, m := range r.Results {
		measured.rows = append(measured.rows, m.cells())
	}
	grown := table{head: growthHead()}
	for _, g := range r.Growth {
		grown.rows = append(grown.rows, g.cells())
	}
	return slices.DeleteFunc([]table{measured, grown}, func(t table) bool { return len(t.rows) == 0 })
}

func resultHead() []string {
	return []string{"", "what", "against", "ours", "peer", "unit", "figure", "min", "max", "wanted", ""}
}

func (r result) cells() []string {
	peer := "-"
	if r.Peer != nil {
		peer = number(r.Peer.Median)
	}
	return []string{r.ID, r.What, r.Against, number(r.Ours.Median), peer, r.Unit,
		number(r.Figure.Median), number(r.Figure.Min), number(r.Figure.Max), r.Want.String(), verdict(r.Met)}
}

func verdict(met bool) string {
	if met {
		return "met"
	}
	return "MISSED"
}

func (w want) String() string {
	switch w.How {
	case ratio:
		return "≥ " + number(w.Value) + "x"
	case excess:
		return "≤ +" + number(w.Value)
	default:
		return "≤ " + number(w.Value)
	}
}

// number has three significant digits, and every digit before the point.
func number(v float64) string {
	switch abs := math.Abs(v); {
	case abs >= 100 || v == 0:
		return fmt.Sprintf("%.0f", v)
	case abs >= 10:
		return fmt.Sprintf("%.1f", v)
	case abs >= 1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}
