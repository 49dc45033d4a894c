// Package lead lets one process of the cluster do what must have one doer. The
// right to do it is an advisory lock of PostgreSQL that lives as long as its
// connection, so a killed leader is replaced within seconds. README.md beside
// this file says what is not guaranteed.
package lead

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/coder/quartz"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stowage-dev/stowage/internal/pgdb"
)

// Config of a Candidate.
type Config struct {
	// Class and Key name the lock in the two-int key space.
	Class, Key int32
	// Interval is how often a follower asks for the lock, and a leader whether
	// its connection lives.
	Interval time.Duration
	// Timeout is how long either waits for the answer.
	Timeout time.Duration
}

// grace is how long a new leader waits before its term: longer than the former
// one, whose connection broke, needs to notice it and to end its own.
func (c Config) grace() time.Duration { return 2*c.Interval + c.Timeout }

// Candidate is one process that may lead.
type Candidate struct {
	pool  *pgxpool.Pool
	clock quartz.Clock
	log   *slog.Logger
	cfg   Config
}

// New makes a Candidate. It takes one connection of the pool while it leads.
func New(pool *pgxpool.Pool, clock quartz.Clock, log *slog.Logger, cfg Config) *Candidate {
	return &Candidate{pool: pool, clock: clock, log: log, cfg: cfg}
}

// errLost is the cause of a term's end when the lock was lost.
var errLost = errors.New("leadership lost")

// Run campaigns until ctx ends and calls term each time it leads. The context
// of a term ends when the leadership is lost or ctx ends; the lock is given
// back only after term has returned, so a term must return promptly.
func (c *Candidate) Run(ctx context.Context, term func(ctx context.Context)) {
	for ctx.Err() == nil {
		if err := c.campaign(ctx, term); err != nil && ctx.Err() == nil {
			c.log.WarnContext(ctx, "cannot lead", "error", err)
		}
		c.wait(ctx, c.cfg.Interval, "campaign")
	}
}

// campaign asks for the lock once and leads if it gets it.
func (c *Candidate) campaign(ctx context.Context, term func(ctx context.Context)) error {
	hold, held, err := c.tryHold(ctx)
	if err != nil || !held {
		return err
	}
	defer hold.Release(ctx)
	return c.lead(ctx, hold, term)
}

func (c *Candidate) tryHold(ctx context.Context) (*pgdb.Hold, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return pgdb.TryHold(ctx, c.pool, c.cfg.Class, c.cfg.Key)
}

// lead runs a term while it watches the lock.
func (c *Candidate) lead(ctx context.Context, hold *pgdb.Hold, term func(ctx context.Context)) error {
	ctx, end := context.WithCancelCause(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		end(c.watch(ctx, hold))
	}()
	c.wait(ctx, c.cfg.grace(), "grace")
	if ctx.Err() == nil {
		c.log.InfoContext(ctx, "this process leads")
		term(ctx)
		c.log.InfoContext(ctx, "this process leads no longer", "cause", context.Cause(ctx))
	}
	end(nil)
	<-watched
	if cause := context.Cause(ctx); errors.Is(cause, errLost) {
		return cause
	}
	return nil
}

// watch returns why the term ends: the lock is lost, or ctx has ended.
func (c *Candidate) watch(ctx context.Context, hold *pgdb.Hold) error {
	for {
		c.wait(ctx, c.cfg.Interval, "watch")
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err := c.alive(ctx, hold); err != nil {
			return fmt.Errorf("%w: %w", errLost, err)
		}
	}
}

func (c *Candidate) alive(ctx context.Context, hold *pgdb.Hold) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	return hold.Alive(ctx)
}

func (c *Candidate) wait(ctx context.Context, d time.Duration, tag string) {
	timer := c.clock.NewTimer(d, "lead", tag)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
