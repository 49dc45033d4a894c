package demo

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/requests"
)

const (
	// waitTimeout is how long the worker may take for what has been done.
	waitTimeout = time.Minute
	// pollInterval is the pause between two looks.
	pollInterval = 50 * time.Millisecond
	// requestInterval is the pause between two requests for reconciliation.
	requestInterval = 100 * time.Millisecond
)

// errTimeout says that the worker did not get on.
var errTimeout = errors.New("the worker did not get on: look at its log")

// poll waits until done is true.
func poll(ctx context.Context, what string, done func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeoutCause(ctx, waitTimeout, fmt.Errorf("%s within %s: %w", what, waitTimeout, errTimeout))
	defer cancel()
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for {
		ok, err := done(ctx)
		if err == nil && ok {
			return nil
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// waitForDrain returns when nothing is buffered and no reconciliation is asked
// for: then the counters hold all that was committed.
func (d *demo) waitForDrain(ctx context.Context) error {
	return poll(ctx, "wait for the drain", func(ctx context.Context) (bool, error) {
		// In this order: a pass leaves nothing in the buffer, while an emission
		// that failed leaves a request.
		requested, err := d.requested(ctx)
		if err != nil || requested {
			return false, err
		}
		return d.drained(ctx, d.everywhere())
	})
}

func (d *demo) requested(ctx context.Context) (bool, error) {
	var open bool
	err := d.Pool.QueryRow(ctx, `SELECT EXISTS (SELECT FROM reconciliation_requests WHERE namespace_id = ANY ($1))`, ids(d.everywhere())).Scan(&open)
	return open, err
}

func (d *demo) drained(ctx context.Context, namespaces []namespace) (bool, error) {
	var scopes []accounting.Scope
	for _, ns := range namespaces {
		scopes = append(scopes, accounting.NamespaceScope(ns.id))
		for _, id := range ns.repositories {
			scopes = append(scopes, accounting.RepositoryScope(ns.id, id))
		}
	}
	pending, err := d.buffer.Pending(ctx, scopes)
	if err != nil {
		return false, err
	}
	for _, p := range pending {
		if p.Flush != nil || len(p.Buffered) > 0 {
			return false, nil
		}
	}
	return len(pending) == len(scopes), nil
}

// everywhere are the namespaces of the data, and those of the cases that have run.
func (d *demo) everywhere() []namespace {
	all := slices.Clone(d.namespaces)
	for _, s := range d.scenarios {
		if s.home.id != uuid.Nil {
			all = append(all, s.home)
		}
	}
	return all
}

func ids(namespaces []namespace) []uuid.UUID {
	ids := make([]uuid.UUID, len(namespaces))
	for i, ns := range namespaces {
		ids[i] = ns.id
	}
	return ids
}

// reconciliations are the starts of the passes whose result each namespace
// holds.
func (d *demo) reconciliations(ctx context.Context) ([]time.Time, error) {
	rows, err := d.Pool.Query(ctx, `SELECT last_reconciled_at FROM namespace_statistics WHERE namespace_id = ANY ($1) ORDER BY namespace_id`, ids(d.namespaces))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[time.Time])
}

// waitForPasses returns when each namespace holds the result of a newer pass.
func (d *demo) waitForPasses(ctx context.Context, since []time.Time) error {
	return poll(ctx, "wait for a reconciliation of each namespace", func(ctx context.Context) (bool, error) {
		now, err := d.reconciliations(ctx)
		if err != nil {
			return false, err
		}
		for i := range since {
			if !now[i].After(since[i]) {
				return false, nil
			}
		}
		return true, nil
	})
}

// keepRequesting raises a request for each namespace again and again, until
// ctx ends, and returns how many passes it saw end meanwhile.
func (d *demo) keepRequesting(ctx context.Context) (passes int, err error) {
	tick := time.NewTicker(requestInterval)
	defer tick.Stop()
	last, err := d.reconciliations(ctx)
	for err == nil {
		select {
		case <-ctx.Done():
			return passes, nil
		case <-tick.C:
			var now []time.Time
			if now, err = d.request(ctx); err == nil {
				passes += changed(last, now)
				last = now
			}
		}
	}
	if ctx.Err() != nil {
		err = nil
	}
	return passes, err
}

// request asks for a reconciliation of each namespace and returns the starts of
// the newest passes.
func (d *demo) request(ctx context.Context) ([]time.Time, error) {
	var asked []requests.Request
	for _, id := range ids(d.namespaces) {
		asked = append(asked, requests.Request{Namespace: id})
	}
	if err := requests.Raise(ctx, d.Pool, asked); err != nil {
		return nil, err
	}
	return d.reconciliations(ctx)
}

func changed(last, now []time.Time) int {
	n := 0
	for i := range now {
		if !now[i].Equal(last[i]) {
			n++
		}
	}
	return n
}
