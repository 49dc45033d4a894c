// Package paced does long work in small steps that leave room for others: a job of
// some seconds at a time, inserted again and again, so that a worker that stops or is
// killed loses one step.
package paced

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coder/quartz"
	"github.com/jackc/pgx/v5"
)

const (
	// Interval is how often a job that calls Run should be inserted: somewhat longer
	// than Run takes, so that a job does not meet its like.
	Interval = 10 * time.Second
	// Timeout is that of such a job: Run and its last step never take so long.
	Timeout = 2 * time.Minute

	slice = 8 * time.Second
	// longestPause bounds the pause after a step, which is as long as the step took:
	// half of the time is left to others.
	longestPause = time.Second

	// lockTimeout keeps a step from making a queue behind it.
	lockTimeout      = 2 * time.Second
	statementTimeout = 30 * time.Second
)

// Step does a small piece of work; goesOn says that there is more of it.
type Step func(ctx context.Context) (goesOn bool, err error)

// Run takes the steps in turn, each again while it goes on, until none does or some
// seconds are over. A step that fails is not taken again, and does not hinder the
// others.
func Run(ctx context.Context, clock quartz.Clock, steps []Step) error {
	var errs []error
	steps = slices.Clone(steps)
	for end := clock.Now().Add(slice); len(steps) > 0 && clock.Now().Before(end); {
		steps = slices.DeleteFunc(steps, func(step Step) bool {
			start := clock.Now()
			goesOn, err := step(ctx)
			if err == nil && goesOn {
				err = pause(ctx, clock, min(clock.Since(start), longestPause))
			}
			errs = append(errs, err)
			return !goesOn || err != nil
		})
	}
	return errors.Join(errs...)
}

func pause(ctx context.Context, clock quartz.Clock, d time.Duration) error {
	timer := clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// SetTimeouts bounds the statements of a step's transaction and their waits for
// locks.
func SetTimeouts(ctx context.Context, tx pgx.Tx) error {
	_, err := tx.Exec(ctx, `SELECT set_config('lock_timeout', $1, true), set_config('statement_timeout', $2, true)`,
		fmt.Sprint(lockTimeout.Milliseconds()), fmt.Sprint(statementTimeout.Milliseconds()))
	return err
}
