package drain

import (
	"context"
	"crypto/rand"
	"fmt"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/internal/reconcile"
)

// TestAC8E9E16E17Attack lets loose what a cluster does, in random order, on a
// few rows: counted transactions; drains that are killed, that sleep, that
// replay, several in a bucket at once; reconciliations. Nothing is lost here,
// so in the end every row must equal its source, without a last pass that would
// mend it.
func TestAC8E9E16E17Attack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	wide := w.pool.Config()
	wide.MaxConns = 30
	pool, err := pgxpool.NewWithConfig(t.Context(), wide)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	w.pool = pool

	a := &attack{bundles: []*bundle{w.bundle(t, quartz.NewReal(), time.Millisecond), w.bundle(t, quartz.NewReal(), time.Millisecond)}}
	for _, b := range a.bundles {
		a.repositories = append(a.repositories, b.repository, b.newRepository(b.namespace))
	}
	ctx, stop := context.WithCancel(t.Context())
	var writers, others errgroup.Group
	for range 6 {
		writers.Go(func() error { return a.write(t.Context(), 50) })
	}
	for _, b := range a.bundles {
		for range 2 {
			others.Go(func() error { return untilStopped(ctx, func() error { return a.drain(t.Context(), b) }) })
		}
		others.Go(func() error { return untilStopped(ctx, func() error { return a.reconcile(t.Context(), b) }) })
	}
	err = writers.Wait()
	stop()
	require.NoError(t, others.Wait())
	require.NoError(t, err)
	require.Positive(t, a.passes.Load(), "no pass came through")

	for _, b := range a.bundles {
		for b.size() != (buffer.Size{}) {
			require.NoError(t, b.drain())
		}
		require.Equal(t, a.truth(b, `SELECT coalesce(sum(size_bytes), 0)::bigint FROM blob_storage_blobs WHERE namespace_id = $1`, b.namespace), b.row(b.namespace))
		require.Empty(t, b.requested())
	}
	for _, r := range a.repositories {
		require.Equal(t, a.truth(a.bundles[0], `SELECT coalesce(sum(size_bytes), 0)::bigint FROM npm_versions WHERE repository_id = $1`, r), a.bundles[0].row(r))
	}
	t.Logf("%d passes, %v applied, %v replayed, %v counted", a.passes.Load(), a.total("applied"), a.total("replayed"), a.total("counted"))
}

type attack struct {
	bundles      []*bundle
	repositories []accounting.Scope
	passes       atomic.Int64

	mu       sync.Mutex
	versions []version
}

type version struct {
	repository accounting.Scope
	id         uuid.UUID
	digest     []byte
	size       int64
}

func untilStopped(ctx context.Context, fn func() error) error {
	for ctx.Err() == nil {
		if err := fn(); err != nil {
			return err
		}
	}
	return nil
}

// write is so many counted transactions, as a registry makes them: publish a
// version, or remove one.
func (a *attack) write(ctx context.Context, n int) error {
	for range n {
		v, known := a.pickVersion()
		sign, change := int64(1), publish
		if known {
			sign, change = -1, remove
		}
		marker, err := counted(ctx, a.bundles[0].pool, v, change)
		if err != nil {
			return err
		}
		delta := accounting.Counters{Bytes: sign * v.size, Components: sign}
		failed, err := a.bundles[0].deps.Buffer.Emit(ctx, v.repository.Namespace, marker, []accounting.Delta{
			{Scope: v.repository, Counters: delta}, {Scope: accounting.NamespaceScope(v.repository.Namespace), Counters: delta},
		})
		if err != nil || len(failed) > 0 {
			return fmt.Errorf("emit: %v %w", failed, err)
		}
		if !known {
			a.mu.Lock()
			a.versions = append(a.versions, v)
			a.mu.Unlock()
		}
	}
	return nil
}

