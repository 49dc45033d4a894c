package entdb_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/redistest"
)

const emitTimeout = 300 * time.Millisecond

// setupRedis is setup with a real Redis as the buffer.
func setupRedis(t *testing.T) (*bundle, *redistest.Server, rueidis.Client) {
	t.Helper()
	server := redistest.Start(t)
	client := server.Client(t)
	return setup(t, func(cfg *entdb.Config) {
		cfg.Emitter, cfg.Redis, cfg.EmitTimeout = nil, client, emitTimeout
	}), server, client
}

func TestEmissionsReachTheBuffer(t *testing.T) {
	t.Parallel()
	b, _, client := setupRedis(t)
	r := b.npm(t)
	b.publish(t, r, 10, 20)
	scope := accounting.RepositoryScope(r.NamespaceID, r.ID)
	pending, err := buffer.New(client, buffer.Config{TTL: time.Hour}).Pending(t.Context(), []accounting.Scope{scope})
	require.NoError(t, err)
	require.Equal(t, []buffer.MarkedCounters{{Counters: accounting.Counters{Bytes: 30, Components: 2}, Emissions: 1}}, pending[scope].Buffered)
}

func TestAC7RedisUnreachableAtIncrement(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(*redistest.Server){
		"refuses connections": (*redistest.Server).Stop,
		"hangs":               (*redistest.Server).Pause,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, server, _ := setupRedis(t)
			r := b.npm(t)
			b.publish(t, r, 1)
			fail(server)

			const commits = 30
			for range commits {
				b.publish(t, r, 1)
			}
			// Without the breaker a hanging Redis would cost every commit its
			// timeout: 30 of them, where 5 open the breaker.
			require.Less(t, timeSpentEmitting(t, b.registry), commits*emitTimeout*2/3)
			require.Equal(t, 1+commits, b.db.NPMVersion.Query().CountX(t.Context()), "the writes succeeded")
			require.InDelta(t, commits, metric(t, b.registry, "stowage_counter_emit_failures_total"), 0)
			b.requireRequested(t, b.namespace.ID)
		})
	}
}

func TestAC7RequestsSurviveUntilPostgresTakesThem(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)
	b.recorder.FailWith(errWanted)
	_, err := b.pool.Exec(t.Context(), `ALTER TABLE reconciliation_requests RENAME TO away`)
	require.NoError(t, err)
	b.publish(t, r, 1)
	require.Eventually(t, func() bool {
		return metric(t, b.registry, "stowage_reconciliation_requests_unwritten") == 1
	}, time.Minute, 10*time.Millisecond)
	_, err = b.pool.Exec(t.Context(), `ALTER TABLE away RENAME TO reconciliation_requests`)
	require.NoError(t, err)
	b.requireRequested(t, b.namespace.ID)
}

func TestForeignDataInRedisIsRequestedNotCountedAsAnOutage(t *testing.T) {
	t.Parallel()
	b, _, client := setupRedis(t)
	r := b.npm(t)
	b.publish(t, r, 1)
	ctx := t.Context()
	keys, err := client.Do(ctx, client.B().Keys().Pattern("*:buf:r:*").Build()).AsStrSlice()
	require.NoError(t, err)
	require.Len(t, keys, 1)
	require.NoError(t, client.Do(ctx, client.B().Set().Key(keys[0]).Value("foreign").Build()).Error())
	for range 10 {
		b.publish(t, r, 1)
	}
	b.requireRequested(t, b.namespace.ID)
	other := b.npm(t)
	b.publish(t, other, 5)
	usage, err := b.db.RepositoryUsage(ctx, other.ID)
	require.NoError(t, err)
	require.True(t, usage.PendingKnown, "the breaker stayed closed")
	require.Equal(t, entdb.Counters{Bytes: 5, Components: 1}, usage.Pending)
}

