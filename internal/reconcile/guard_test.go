package reconcile

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
)

func guardedConfig() Config {
	cfg := testConfig()
	cfg.Guard = Guard{Percent: 50, Bytes: 100, Components: 2, ConfirmAfter: time.Hour}
	return cfg
}

// guarded is a namespace with three repositories of 1,000 bytes each, reconciled.
type guarded struct {
	*world
	namespace    uuid.UUID
	repositories []uuid.UUID
}

func (w *world) guarded() *guarded {
	w.t.Helper()
	g := &guarded{world: w, namespace: w.namespace()}
	for range 3 {
		repository := w.hosted(g.namespace)
		g.repositories = append(g.repositories, repository)
		for range 4 {
			w.publish(g.namespace, repository, schematype.FormatNPM, 250)
		}
	}
	w.reconcile(g.namespace)
	return g
}

// pass runs a pass under the guard.
func (g *guarded) pass() Pass {
	g.t.Helper()
	pass, err := g.passer().Reconcile(context.Background(), g.namespace)
	require.NoError(g.t, err)
	return pass
}

func (g *guarded) passer() *Namespace { return NewNamespace(g.deps(g.pool), guardedConfig()) }

// emptyShadow empties the table by which a namespace's bytes are recounted.
func (g *guarded) emptyShadow() {
	g.t.Helper()
	g.exec(`DELETE FROM blob_storage_blobs_by_namespace WHERE namespace_id = $1`, g.namespace)
}

func (g *guarded) mendShadow() {
	g.t.Helper()
	g.exec(`INSERT INTO blob_storage_blobs_by_namespace (namespace_id, sha256, size_bytes)
		SELECT namespace_id, sha256, size_bytes FROM blob_storage_blobs WHERE namespace_id = $1
		ON CONFLICT DO NOTHING`, g.namespace)
}

// emptyRepository takes the versions of a repository away, past the client.
func (g *guarded) emptyRepository(i int) {
	g.t.Helper()
	g.exec(`DELETE FROM npm_versions WHERE repository_id = $1`, g.repositories[i])
}

// later lets the time pass after which what is held can be confirmed.
func (g *guarded) later() {
	g.t.Helper()
	g.exec(`UPDATE held_corrections SET seen = seen - interval '1 hour', next_pass = now() WHERE namespace_id = $1`, g.namespace)
}

// held are the scopes that are held.
func (g *guarded) held() []uuid.UUID {
	g.t.Helper()
	held, err := HeldOf(context.Background(), g.pool, g.namespace)
	require.NoError(g.t, err)
	var ids []uuid.UUID
	for _, h := range held {
		ids = append(ids, h.Scope.ID)
	}
	return ids
}

// writeAndDrain has a version published, counted, and applied.
func (g *guarded) writeAndDrain(i int, size int64) {
	g.t.Helper()
	verdicts := g.drain(g.write(g.namespace, g.repositories[i], size))
	require.Equal(g.t, []ledger.Verdict{ledger.Applied, ledger.Applied}, verdicts, "counters go on")
}

