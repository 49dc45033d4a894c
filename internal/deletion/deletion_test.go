package deletion

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/rueidis"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/drain"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/redistest"
)

func TestMain(m *testing.M) { redistest.VerifyTestMain(m) }

const patience = time.Minute

// bundle is a namespace and a worker.
type bundle struct {
	t         *testing.T
	pool      *pgxpool.Pool
	redis     rueidis.Client
	db        *entdb.Client
	metrics   *metrics.Upkeep
	worker    *Worker
	namespace uuid.UUID
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{t: t, pool: dbtest.New(t), redis: redistest.Start(t).Client(t), metrics: metrics.NewUpkeep(prometheus.NewRegistry())}
	log := slog.New(slog.NewTextHandler(t.Output(), nil))
	db, err := entdb.New(entdb.Config{Pool: b.pool, Redis: b.redis, Logger: log, Registerer: prometheus.NewRegistry(), EmitTimeout: patience})
	require.NoError(t, err)
	b.db = db
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	b.worker = NewWorker(Deps{Pool: b.pool, DB: db, Metrics: b.metrics, Log: log, Clock: quartz.NewReal()}, time.Hour)
	b.namespace = db.Namespace.Create().SetSlug("n").SaveX(t.Context()).ID
	return b
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(context.Background(), sql, args...)
	require.NoError(b.t, err)
}

func (b *bundle) count(sql string, args ...any) (n int64) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

// repository has so many Maven versions, and a tenth as many blobs, which it shares
// with its like; its counters are right.
func (b *bundle) repository(name string, versions int) uuid.UUID {
	b.t.Helper()
	id := b.db.Repository.Create().SetNamespaceID(b.namespace).SetName(name).SetFormat(schematype.FormatMaven).SetKind(schematype.KindHosted).SaveX(b.t.Context()).ID
	b.exec(`INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes)
		SELECT $1, sha256(n::text::bytea), 10 FROM generate_series(0, $2::int / 10) AS n ON CONFLICT DO NOTHING`, b.namespace, versions)
	b.exec(`WITH made AS (
			INSERT INTO maven_versions (id, namespace_id, repository_id, name, version, size_bytes)
			SELECT gen_random_uuid(), $1, $2, 'g:a', n::text, 10 FROM generate_series(1, $3::int) AS n RETURNING id, version),
		filed AS (
			INSERT INTO maven_files (id, version_id, path, sha256, size_bytes)
			SELECT gen_random_uuid(), id, 'a.jar', sha256((version::int / 10)::text::bytea), 10 FROM made WHERE version LIKE '%7')
		INSERT INTO blob_storage_attachments (namespace_id, sha256, repository_id, version_table, version_id)
		SELECT $1, sha256((version::int / 10)::text::bytea), $2, 2, id FROM made`, b.namespace, id, versions)
	b.exec(`UPDATE repositories SET size_bytes = 10 * $2::bigint, artifacts_count = $2 WHERE id = $1`, id, versions)
	b.exec(`UPDATE namespace_statistics SET components_count = components_count + $2,
		deduplicated_size_bytes = (SELECT sum(size_bytes) FROM blob_storage_blobs_by_namespace WHERE namespace_id = $1)
		WHERE namespace_id = $1`, b.namespace, versions)
	return id
}

func (b *bundle) in(step func(ctx context.Context, tx *entdb.Tx) error) error {
	return b.db.WithTx(context.Background(), step)
}

func (b *bundle) schedule(repository uuid.UUID) request {
	b.t.Helper()
	require.NoError(b.t, b.in(func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.ScheduleRepositoryDeletion(ctx, tx, repository)
	}))
	return request{scope: repository, kind: accounting.KindRepository}
}

func (b *bundle) scheduleNamespace() request {
	b.t.Helper()
	require.NoError(b.t, b.in(func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.ScheduleNamespaceDeletion(ctx, tx, b.namespace)
	}))
	return request{scope: b.namespace, kind: accounting.KindNamespace}
}

