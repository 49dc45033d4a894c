package drain

import (
	"context"
	"crypto/rand"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/rueidis"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/redistest"
	"github.com/stowage-dev/stowage/internal/requests"
)

// worldOf is a database, and a Redis that the test started.
func worldOf(t *testing.T, raw rueidis.Client) *world {
	t.Helper()
	return &world{pool: dbtest.New(t), raw: raw, taken: map[int]bool{}}
}

// commit is a counted transaction of one version, without its emission.
func (b *bundle) commit() (accounting.Marker, []accounting.Delta) {
	b.t.Helper()
	v := version{repository: b.repository, id: uuid.Must(uuid.NewV7()), digest: make([]byte, 32), size: 10}
	_, _ = rand.Read(v.digest)
	marker, err := counted(b.t.Context(), b.pool, v, publish)
	require.NoError(b.t, err)
	return marker, []accounting.Delta{
		{Scope: b.repository, Counters: counters(v.size, 1)}, {Scope: b.namespace, Counters: counters(v.size, 1)},
	}
}

// publish is a counted transaction with its emission.
func (b *bundle) publish() {
	b.t.Helper()
	marker, deltas := b.commit()
	failed, err := b.deps.Buffer.Emit(b.t.Context(), b.namespace.ID, marker, deltas)
	require.NoError(b.t, err)
	require.Empty(b.t, failed)
}

// requireOff says by how much both rows are off their sources.
func (b *bundle) requireOff(versions int64) {
	b.t.Helper()
	for _, scope := range []struct {
		accounting.Scope
		bytes string
	}{
		{b.repository, `SELECT coalesce(sum(size_bytes), 0)::bigint FROM npm_versions WHERE repository_id = $1`},
		{b.namespace, `SELECT coalesce(sum(size_bytes), 0)::bigint FROM blob_storage_blobs WHERE namespace_id = $1`},
	} {
		truth := (&attack{}).truth(b, scope.bytes, scope.Scope)
		require.Equal(b.t, truth.Plus(counters(10*versions, versions)), b.row(scope.Scope), scope.Kind)
	}
}

// open are the namespaces with an open request.
func (b *bundle) open() []uuid.UUID {
	b.t.Helper()
	page, err := requests.Open(b.t.Context(), b.pool, requests.Request{}, 10_000)
	require.NoError(b.t, err)
	ids := []uuid.UUID{}
	for _, r := range page {
		ids = append(ids, r.Namespace)
	}
	return ids
}

func (b *bundle) known() map[int]buffer.Identity {
	b.t.Helper()
	known, err := NewTickWorker(b.cfg, b.deps).knownIdentities(b.t.Context())
	require.NoError(b.t, err)
	return known
}

// awaitRedis returns when all of Redis answers again.
func (b *bundle) awaitRedis() {
	b.t.Helper()
	eventually(b.t, func() bool {
		_, err := b.deps.Buffer.Identities(b.t.Context())
		return err == nil
	}, "the buffer does not answer")
}

// reconcileOpen makes a pass of each namespace that is requested.
func reconcileOpen(t *testing.T, bundles []*bundle) {
	t.Helper()
	a := &attack{}
	requested := bundles[0].open()
	for _, b := range bundles {
		for _, id := range requested {
			if b.namespace.ID == id {
				require.NoError(t, a.reconcile(t.Context(), b))
			}
		}
	}
	require.EqualValues(t, len(requested), a.passes.Load(), "a pass of each")
	require.Empty(t, bundles[0].open())
}

