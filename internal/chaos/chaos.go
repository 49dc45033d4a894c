// Package chaos is the storm: processes that write and processes that drain and
// reconcile, on servers that crash, forget and go back in time, and an exact
// comparison when it is over. README.md says what it proves, and what not.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/demo"
	"github.com/stowage-dev/stowage/internal/devstack"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/internal/redisconn"
)

// clientName names the connections of the storm itself, which it does not cut.
const clientName = "stowage-chaos"

// Config is a storm.
type Config struct {
	Duration time.Duration
	// Seed makes the plan and what the writers do; when exactly a process is hit
	// is left to chance.
	Seed uint64
	// Writers and Workers are how many processes there are of each, and
	// Namespaces, at least 2, what they work on.
	Writers, Workers, Namespaces int
	// Postgres has the migrated database, and Redis, which is empty, keeps an
	// append-only file. They are stopped and started, but not closed.
	Postgres *devstack.Postgres
	Redis    *devstack.Redis
	// Worker makes the command of a worker, and Writer that of a writer, which
	// calls Write with the number.
	Worker func() *exec.Cmd
	Writer func(number int) *exec.Cmd
	// Out takes the report, and the progress unless that is a demo.Bar.
	Out      io.Writer
	Progress demo.Progress
}

// ErrFailed says that something was not as it must be. It has been printed.
var ErrFailed = errors.New("the storm has found mistakes")

// storm is one run. All but the witness serves one goroutine.
type storm struct {
	Config

	pool       *pgxpool.Pool
	redis      rueidis.Client
	buffer     *buffer.Buffer
	queue      *river.Client[pgx.Tx]
	witness    *witness
	writers    fleet
	workers    fleet
	namespaces []uuid.UUID

	plan     []step
	injected map[kind]int
	// cutInPostgres and cutInRedis are connections.
	cutInPostgres, cutInRedis int
	// lost is when Redis lost data last.
	lost time.Time
	// seconds have been shown, and passes asked for.
	seconds, asked int
}

// Run rages, heals, compares, and ends with ErrFailed if anything was wrong.
func Run(ctx context.Context, cfg Config) (err error) {
	s := &storm{Config: cfg, plan: makePlan(cfg.Seed, cfg.Duration), injected: make(map[kind]int)}
	s.writers.start, s.workers.start = s.startWriter, s.startWorker
	if err := s.open(ctx); err != nil {
		return err
	}
	defer s.pool.Close()
	defer s.redis.Close()
	defer func() { err = errors.Join(err, s.end()) }()

	fmt.Fprintf(s.Out, "storm of %s with seed %d: %d writers, %d workers, %d namespaces\n", s.Duration, s.Seed, s.Writers, s.Workers, s.Namespaces)
	printPlan(s.Out, s.plan)
	if err := s.prepare(ctx); err != nil {
		return err
	}
	if err := s.rage(ctx); err != nil {
		return err
	}
	return s.examine(ctx)
}

func (s *storm) open(ctx context.Context) (err error) {
	s.pool, err = pgdb.NewPool(ctx, s.Postgres.URL(), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["application_name"] = clientName
	})
	if err != nil {
		return err
	}
	s.queue, err = river.NewClient(riverpgxv5.New(s.pool), &river.Config{Schema: "river", Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		s.redis, err = redisconn.Open(rueidis.ClientOption{InitAddress: []string{s.Redis.Addr()}}, clientName)
	}
	if err != nil {
		s.pool.Close()
		return err
	}
	s.buffer = buffer.New(s.redis, buffer.Config{})
	return nil
}

// end kills what still lives, when the storm is broken off.
func (s *storm) end() error {
	var errs []error
	for _, p := range append(s.writers.members, s.workers.members...) {
		errs = append(errs, p.Kill(), p.Close())
		if p.testimony != nil {
			<-p.testimony.done
		}
	}
	return errors.Join(errs...)
}

// prepare makes what the writers work on, and lets them begin when the workers
// have looked at Redis for the first time: a loss before that is not noticed.
func (s *storm) prepare(ctx context.Context) error {
	if err := s.createNamespaces(ctx); err != nil {
		return err
	}
	s.witness = newWitness()
	if err := s.workers.launch(s.Workers); err != nil {
		return err
	}
	if err := s.wait(ctx, "the workers know Redis", s.noticed); err != nil {
		return err
	}
	s.witness.began = time.Now()
	return s.writers.launch(s.Writers)
}

func (s *storm) createNamespaces(ctx context.Context) (err error) {
	db, err := entdb.New(entdb.Config{
		Pool: s.pool, Emitter: &entdb.Recorder{}, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close(context.WithoutCancel(ctx))) }()
	for n := range s.Namespaces {
		namespace, err := db.Namespace.Create().SetSlug(fmt.Sprintf("storm-%03d", n)).Save(ctx)
		if err != nil {
			return err
		}
		s.namespaces = append(s.namespaces, namespace.ID)
		for _, format := range schematype.Formats() {
			err := db.Repository.Create().SetNamespaceID(namespace.ID).SetName("kept-" + format.String()).
				SetFormat(format).SetKind(schematype.KindHosted).Exec(ctx)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// examine heals and compares three times: before any request is worked off,
// after that, and after one pass over everything.
func (s *storm) examine(ctx context.Context) error {
	began := time.Now()
	healed := func(what string) { fmt.Fprintf(s.Out, "%s after %.1f s\n", what, time.Since(began).Seconds()) }
	if err := s.heal(ctx); err != nil {
		return err
	}
	healed("drained")
	requested, err := s.requested(ctx)
	if err != nil {
		return err
	}
	before, err := s.compare(ctx)
	if err != nil {
		return err
	}
	if err := s.letPassesRun(ctx); err != nil {
		return err
	}
	healed("requested passes done")
	after, err := s.compare(ctx)
	if err != nil {
		return err
	}
	if err := s.passOverAll(ctx); err != nil {
		return err
	}
	healed("passes over all done")
	last, err := s.compare(ctx)
	if err != nil {
		return err
	}
	if err := s.workers.dismiss(s.workerEnded); err != nil {
		return err
	}
	// Leases that a killed worker left run out by themselves.
	err = poll(ctx, waitTimeout, func(ctx context.Context) (bool, error) {
		err := leftover(ctx, s.redis)
		return err == nil, err
	})
	if err != nil {
		return err
	}
	return s.report(ctx, findings{requested: requested, before: before, after: after, last: last})
}

// deadlocks counts those of all processes in the server's log, which unlike its
// statistics outlives a crash.
func (s *storm) deadlocks() (int, error) {
	log, err := os.ReadFile(s.Postgres.LogPath())
	return countDeadlocks(log), err
}