// requireExact compares rows and what is pending with what is there now.
func (b *bundle) requireExact() {
	b.t.Helper()
	usage, err := b.db.NamespaceUsage(context.Background(), b.namespace)
	require.NoError(b.t, err)
	require.Equal(b.t, entdb.Counters{
		Bytes:      b.count(`SELECT coalesce(sum(size_bytes), 0)::bigint FROM blob_storage_blobs WHERE namespace_id = $1`, b.namespace),
		Components: b.count(`SELECT count(*) FROM maven_versions WHERE namespace_id = $1`, b.namespace),
	}, usage.Total(), "namespace")
	for _, id := range b.db.Repository.Query().IDsX(context.Background()) {
		usage, err := b.db.RepositoryUsage(context.Background(), id)
		require.NoError(b.t, err)
		require.Equal(b.t, entdb.Counters{
			Bytes:      b.count(`SELECT coalesce(sum(size_bytes), 0)::bigint FROM maven_versions WHERE repository_id = $1`, id),
			Components: b.count(`SELECT count(*) FROM maven_versions WHERE repository_id = $1`, id),
		}, usage.Total(), "repository")
	}
}

// drain applies all that is buffered.
func (b *bundle) drain() {
	b.t.Helper()
	require.NoError(b.t, ledger.EnsurePartitions(b.t.Context(), b.pool, time.Now(), time.Now()))
	buf := buffer.New(b.redis, buffer.Config{TTL: time.Hour, LeaseTTL: time.Minute})
	worker := drain.NewBucketWorker(drain.DefaultConfig(), drain.Dependencies{
		Pool: b.pool, Buffer: buf, Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler), Clock: quartz.NewReal(),
	})
	job := &river.Job[drain.BucketArgs]{
		JobRow: &rivertype.JobRow{ScheduledAt: time.Now()},
		Args:   drain.BucketArgs{Bucket: accounting.Bucket(b.namespace), Scopes: 100},
	}
	for range 3 { // a scope keeps further markers for the next drain
		require.NoError(b.t, worker.Work(b.t.Context(), job))
	}
}

// requireNothingLeft looks through every table, and through Redis.
func (b *bundle) requireNothingLeft() {
	b.t.Helper()
	b.drain()
	rows, err := b.pool.Query(b.t.Context(), `
		SELECT format('SELECT %1$L, count(*) FROM %1$I WHERE %2$I = $1', table_name, column_name) FROM information_schema.columns
		WHERE table_schema = 'public' AND column_name IN ('namespace_id', 'scope_id')
			AND table_name NOT IN ('storage_ledger', 'blob_storage_deletions') AND table_name NOT LIKE 'usage_%' -- they outlive it`)
	require.NoError(b.t, err)
	var query string
	var queries []string
	for rows.Next() {
		require.NoError(b.t, rows.Scan(&query))
		queries = append(queries, query)
	}
	require.NoError(b.t, rows.Err())
	require.Greater(b.t, len(queries), 8)
	for _, query := range queries {
		var table string
		var left int
		require.NoError(b.t, b.pool.QueryRow(b.t.Context(), query, b.namespace).Scan(&table, &left))
		if table != "reconciliation_requests" { // the next trigger drops it
			require.Zero(b.t, left, table)
		}
	}
	require.Zero(b.t, b.count(`SELECT count(*) FROM namespaces WHERE id = $1`, b.namespace))
	require.Zero(b.t, b.count(`SELECT count(*) FROM maven_files`))
	keys, err := b.redis.Do(b.t.Context(), b.redis.B().Keys().Pattern("*").Build()).AsStrSlice()
	require.NoError(b.t, err)
	require.Empty(b.t, keys)
}

func TestAC21RepositoryIsDeletedInBatches(t *testing.T) {
	t.Parallel()
	const versions = 20_000
	b := setup(t)
	kept, doomed := b.repository("kept", 1000), b.repository("doomed", versions)
	b.requireExact()
	r := b.schedule(doomed)

	steps := 0
	for goesOn := true; goesOn; steps++ {
		require.Equal(t, int64(steps)*batchSize, b.count(`SELECT versions_deleted FROM deletion_requests`))
		var err error
		goesOn, err = b.worker.step(t.Context(), r)
		require.NoError(t, err)
		b.requireExact()
	}
	require.Equal(t, versions/batchSize+1, steps)
	require.Zero(t, b.count(`SELECT count(*) FROM repositories WHERE id = $1`, doomed))
	require.Zero(t, b.count(`SELECT count(*) FROM deletion_requests`))
	require.Zero(t, b.count(`SELECT count(*) FROM blob_storage_attachments WHERE repository_id = $1`, doomed))
	require.EqualValues(t, 1000, b.count(`SELECT count(*) FROM blob_storage_attachments WHERE repository_id = $1`, kept))
	require.EqualValues(t, versions, testutil.ToFloat64(b.metrics.DeletedVersions))
	b.drain()
	b.requireExact()
}