// pickVersion takes a version to remove, or makes a new one to publish.
func (a *attack) pickVersion() (v version, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.versions); n > 0 && mathrand.IntN(3) == 0 {
		v, a.versions = a.versions[n-1], a.versions[:n-1]
		return v, true
	}
	v = version{repository: a.repositories[mathrand.IntN(len(a.repositories))], id: uuid.Must(uuid.NewV7()), digest: make([]byte, 32), size: mathrand.Int64N(1000)}
	_, _ = rand.Read(v.digest)
	return v, false
}

func counted(ctx context.Context, pool *pgxpool.Pool, v version, change func(context.Context, pgx.Tx, version) error) (marker accounting.Marker, err error) {
	err = pgdb.InTx(ctx, pool, func(tx pgx.Tx) error {
		if err := change(ctx, tx, v); err != nil {
			return err
		}
		return tx.QueryRow(ctx, `SELECT marker FROM stowage_lock_markers(ARRAY[$1::uuid])`, v.repository.Namespace).Scan((*int64)(&marker))
	})
	return marker, err
}

func publish(ctx context.Context, tx pgx.Tx, v version) error {
	_, err := tx.Exec(ctx, `INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes) VALUES ($1, $2, $3, 'x', $4, $5)`,
		v.id, v.repository.Namespace, v.repository.ID, v.id.String(), v.size)
	if err != nil {
		return err
	}
	_, err = tx.Exec(ctx, `INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) VALUES ($1, $2, $3)`, v.repository.Namespace, v.digest, v.size)
	return err
}

func remove(ctx context.Context, tx pgx.Tx, v version) error {
	if _, err := tx.Exec(ctx, `DELETE FROM npm_versions WHERE id = $1`, v.id); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, `DELETE FROM blob_storage_blobs WHERE namespace_id = $1 AND sha256 = $2`, v.repository.Namespace, v.digest)
	return err
}

// drain is one run that may end at any step, apply twice, or sleep so long that
// its lease is another's. The lease of this test lasts a millisecond.
func (a *attack) drain(ctx context.Context, b *bundle) error {
	r := b.worker().newRun(b.bucket)
	claim, err := r.claim(ctx, 1+mathrand.IntN(3))
	if err != nil || claimed(claim) == 0 || mathrand.IntN(8) == 0 {
		return err
	}
	if mathrand.IntN(4) == 0 {
		if err := a.drain(ctx, b); err != nil { // what others do meanwhile
			return err
		}
	}
	var s settled
	for range 1 + mathrand.IntN(2) {
		if s, err = r.apply(ctx, claim); err != nil {
			return err
		}
	}
	if mathrand.IntN(6) == 0 {
		return nil
	}
	return r.finish(ctx, s)
}

func (a *attack) reconcile(ctx context.Context, b *bundle) error {
	worker := reconcile.NewNamespace(
		reconcile.Deps{Pool: b.pool, Buffer: b.deps.Buffer, Metrics: b.deps.Metrics, Log: b.deps.Log},
		reconcile.Config{MaxInFlight: 4, ChunkSize: 1, Staleness: time.Hour, Timeout: time.Minute, TriggerInterval: time.Minute, Guard: reconcile.DefaultGuard()})
	pass, err := worker.Reconcile(ctx, b.namespace.ID)
	if pass.Result == metrics.PassDone {
		a.passes.Add(1)
	}
	return err
}

// truth is what the source tables hold of a scope.
func (a *attack) truth(b *bundle, bytesSQL string, scope accounting.Scope) accounting.Counters {
	b.t.Helper()
	column := "namespace_id"
	if scope.Kind == accounting.KindRepository {
		column = "repository_id"
	}
	var c accounting.Counters
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), bytesSQL, scope.ID).Scan(&c.Bytes))
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), `SELECT count(*) FROM npm_versions WHERE `+column+` = $1`, scope.ID).Scan(&c.Components))
	return c
}

func (a *attack) total(outcome string) (n float64) {
	for _, b := range a.bundles {
		n += b.flushes(outcome)
	}
	return n
}
