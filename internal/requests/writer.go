package requests

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

const (
	// writeTimeout bounds one attempt to write.
	writeTimeout = 10 * time.Second
	// The pause after a failed attempt doubles from the first to the last. The
	// last is short, because an outage shall be healed within a minute of its
	// end.
	firstPause = 200 * time.Millisecond
	lastPause  = 10 * time.Second
)

// Writer writes requests in the background, for callers that must not wait: a
// write of the registry succeeds also when its delta could not be emitted. It
// keeps one request for each namespace in memory until it is written, however
// long that takes. If the process is killed before, the request is lost, and
// the namespace's next scheduled reconciliation heals it.
type Writer struct {
	db      pgdb.DB
	metrics *metrics.Metrics
	log     *slog.Logger
	clock   quartz.Clock

	mu      sync.Mutex
	waiting map[uuid.UUID]accounting.Marker
	writing map[uuid.UUID]accounting.Marker
	later   map[uuid.UUID]*quartz.Timer

	wake    chan struct{}
	closing chan struct{}
	// interrupt is closing until the goroutine has once seen it.
	interrupt <-chan struct{}
	closed    sync.Once
	done      chan struct{}
	cancel    context.CancelFunc
}

// NewWriter starts a writer. Close it.
func NewWriter(db pgdb.DB, m *metrics.Metrics, log *slog.Logger, clock quartz.Clock) *Writer {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Writer{
		db: db, metrics: m, log: log, clock: clock,
		waiting: map[uuid.UUID]accounting.Marker{},
		later:   map[uuid.UUID]*quartz.Timer{},
		wake:    make(chan struct{}, 1),
		closing: make(chan struct{}),
		done:    make(chan struct{}),
		cancel:  cancel,
	}
	w.interrupt = w.closing
	go w.run(ctx)
	return w
}

// Add asks for the request to be written. It never blocks and never fails.
func (w *Writer) Add(r Request) {
	w.mu.Lock()
	merge(w.waiting, r.Namespace, r.Marker)
	w.report()
	w.mu.Unlock()
	select {
	case w.wake <- struct{}{}:
	default: // A wake-up is pending already, and it will see this request.
	}
}

// AddLater asks for the request to be written after the delay. A second one for
// the same namespace takes the place of the first. Close drops those whose time
// has not come.
func (w *Writer) AddLater(r Request, delay time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if earlier := w.later[r.Namespace]; earlier != nil {
		earlier.Stop()
	}
	var timer *quartz.Timer
	timer = w.clock.AfterFunc(delay, func() {
		w.forgetLater(r.Namespace, timer)
		w.Add(r)
	}, "requests", "later")
	w.later[r.Namespace] = timer
}

// forgetLater forgets a timer whose time has come, unless another one has taken
// its place.
func (w *Writer) forgetLater(namespace uuid.UUID, timer *quartz.Timer) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.later[namespace] == timer {
		delete(w.later, namespace)
	}
}

func (w *Writer) dropLater() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, timer := range w.later {
		timer.Stop()
	}
}

// Close writes what waits and ends the writer. When ctx ends first, it returns
// an error that says how many requests were not written. Nothing may be added
// after Close.
func (w *Writer) Close(ctx context.Context) error {
	w.dropLater()
	w.closed.Do(func() { close(w.closing) })
	select {
	case <-w.done:
	case <-ctx.Done():
	}
	w.cancel()
	<-w.done
	if n := w.unwritten(); n > 0 {
		return fmt.Errorf("%d reconciliation requests were not written (%w): their namespaces are healed by the next scheduled reconciliation", n, context.Cause(ctx))
	}
	return nil
}

// run writes whenever something waits, until the writer is closed and nothing
// waits any more, or ctx is cancelled.
func (w *Writer) run(ctx context.Context) {
	defer close(w.done)
	for closing := false; !closing; {
		select {
		case <-w.wake:
		case <-w.closing:
			closing = true
		}
		w.writeAll(ctx)
	}
}

// writeAll writes until nothing waits, pausing after each failure.
func (w *Writer) writeAll(ctx context.Context) {
	pause := firstPause
	for ctx.Err() == nil && w.take() {
		err := w.write(ctx)
		w.settle(err)
		if err == nil {
			pause = firstPause
			continue
		}
		w.log.WarnContext(ctx, "reconciliation requests not written, will retry", "requests", w.unwritten(), "pause", pause, "error", err)
		pause = w.sleep(ctx, pause)
	}
}

func (w *Writer) write(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	reqs := make([]Request, 0, len(w.writing))
	for namespace, marker := range w.writing {
		reqs = append(reqs, Request{Namespace: namespace, Marker: marker})
	}
	if err := failpoint.Hit(ctx, failpoint.RequestWaits); err != nil {
		return err
	}
	if err := Raise(ctx, w.db, reqs); err != nil {
		return err
	}
	return failpoint.Hit(ctx, failpoint.RequestWritten)
}

// take moves what waits to what is being written and reports whether there is
// any. A request that is added from now on waits for the next write, even for
// the same namespace: the statement may have read the clock already.
func (w *Writer) take() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.writing, w.waiting = w.waiting, map[uuid.UUID]accounting.Marker{}
	return len(w.writing) > 0
}

// settle forgets what was written, or lets it wait again after an error.
func (w *Writer) settle(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if err != nil {
		for namespace, marker := range w.writing {
			merge(w.waiting, namespace, marker)
		}
	}
	w.writing = nil
	w.report()
}

// sleep waits for the pause to end and returns the next one. Close interrupts
// it, once, so that its deadline is not slept away; from then on the pauses
// are short again.
func (w *Writer) sleep(ctx context.Context, pause time.Duration) time.Duration {
	timer := w.clock.NewTimer(pause, "requests", "pause")
	defer timer.Stop()
	select {
	case <-timer.C:
		return min(2*pause, lastPause)
	case <-w.interrupt:
		w.interrupt = nil
		return firstPause
	case <-ctx.Done():
		return pause
	}
}

func (w *Writer) unwritten() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.waiting) + len(w.writing)
}

// report needs the lock.
func (w *Writer) report() {
	w.metrics.RequestsUnwritten.Set(float64(len(w.waiting) + len(w.writing)))
}

func merge(into map[uuid.UUID]accounting.Marker, namespace uuid.UUID, marker accounting.Marker) {
	into[namespace] = max(into[namespace], marker)
}
