// Package demo runs the main job on real input and compares every counter with
// a recount and with known totals. README.md says what the stages prove.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/publishes"
)

// closeTimeout bounds the writing of requests that wait in the client.
const closeTimeout = 10 * time.Second

// Config is what the demo works on: a migrated database and a Redis that a
// worker serves, and the publishes.
type Config struct {
	Pool  *pgxpool.Pool
	Redis rueidis.Client
	// Data holds the publishes and totals.json, as testdata/publishes.
	Data fs.FS
	// Repeat is how many times the input is published; see publishes.Repeat.
	Repeat int
	// Writers is how many transactions run at once.
	Writers int
	// Out takes the tables, and the progress unless that is a Bar.
	Out      io.Writer
	Progress Progress
	Logger   *slog.Logger
}

// ErrInexact says that counters differ from the recount or from the expected
// totals. The differences have been printed.
var ErrInexact = errors.New("counters are not exact")

// demo is one run.
type demo struct {
	Config

	db         *entdb.Client
	buffer     *buffer.Buffer
	lines      []publishes.Publish
	all, kept  publishes.Totals
	namespaces []namespace
	scenarios  []scenario
}

// Run runs the stages, prints a table after each, and as its last line
// the result. It ends with ErrInexact at the first stage whose counters differ.
func Run(ctx context.Context, cfg Config) (err error) {
	d := &demo{Config: cfg, buffer: buffer.New(cfg.Redis, buffer.Config{})}
	if err := d.load(); err != nil {
		return err
	}
	d.db, err = entdb.New(entdb.Config{
		Pool: cfg.Pool, Redis: cfg.Redis, Logger: cfg.Logger, Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, d.db.Close(ctx))
	}()
	return d.run(ctx)
}

func (d *demo) load() error {
	lines, err := publishes.Load(d.Data)
	if err != nil {
		return err
	}
	expected, err := publishes.LoadExpected(d.Data)
	if err != nil {
		return err
	}
	if err := expected.Check(lines); err != nil {
		return err
	}
	d.lines = publishes.Repeat(lines, d.Repeat)
	d.all = expected.AllPublished[publishes.Overall].Times(int64(d.Repeat))
	d.kept = expected.AfterDeletion[publishes.Overall].Times(int64(d.Repeat))
	d.scenarios, err = scenarios(lines)
	return err
}

func (d *demo) run(ctx context.Context) error {
	if err := d.createNamespaces(ctx, "demo-a", "demo-b"); err != nil {
		return err
	}
	compared := 0
	for i, stage := range d.stages() {
		fmt.Fprintf(d.Out, "stage %d: %s\n", i+1, stage.title)
		results, err := d.runStage(ctx, stage)
		if err != nil {
			return fmt.Errorf("stage %d: %w", i+1, err)
		}
		if err := d.judge(results); err != nil {
			return fmt.Errorf("stage %d: %w", i+1, err)
		}
		compared += len(results)
	}
	fmt.Fprintf(d.Out, "exact: %d comparisons of a scope, drift 0 bytes, 0 components\n", compared)
	return nil
}

// runStage does the work, waits until all of it is in the counters, and
// compares.
func (d *demo) runStage(ctx context.Context, s stage) ([]result, error) {
	started := time.Now()
	if err := s.work(ctx); err != nil {
		return nil, err
	}
	worked := time.Now()
	if err := d.waitForDrain(ctx); err != nil {
		return nil, err
	}
	fmt.Fprintf(d.Out, "done in %.1f s, drained after %.1f s more\n", worked.Sub(started).Seconds(), time.Since(worked).Seconds())
	return s.compare(ctx)
}

// judge prints what was compared, and fails with the name of the first scope that
// differs.
func (d *demo) judge(results []result) error {
	printTable(d.Out, results)
	wrong := differences(results)
	if len(wrong) == 0 {
		return nil
	}
	fmt.Fprintf(d.Out, "%d of %d scopes differ:\n", len(wrong), len(results))
	printTable(d.Out, wrong)
	return fmt.Errorf("%s: %w", wrong[0].name(), ErrInexact)
}
