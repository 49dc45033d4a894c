package drain

import (
	"context"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
)

// start runs a worker process with its periodic tick until the test ends.
func (b *bundle) start() *river.Client[pgx.Tx] {
	b.t.Helper()
	b.cfg.Interval = 250 * time.Millisecond
	workers := river.NewWorkers()
	river.AddWorker(workers, NewTickWorker(b.cfg, b.deps))
	river.AddWorker(workers, b.worker())
	river.AddWorker(workers, NewSweepWorker(b.deps))
	client, err := river.NewClient(riverpgxv5.New(b.pool), &river.Config{
		Schema: "river", Logger: b.deps.Log, Workers: workers, TestOnly: true,
		FetchCooldown: 10 * time.Millisecond, FetchPollInterval: 50 * time.Millisecond,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 1}, Queue: {MaxWorkers: 2}},
		PeriodicJobs: []*river.PeriodicJob{
			river.NewPeriodicJob(river.PeriodicInterval(b.cfg.Interval), func() (river.JobArgs, *river.InsertOpts) {
				return TickArgs{}, nil
			}, &river.PeriodicJobOpts{RunOnStart: true}),
		},
	})
	require.NoError(b.t, err)
	require.NoError(b.t, client.Start(b.t.Context()))
	b.t.Cleanup(func() { require.NoError(b.t, client.StopAndCancel(context.Background())) })
	return client
}

func TestQueue(t *testing.T) {
	t.Parallel()

	t.Run("AC1 AC2 an increment is in its row after the next tick", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.start()
		for round := range int64(3) {
			b.emit(b.repository, 10)
			b.emit(b.namespace, 7)
			eventually(t, func() bool {
				return b.row(b.repository) == counters(10*(round+1), round+1) && b.row(b.namespace) == counters(7*(round+1), round+1)
			}, "the increments do not arrive")
		}
	})
	t.Run("AC3 increments of 64 writers sum exactly", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.start()
		const writers, increments = 64, 25
		var group errgroup.Group
		for range writers {
			group.Go(func() error {
				for i := range int64(increments) {
					for _, scope := range []accounting.Scope{b.repository, b.namespace} {
						if err := b.tryEmit(t.Context(), scope, i); err != nil {
							return err
						}
					}
				}
				return nil
			})
		}
		require.NoError(t, group.Wait())
		want := counters(writers*increments*(increments-1)/2, writers*increments)
		eventually(t, func() bool { return b.row(b.repository) == want && b.row(b.namespace) == want }, "the sum is not exact")
		eventually(t, func() bool { return b.size() == (buffer.Size{}) }, "the bucket is not drained")
		require.Equal(t, want, b.row(b.repository))
		require.Equal(t, want, b.row(b.namespace))
	})
	t.Run("AC6 E5 a job that fails every attempt loses nothing", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.exec(`ALTER TABLE repositories ADD CONSTRAINT ck_small CHECK (size_bytes < 10)`)
		b.emit(b.repository, 10)
		b.start()
		eventually(t, func() bool {
			var discarded int
			err := b.pool.QueryRow(t.Context(), `SELECT count(*) FROM river.river_job WHERE kind = 'drain_bucket' AND state = 'discarded'`).Scan(&discarded)
			return err == nil && discarded > 1
		}, "no job exhausts its attempts")
		b.exec(`ALTER TABLE repositories DROP CONSTRAINT ck_small`)
		eventually(t, func() bool { return b.row(b.repository) == counters(10, 1) }, "no later tick drains")
	})
	t.Run("AC36 E2 Redis restarts again and again while it is drained", func(t *testing.T) {
		t.Parallel()
		b := newWorld(t).bundle(t, quartz.NewReal(), 100*time.Millisecond)
		b.cfg.ChunkSize = 2
		scopes := []accounting.Scope{b.namespace, b.repository}
		for range 200 {
			scopes = append(scopes, b.newRepository(b.namespace))
		}
		for _, s := range scopes {
			b.emit(s, 3)
		}
		b.start()
		for range 3 {
			before := b.flushes("applied")
			eventually(t, func() bool { return b.flushes("applied") > before || b.flushes("applied") == float64(len(scopes)) }, "nothing is drained")
			b.restart()
		}
		eventually(t, func() bool { return b.flushes("applied") == float64(len(scopes)) }, "not all is drained")
		for _, s := range scopes {
			require.Equal(t, counters(3, 1), b.row(s))
		}
	})
}