func TestUsage(t *testing.T) {
	t.Parallel()
	b, server, _ := setupRedis(t)
	ctx := t.Context()
	r := b.npm(t)
	empty := b.npm(t)
	b.publish(t, r, 10, 20)
	_, err := b.pool.Exec(ctx, `UPDATE repositories SET size_bytes = 1000, artifacts_count = 7 WHERE id = $1`, r.ID)
	require.NoError(t, err)

	t.Run("one repository: row, pending and total", func(t *testing.T) {
		u, err := b.db.RepositoryUsage(ctx, r.ID)
		require.NoError(t, err)
		require.Equal(t, entdb.Counters{Bytes: 1000, Components: 7}, u.Row)
		require.Equal(t, entdb.Counters{Bytes: 30, Components: 2}, u.Pending)
		require.Equal(t, entdb.Counters{Bytes: 1030, Components: 9}, u.Total())
		require.True(t, u.PendingKnown)
		require.Equal(t, time.Unix(0, 0).UTC(), u.LastReconciledAt)
		require.WithinDuration(t, time.Now(), u.AsOf, time.Minute)
	})

	t.Run("many in one call", func(t *testing.T) {
		us, err := b.db.RepositoryUsages(ctx, []uuid.UUID{r.ID, empty.ID, uuid.New()})
		require.NoError(t, err)
		require.Len(t, us, 2)
		require.Equal(t, int64(2), us[r.ID].Pending.Components)
		require.Zero(t, us[empty.ID].Pending)
	})

	t.Run("namespaces", func(t *testing.T) {
		other := b.db.Namespace.Create().SetSlug("other").SaveX(ctx)
		us, err := b.db.NamespaceUsages(ctx, []uuid.UUID{b.namespace.ID, other.ID})
		require.NoError(t, err)
		require.Equal(t, entdb.Counters{Components: 2}, us[b.namespace.ID].Total())
		require.Zero(t, us[other.ID].Total())
		require.Equal(t, other.ID, us[other.ID].ID)
	})

	t.Run("what the last reconciliation counted is not pending", func(t *testing.T) {
		_, err := b.pool.Exec(ctx, `UPDATE repositories SET last_reconciled_at = now() WHERE id = $1`, r.ID)
		require.NoError(t, err)
		u, err := b.db.RepositoryUsage(ctx, r.ID)
		require.NoError(t, err)
		require.Zero(t, u.Pending)
		require.WithinDuration(t, time.Now(), u.LastReconciledAt, time.Minute)
	})

	t.Run("pending is unknown while Redis is down", func(t *testing.T) {
		server.Stop()
		u, err := b.db.NamespaceUsage(ctx, b.namespace.ID)
		require.NoError(t, err)
		require.False(t, u.PendingKnown)
		require.Zero(t, u.Pending)
	})
}

// A flush that is applied but not deleted yet is in the row already.
func TestUsageKnowsAppliedFlushes(t *testing.T) {
	t.Parallel()
	b, _, client := setupRedis(t)
	ctx := t.Context()
	r := b.npm(t)
	b.publish(t, r, 10)
	batch := uuid.Must(uuid.NewV7())
	claim, err := buffer.New(client, buffer.Config{TTL: time.Hour, LeaseTTL: time.Minute}).
		Claim(ctx, accounting.Bucket(r.NamespaceID), "test", batch, 10)
	require.NoError(t, err)
	require.Len(t, claim.Flushes, 2)
	u, err := b.db.RepositoryUsage(ctx, r.ID)
	require.NoError(t, err)
	require.Equal(t, int64(10), u.Pending.Bytes, "a frozen flush is pending")

	_, err = b.pool.Exec(ctx, `CREATE TABLE partitions.storage_ledger_all PARTITION OF storage_ledger FOR VALUES FROM (MINVALUE) TO (MAXVALUE)`)
	require.NoError(t, err)
	_, err = b.pool.Exec(ctx, `
		INSERT INTO storage_ledger (batch_id, scope_id, scope_kind, namespace_id, marker, bytes, components, emissions, outcome)
		VALUES ($1, $2, 2, $3, 'epoch', 10, 1, 1, 1)`, batch, r.ID, r.NamespaceID)
	require.NoError(t, err)
	u, err = b.db.RepositoryUsage(ctx, r.ID)
	require.NoError(t, err)
	require.Zero(t, u.Pending, "an applied one is not")
}

