package main

import (
	"context"
	"encoding/csv"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/history"
	"github.com/stowage-dev/stowage/internal/inspect"
)

func namespaceHistoryCommand() *cobra.Command {
	var from, to, format string
	cmd := &cobra.Command{
		Use:   "history <slug or id>",
		Short: "Show what a namespace stored, hour by hour, for billing",
		Long: "Shows the closed hours of a namespace: what it stored at the end of each, the integral of its bytes over it, the\n" +
			"most that it stored, and below it the changes that no traffic of the hour explains: corrections, late flushes, its\n" +
			"deletion. The figures of the hour contain them. A closed hour never changes; an hour closes a minute or two after\n" +
			"its end. Hours are those of UTC. A deleted namespace has its history by its id. It is that of History in Go.\n" +
			"Reading needs the role stowage_reader. Exit code 2 for a range that is none.",
		Example: "  stowage namespace history my-team --from 2026-11-01 --to 2026-12-01 --format csv",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !slices.Contains([]string{"table", "csv", "json"}, format) {
				return usageError{fmt.Errorf("--format %q: want table, csv or json", format)}
			}
			first, err := timeFlag("--from", from)
			if err != nil {
				return err
			}
			last, err := timeFlag("--to", to)
			if err != nil {
				return err
			}
			pool, err := openDatabase(cmd)
			if err != nil {
				return err
			}
			defer pool.Close()
			result, err := readHistory(cmd.Context(), pool, args[0], first, last)
			if err != nil {
				return err
			}
			if format == "csv" {
				return result.csv(cmd)
			}
			return printed(cmd, format == "json", result, result.table)
		},
	}
	config.AddDatabaseFlags(cmd.Flags())
	cmd.Flags().StringVar(&from, "from", "", "first hour, as 2026-11-01 or 2026-11-01T13:00:00Z; required")
	cmd.Flags().StringVar(&to, "to", "", "end of the last hour, in the same form; without it, all that is closed")
	cmd.Flags().StringVar(&format, "format", "table", "table, csv or json")
	return cmd
}

// timeFlag reads a flag; the zero time is an empty --to.
func timeFlag(flag, text string) (time.Time, error) {
	if text == "" && flag == "--to" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, time.DateOnly} {
		if t, err := time.Parse(layout, text); err == nil {
			return t, nil
		}
	}
	return time.Time{}, usageError{fmt.Errorf("%s %q: want a date or an hour, as 2026-11-01 or 2026-11-01T13:00:00Z", flag, text)}
}

// usageHistory is history as the command prints it. The names of its fields stay.
type usageHistory struct {
	NamespaceID uuid.UUID `json:"namespace_id"`
	// Since and Until bound what history has of any namespace.
	Since time.Time   `json:"since"`
	Until time.Time   `json:"until"`
	Hours []usageHour `json:"hours"`
}

type usageHour struct {
	Hour       time.Time `json:"hour"`
	Bytes      int64     `json:"bytes"`
	Components int64     `json:"components"`
	// ByteSeconds is a text, because a number of JSON may lose digits.
	ByteSeconds string            `json:"byte_seconds"`
	PeakBytes   int64             `json:"peak_bytes"`
	Adjustments []usageAdjustment `json:"adjustments"`
}

type usageAdjustment struct {
	Kind       string    `json:"kind"`
	AppliedAt  time.Time `json:"applied_at"`
	BatchID    uuid.UUID `json:"batch_id"`
	Bytes      int64     `json:"bytes"`
	Components int64     `json:"components"`
}

func readHistory(ctx context.Context, pool *pgxpool.Pool, name string, from, to time.Time) (usageHistory, error) {
	if to.IsZero() {
		to = from.Truncate(time.Hour).AddDate(100, 0, 0)
	}
	n, err := (&inspect.Inspector{Pool: pool}).Namespace(ctx, name)
	if errors.Is(err, inspect.ErrNotFound) {
		if id, malformed := uuid.Parse(name); malformed == nil {
			n.ID, err = id, nil
		}
	}
	if err != nil {
		return usageHistory{}, err
	}
	kept, err := history.Read(ctx, pool, n.ID, from, to)
	if errors.Is(err, history.ErrRange) {
		return usageHistory{}, usageError{err}
	}
	if err != nil {
		return usageHistory{}, fmt.Errorf("namespace %q: %w", name, err)
	}
	result := usageHistory{NamespaceID: n.ID, Since: kept.Since, Until: kept.Until, Hours: make([]usageHour, len(kept.Hours))}
	for i, h := range kept.Hours {
		hour := usageHour{Hour: h.Start, Bytes: h.End.Bytes, Components: h.End.Components, ByteSeconds: h.ByteSeconds.FloatString(6), PeakBytes: h.PeakBytes, Adjustments: []usageAdjustment{}}
		for _, a := range h.Adjustments {
			hour.Adjustments = append(hour.Adjustments, usageAdjustment{Kind: a.Kind.String(), AppliedAt: a.AppliedAt, BatchID: a.BatchID, Bytes: a.Bytes, Components: a.Components})
		}
		result.Hours[i] = hour
	}
	return result, nil
}

// csv has a line for each hour, whose bytes and components are those at its end, and
// after it one for each adjustment, whose bytes and components are the change. What
// hours there are at all has no place in it and goes to stderr.
func (h usageHistory) csv(cmd *cobra.Command) error {
	w := csv.NewWriter(cmd.OutOrStdout())
	lines := [][]string{{"namespace_id", "hour", "line", "bytes", "components", "byte_seconds", "peak_bytes", "applied_at", "batch_id"}}
	for _, hour := range h.Hours {
		id, at := h.NamespaceID.String(), hour.Hour.Format(time.RFC3339)
		lines = append(lines, []string{id, at, "usage", decimal(hour.Bytes), decimal(hour.Components), hour.ByteSeconds, decimal(hour.PeakBytes), "", ""})
		for _, a := range hour.Adjustments {
			lines = append(lines, []string{id, at, a.Kind, decimal(a.Bytes), decimal(a.Components), "", "", a.AppliedAt.Format(time.RFC3339Nano), a.BatchID.String()})
		}
	}
	if err := w.WriteAll(lines); err != nil {
		return err
	}
	_, err := fmt.Fprintln(cmd.ErrOrStderr(), h.bounds())
	return err
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

func (h usageHistory) table(p *printer) {
	rows := [][]string{{"HOUR", "BYTES", "COMPONENTS", "PEAK", "BYTE-SECONDS"}}
	for _, hour := range h.Hours {
		rows = append(rows, []string{hour.Hour.Format(time.RFC3339), size(hour.Bytes), number(hour.Components), size(hour.PeakBytes), hour.ByteSeconds})
		for _, a := range hour.Adjustments {
			rows = append(rows, []string{"  " + a.Kind, signed(size(a.Bytes)), signed(number(a.Components)), "", a.AppliedAt.Format(time.RFC3339Nano)})
		}
	}
	if len(h.Hours) > 0 {
		p.table(rows)
	}
	p.line("%s", h.bounds())
}

// bounds says which hours there are at all: others of the range are left out.
func (h usageHistory) bounds() string {
	switch {
	case h.Until.IsZero():
		return "no worker has begun to keep history"
	case h.Until.Equal(h.Since):
		return "the first hour of history, from " + when(&h.Since) + " on, is not closed yet"
	default:
		return fmt.Sprintf("history has the hours from %s to %s; later ones are open", when(&h.Since), when(&h.Until))
	}
}
