package jobqueue

import (
	"context"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/metrics"
)

func TestSample(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	insert := func(kind, state, rest string) {
		c.exec(`INSERT INTO river.river_job (kind, args, max_attempts, state, scheduled_at, finalized_at)
			SELECT $1, '{}', 1, $2::text::river.river_job_state, `+rest, kind, state)
	}
	insert("a", "available", `now() - interval '90 seconds', NULL`)
	insert("a", "available", `now() - interval '10 seconds', NULL`)
	insert("a", "retryable", `now() + interval '1 hour', NULL`)
	insert("a", "completed", `now() - interval '1 day', now()`)
	insert("b", "discarded", `now() - interval '1 day', now() - interval '59 minutes'`)
	insert("b", "discarded", `now() - interval '1 day', now() - interval '61 minutes'`)
	m := metrics.New(prometheus.NewRegistry())
	s := &sampler{pool: c.pool, metrics: m, shown: map[jobGroup]bool{}}
	require.NoError(t, s.Work(t.Context(), nil))
	require.EqualValues(t, 2, testutil.ToFloat64(m.Jobs.WithLabelValues("a", "available")))
	require.EqualValues(t, 1, testutil.ToFloat64(m.Jobs.WithLabelValues("a", "retryable")))
	require.InDelta(t, 90, testutil.ToFloat64(m.JobsOldest.WithLabelValues("a")), 60)
	require.GreaterOrEqual(t, testutil.ToFloat64(m.JobsOldest.WithLabelValues("a")), 90.0)
	require.EqualValues(t, 1, testutil.ToFloat64(m.JobsDiscarded.WithLabelValues("b")), "within the last hour")
	require.Equal(t, 2, testutil.CollectAndCount(m.Jobs), "what is over is no job")

	c.exec(`DELETE FROM river.river_job`)
	require.NoError(t, s.Work(t.Context(), nil))
	require.Zero(t, testutil.ToFloat64(m.Jobs.WithLabelValues("a", "available")))
	require.Zero(t, testutil.ToFloat64(m.JobsOldest.WithLabelValues("a")))
	require.Zero(t, testutil.ToFloat64(m.JobsDiscarded.WithLabelValues("b")))
}

func TestAC29SampleIsRare(t *testing.T) {
	t.Parallel()
	for _, e := range schedule(fastConfig()) {
		if e.args.Kind() == (SampleArgs{}).Kind() {
			require.GreaterOrEqual(t, e.every, 15*time.Second)
			return
		}
	}
	require.Fail(t, "not scheduled")
}

func TestRescuedJobsAreCounted(t *testing.T) {
	t.Parallel()
	m := metrics.New(prometheus.NewRegistry())
	q := &Queue{deps: Deps{Metrics: m}}
	ran := 0
	work := func(context.Context) error { ran++; return nil }
	for _, errs := range [][]string{nil, {"boom"}, {rescued}, {rescued, "boom"}, {"boom", rescued}} {
		job := &rivertype.JobRow{Kind: "a"}
		for _, text := range errs {
			job.Errors = append(job.Errors, rivertype.AttemptError{Error: text})
		}
		require.NoError(t, q.countRescued(t.Context(), job, work))
	}
	require.Equal(t, 5, ran)
	require.EqualValues(t, 2, testutil.ToFloat64(m.JobsRescued.WithLabelValues("a")))
}
