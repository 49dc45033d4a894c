package reconcile

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/requests"
)

// client inserts jobs and works none.
func (w *world) client() *river.Client[pgx.Tx] {
	w.t.Helper()
	client, err := river.NewClient(riverpgxv5.New(w.pool), &river.Config{Schema: "river"})
	require.NoError(w.t, err)
	return client
}

// newTrigger reads small pages, so that pages matter.
func (w *world) newTrigger(limit int) *Trigger {
	cfg := testConfig()
	cfg.MaxInFlight = limit
	trigger := NewTrigger(w.deps(w.pool), cfg)
	trigger.page = 3
	return trigger
}

// searching is a trigger with ten places that looks through so many namespaces for
// those without a statistics row.
func (w *world) searching(n int) *Trigger {
	trigger := w.newTrigger(1)
	trigger.search = n
	return trigger
}

// run is how many jobs a trigger makes.
func (w *world) run(trigger *Trigger) int {
	w.t.Helper()
	made, err := trigger.Run(context.Background(), w.client())
	require.NoError(w.t, err)
	return made
}

// trigger runs a new one.
func (w *world) trigger(limit int) int {
	w.t.Helper()
	return w.run(w.newTrigger(limit))
}

// complete is what the passes of all jobs do.
func (w *world) complete() {
	w.t.Helper()
	w.exec(`UPDATE river.river_job SET state = 'completed', finalized_at = now()`)
	w.exec(`INSERT INTO namespace_statistics (namespace_id, last_reconciled_at) SELECT (args ->> 'namespace_id')::uuid, now() FROM river.river_job ON CONFLICT DO NOTHING`)
}

// someNamespaces are n in the order of their ids.
func (w *world) someNamespaces(n int) []uuid.UUID {
	w.t.Helper()
	all := make([]uuid.UUID, n)
	for i := range all {
		all[i] = w.namespace()
	}
	return all
}

