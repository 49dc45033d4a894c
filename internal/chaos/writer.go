package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/internal/redisconn"
)

const (
	// longestPause is how long a writer rests at most after an error.
	longestPause = 200 * time.Millisecond
	// operationTimeout is far above the longest outage: an operation that runs
	// into it hangs.
	operationTimeout = 60 * time.Second
	// writerClose is how long a writer may take to write its last requests. A
	// program that is told to stop is killed after ten seconds.
	writerClose = 8 * time.Second
)

// WriterConfig is what a writer's process is told.
type WriterConfig struct {
	DatabaseURL  string
	RedisAddress string
	// Seed of the storm, and the writer's number, which no other process of the
	// storm has.
	Seed   uint64
	Number int
	// Out takes the events, unbuffered; Log is for people.
	Out io.Writer
	Log io.Writer
}

// Write is the life of a writer: a registry that does one thing after the other
// through the client, survives outages, and tells of each. It ends with ctx,
// after the operation under way, and fails only if it cannot write the requests
// that it owes.
func Write(ctx context.Context, cfg WriterConfig) error {
	w := &writer{
		cfg: cfg, rng: rand.New(rand.NewPCG(cfg.Seed, uint64(cfg.Number))),
		metrics: prometheus.NewRegistry(), events: json.NewEncoder(cfg.Out),
	}
	pool, err := pgdb.NewPool(ctx, cfg.DatabaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	redis, spaces, err := w.reach(ctx, pool)
	if err != nil {
		return nil // told to end before both servers had answered
	}
	defer redis.Close()
	w.db, err = entdb.New(entdb.Config{Pool: pool, Redis: redis, Logger: w.logger(), Registerer: w.metrics})
	if err != nil {
		return err
	}
	w.work(ctx, newRegistry(w.db, w.rng, spaces, cfg.Number))
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), writerClose)
	defer cancel()
	if err := w.db.Close(closing); err != nil {
		return err
	}
	w.tell(event{Kind: eventClosed})
	return nil
}

type writer struct {
	cfg     WriterConfig
	rng     *rand.Rand
	db      *entdb.Client
	metrics *prometheus.Registry
	events  *json.Encoder
	// owes says that a request may wait in memory.
	owes bool
}

// reach tries until both servers have answered once.
func (w *writer) reach(ctx context.Context, pool *pgxpool.Pool) (rueidis.Client, []space, error) {
	for {
		spaces, err := loadSpaces(ctx, pool)
		if err == nil {
			var client rueidis.Client
			client, err = redisconn.Open(rueidis.ClientOption{InitAddress: []string{w.cfg.RedisAddress}}, "stowage-writer")
			if err == nil {
				return client, spaces, nil
			}
		}
		if w.rest(ctx); ctx.Err() != nil {
			return nil, nil, err
		}
	}
}

func (w *writer) rest(ctx context.Context) {
	timer := time.NewTimer(longestPause/4 + rand.N(longestPause*3/4))
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

func (w *writer) work(ctx context.Context, r *registry) {
	for ctx.Err() == nil {
		op := r.next()
		w.tell(event{Kind: eventBegin, Operation: op.name, Namespaces: op.namespaces})
		end := w.do(ctx, op)
		w.tell(end)
		w.settleDebts()
		if end.Outcome != outcomeDone && end.Outcome != outcomeRefused {
			w.rest(ctx)
		}
	}
}

// do runs an operation to its end, also when the writer is told to stop.
func (w *writer) do(ctx context.Context, op operation) event {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), operationTimeout)
	defer cancel()
	began := time.Now()
	err := op.run(ctx)
	end := event{Kind: eventEnd, Micros: time.Since(began).Microseconds(), Outcome: classify(err)}
	if err != nil {
		end.Text = err.Error()
	}
	return end
}

// classify says what an error means in a storm. What it does not know is wrong.
func classify(err error) outcome {
	var server *pgconn.PgError
	var network net.Error
	switch {
	case err == nil:
		return outcomeDone
	case errors.Is(err, errInconsistent), errors.Is(err, context.DeadlineExceeded):
		return outcomeWrong
	case errors.Is(err, entpublish.ErrNotFound), errors.Is(err, entpublish.ErrConflict):
		return outcomeRefused
	case errors.Is(err, entdb.ErrCommitUnknown):
		return outcomeUnknown
	case errors.As(err, &server):
		if server.Code == "40P01" {
			return outcomeDeadlock
		}
		if server.SeverityUnlocalized == "FATAL" {
			return outcomeBroken
		}
		return outcomeWrong
	case errors.As(err, &network), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, pgconn.ErrConnClosed),
		pgconn.SafeToRetry(err), errors.Is(err, pgx.ErrTxClosed):
		return outcomeBroken
	default:
		return outcomeWrong
	}
}

// tell writes the event in one piece. Nobody can be told if that fails: the
// storm is over then.
func (w *writer) tell(e event) { _ = w.events.Encode(e) }

// settleDebts tells once that nothing waits in memory any more. Requests are
// added by operations only, which run one after the other: none can be added
// meanwhile.
func (w *writer) settleDebts() {
	if w.owes && w.unwritten() == 0 {
		w.owes = false
		w.tell(event{Kind: eventRequested})
	}
}

func (w *writer) unwritten() float64 {
	families, err := w.metrics.Gather()
	if err != nil {
		return 1
	}
	for _, family := range families {
		if family.GetName() == "stowage_reconciliation_requests_unwritten" {
			return family.GetMetric()[0].GetGauge().GetValue()
		}
	}
	return 1
}

// logger is the client's. It logs what could not be emitted, with the
// namespace, before it makes the request.
func (w *writer) logger() *slog.Logger {
	return slog.New(&debtHandler{Handler: slog.NewTextHandler(w.cfg.Log, nil), writer: w})
}

type debtHandler struct {
	slog.Handler
	writer *writer
}

// Handle tells of debts. Only the operation under way logs with a namespace,
// in the writer's own goroutine.
func (h *debtHandler) Handle(ctx context.Context, record slog.Record) error {
	record.Attrs(func(attr slog.Attr) bool {
		namespace, ok := attr.Value.Any().(uuid.UUID)
		if ok && attr.Key == "namespace_id" {
			h.writer.owes = true
			h.writer.tell(event{Kind: eventUnsent, Namespaces: []uuid.UUID{namespace}})
		}
		return true
	})
	if err := h.Handler.Handle(ctx, record); err != nil {
		return fmt.Errorf("log: %w", err)
	}
	return nil
}
