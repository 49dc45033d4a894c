package exactness

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/rueidis"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/drain"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/reconcile"
)

// What the tests of bad data share. Each shows, from the publish to the row,
// what becomes of it: which error or metric names it, who asks for the pass that
// heals it, and that no other scope notices.

// redisDo runs a command by hand, as an operator would.
func (s *servers) redisDo(t testing.TB, words ...string) rueidis.RedisMessage {
	t.Helper()
	reply, err := s.redis.Do(context.Background(), s.redis.B().Arbitrary(words...).Build()).ToMessage()
	require.NoError(t, err, strings.Join(words, " "))
	return reply
}

func memberOf(scope accounting.Scope) string {
	if scope.Kind == accounting.KindNamespace {
		return "n:" + scope.ID.String()
	}
	return "r:" + scope.Namespace.String() + ":" + scope.ID.String()
}

// keyOf is the key of the scope's "buf" or "flush".
func keyOf(what string, scope accounting.Scope) string {
	return bucketKey(accounting.Bucket(scope.Namespace), what+":"+memberOf(scope))
}

// scope is the repository that tests write to.
func (s *stage) scope() accounting.Scope {
	return accounting.RepositoryScope(s.namespace, s.repository())
}

// neighbour is a repository of the same bucket and namespace.
func (s *stage) neighbour() accounting.Scope {
	return accounting.RepositoryScope(s.namespace, s.repositories[1])
}

// publishes adds one version of the size to the repository of a scope.
func (s *stage) publishes(to accounting.Scope, version string, size int64) {
	s.t.Helper()
	require.NoError(s.t, s.publish(context.Background(), to.ID, version, size))
}

// outcome is stowage_drain_flushes_total of the stage's process.
func (s *stage) outcome(name string) float64 {
	return testutil.ToFloat64(s.metrics.DrainFlushes.WithLabelValues(name))
}

// row is what the counters of a scope hold.
func (s *stage) row(scope accounting.Scope) accounting.Counters {
	s.t.Helper()
	return s.rows(s.t, s.namespace)[scope]
}

// recount is what the counters of a scope should hold.
func (s *stage) recount(scope accounting.Scope) accounting.Counters {
	s.t.Helper()
	return s.truth(s.t, s.namespace)[scope]
}

// requireTruth compares every row with a recount.
func (s *stage) requireTruth() {
	s.t.Helper()
	require.Equal(s.t, s.truth(s.t, s.namespace), s.rows(s.t, s.namespace), "rows against the recount")
}

// requestedInTheEnd waits for a request that a registry writes by the way.
func (s *stage) requestedInTheEnd() {
	s.t.Helper()
	require.Eventually(s.t, s.requested, patience, often, "no reconciliation is requested")
}

// requireHealedByRequest runs the pass that is asked for. It must close the
// request and leave every row right.
func (s *stage) requireHealedByRequest() {
	s.t.Helper()
	require.True(s.t, s.requested(), "nobody asks for a reconciliation")
	s.pass()
	require.False(s.t, s.requested(), "the pass left the request open")
	s.requireTruth()
}

// takeOutOfQuarantine is what internal/buffer/README.md tells an operator to do
// when the scope's keys are in order again.
func (s *stage) takeOutOfQuarantine(scope accounting.Scope) {
	s.t.Helper()
	s.redisDo(s.t, "SREM", bucketKey(s.bucket, "quarantine"), memberOf(scope))
	_, err := s.buffer.Sweep(context.Background())
	require.NoError(s.t, err)
}

func (s *stage) quarantined() []string {
	s.t.Helper()
	reply := s.redisDo(s.t, "SMEMBERS", bucketKey(s.bucket, "quarantine"))
	members, err := reply.AsStrSlice()
	require.NoError(s.t, err)
	return members
}

// corrections is the sum of what passes changed in a scope's bytes, signed.
func (s *stage) corrections(scope accounting.Scope) (bytes int64) {
	s.t.Helper()
	require.NoError(s.t, s.servers.pool.QueryRow(context.Background(),
		`SELECT coalesce(sum(bytes), 0)::bigint FROM storage_ledger WHERE scope_id = $1 AND outcome = 4`, scope.ID).Scan(&bytes))
	return bytes
}

// drainsInserted are the buckets for which jobs wait.
func (s *servers) drainsInserted(t testing.TB) []int {
	t.Helper()
	rows, err := s.pool.Query(context.Background(), `SELECT (args ->> 'bucket')::int FROM river.river_job WHERE kind = 'drain_bucket'`)
	require.NoError(t, err)
	buckets, err := pgx.CollectRows(rows, pgx.RowTo[int])
	require.NoError(t, err)
	return buckets
}

// bucketJob is a job of the bucket as a tick makes it.
func (s *stage) bucketJob() *river.Job[drain.BucketArgs] {
	return &river.Job[drain.BucketArgs]{JobRow: &rivertype.JobRow{ScheduledAt: time.Now()}, Args: drain.BucketArgs{Bucket: s.bucket, Scopes: 100}}
}

// workJob works one. Unlike process.drain it does not look at the sets of every
// bucket before.
func (s *stage) workJob() error {
	s.t.Helper()
	return s.drains.Work(context.Background(), s.bucketJob())
}

// triggered takes the namespaces for which a trigger makes jobs out of the queue.
func (s *servers) triggered(t testing.TB) []uuid.UUID {
	t.Helper()
	client, err := river.NewClient(riverpgxv5.New(s.pool), &river.Config{Schema: "river"})
	require.NoError(t, err)
	trigger := reconcile.NewTrigger(
		reconcile.Deps{Pool: s.pool, Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler)},
		reconcile.Config{MaxInFlight: 64, ChunkSize: chunk, Staleness: time.Hour, Timeout: time.Minute, TriggerInterval: time.Minute, Guard: reconcile.DefaultGuard()})
	_, err = trigger.Run(context.Background(), client)
	require.NoError(t, err)
	rows, err := s.pool.Query(context.Background(), `
		DELETE FROM river.river_job WHERE kind = 'reconcile_namespace' RETURNING (args ->> 'namespace_id')::uuid`)
	require.NoError(t, err)
	namespaces, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	require.NoError(t, err)
	return namespaces
}

// entered is how many ledger rows of the namespace have an outcome.
func (s *stage) entered(outcome accounting.Outcome) (n int) {
	s.t.Helper()
	require.NoError(s.t, s.servers.pool.QueryRow(context.Background(),
		`SELECT count(*) FROM storage_ledger WHERE namespace_id = $1 AND outcome = $2`, s.namespace, outcome).Scan(&n))
	return n
}
