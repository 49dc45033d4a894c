package lead

import (
	"context"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/internal/dbtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func fast() Config {
	return Config{Class: 1, Key: 2, Interval: 20 * time.Millisecond, Timeout: 2 * time.Second}
}

// process is a candidate on a pool of its own, as another process has.
type process struct {
	t      *testing.T
	pool   *pgxpool.Pool
	cancel context.CancelFunc
	done   chan struct{}
	began  chan context.Context
}

func start(t *testing.T, url string, leaders *atomic.Int32) *process {
	t.Helper()
	pool := dbtest.Open(t, url)
	ctx, cancel := context.WithCancel(context.Background())
	p := &process{t: t, pool: pool, cancel: cancel, done: make(chan struct{}), began: make(chan context.Context, 10)}
	candidate := New(pool, quartz.NewReal(), slog.New(slog.DiscardHandler), fast())
	go func() {
		defer close(p.done)
		candidate.Run(ctx, func(term context.Context) {
			if leaders.Add(1) > 1 {
				t.Error("two terms overlap")
			}
			p.began <- term
			<-term.Done()
			leaders.Add(-1)
		})
	}()
	t.Cleanup(p.stop)
	return p
}

func (p *process) stop() {
	p.cancel()
	<-p.done
}

// leads waits until the process leads.
func (p *process) leads() context.Context {
	p.t.Helper()
	select {
	case term := <-p.began:
		return term
	case <-time.After(30 * time.Second):
		require.FailNow(p.t, "the process does not come to lead")
		return nil
	}
}

// ended waits for the end of a term and returns why it ended.
func ended(t *testing.T, term context.Context) error {
	t.Helper()
	select {
	case <-term.Done():
	case <-time.After(30 * time.Second):
		require.FailNow(t, "the term does not end")
	}
	return context.Cause(term)
}

// breakLock ends the connection that holds the lock, as a kill of its process,
// or a restart of the server, does.
func breakLock(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	_, err := pool.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_locks
		WHERE locktype = 'advisory' AND classid = $1 AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, 1)
	require.NoError(t, err)
}

func TestCandidate(t *testing.T) {
	t.Parallel()

	t.Run("AC29 one process leads, and another when it stops", func(t *testing.T) {
		t.Parallel()
		url := dbtest.NewURL(t)
		var leaders atomic.Int32
		first := start(t, url, &leaders)
		term := first.leads()
		second := start(t, url, &leaders)
		require.NoError(t, term.Err())
		first.stop()
		require.Error(t, term.Err())
		second.leads()
		require.Empty(t, first.began)
	})

	t.Run("AC29 a leader whose connection breaks ends its term, and terms never overlap", func(t *testing.T) {
		t.Parallel()
		url := dbtest.NewURL(t)
		admin := dbtest.Open(t, url)
		var leaders atomic.Int32
		processes := []*process{start(t, url, &leaders), start(t, url, &leaders), start(t, url, &leaders)}
		for range 3 {
			var term context.Context
			select {
			case term = <-processes[0].began:
			case term = <-processes[1].began:
			case term = <-processes[2].began:
			}
			breakLock(t, admin)
			require.ErrorIs(t, ended(t, term), errLost)
		}
	})

	t.Run("AC29 a new leader waits until a former one must have noticed", func(t *testing.T) {
		t.Parallel()
		clock := quartz.NewMock(t)
		trap := clock.Trap().NewTimer("lead", "grace")
		defer trap.Close()
		pool := dbtest.New(t)
		ctx, cancel := context.WithCancel(context.Background())
		began, done := make(chan struct{}), make(chan struct{})
		go func() {
			defer close(done)
			New(pool, clock, slog.New(slog.DiscardHandler), fast()).Run(ctx, func(term context.Context) {
				close(began)
				<-term.Done()
			})
		}()
		t.Cleanup(func() { cancel(); <-done })
		call := trap.MustWait(t.Context())
		call.MustRelease(t.Context())
		// A former leader asks after an interval, and waits for the timeout.
		require.Greater(t, call.Duration, fast().Interval+fast().Timeout)
		select {
		case <-began:
			require.FailNow(t, "the term began at once")
		default:
		}
		for range int(call.Duration / fast().Interval) {
			clock.Advance(fast().Interval).MustWait(t.Context())
		}
		<-began
	})

	t.Run("it keeps trying while PostgreSQL cannot be reached", func(t *testing.T) {
		t.Parallel()
		var leaders atomic.Int32
		url := dbtest.NewURL(t)
		p := start(t, url, &leaders)
		term := p.leads()
		admin := dbtest.Open(t, url)
		_, err := admin.Exec(t.Context(), `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`)
		require.NoError(t, err)
		require.ErrorIs(t, ended(t, term), errLost)
		p.leads()
	})
}