// jobs are the namespaces that have a job, in the order of insertion.
func (w *world) jobs() []uuid.UUID {
	w.t.Helper()
	rows, err := w.pool.Query(context.Background(), `SELECT (args ->> 'namespace_id')::uuid FROM river.river_job ORDER BY id`)
	require.NoError(w.t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	require.NoError(w.t, err)
	return ids
}

func (w *world) request(namespaces ...uuid.UUID) {
	w.t.Helper()
	for _, namespace := range namespaces {
		require.NoError(w.t, requests.Raise(context.Background(), w.pool, []requests.Request{{Namespace: namespace}}))
	}
}

func (w *world) fresh(namespaces ...uuid.UUID) {
	w.t.Helper()
	w.exec(`UPDATE namespace_statistics SET last_reconciled_at = now() WHERE namespace_id = ANY ($1)`, namespaces)
}

func TestTrigger(t *testing.T) {
	t.Parallel()

	t.Run("AC22 one job per candidate, at most ten times the limit outstanding", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.namespaces(25)
		require.Equal(t, 20, w.trigger(2))
		require.Zero(t, w.trigger(2), "no place is free")
		w.exec(`UPDATE river.river_job SET state = 'completed', finalized_at = now() WHERE id IN (SELECT min(id) FROM river.river_job)`)
		w.fresh(w.jobs()[0])
		require.Equal(t, 1, w.trigger(2), "the place of a finished job is filled again")
		require.Equal(t, 4, w.trigger(3), "nothing is left but what has no job")
		seen := map[uuid.UUID]bool{}
		for _, id := range w.jobs() {
			require.False(t, seen[id], "two jobs for a namespace")
			seen[id] = true
		}
		require.Len(t, seen, 25)
	})

	t.Run("requests come first, the oldest before the others, then stale ones, the longest first", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		older, old, requested, urgent := w.namespace(), w.namespace(), w.namespace(), w.namespace()
		w.exec(`UPDATE namespace_statistics SET last_reconciled_at = now() - interval '2 hours' WHERE namespace_id = $1`, old)
		w.fresh(requested, urgent)
		w.request(urgent, requested)
		require.Equal(t, 4, w.trigger(1))
		require.Equal(t, []uuid.UUID{urgent, requested, older, old}, w.jobs())
	})

	t.Run("AC23 a namespace without a statistics row is selected, after the others", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		missing := []uuid.UUID{w.namespace(), w.namespace(), w.namespace(), w.namespace()}
		w.exec(`DELETE FROM namespace_statistics`)
		stale, fresh := w.namespace(), w.namespace()
		w.fresh(fresh)
		require.Equal(t, 5, w.trigger(1))
		require.Equal(t, append([]uuid.UUID{stale}, missing...), w.jobs())
	})

	t.Run("AC23 those without a row are found part by part", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		all := w.someNamespaces(50)
		w.fresh(all...)
		w.exec(`DELETE FROM namespace_statistics WHERE namespace_id = ANY ($1)`, slices.Concat(all[:2], all[10:30], all[49:]))
		trigger := w.searching(7)
		for _, want := range [][]uuid.UUID{all[:2], all[10:14], all[14:21], all[21:28], all[28:30], nil, nil, all[49:], nil} {
			before := len(w.jobs())
			require.Len(t, want, w.run(trigger))
			require.ElementsMatch(t, want, w.jobs()[before:])
			w.complete()
		}
		w.exec(`DELETE FROM namespace_statistics WHERE namespace_id = ANY ($1)`, all[7:9])
		w.run(trigger)
		require.Equal(t, all[7:9], w.jobs()[23:], "the end has come, so the next one began anew")
	})

	t.Run("AC23 those that find no place are found by the next trigger", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		all := w.someNamespaces(24)
		w.exec(`DELETE FROM namespace_statistics`)
		trigger := w.searching(20)
		for _, want := range [][]uuid.UUID{all[:10], all[10:20], all[20:]} {
			w.run(trigger)
			require.Zero(t, w.run(trigger), "no place is free, or none is left")
			require.Equal(t, want, w.jobs()[len(w.jobs())-len(want):])
			w.complete()
		}
	})

	t.Run("AC23 those whose jobs could not be made are found again", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		all := w.someNamespaces(5)
		w.exec(`DELETE FROM namespace_statistics`)
		trigger := w.searching(3)
		w.exec(`ALTER TABLE river.river_job ADD CONSTRAINT full_up CHECK (false)`)
		_, err := trigger.Run(t.Context(), w.client())
		require.Error(t, err)
		w.exec(`ALTER TABLE river.river_job DROP CONSTRAINT full_up`)
		w.run(trigger)
		require.Equal(t, all[:3], w.jobs())
	})

	t.Run("AC27 only stale namespaces are selected", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		stale, fresh := w.namespace(), w.namespace()
		w.exec(`UPDATE namespace_statistics SET last_reconciled_at = now() - interval '61 minutes' WHERE namespace_id = $1`, stale)
		w.exec(`UPDATE namespace_statistics SET last_reconciled_at = now() - interval '59 minutes' WHERE namespace_id = $1`, fresh)
		require.Equal(t, 1, w.trigger(1))
		require.Equal(t, []uuid.UUID{stale}, w.jobs())
	})

	t.Run("AC27 pages cover a tie of any size once", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.namespaces(50)
		w.exec(`UPDATE namespace_statistics SET last_reconciled_at = '2020-01-01' WHERE namespace_id IN (SELECT namespace_id FROM namespace_statistics LIMIT 20)`)
		var read []cursor
		page := func(ctx context.Context, after cursor, limit int) ([]cursor, error) {
			rows, err := stale(w.pool, time.Hour)(ctx, after, limit)
			read = append(read, rows...)
			return rows, err
		}
		picked, err := pick(t.Context(), page, 7, math.MaxInt, map[uuid.UUID]bool{})
		require.NoError(t, err)
		require.Len(t, picked, 50)
		require.Len(t, read, 50, "a row was read twice")
		for i := range read[1:] {
			require.GreaterOrEqual(t, read[i+1].At, read[i].At, "the longest stale must come first")
		}
	})

	t.Run("AC28 a namespace has at most one outstanding job, in whichever state", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		namespace := w.namespace()
		client := w.client()
		insert := func() bool {
			result, err := client.Insert(t.Context(), NamespaceArgs{NamespaceID: namespace}, nil)
			require.NoError(t, err)
			return !result.UniqueSkippedAsDuplicate
		}
		require.True(t, insert())
		for _, state := range []rivertype.JobState{"available", "pending", "running", "scheduled", "retryable"} {
			w.exec(`UPDATE river.river_job SET state = $1`, state)
			require.False(t, insert(), state)
			require.Zero(t, w.trigger(1), state)
		}
		w.exec(`UPDATE river.river_job SET state = 'completed', finalized_at = now()`)
		require.True(t, insert())
	})

	t.Run("a request made while the namespace's job runs is taken by a later trigger", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		namespace := w.namespace()
		require.Equal(t, 1, w.trigger(1))
		w.exec(`UPDATE river.river_job SET state = 'running'`)
		w.request(namespace)
		require.Zero(t, w.trigger(1))
		w.exec(`UPDATE river.river_job SET state = 'completed', finalized_at = now()`)
		w.fresh(namespace)
		require.Equal(t, 1, w.trigger(1))
	})

	t.Run("E21 namespaces in back-off take no place from the others", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.namespaces(10)
		require.Equal(t, 10, w.trigger(1))
		w.exec(`UPDATE river.river_job SET state = 'retryable'`)
		w.namespaces(1)
		require.Equal(t, 1, w.trigger(1))
	})

	t.Run("a second trigger at the same time does nothing", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		w.namespaces(1)
		tx, err := w.pool.Begin(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
		alone, err := lockTrigger(t.Context(), tx)
		require.NoError(t, err)
		require.True(t, alone)
		require.Zero(t, w.trigger(1))
		require.NoError(t, tx.Rollback(t.Context()))
		require.Equal(t, 1, w.trigger(1))
	})
}