func TestD7ReadingStatistics(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()

	t.Run("the zero UUID is refused before any query", func(t *testing.T) {
		done, cancel := context.WithCancel(ctx)
		cancel()
		_, err := b.db.NamespaceUsage(done, uuid.Nil)
		require.ErrorIs(t, err, entdb.ErrNilID)
		_, err = b.db.RepositoryUsages(done, []uuid.UUID{uuid.Nil})
		require.ErrorIs(t, err, entdb.ErrNilID)
	})

	t.Run("no row is not found, and the error carries no id", func(t *testing.T) {
		id := uuid.New()
		_, err := b.db.NamespaceUsage(ctx, id)
		require.ErrorIs(t, err, entdb.ErrNotFound)
		require.NotContains(t, err.Error(), id.String())
		_, err = b.db.RepositoryUsage(ctx, id)
		require.ErrorIs(t, err, entdb.ErrNotFound)
	})

	t.Run("all columns, of the asked namespace only", func(t *testing.T) {
		b.db.Namespace.Create().SetSlug("other").ExecX(ctx)
		_, err := b.pool.Exec(ctx, `UPDATE namespace_statistics SET deduplicated_size_bytes = -5, components_count = 3,
			last_reconciled_at = '2026-02-03 04:05:06.789012Z', reconciliation_marker = '2026-03-04 05:06:07.891011Z' WHERE namespace_id = $1`, b.namespace.ID)
		require.NoError(t, err)
		u, err := b.db.NamespaceUsage(ctx, b.namespace.ID)
		require.NoError(t, err)
		require.Equal(t, b.namespace.ID, u.ID)
		require.Equal(t, entdb.Counters{Bytes: -5, Components: 3}, u.Row)
		require.Equal(t, time.Date(2026, 2, 3, 4, 5, 6, 789012000, time.UTC), u.LastReconciledAt)
		row := b.db.NamespaceStatistics.GetX(ctx, b.namespace.ID)
		require.Equal(t, int64(-5), row.DeduplicatedSizeBytes)
		require.Equal(t, int64(3), row.ComponentsCount)
		require.True(t, row.ReconciliationMarker.Equal(time.Date(2026, 3, 4, 5, 6, 7, 891011000, time.UTC)))
	})
}

func TestD7ConstructorRefusesAllMistakesAtOnce(t *testing.T) {
	t.Parallel()
	_, err := entdb.New(entdb.Config{EmitTimeout: -1})
	for _, field := range []string{"Pool", "Redis", "Logger", "Registerer", "EmitTimeout"} {
		require.ErrorContains(t, err, "entdb.Config."+field)
	}
}

// sample is the one sample of a metric without labels.
func sample(t *testing.T, registry *prometheus.Registry, name string) *dto.Metric {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0]
		}
	}
	require.Fail(t, "no such metric", name)
	return nil
}

func metric(t *testing.T, registry *prometheus.Registry, name string) float64 {
	t.Helper()
	m := sample(t, registry, name)
	return m.GetCounter().GetValue() + m.GetGauge().GetValue()
}

func timeSpentEmitting(t *testing.T, registry *prometheus.Registry) time.Duration {
	t.Helper()
	m := sample(t, registry, "stowage_counter_emit_duration_seconds")
	return time.Duration(m.GetHistogram().GetSampleSum() * float64(time.Second))
}

func TestMetricsStartAtZero(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.Zero(t, metric(t, b.registry, "stowage_counter_emit_failures_total"))
	n, err := testutil.GatherAndCount(b.registry, "stowage_counter_dirty_set_size")
	require.NoError(t, err)
	require.Zero(t, n, "a gauge of a single writer is the worker's")
}
