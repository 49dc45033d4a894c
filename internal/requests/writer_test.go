package requests_test

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/requests"
)

type writerBundle struct {
	db      *pgxpool.Pool
	clock   *quartz.Mock
	metrics *metrics.Metrics
	writer  *requests.Writer
}

func setupWriter(t *testing.T) *writerBundle {
	t.Helper()
	b := &writerBundle{
		db:      dbtest.New(t),
		clock:   quartz.NewMock(t),
		metrics: metrics.New(prometheus.NewRegistry()),
	}
	b.writer = requests.NewWriter(b.db, b.metrics, slog.New(slog.DiscardHandler), b.clock)
	t.Cleanup(func() {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		_ = b.writer.Close(ctx) // closed already, unless the test failed before
	})
	return b
}

func (b *writerBundle) unwritten() float64 { return testutil.ToFloat64(b.metrics.RequestsUnwritten) }

// breakTable makes every write fail until the returned function mends it.
func (b *writerBundle) breakTable(t *testing.T) (mend func()) {
	t.Helper()
	_, err := b.db.Exec(t.Context(), `ALTER TABLE reconciliation_requests RENAME TO broken`)
	require.NoError(t, err)
	return func() {
		t.Helper()
		_, err := b.db.Exec(t.Context(), `ALTER TABLE broken RENAME TO reconciliation_requests`)
		require.NoError(t, err)
	}
}

func TestWriter(t *testing.T) {
	t.Parallel()

	t.Run("AC7 writes in the background what was added", func(t *testing.T) {
		t.Parallel()
		b := setupWriter(t)
		namespace := newNamespace(t, b.db)
		b.writer.Add(requests.Request{Namespace: namespace})
		require.Eventually(t, func() bool { return b.unwritten() == 0 }, time.Minute, time.Millisecond)
		require.Contains(t, open(t, b.db), namespace)
		require.NoError(t, b.writer.Close(t.Context()))
	})

	t.Run("AC7 keeps what cannot be written, one a namespace, and retries with growing pauses", func(t *testing.T) {
		t.Parallel()
		b := setupWriter(t)
		first, second := newNamespace(t, b.db), newNamespace(t, b.db)
		mend := b.breakTable(t)
		trap := b.clock.Trap().NewTimer("requests", "pause")
		defer trap.Close()

		b.writer.Add(requests.Request{Namespace: first})
		call := trap.MustWait(t.Context())
		require.Equal(t, 200*time.Millisecond, call.Duration)
		for range 3 {
			b.writer.Add(requests.Request{Namespace: first})
			b.writer.Add(requests.Request{Namespace: second})
		}
		require.EqualValues(t, 2, b.unwritten())
		call.MustRelease(t.Context())

		for _, millis := range []int{400, 800, 1600, 3200, 6400, 10_000, 10_000} {
			_, advanced := b.clock.AdvanceNext()
			advanced.MustWait(t.Context())
			call := trap.MustWait(t.Context())
			require.Equal(t, time.Duration(millis)*time.Millisecond, call.Duration)
			call.MustRelease(t.Context())
		}
		mend()
		_, advanced := b.clock.AdvanceNext()
		advanced.MustWait(t.Context())
		require.Eventually(t, func() bool { return b.unwritten() == 0 }, time.Minute, time.Millisecond)
		require.Len(t, open(t, b.db), 2)
		require.NoError(t, b.writer.Close(t.Context()))
	})

	t.Run("AddLater writes after the delay, and not after Close", func(t *testing.T) {
		t.Parallel()
		b := setupWriter(t)
		first, second := newNamespace(t, b.db), newNamespace(t, b.db)
		b.writer.AddLater(requests.Request{Namespace: first}, time.Second)
		b.writer.AddLater(requests.Request{Namespace: first}, time.Minute) // takes its place
		b.writer.AddLater(requests.Request{Namespace: second}, time.Hour)
		b.clock.Advance(time.Second).MustWait(t.Context())
		require.Zero(t, b.unwritten())
		require.Empty(t, open(t, b.db))
		b.clock.Advance(time.Minute - time.Second).MustWait(t.Context())
		require.Eventually(t, func() bool { return len(open(t, b.db)) == 1 }, time.Minute, time.Millisecond)
		require.Contains(t, open(t, b.db), first)
		require.NoError(t, b.writer.Close(t.Context()))
		b.clock.Advance(time.Hour).MustWait(t.Context())
		require.NotContains(t, open(t, b.db), second)
	})

	t.Run("Close writes what waits, without sleeping the pause away", func(t *testing.T) {
		t.Parallel()
		b := setupWriter(t)
		namespace := newNamespace(t, b.db)
		mend := b.breakTable(t)
		trap := b.clock.Trap().NewTimer("requests", "pause")
		b.writer.Add(requests.Request{Namespace: namespace})
		trap.MustWait(t.Context()).MustRelease(t.Context())
		trap.Close()
		mend()
		require.NoError(t, b.writer.Close(t.Context()), "the clock stands still")
		require.Contains(t, open(t, b.db), namespace)
		require.Zero(t, b.unwritten())
	})

	t.Run("Close says at its deadline what it could not write", func(t *testing.T) {
		t.Parallel()
		b := setupWriter(t)
		b.breakTable(t)
		b.writer.Add(requests.Request{Namespace: uuid.New()})
		b.writer.Add(requests.Request{Namespace: uuid.New()})
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		err := b.writer.Close(ctx)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorContains(t, err, "2 reconciliation requests were not written")
		require.EqualValues(t, 2, b.unwritten())
	})

	t.Run("many may add at once", func(t *testing.T) {
		t.Parallel()
		b := setupWriter(t)
		ids := make([]uuid.UUID, 50)
		for i := range ids {
			ids[i] = uuid.Must(uuid.NewV7())
		}
		var adders sync.WaitGroup
		for range 8 {
			adders.Go(func() {
				for _, id := range ids {
					b.writer.Add(requests.Request{Namespace: id})
				}
			})
		}
		adders.Wait()
		require.NoError(t, b.writer.Close(t.Context()))
		require.Len(t, open(t, b.db), len(ids))
	})
}
