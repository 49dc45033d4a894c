// Command bench measures Stowage against its alternatives, in turn, on throw-away
// servers, and writes one report. README.md says what each figure means.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"
)

// options are the flags, and postgres, which tests set.
type options struct {
	// postgres is the version of the server, as devstack takes it.
	postgres   int
	only       []string
	rounds     int
	scale      float64
	growth     bool
	out        string
	cpuProfile string
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	opts := options{postgres: postgresVersion}
	cmd := &cobra.Command{
		Use:           "bench",
		Short:         "Measure Stowage against its alternatives and write a report",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			measures, err := opts.choose()
			if err != nil {
				return err
			}
			return opts.run(cmd.Context(), cmd.OutOrStdout(), measures)
		},
	}
	flags := cmd.Flags()
	flags.StringSliceVar(&opts.only, "only", nil, "ids of the measures to take, as P1,P4 (default all)")
	flags.IntVar(&opts.rounds, "rounds", 5, "how many rounds of each measure are counted")
	flags.Float64Var(&opts.scale, "scale", 1, "multiplies the size of the data, to see quickly that everything works; only figures of scale 1 mean anything")
	flags.BoolVar(&opts.growth, "growth", true, "also measure how cost grows at 1x, 10x and 100x, and draw it")
	flags.StringVar(&opts.out, "out", "results", "folder for report.json, report.md and the drawings")
	flags.StringVar(&opts.cpuProfile, "cpuprofile", "", "file for a CPU profile of this process")
	return cmd
}

// measures are all, in the order of the report.
func measures() []measure {
	return slices.Concat(publishMeasures(), emitMeasures(), drainMeasures(), recountMeasures(), readMeasures(), memoryMeasures())
}

// choose refuses what cannot be run before anything is started.
func (o options) choose() ([]measure, error) {
	if o.rounds < 1 {
		return nil, fmt.Errorf("--rounds %d: want 1 or more", o.rounds)
	}
	if o.scale <= 0 || o.scale > 1 {
		return nil, fmt.Errorf("--scale %g: want more than 0 and at most 1", o.scale)
	}
	all := measures()
	if len(o.only) == 0 {
		return all, nil
	}
	for _, id := range o.only {
		if !slices.ContainsFunc(all, func(m measure) bool { return m.is(id) }) {
			return nil, fmt.Errorf("--only %s: there is no such measure; there are %s", id, ids(all))
		}
	}
	return slices.DeleteFunc(all, func(m measure) bool { return !slices.ContainsFunc(o.only, m.is) }), nil
}

// is reports whether the id names the measure, or the requirement that has it and
// others: P4 names P4-update, too.
func (m measure) is(id string) bool {
	requirement, _, _ := strings.Cut(m.ID, "-")
	return strings.EqualFold(id, m.ID) || strings.EqualFold(id, requirement)
}

func ids(all []measure) string {
	var names []string
	for _, m := range all {
		names = append(names, m.ID)
	}
	return strings.Join(names, ", ")
}

// run takes the measures and writes the report. Interrupted, it writes nothing.
func (o options) run(ctx context.Context, out io.Writer, chosen []measure) (err error) {
	progress := slog.New(slog.NewTextHandler(os.Stderr, nil))
	if err := os.MkdirAll(o.out, 0o755); err != nil { // half an hour before it is needed
		return err
	}
	l, err := startLab(ctx, o.postgres, o.scale, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	stop, err := profile(o.cpuProfile)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	r := report{Machine: thisMachine(), At: time.Now().UTC(), Scale: o.scale}
	if err := l.describe(ctx, &r.Machine); err != nil {
		return err
	}
	for i, m := range chosen {
		began := time.Now()
		res, err := m.take(ctx, l, o.rounds)
		if err != nil {
			return err
		}
		r.Results = append(r.Results, res)
		progress.InfoContext(ctx, "measured", "measure", m.ID, "figure", number(res.Figure.Median), "wanted", m.Want.String(),
			"took", time.Since(began).Round(time.Second), "done", fmt.Sprintf("%d of %d", i+1, len(chosen)))
	}
	if o.growth {
		if r.Growth, err = measureGrowth(ctx, l, o.rounds); err != nil {
			return err
		}
	}
	return o.write(out, r)
}

// describe asks the servers and the tree what they are.
func (l *lab) describe(ctx context.Context, m *machine) error {
	conn, err := pgx.Connect(ctx, l.postgres.URL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	if err := conn.QueryRow(ctx, `SHOW server_version`).Scan(&m.PostgreSQL); err != nil {
		return err
	}
	redis, err := l.redis(ctx)
	if err != nil {
		return err
	}
	info, err := redis.Do(ctx, redis.B().Info().Section("server").Build()).ToString()
	if err != nil {
		return err
	}
	for line := range strings.Lines(info) {
		if version, ok := strings.CutPrefix(strings.TrimSpace(line), "redis_version:"); ok {
			m.Redis = version
		}
	}
	commit, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty=+").Output()
	if err == nil { // there need not be a repository
		m.Commit = strings.TrimSpace(string(commit))
	}
	return l.closeAll()
}

// profile begins a CPU profile, unless file is empty.
func profile(file string) (stop func() error, err error) {
	if file == "" {
		return func() error { return nil }, nil
	}
	f, err := os.Create(file)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(f); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return func() error {
		pprof.StopCPUProfile()
		return f.Close()
	}, nil
}

// write prints the table and writes the files.
func (o options) write(out io.Writer, r report) error {
	if err := r.table(out); err != nil {
		return err
	}
	if missed := r.missed(); len(missed) > 0 {
		fmt.Fprintf(out, "missed: %s\n", strings.Join(missed, ", "))
	}
	files := map[string]func(io.Writer) error{"report.json": r.json, "report.md": r.markdown}
	for _, g := range r.Growth {
		files[g.file()] = g.svg
	}
	for name, write := range files {
		if err := writeFile(filepath.Join(o.out, name), write); err != nil {
			return err
		}
	}
	fmt.Fprintf(out, "written to %s\n", o.out)
	return nil
}

func writeFile(path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