func TestGuard(t *testing.T) {
	t.Parallel()
	all := newWorld(t)
	full := accounting.Counters{Bytes: 3000, Components: 12}
	setup := func(t *testing.T) *guarded {
		t.Helper()
		t.Parallel()
		return all.in(t).guarded()
	}

	t.Run("an emptied table lowers nothing, and when it is mended all is right", func(t *testing.T) {
		g := setup(t)
		g.emptyShadow()
		before := g.statistics(g.namespace)
		var log strings.Builder
		r := g.passer()
		r.Log = textLogger(&log)
		pass, err := r.Reconcile(t.Context(), g.namespace)
		require.NoError(t, err)
		require.Equal(t, metrics.PassHeld, pass.Result)
		require.Equal(t, 1, pass.Held)
		require.Zero(t, pass.Corrected)
		requireHistogram(t, r.Metrics.DiscrepancyBytes, 0, 0)
		require.Equal(t, before, g.statistics(g.namespace), "the row and its last_reconciled_at stand")
		require.Contains(t, log.String(), "level=ERROR")
		require.Contains(t, log.String(), "namespace_id="+g.namespace.String())
		require.Equal(t, 1, g.requests(g.namespace), "R8 a request stays open")

		held, err := HeldOf(t.Context(), g.pool, g.namespace)
		require.NoError(t, err)
		require.Len(t, held, 1)
		require.WithinDuration(t, time.Now().Add(15*time.Minute), held[0].NextPass, 5*time.Minute)
		require.Equal(t, Held{
			Scope: accounting.NamespaceScope(g.namespace), Seen: pass.Marker,
			Expected: full, Counted: accounting.Counters{Components: 12}, NextPass: held[0].NextPass,
		}, held[0])

		g.writeAndDrain(0, 40)
		g.mendShadow()
		require.Equal(t, metrics.PassDone, g.pass().Result)
		require.Empty(t, g.held())
		require.Zero(t, g.requests(g.namespace))
		g.requireExact(g.namespace)
	})

	t.Run("E18 a pass that still finds it after the time writes it, and none before", func(t *testing.T) {
		g := setup(t)
		g.emptyRepository(1)
		g.emptyShadow()
		for range 3 {
			require.Equal(t, metrics.PassHeld, g.pass().Result)
			require.Equal(t, []uuid.UUID{g.namespace, g.repositories[1]}, g.held())
		}
		g.writeAndDrain(1, 40)
		g.later()
		pass := g.pass()
		require.Equal(t, metrics.PassDone, pass.Result)
		require.Equal(t, 2, pass.Drifted)
		require.Empty(t, g.held())
		require.Equal(t, accounting.Counters{Bytes: 40, Components: 1}, g.repositoryRow(g.repositories[1]).Counters)
		require.Equal(t, accounting.Counters{Bytes: 40, Components: 9}, g.statistics(g.namespace).Counters)
		require.Equal(t, 2, g.count(`SELECT count(*) FROM storage_ledger WHERE namespace_id = $1 AND outcome = 4 AND (bytes, components) IN ((-1000, -4), (-3000, -4))`, g.namespace),
			"S2: with what it was off when it was written")
		g.requireExact(g.namespace)
	})

	t.Run("AC26 one held repository among many: the others are written, the namespace is not stamped", func(t *testing.T) {
		g := setup(t)
		g.emptyRepository(0)
		g.exec(`UPDATE repositories SET size_bytes = size_bytes + 7 WHERE id = $1`, g.repositories[2])
		before, heldRow := g.statistics(g.namespace), g.repositoryRow(g.repositories[0])
		pass := g.pass()
		require.Equal(t, metrics.PassHeld, pass.Result)
		require.Equal(t, before, g.statistics(g.namespace))
		require.Equal(t, heldRow, g.repositoryRow(g.repositories[0]))
		require.Equal(t, row{Counters: accounting.Counters{Bytes: 1000, Components: 4}, L: pass.Marker}, g.repositoryRow(g.repositories[2]))
		require.Equal(t, []uuid.UUID{g.repositories[0]}, g.held(), "the namespace's own correction is small")

		g.later()
		require.Equal(t, metrics.PassDone, g.pass().Result)
		g.requireExact(g.namespace)
	})

	t.Run("approved by a person it is written by the next pass", func(t *testing.T) {
		g := setup(t)
		g.emptyShadow()
		g.pass()
		held, err := HeldOf(t.Context(), g.pool, g.namespace)
		require.NoError(t, err)
		n, err := Approve(t.Context(), g.pool, held, "alice")
		require.NoError(t, err)
		require.Equal(t, 1, n)
		approved, err := HeldOf(t.Context(), g.pool, g.namespace)
		require.NoError(t, err)
		require.Equal(t, "alice", approved[0].ApprovedBy)
		require.NotNil(t, approved[0].ApprovedAt)
		require.Equal(t, metrics.PassDone, g.pass().Result)
		require.Empty(t, g.held())
		require.Zero(t, g.statistics(g.namespace).Bytes)
	})

	t.Run("neither the time nor an approval covers what got much worse since", func(t *testing.T) {
		g := setup(t)
		g.exec(`DELETE FROM blob_storage_blobs_by_namespace WHERE (namespace_id, sha256) IN
			(SELECT namespace_id, sha256 FROM blob_storage_blobs_by_namespace WHERE namespace_id = $1 LIMIT 8)`, g.namespace)
		first := g.pass()
		held, err := HeldOf(t.Context(), g.pool, g.namespace)
		require.NoError(t, err)
		_, err = Approve(t.Context(), g.pool, held, "alice")
		require.NoError(t, err)
		g.emptyShadow()
		second := g.pass()
		require.Equal(t, metrics.PassHeld, second.Result)
		again, err := HeldOf(t.Context(), g.pool, g.namespace)
		require.NoError(t, err)
		require.Equal(t, second.Marker, again[0].Seen)
		require.Greater(t, second.Marker, first.Marker)
		require.Nil(t, again[0].ApprovedAt)
		require.Zero(t, again[0].Counted.Bytes)
		n, err := Approve(t.Context(), g.pool, held, "alice")
		require.NoError(t, err)
		require.Zero(t, n, "what was read before it got worse is not what is held now")
	})

	t.Run("what a pass has never written is never held, nor is an increase", func(t *testing.T) {
		g := setup(t)
		fresh := g.hosted(g.namespace)
		g.exec(`UPDATE repositories SET size_bytes = 100000, artifacts_count = 1000 WHERE id = $1`, fresh)
		g.exec(`UPDATE repositories SET size_bytes = 1, artifacts_count = 0 WHERE id = $1`, g.repositories[0])
		g.exec(`UPDATE namespace_statistics SET deduplicated_size_bytes = 100000, last_reconciled_at = 'epoch' WHERE namespace_id = $1`, g.namespace)
		require.Equal(t, metrics.PassDone, g.pass().Result)
		g.requireExact(g.namespace)
	})

	t.Run("a share or a size alone holds nothing", func(t *testing.T) {
		g := setup(t)
		g.exec(`UPDATE repositories SET size_bytes = 1990, artifacts_count = 8 WHERE id = $1`, g.repositories[0]) // by less than half
		g.exec(`DELETE FROM npm_versions WHERE repository_id = $1`, g.repositories[1])
		g.exec(`UPDATE repositories SET size_bytes = 100, artifacts_count = 2 WHERE id = $1`, g.repositories[1]) // by 100 and 2
		require.Equal(t, metrics.PassDone, g.pass().Result)
	})

	t.Run("a mass deletion that is counted and still on its way is no correction", func(t *testing.T) {
		g := setup(t)
		g.emptyRepository(0)
		deltas := []accounting.Delta{
			{Scope: accounting.RepositoryScope(g.namespace, g.repositories[0]), Counters: accounting.Counters{Bytes: -1000, Components: -4}},
			{Scope: accounting.NamespaceScope(g.namespace), Counters: accounting.Counters{Components: -4}},
		}
		failed, err := g.buffer.Emit(t.Context(), g.namespace, g.marker(g.namespace), deltas)
		require.NoError(t, err)
		require.Empty(t, failed)
		require.Equal(t, metrics.PassDone, g.pass().Result)
		require.Zero(t, g.repositoryRow(g.repositories[0]).Counters)
	})

	t.Run("a held repository that is deleted is forgotten when the namespace is written", func(t *testing.T) {
		g := setup(t)
		g.emptyRepository(0)
		g.pass()
		require.Len(t, g.held(), 1)
		g.exec(`DELETE FROM repositories WHERE id = $1`, g.repositories[0])
		require.Equal(t, metrics.PassDone, g.pass().Result)
		require.Empty(t, g.held())
	})

	t.Run("what is held of a namespace goes with it", func(t *testing.T) {
		g := setup(t)
		g.emptyShadow()
		g.pass()
		g.exec(`DELETE FROM npm_versions WHERE namespace_id = $1`, g.namespace)
		g.exec(`DELETE FROM repositories WHERE namespace_id = $1`, g.namespace)
		g.exec(`DELETE FROM blob_storage_blobs WHERE namespace_id = $1`, g.namespace)
		g.exec(`DELETE FROM namespaces WHERE id = $1`, g.namespace)
		require.Empty(t, g.held())
	})

	t.Run("R7 an older pass forgets nothing that a newer one holds", func(t *testing.T) {
		g := setup(t)
		g.emptyRepository(1)
		g.pass()
		for range 4 { // mended
			g.exec(`INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes)
				VALUES (gen_random_uuid(), $1, $2, 'x', gen_random_uuid()::text, 250)`, g.namespace, g.repositories[1])
		}
		held := false
		pool := g.traced(&tracer{before: once("FROM namespace_statistics WHERE namespace_id = ANY", func() {
			g.emptyRepository(0)
			held = g.pass().Result == metrics.PassHeld
		})})
		older, err := NewNamespace(g.deps(pool), guardedConfig()).Reconcile(t.Context(), g.namespace)
		require.NoError(t, err)
		require.True(t, held)
		require.Equal(t, metrics.PassDone, older.Result)
		require.Equal(t, []uuid.UUID{g.repositories[0]}, g.held())
		require.Equal(t, 1, g.requests(g.namespace))
		g.later()
		require.Equal(t, metrics.PassDone, g.pass().Result)
		g.requireExact(g.namespace)
	})

	t.Run("two workers at once write it once", func(t *testing.T) {
		g := setup(t)
		g.emptyShadow()
		require.Equal(t, metrics.PassHeld, g.pass().Result)
		g.later()
		results := make(chan string, 2)
		pass := func() {
			pass, err := g.passer().Reconcile(context.Background(), g.namespace)
			results <- map[bool]string{true: pass.Result, false: "failed"}[err == nil]
		}
		go pass()
		go pass()
		got := []string{<-results, <-results}
		require.Contains(t, got, metrics.PassDone)
		require.NotContains(t, got, metrics.PassHeld)
		require.NotContains(t, got, "failed")
		require.Equal(t, 1, g.count(`SELECT count(*) FROM storage_ledger WHERE namespace_id = $1 AND outcome = 4 AND bytes = -3000`, g.namespace))
		require.Empty(t, g.held())
		g.requireExact(g.namespace)
	})
}