func TestAC21NamespaceIsDeletedInBatches(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.repository("one", 5000)
	b.repository("other", 2500)
	b.repository("empty", 0)
	other := b.db.Namespace.Create().SetSlug("other").SaveX(t.Context()).ID
	b.exec(`INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) SELECT $1, sha256, size_bytes FROM blob_storage_blobs`, other)
	blobs := b.count(`SELECT count(*) FROM blob_storage_blobs WHERE namespace_id = $1`, b.namespace)
	// What somebody deleted in SQL of their own leaves attachments behind.
	b.exec(`DELETE FROM maven_versions WHERE id IN (SELECT id FROM maven_versions v WHERE NOT EXISTS (SELECT FROM maven_files f WHERE f.version_id = v.id) LIMIT 10)`)
	b.exec(`UPDATE namespace_statistics SET components_count = components_count - 10 WHERE namespace_id = $1`, b.namespace)
	b.exec(`UPDATE repositories r SET (size_bytes, artifacts_count) = (SELECT coalesce(sum(size_bytes), 0), count(*) FROM maven_versions WHERE repository_id = r.id)`)

	r := b.scheduleNamespace()
	for goesOn := true; goesOn; {
		b.requireExact()
		var err error
		goesOn, err = b.worker.step(t.Context(), r)
		require.NoError(t, err)
	}
	b.requireNothingLeft()
	require.Equal(t, blobs, b.count(`SELECT count(*) FROM blob_storage_blobs`), "those of the other namespace")
	require.Equal(t, blobs, b.count(`SELECT count(*) FROM blob_storage_deletions WHERE namespace_id = $1 AND due_at > now() + interval '59 minutes'`, b.namespace))
	require.EqualValues(t, blobs, testutil.ToFloat64(b.metrics.CollectedBlobs))
	require.EqualValues(t, 1, testutil.ToFloat64(b.metrics.DeletedScopes))
}

func TestAC21DeletionGoesOnAfterAKill(t *testing.T) {
	t.Parallel()
	for _, at := range []failpoint.Point{failpoint.WriterWrote, failpoint.WriterCommitted, failpoint.WriterEmits, failpoint.WriterEmitted} {
		t.Run("AC21 at "+string(at), func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.worker.batch = 50
			b.repository("doomed", 500)
			r := b.scheduleNamespace()
			killed := 0
			for steps := 0; ; steps++ {
				require.Less(t, steps, 100)
				dies := steps%2 == 0
				ctx := failpoint.With(t.Context(), func(_ context.Context, p failpoint.Point) error {
					if p == at && dies {
						dies = false
						killed++
						return errors.New("killed")
					}
					return nil
				})
				goesOn, err := b.worker.step(ctx, r)
				if err == nil && !goesOn {
					break
				}
				if err != nil {
					require.ErrorContains(t, err, "killed")
				}
			}
			require.Positive(t, killed)
			b.requireNothingLeft()
		})
	}
}

