// Package devstack starts throw-away PostgreSQL and Redis servers from the
// binaries that are installed on this machine, for the demo and for tests. No
// container engine is needed. It works on Linux.
//
// A server listens on a free loopback port, keeps its files in one temporary
// folder, and is gone with them after Close, also when this process is killed.
// README.md says how, and what is not guaranteed.
package devstack

import (
	"context"
	"fmt"
	"time"
)

// startTimeout is how long a server may take until it answers. It is far above
// what a loaded machine was seen to need: a start that fails is noticed at once
// by the end of the process, so only a server that hangs waits this long.
const startTimeout = 60 * time.Second

// pollInterval is the pause between two attempts to reach a starting server.
const pollInterval = 5 * time.Millisecond

// waitReady returns when ping succeeds, and fails when the process ends, ctx
// ends or startTimeout passes. The error carries what the server logged.
func waitReady(ctx context.Context, p *process, ping func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		err := ping(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it answered (%w):\n%s", p.name, p.exitError(), p.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%s did not answer: %w: %w:\n%s", p.name, ctx.Err(), err, p.logTail())
		case <-tick.C:
		}
	}
}