func TestGuardHolds(t *testing.T) {
	t.Parallel()
	guard := Guard{Percent: 50, Bytes: 100, Components: 10}
	of := func(bytes, components int64) accounting.Counters {
		return accounting.Counters{Bytes: bytes, Components: components}
	}
	for _, tc := range []struct {
		name     string
		from, to accounting.Counters
		want     bool
	}{
		{"all bytes", of(1000, 0), of(0, 0), true},
		{"all components", of(0, 100), of(0, 0), true},
		{"just half", of(1000, 0), of(500, 0), false},
		{"more than half", of(1000, 0), of(499, 0), true},
		{"just the size", of(100, 10), of(0, 0), false},
		{"one more", of(101, 10), of(0, 0), true},
		{"an increase", of(0, 0), of(1000, 1000), false},
		{"an increase of what was below zero", of(-5000, 0), of(10, 0), false},
		{"one up, one down", of(10, 100), of(1000, 0), true},
		{"more than an int64", of(1<<62, 0), of(-1<<62, 0), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, guard.holds(tc.from, tc.to))
		})
	}
	require.False(t, Guard{Percent: 100}.holds(of(1000, 1000), of(0, 0)), "100 holds nothing")
}

// A held namespace is passed again after a pause, not at each trigger.
func TestGuardBackOff(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	g := w.guarded()
	w.request(g.namespace)
	g.emptyShadow()
	require.Equal(t, metrics.PassHeld, g.pass().Result)
	reg := prometheus.NewRegistry()
	deps := w.deps(w.pool)
	deps.Metrics = metrics.New(reg)
	backlog := NewBacklog(deps, testConfig())

	require.Zero(t, w.trigger(1))
	require.NoError(t, backlog.Work(t.Context(), nil))
	require.Equal(t, []float64{0}, gathered(t, reg, "stowage_reconciliation_backlog"), "it waits, so it is not due")
	require.Equal(t, []float64{1}, gathered(t, reg, "stowage_reconciliation_held"))
	w.exec(`UPDATE namespace_statistics SET last_reconciled_at = now() - interval '2 hours'`)
	require.Zero(t, w.trigger(1), "stale is no reason either")
	due, _, err := backlog.Count(t.Context())
	require.NoError(t, err)
	require.Zero(t, due)

	held, err := HeldOf(t.Context(), w.pool, g.namespace)
	require.NoError(t, err)
	_, err = Approve(t.Context(), w.pool, held, "alice")
	require.NoError(t, err)
	due, _, err = backlog.Count(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, due)
	require.Equal(t, 1, w.trigger(1), "an approval has the pass come at once")
	deps.Metrics.Withdraw()
	require.Empty(t, gathered(t, reg, "stowage_reconciliation_held"))
}