func TestDeletionBesidePublishersAndAnotherWorker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.worker.batch = 100
	kept, doomed := b.repository("kept", 500), b.repository("doomed", 3000)
	group, ctx := errgroup.WithContext(t.Context())
	scheduled := make(chan struct{})
	var refused, published atomic.Int64
	for publisher := range 4 {
		group.Go(func() error {
			for n := 0; ; n++ {
				into := []uuid.UUID{kept, doomed}[n%2]
				err := b.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
					_, err := entpublish.Publish(ctx, tx, entpublish.Version{
						Ref:   entpublish.Ref{RepositoryID: into, Name: "g:new", Version: fmt.Sprintf("%d.%d", publisher, n)},
						Files: []entpublish.File{{Path: "a.jar", Blob: entpublish.Blob{Digest: schematype.Digest{byte(n), byte(publisher)}, Size: 7}}},
					})
					return err
				})
				switch {
				case errors.Is(err, entdb.ErrDeleting):
					refused.Add(1)
				case errors.Is(err, entdb.ErrRepository):
					return nil // it is gone
				case err != nil:
					return err
				case published.Add(1) == 40:
					close(scheduled)
				}
			}
		})
	}
	select {
	case <-scheduled:
	case <-ctx.Done():
		require.NoError(t, group.Wait())
	}
	r := b.schedule(doomed)
	for range 2 {
		group.Go(func() error {
			for b.count(`SELECT count(*) FROM deletion_requests`) > 0 {
				if _, err := b.worker.step(ctx, r); err != nil {
					return err
				}
			}
			return nil
		})
	}
	require.NoError(t, group.Wait())
	require.Positive(t, refused.Load())
	require.Zero(t, b.count(`SELECT count(*) FROM maven_versions WHERE repository_id = $1`, doomed))
	b.requireExact()
	b.drain()
	b.requireExact()
}

func TestScheduledDeletions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	repository := b.repository("r", 3)

	t.Run("are refused of what is not there", func(t *testing.T) {
		require.ErrorIs(t, b.in(func(ctx context.Context, tx *entdb.Tx) error {
			return entpublish.ScheduleRepositoryDeletion(ctx, tx, uuid.New())
		}), entdb.ErrRepository)
		require.ErrorIs(t, b.in(func(ctx context.Context, tx *entdb.Tx) error {
			return entpublish.ScheduleNamespaceDeletion(ctx, tx, uuid.New())
		}), entpublish.ErrNotFound)
	})
	t.Run("twice are one, and hide what is deleted", func(t *testing.T) {
		b.schedule(repository)
		b.schedule(repository)
		require.EqualValues(t, 1, b.count(`SELECT count(*) FROM deletion_requests`))
		require.NotNil(t, b.db.Repository.GetX(t.Context(), repository).SoftDeletedAt)
	})
	t.Run("refuse what is published, and what the client creates", func(t *testing.T) {
		require.ErrorIs(t, b.in(func(ctx context.Context, tx *entdb.Tx) error {
			_, err := entpublish.Publish(ctx, tx, entpublish.Version{Ref: entpublish.Ref{RepositoryID: repository, Name: "g:a", Version: "new"}})
			return err
		}), entdb.ErrDeleting)
		require.ErrorIs(t, b.in(func(ctx context.Context, tx *entdb.Tx) error {
			return tx.MavenVersion.Create().SetNamespaceID(b.namespace).SetRepositoryID(repository).SetName("g:a").SetVersion("new").SetSizeBytes(1).Exec(ctx)
		}), entdb.ErrDeleting)
	})
	t.Run("cannot be taken back", func(t *testing.T) {
		require.ErrorIs(t, b.in(func(ctx context.Context, tx *entdb.Tx) error {
			return entpublish.RestoreRepository(ctx, tx, repository)
		}), entdb.ErrDeleting)
		require.NotNil(t, b.db.Repository.GetX(t.Context(), repository).SoftDeletedAt)
	})
	t.Run("refuse what follows in the transaction that asks for them", func(t *testing.T) {
		into := b.repository("same transaction", 1)
		publish := func(ctx context.Context, tx *entdb.Tx) error {
			_, err := entpublish.Publish(ctx, tx, entpublish.Version{Ref: entpublish.Ref{RepositoryID: into, Name: "g:a", Version: "new"}})
			return err
		}
		require.ErrorIs(t, b.in(func(ctx context.Context, tx *entdb.Tx) error {
			require.NoError(t, publish(ctx, tx))
			require.NoError(t, entpublish.ScheduleRepositoryDeletion(ctx, tx, into))
			return publish(ctx, tx)
		}), entdb.ErrDeleting)
	})
	t.Run("of a namespace refuse what is published into its repositories", func(t *testing.T) {
		other := b.repository("other", 0)
		b.scheduleNamespace()
		for _, restore := range []error{
			b.in(func(ctx context.Context, tx *entdb.Tx) error {
				return entpublish.RestoreNamespace(ctx, tx, b.namespace)
			}),
			b.in(func(ctx context.Context, tx *entdb.Tx) error { return entpublish.RestoreRepository(ctx, tx, other) }),
		} {
			require.ErrorIs(t, restore, entdb.ErrDeleting)
		}
		require.ErrorIs(t, b.in(func(ctx context.Context, tx *entdb.Tx) error {
			_, err := entpublish.Publish(ctx, tx, entpublish.Version{Ref: entpublish.Ref{RepositoryID: other, Name: "g:a", Version: "new"}})
			return err
		}), entdb.ErrDeleting)
	})
	t.Run("are counted, and done by a run, what was put in meanwhile too", func(t *testing.T) {
		require.NoError(t, NewGauges(b.worker.deps).Work(t.Context(), nil))
		b.repository("late", 3)
		require.NoError(t, b.worker.Run(t.Context()))
		b.requireNothingLeft()
		require.NoError(t, b.worker.Run(t.Context()), "nothing is left to do")
	})
}