func TestFailOverLosesTheLastWrites(t *testing.T) {
	t.Parallel()
	for name, drainFirst := range map[string]bool{
		"AC36 E6 drained before the passes": true,
		"AC36 E6 drained after the passes":  false,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			redis := redistest.StartReplicated(t)
			w := worldOf(t, redis.Client(t))
			back, twice, lost, down := w.setup(t), w.setup(t), w.setup(t), w.setup(t)
			all := []*bundle{back, twice, lost, down}
			for _, b := range all {
				b.publish()
			}
			back.tickAndDrain()
			known := back.known()

			back.publish()
			run := back.worker().newRun(back.bucket)
			claim, err := run.claim(t.Context(), 10)
			require.NoError(t, err)
			require.Len(t, claim.Flushes, 2)
			twice.publish()
			redis.Cut()
			settled, err := run.apply(t.Context(), claim)
			require.NoError(t, err)
			require.NoError(t, run.finish(t.Context(), settled))
			require.NoError(t, twice.drain())
			lost.publish()
			for _, b := range []*bundle{back, twice} {
				require.Zero(t, b.size())
				b.requireOff(0)
			}

			redis.Primary.Stop()
			emitWhileDown(t, down)
			require.ErrorContains(t, back.tick(), "drain tick")
			require.Equal(t, known, back.known())
			require.Equal(t, []uuid.UUID{down.namespace.ID}, back.open())
			redis.FailOver()
			back.awaitRedis()
			back.expireLease()

			require.NoError(t, back.tick())
			require.EqualValues(t, accounting.Buckets, back.loss("restart"))
			require.Zero(t, back.loss("identity"))
			var namespaces []uuid.UUID
			for _, b := range all {
				namespaces = append(namespaces, b.namespace.ID)
			}
			require.ElementsMatch(t, namespaces, back.open())
			jobs := back.inserted()
			require.Len(t, jobs, 2, "of the buckets that came back")
			drain := func() {
				for _, args := range jobs {
					require.NoError(t, back.worker().Work(t.Context(), bucketJob(args, time.Now())))
				}
				require.EqualValues(t, 2, back.flushes("replayed"), "what came back frozen is not applied again")
			}
			if drainFirst {
				drain()
				back.requireOff(0)
				twice.requireOff(1) // the drain's batch was lost with its claim
				reconcileOpen(t, all)
			} else {
				reconcileOpen(t, all)
				drain()
				require.EqualValues(t, 2, back.flushes("counted"), "what came back unfrozen, the pass had counted")
			}

			for range 2 {
				for _, b := range all {
					require.Zero(t, b.size())
					b.requireOff(0)
					b.publish()
				}
				back.tickAndDrain()
			}
			require.Empty(t, back.open())
			require.EqualValues(t, accounting.Buckets, back.loss("restart"), "noticed once")
		})
	}
}

// emitWhileDown is a counted transaction whose emission fails: the writer does
// not wait for Redis, and makes a request instead.
func emitWhileDown(t *testing.T, b *bundle) {
	t.Helper()
	marker, deltas := b.commit()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	start := time.Now()
	_, err := b.deps.Buffer.Emit(ctx, b.namespace.ID, marker, deltas)
	require.Error(t, err)
	require.Less(t, time.Since(start), 5*time.Second, "whatever else the machine does")
	require.NoError(t, requests.Raise(t.Context(), b.pool, []requests.Request{{Namespace: b.namespace.ID, Marker: marker}}))
}

func TestClusterNodeComesBackEmpty(t *testing.T) {
	t.Parallel()
	const dead = 1
	cluster := redistest.StartCluster(t)
	w := worldOf(t, cluster.Client(t))
	var its, others []*bundle // by whether their buckets are the dead node's
	for len(its) < 2 || len(others) < 2 {
		b := w.setup(t)
		if _, node := cluster.Slot(b.key("identity")); node == dead {
			its = append(its, b)
		} else {
			others = append(others, b)
		}
	}
	buckets := 0
	for bucket := range accounting.Buckets {
		if _, node := cluster.Slot((&bundle{bucket: bucket}).key("identity")); node == dead {
			buckets++
		}
	}
	all := slices.Concat(its, others)
	b := others[0]
	for _, b := range all {
		b.publish()
	}
	b.tickAndDrain()
	known := b.known()
	require.Len(t, known, accounting.Buckets)
	for _, b := range all {
		b.publish()
	}

	t.Run("E2 while it is down, the buckets of the others are drained", func(t *testing.T) {
		cluster.Nodes[dead].Stop()
		before := testutil.ToFloat64(b.deps.Metrics.DirtySetSize.WithLabelValues(accounting.KindNamespace.String()))
		require.ErrorContains(t, b.tick(), "sample the buffer")
		jobs := b.inserted()
		require.Len(t, jobs, len(others))
		for _, args := range jobs {
			require.NoError(t, b.worker().Work(t.Context(), bucketJob(args, time.Now())))
		}
		for _, other := range others {
			other.requireOff(0)
		}
		for _, lost := range its {
			lost.requireOff(-1)
		}
		require.Equal(t, before, testutil.ToFloat64(b.deps.Metrics.DirtySetSize.WithLabelValues(accounting.KindNamespace.String())),
			"no sample of a part")
		require.Equal(t, known, b.known())
		require.Empty(t, b.open())
	})
	t.Run("AC36 every namespace of its buckets is requested, and no other", func(t *testing.T) {
		cluster.Restart(dead)
		b.awaitRedis()
		require.NoError(t, b.tick())
		require.EqualValues(t, buckets, b.loss("identity"))
		require.Zero(t, b.loss("restart"))
		var requested []uuid.UUID
		for _, lost := range its {
			requested = append(requested, lost.namespace.ID)
		}
		require.ElementsMatch(t, requested, b.open())
		for bucket, now := range b.known() {
			_, node := cluster.Slot((&bundle{bucket: bucket}).key("identity"))
			require.Equal(t, node == dead, now != known[bucket])
		}
	})
	t.Run("AC36 their passes make every row true", func(t *testing.T) {
		reconcileOpen(t, all)
		b.tickAndDrain()
		for _, b := range all {
			b.requireOff(0)
		}
		require.Empty(t, b.open())
	})
}
