package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, text := range map[float64]string{
		0: "0", 0.0456: "0.046", 0.5: "0.500", 1: "1.00", 9.999: "10.00", 10: "10.0", 12.34: "12.3", 99.94: "99.9",
		100: "100", 1234567: "1234567", -2.5: "-2.50", -1000: "-1000",
	} {
		require.Equal(t, text, number(v))
	}
}

// sample is a report of everything once, met and missed.
func sample() report {
	peer := spread{100, 90, 110}
	return report{
		Machine: machine{CPU: "Some CPU", Cores: 2, MemoryGiB: 4, OS: "linux/amd64", Go: "go1", PostgreSQL: "18", Redis: "7", Commit: "abc+"},
		At:      time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC), Scale: 1,
		Results: []result{
			{
				measure: measure{ID: "P1", What: "ours", Against: "theirs", Unit: "tx/s", Want: atLeast(0.9)},
				Rounds:  3, Ours: spread{95, 90, 99}, Peer: &peer, Figure: spread{0.95, 0.9, 1}, Met: true,
			},
			{
				measure: measure{ID: "P8", What: "memory", Against: "idle", Unit: "MiB", Want: excessOf(64)},
				Rounds:  3, Ours: spread{180, 170, 190}, Peer: &peer, Figure: spread{80, 60, 90},
			},
			{
				measure: measure{ID: "P9", What: "connections", Unit: "connections", Want: atMost(25)},
				Rounds:  3, Ours: spread{24, 24, 24}, Figure: spread{24, 24, 24}, Met: true,
			},
		},
		Growth: []growth{
			growing{Name: "even", What: "a thing", Unit: "ms", Size: "things", Bound: 1.5}.of([]int{1000, 10_000, 100_000}, [][]float64{{2}, {2}, {2.5}}),
			growing{Name: "steep", What: "a rock", Unit: "ms", Size: "rocks", Bound: 1.5}.of([]int{10, 100, 1000}, [][]float64{{1}, {2}, {3}}),
		},
	}
}

func render(t *testing.T, write func(*bytes.Buffer) error) string {
	t.Helper()
	var out bytes.Buffer
	require.NoError(t, write(&out))
	return out.String()
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	got := render(t, func(out *bytes.Buffer) error { return sample().markdown(out) })
	require.Equal(t, `# Measured on 2026-11-30

2 cores of Some CPU, 4 GiB, linux/amd64; PostgreSQL 18, Redis 7, go1; commit abc+.

|  | what | against | ours | peer | unit | figure | min | max | wanted |  |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| P1 | ours | theirs | 95.0 | 100 | tx/s | 0.950 | 0.900 | 1.00 | ≥ 0.900x | met |
| P8 | memory | idle | 180 | 100 | MiB | 80.0 | 60.0 | 90.0 | ≤ +64.0 | MISSED |
| P9 | connections |  | 24.0 | - | connections | 24.0 | 24.0 | 24.0 | ≤ 25.0 | met |

| cost of | unit | 1x | at 1x | at 10x | at 100x | growth | min | max | wanted |  |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| a thing | ms | things: 1,000 | 2.00 | 2.00 | 2.50 | 1.25 | 1.25 | 1.25 | ≤ 1.50x | met |
| a rock | ms | rocks: 10 | 1.00 | 2.00 | 3.00 | 3.00 | 3.00 | 3.00 | ≤ 1.50x | MISSED |

![Cost of a thing](growth-even.svg)

![Cost of a rock](growth-steep.svg)
`, got)
}

func TestMarkdownSaysThatFiguresOfSmallDataMeanNothing(t *testing.T) {
	t.Parallel()
	r := sample()
	r.Scale = 0.01
	require.Contains(t, render(t, func(out *bytes.Buffer) error { return r.markdown(out) }), "\nAt scale 0.01: these figures mean nothing.\n")
}

func TestTable(t *testing.T) {
	t.Parallel()
	got := render(t, func(out *bytes.Buffer) error { return sample().table(out) })
	lines := strings.Split(got, "\n")
	require.Equal(t, []string{"P8", "memory", "idle", "180", "100", "MiB", "80.0", "60.0", "90.0", "≤", "+64.0", "MISSED"}, strings.Fields(lines[2]))
	require.Equal(t, strings.Index(lines[0], "unit"), strings.Index(lines[1], "tx/s"), "columns stand under their heads")
	require.Contains(t, got, "a rock")

	r := sample()
	r.Growth = nil
	require.NotContains(t, render(t, func(out *bytes.Buffer) error { return r.table(out) }), "growth")
}

func TestJSONHasEveryNumber(t *testing.T) {
	t.Parallel()
	text := render(t, func(out *bytes.Buffer) error { return sample().json(out) })
	var got report
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	require.Equal(t, sample(), got)
	require.Contains(t, text, `"how": "ratio"`)
}

func TestMissed(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"P8", "steep"}, sample().missed())
	require.Empty(t, report{}.missed())
}

func TestFieldOf(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "info")
	require.NoError(t, os.WriteFile(file, []byte("other\t: 1\nmodel name\t: A CPU: new\nmodel name\t: second\n"), 0o600))
	require.Equal(t, "A CPU: new", fieldOf(file, "model name"))
	require.Empty(t, fieldOf(file, "none"))
	require.Empty(t, fieldOf(file+"x", "model name"))
}
