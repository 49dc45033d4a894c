package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/reconcile"
)

// prepareStall lets the writers publish into a namespace that has versions already,
// and holds the longest publish beside passes against the 99th percentile without.
func prepareStall(ctx context.Context, l *lab) (sides, error) {
	r, err := l.registry(ctx)
	if err != nil {
		return sides{}, err
	}
	if _, err := perSecond(ctx, writers, l.size(8000), func(ctx context.Context, _ int) error { return r.publish(ctx) }); err != nil {
		return sides{}, err
	}
	// A worker's pool is not the writers'.
	pool, err := l.pool(ctx, r.pool.Config().ConnString(), 4)
	if err != nil {
		return sides{}, err
	}
	passes := reconcile.NewNamespace(
		reconcile.Deps{Pool: pool, Buffer: newBuffer(r.redis), Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler)},
		reconcile.Config{MaxInFlight: 1, ChunkSize: 200, Staleness: time.Hour, Timeout: time.Minute, TriggerInterval: time.Minute, Guard: reconcile.DefaultGuard()})
	return sides{
		ours: func(ctx context.Context) (float64, error) { return r.stalled(ctx, l, passes) },
		peer: func(ctx context.Context) (float64, error) {
			took, err := r.durations(ctx, l.size(5000))
			return took[len(took)*99/100], err
		},
	}, nil
}

// durations are those of n publishes in ms, sorted.
func (r *registry) durations(ctx context.Context, n int) ([]float64, error) {
	took := make([]float64, n)
	_, err := perSecond(ctx, writers, n, func(ctx context.Context, i int) error {
		began := time.Now()
		err := r.publish(ctx)
		took[i] = float64(time.Since(began)) / float64(time.Millisecond)
		return err
	})
	slices.Sort(took)
	return took, err
}

// stalled is the longest publish beside one pass after the other.
func (r *registry) stalled(ctx context.Context, l *lab, passes *reconcile.Namespace) (float64, error) {
	var over atomic.Bool
	ended := make(chan error, 1)
	done := 0
	go func() {
		var err error
		// The last one runs to its end, so that there is one at least.
		for err == nil && !over.Load() {
			var pass reconcile.Pass
			if pass, err = passes.Reconcile(ctx, r.namespace); pass.Result == metrics.PassDone {
				done++
			}
		}
		ended <- err
	}()
	took, err := r.durations(ctx, l.size(5000))
	over.Store(true)
	if err := errors.Join(err, <-ended); err != nil {
		return 0, err
	}
	if done == 0 {
		return 0, fmt.Errorf("no pass ended while %d publishes did", len(took))
	}
	l.progress.DebugContext(ctx, "passes", "done", done)
	return took[len(took)-1], nil
}