// requireWaiting waits until some transaction of the database waits for a lock.
func (b *bundle) requireWaiting() {
	b.t.Helper()
	require.Eventually(b.t, func() bool {
		return b.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
	}, patience, time.Millisecond)
}

// Whoever restores a scope, or adds to it, waits for whoever asks for its deletion, and
// then is told of it.
func TestRestoringAndAddingWhileADeletionIsAskedFor(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		schedule, meanwhile func(context.Context, *entdb.Tx, uuid.UUID) error
		ofNamespace         bool
	}{
		"repository, restored": {entpublish.ScheduleRepositoryDeletion, entpublish.RestoreRepository, false},
		"repository, published into": {entpublish.ScheduleRepositoryDeletion, func(ctx context.Context, tx *entdb.Tx, id uuid.UUID) error {
			_, err := entpublish.Publish(ctx, tx, entpublish.Version{Ref: entpublish.Ref{RepositoryID: id, Name: "g:a", Version: "new"}})
			return err
		}, false},
		"namespace, restored": {entpublish.ScheduleNamespaceDeletion, entpublish.RestoreNamespace, true},
		"namespace, given blobs": {entpublish.ScheduleNamespaceDeletion, func(ctx context.Context, tx *entdb.Tx, id uuid.UUID) error {
			return entpublish.PutBlobs(ctx, tx, id, []entpublish.Blob{{Digest: schematype.Digest{1}, Size: 1}})
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			id := b.namespace
			if !c.ofNamespace {
				id = b.repository("r", 1)
			}
			ended := make(chan error, 1)
			require.NoError(t, b.in(func(ctx context.Context, tx *entdb.Tx) error {
				if err := c.schedule(ctx, tx, id); err != nil {
					return err
				}
				go func() {
					ended <- b.in(func(ctx context.Context, tx *entdb.Tx) error { return c.meanwhile(ctx, tx, id) })
				}()
				b.requireWaiting()
				return nil
			}))
			require.ErrorIs(t, <-ended, entdb.ErrDeleting)
		})
	}
}

// A batch locks the repository before its versions, as those do who purge them: else
// the two could wait for each other.
func TestDeletionBesideAPurge(t *testing.T) {
	t.Parallel()
	b := setup(t)
	doomed := b.repository("doomed", 3)
	r := b.schedule(doomed)
	stepped := make(chan error, 1)
	require.NoError(t, b.in(func(ctx context.Context, tx *entdb.Tx) error {
		if _, err := tx.FindRepository(ctx, doomed); err != nil {
			return err
		}
		go func() {
			_, err := b.worker.step(context.Background(), r)
			stepped <- err
		}()
		b.requireWaiting()
		return entpublish.Purge(ctx, tx, entpublish.Ref{RepositoryID: doomed, Name: "g:a", Version: "2"})
	}))
	if err := <-stepped; err != nil {
		require.ErrorContains(t, err, "lock timeout", "on a slow machine")
	}
	require.NoError(t, b.worker.Run(t.Context()))
	require.Zero(t, b.count(`SELECT count(*) FROM repositories`))
	b.requireExact()
}