// A pass that is killed at any point while it holds, or while it writes what was
// held, leaves rows that the next one makes right.
func TestE15GuardedPassKilledAtAnyPoint(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	killed := errors.New("killed")
	points := slices.DeleteFunc(failpoint.Points(), func(p failpoint.Point) bool { return !strings.HasPrefix(string(p), "pass.") })
	require.Greater(t, len(points), 8)
	for _, confirming := range []bool{false, true} {
		hit := 0
		for _, point := range points {
			g := w.guarded()
			g.emptyRepository(0)
			g.emptyShadow()
			if confirming {
				g.pass()
				g.later()
			}
			ctx := failpoint.With(t.Context(), func(_ context.Context, at failpoint.Point) error {
				if at == point {
					hit++
					return killed
				}
				return nil
			})
			_, err := g.passer().Reconcile(ctx, g.namespace)
			if err != nil {
				require.ErrorIs(t, err, killed, point)
			}
			if !confirming {
				require.Equal(t, accounting.Counters{Bytes: 1000, Components: 4}, g.repositoryRow(g.repositories[0]).Counters, point)
				require.EqualValues(t, 3000, g.statistics(g.namespace).Bytes, point)
				g.pass()
				g.later()
			}
			g.writeAndDrain(0, 40)
			require.Equal(t, metrics.PassDone, g.pass().Result, point)
			require.Empty(t, g.held(), point)
			require.Zero(t, g.requests(g.namespace), point)
			g.requireExact(g.namespace)
		}
		require.Greater(t, hit, 8)
	}
}