func TestSlots(t *testing.T) {
	t.Parallel()

	// Two processes with a limit of two: one pass of each stands still with its
	// slot.
	t.Run("AC24 AC34 the limit holds over processes, also when one is killed, and a pass without a slot is put back", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		cfg := testConfig()
		cfg.MaxInFlight = 2
		standing, goOn := context.WithCancel(context.Background())
		process := func() (*tracer, *Namespace, *started) {
			namespace := w.namespace()
			w.publish(namespace, w.hosted(namespace), schematype.FormatNPM, 1)
			stands := make(chan struct{})
			tr := &tracer{before: once("FROM repositories r", func() { close(stands); <-standing.Done() })}
			worker := NewNamespace(w.deps(w.traced(tr)), cfg)
			t.Cleanup(goOn) // before the pool is closed, which waits for the pass
			pass := startPass(t.Context(), worker, namespace)
			<-stands
			return tr, worker, pass
		}
		killed, _, dead := process()
		_, alive, other := process()
		require.EqualValues(t, 1, testutil.ToFloat64(alive.Metrics.ReconciliationInFlight))

		late := w.namespace()
		job := &river.Job[NamespaceArgs]{Args: NamespaceArgs{NamespaceID: late}}
		third := NewNamespace(w.deps(w.pool), cfg)
		for range 5 {
			var snooze *rivertype.JobSnoozeError
			require.ErrorAs(t, third.Work(t.Context(), job), &snooze, "a third pass ran")
			require.Positive(t, snooze.Duration)
		}
		require.EqualValues(t, 5, testutil.ToFloat64(third.Metrics.ReconciliationPasses.WithLabelValues(metrics.PassSaturated)))

		w.kill(killed)
		require.NoError(t, third.Work(t.Context(), job), "the slot of a killed process is free at once")
		require.NotZero(t, w.statistics(late).L)

		goOn()
		<-dead.done
		require.Error(t, dead.err, "a pass whose slot is gone must not go on")
		require.Equal(t, metrics.PassDone, other.wait(t).Result)
		require.Equal(t, 2, w.count(`SELECT count(*) FROM namespace_statistics WHERE last_reconciled_at > 'epoch'`))
	})

	t.Run("AC24 a pass that lost only its slot's connection writes nothing", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		namespace := w.namespace()
		repository := w.hosted(namespace)
		w.publish(namespace, repository, schematype.FormatNPM, 1)
		worker := NewNamespace(w.deps(w.traced(&tracer{before: once("FROM repositories r", func() {
			w.exec(`SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND classid = $1::bigint::oid
				AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, classSlot)
		})})), testConfig())
		_, err := worker.Reconcile(t.Context(), namespace)
		require.ErrorContains(t, err, "slot of the pass")
		require.Zero(t, w.repositoryRow(repository).L)
		require.Zero(t, w.statistics(namespace).L)
	})

	t.Run("E21 a namespace that can never be reconciled keeps no slot and counters go on", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		cfg := testConfig()
		cfg.MaxInFlight = 1
		worker := NewNamespace(w.deps(w.pool), cfg)
		poisoned, other := w.namespace(), w.namespace()
		repository := w.hosted(poisoned)
		w.exec(`INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes)
			SELECT $1, sha256(n::text::bytea), 1::bigint << 50 FROM generate_series(1, 8192) AS n`, poisoned)
		for range 3 {
			_, err := worker.Reconcile(t.Context(), poisoned)
			require.ErrorIs(t, err, ErrOverflow)
		}
		pass, err := worker.Reconcile(t.Context(), other)
		require.NoError(t, err)
		require.Equal(t, metrics.PassDone, pass.Result)

		before := w.statistics(poisoned)
		w.drain(w.write(poisoned, repository, 8))
		require.Equal(t, before.Bytes+8, w.statistics(poisoned).Bytes)
		backlog, _, err := NewBacklog(w.deps(w.pool), testConfig()).Count(t.Context())
		require.NoError(t, err)
		require.EqualValues(t, 1, backlog, "it is visible in the backlog")
	})
}

func TestE21BackOff(t *testing.T) {
	t.Parallel()
	worker := NewNamespace(Deps{}, Config{})
	last := time.Duration(0)
	for attempt := 1; attempt <= maxAttempts; attempt++ {
		pause := time.Until(worker.NextRetry(&river.Job[NamespaceArgs]{JobRow: &rivertype.JobRow{Attempt: attempt}}))
		require.Positive(t, pause)
		require.LessOrEqual(t, pause, time.Hour)
		last = pause
	}
	require.Greater(t, last, 29*time.Minute)
}

func TestBacklog(t *testing.T) {
	t.Parallel()

	t.Run("AC29 the count is exact: stale, requested and without a row, each namespace once", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		missing := w.namespace()
		w.exec(`DELETE FROM namespace_statistics`)
		stale, fresh, requested := w.namespace(), w.namespace(), w.namespace()
		w.fresh(fresh, requested)
		w.request(missing, stale, requested, newID())

		d := w.deps(w.pool)
		reg := prometheus.NewRegistry()
		d.Metrics = metrics.New(reg)
		require.Empty(t, gathered(t, reg, "stowage_reconciliation_backlog"), "no value before the first count")
		worker := NewBacklog(d, testConfig())
		require.NoError(t, worker.Work(t.Context(), nil))
		require.Equal(t, []float64{3}, gathered(t, reg, "stowage_reconciliation_backlog"))
	})

	t.Run("AC29 a count that ends after the leadership is not exported", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		ctx, cancel := context.WithCancel(t.Context())
		d := w.deps(w.traced(&tracer{after: once("reconciliation_requests JOIN", cancel)}))
		reg := prometheus.NewRegistry()
		d.Metrics = metrics.New(reg)
		require.Error(t, NewBacklog(d, testConfig()).Work(ctx, nil))
		require.Empty(t, gathered(t, reg, "stowage_reconciliation_backlog"))
	})

	t.Run("AC29 the count is under a statement timeout", func(t *testing.T) {
		t.Parallel()
		w := newWorld(t)
		var timeout string
		pool := w.traced(&tracer{})
		require.NoError(t, inBacklog(t.Context(), pool, func(tx pgx.Tx) error {
			return tx.QueryRow(t.Context(), `SHOW statement_timeout`).Scan(&timeout)
		}))
		require.Equal(t, "20s", timeout)
	})
}

// gathered are the values of a gauge in an exposition: none or one.
func gathered(t *testing.T, reg *prometheus.Registry, name string) []float64 {
	t.Helper()
	families, err := reg.Gather()
	require.NoError(t, err)
	var values []float64
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				values = append(values, m.GetGauge().GetValue())
			}
		}
	}
	return values
}
