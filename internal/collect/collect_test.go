package collect_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/backfill"
	"github.com/stowage-dev/stowage/internal/blobs"
	"github.com/stowage-dev/stowage/internal/collect"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/metrics"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

type bundle struct {
	t        *testing.T
	pool     *pgxpool.Pool
	db       *entdb.Client
	recorder *entdb.Recorder
	metrics  *metrics.Upkeep
}

func setup(t *testing.T) *bundle {
	t.Helper()
	b := &bundle{t: t, pool: dbtest.New(t), recorder: &entdb.Recorder{}, metrics: metrics.NewUpkeep(prometheus.NewRegistry())}
	db, err := entdb.New(entdb.Config{Pool: b.pool, Emitter: b.recorder, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	b.db = db
	return b
}

func (b *bundle) worker(cfg collect.Config) *backfill.Worker {
	require.NoError(b.t, cfg.Validate())
	return backfill.NewWorker(backfill.Deps{
		Pool: b.pool, DB: b.db, Metrics: b.metrics, Log: slog.New(slog.NewTextHandler(b.t.Output(), nil)), Clock: quartz.NewReal(),
	}, []backfill.Backfill{collect.Backfill(cfg, b.metrics)})
}

// walk runs the worker until the walk has ended.
func (b *bundle) walk(cfg collect.Config) {
	b.t.Helper()
	worker := b.worker(cfg)
	for {
		require.NoError(b.t, worker.Run(b.t.Context()))
		p, err := backfill.Read(b.t.Context(), b.pool, collect.Name)
		require.NoError(b.t, err)
		if p.State == backfill.Finished {
			return
		}
	}
}

func (b *bundle) exec(sql string, args ...any) {
	b.t.Helper()
	_, err := b.pool.Exec(b.t.Context(), sql, args...)
	require.NoError(b.t, err)
}

func (b *bundle) count(sql string, args ...any) (n int64) {
	b.t.Helper()
	require.NoError(b.t, b.pool.QueryRow(b.t.Context(), sql, args...).Scan(&n))
	return n
}

// namespace has so many old blobs of a byte each that nothing refers to, and as many
// that its one version has.
func (b *bundle) namespace(blobs int) (namespace, repository uuid.UUID) {
	b.t.Helper()
	namespace = b.db.Namespace.Create().SetSlug(uuid.NewString()).SaveX(b.t.Context()).ID
	repository = b.db.Repository.Create().SetNamespaceID(namespace).SetName("r").SetFormat(schematype.FormatNPM).SetKind(schematype.KindHosted).SaveX(b.t.Context()).ID
	b.exec(`INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes, created_at)
		SELECT $1, sha256(n::text::bytea), 1, now() - interval '1 day' FROM generate_series(1, 2 * $2::int) AS n`, namespace, blobs)
	version := uuid.New()
	b.exec(`INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes) VALUES ($1, $2, $3, 'n', '1', $4)`, version, namespace, repository, blobs)
	b.exec(`INSERT INTO blob_storage_attachments (namespace_id, sha256, repository_id, version_table, version_id)
		SELECT $1, sha256(n::text::bytea), $2, 3, $3 FROM generate_series(1, $4::int) AS n`, namespace, repository, version, blobs)
	return namespace, repository
}

func TestAC21WalkCollectsWhatNothingRefersTo(t *testing.T) {
	t.Parallel()
	b := setup(t)
	cfg := collect.Config{Grace: time.Hour, Interval: time.Hour, BatchSize: 7}
	var namespaces []uuid.UUID
	for range 3 {
		id, _ := b.namespace(20)
		namespaces = append(namespaces, id)
	}
	b.exec(`INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) VALUES ($1, sha256('young'), 1)`, namespaces[0])
	figures := func(id uuid.UUID) (u entpublish.Unreferenced) {
		require.NoError(t, b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) (err error) {
			u, err = entpublish.FindUnreferenced(ctx, tx, id)
			return err
		}))
		return u
	}
	require.Equal(t, entpublish.Unreferenced{Unattached: entpublish.Figures{Blobs: 21, Bytes: 21}}, figures(namespaces[0]))

	b.walk(cfg)
	require.EqualValues(t, 61, b.count(`SELECT count(*) FROM blob_storage_blobs`), "those that are attached, and the young one")
	require.EqualValues(t, 60, b.count(`SELECT count(*) FROM blob_storage_deletions WHERE due_at > now() + interval '59 minutes'`))
	for _, id := range namespaces {
		require.EqualValues(t, -20, b.recorder.Namespace(id).Bytes)
	}
	require.Equal(t, entpublish.Unreferenced{
		Unattached: entpublish.Figures{Blobs: 1, Bytes: 1}, Content: entpublish.Figures{Blobs: 20, Bytes: 20},
	}, figures(namespaces[0]))
	require.EqualValues(t, 60, testutil.ToFloat64(b.metrics.CollectedBlobs))
	require.EqualValues(t, 60, testutil.ToFloat64(b.metrics.CollectedBytes))
	p, err := backfill.Read(t.Context(), b.pool, collect.Name)
	require.NoError(t, err)
	require.EqualValues(t, 121, p.RowsSeen, "each blob once")

	t.Run("and again only after the interval", func(t *testing.T) {
		b.exec(`DELETE FROM blob_storage_attachments`)
		b.walk(cfg)
		require.EqualValues(t, 61, b.count(`SELECT count(*) FROM blob_storage_blobs`))
		b.exec(`UPDATE backfills SET finished_at = now() - interval '1 hour'`)
		b.walk(cfg)
		require.EqualValues(t, 1, b.count(`SELECT count(*) FROM blob_storage_blobs`))
	})
}

// The walk reads the keys by their index, whatever follows them.
func TestPageIsRead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	one, _ := b.namespace(5)
	other, _ := b.namespace(5)
	first, second := one, other
	if second.String() < first.String() {
		first, second = second, first
	}
	require.NoError(t, b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		all, err := blobs.After(ctx, tx.Pgx(), blobs.Key{}, 15)
		require.NoError(t, err)
		require.Equal(t, 15, all.Seen)
		require.Equal(t, second, all.Last.Namespace, "the second follows the first")
		rest, err := blobs.After(ctx, tx.Pgx(), all.Last, 15)
		require.NoError(t, err)
		require.Equal(t, 5, rest.Seen)
		require.Len(t, append(all.Unattached, rest.Unattached...), 10)
		own, err := blobs.Of(ctx, tx.Pgx(), blobs.Key{Namespace: first}, 15)
		require.NoError(t, err)
		require.Equal(t, 10, own.Seen)
		require.Equal(t, first, own.Last.Namespace)
		return nil
	}))
}

// A page of the last namespace, of which PostgreSQL may believe that nothing follows,
// does not read all that follows.
func TestPageReadsNoMoreThanItself(t *testing.T) {
	t.Parallel()
	b := setup(t)
	namespace, _ := b.namespace(5000)
	b.exec(`ANALYZE`)
	require.NoError(t, b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		page, err := blobs.After(ctx, tx.Pgx(), blobs.Key{Namespace: namespace, Digest: schematype.Digest{1}}, 10)
		require.NoError(t, err)
		require.Equal(t, 10, page.Seen)
		var scanned int
		require.NoError(t, tx.Pgx().QueryRow(ctx, `
			SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_all_tables
			WHERE relname LIKE 'blob\_storage\_blobs\_by\_namespace%'`).Scan(&scanned))
		require.Less(t, scanned, 1000, "rows read for a page of 10")
		return nil
	}))
}

// storage is a registry's: content by namespace and digest.
type storage struct {
	mu      sync.Mutex
	content map[string]bool
	deleted int
}

func (s *storage) put(namespace uuid.UUID, d schematype.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.content[namespace.String()+d.String()] = true
}

func (s *storage) delete(namespace uuid.UUID, d schematype.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.content, namespace.String()+d.String())
	s.deleted++
}

func (s *storage) has(namespace uuid.UUID, d schematype.Digest) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.content[namespace.String()+d.String()]
}

// pusher publishes and purges versions of a few blobs that it shares with the other
// pushers. It puts content in its place between the publish and the COMMIT, and only
// of blobs that are not there.
func (b *bundle) pusher(ctx context.Context, s *storage, namespace, repository uuid.UUID, name int) error {
	random := rand.New(rand.NewPCG(21, uint64(name)))
	errRollback := errors.New("rolled back on purpose")
	for n := range 60 {
		ref := entpublish.Ref{RepositoryID: repository, Name: fmt.Sprint("pusher ", name), Version: fmt.Sprint(n)}
		var pushed []entpublish.Blob
		for digest := range byte(6) {
			if random.IntN(2) == 0 {
				pushed = append(pushed, entpublish.Blob{Digest: schematype.Digest{1, digest}, Size: 5})
			}
		}
		err := b.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
			if _, err := entpublish.Publish(ctx, tx, entpublish.Version{Ref: ref, Blobs: pushed}); err != nil {
				return err
			}
			for _, blob := range pushed {
				if !s.has(namespace, blob.Digest) {
					s.put(namespace, blob.Digest)
				}
			}
			if random.IntN(5) == 0 {
				return errRollback
			}
			return nil
		})
		if errors.Is(err, errRollback) {
			continue
		}
		if err != nil {
			return err
		}
		for _, blob := range pushed {
			if !s.has(namespace, blob.Digest) {
				return fmt.Errorf("content of %s is gone while a version has it", blob.Digest)
			}
		}
		err = b.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error { return entpublish.Purge(ctx, tx, ref) })
		if err != nil {
			return err
		}
	}
	return nil
}

func (b *bundle) deleteContent(ctx context.Context, s *storage) (did entpublish.DeletedContent, err error) {
	err = b.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		did, err = entpublish.DeleteContent(ctx, tx, 3, func(_ context.Context, c entpublish.Content) error {
			s.delete(c.NamespaceID, c.Digest)
			return nil
		})
		return err
	})
	return did, err
}

// Pushers, collectors and deleters of content race for the same few blobs, without any
// grace: a blob that a version has must have its content at every moment.
func TestContentOfABlobThatIsPushedAgainIsNeverLost(t *testing.T) {
	t.Parallel()
	b := setup(t)
	namespace, repository := b.namespace(0)
	s := &storage{content: map[string]bool{}}
	cfg := collect.Config{Interval: time.Nanosecond, BatchSize: 4}
	pushers, ctx := errgroup.WithContext(t.Context())
	for name := range 6 {
		pushers.Go(func() error { return b.pusher(ctx, s, namespace, repository, name) })
	}
	others, stop := context.WithCancel(t.Context())
	var sweepers errgroup.Group
	for range 2 {
		sweepers.Go(func() error {
			for others.Err() == nil {
				if _, err := b.deleteContent(t.Context(), s); err != nil {
					return err
				}
			}
			return nil
		})
		sweepers.Go(func() error {
			for others.Err() == nil {
				err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
					_, err := entpublish.CollectBlobs(ctx, tx, namespace, 0, 3)
					return err
				})
				if err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := pushers.Wait()
	stop()
	require.NoError(t, err)
	require.NoError(t, sweepers.Wait())
	require.Positive(t, s.deleted, "no content was deleted while it was pushed")

	b.walk(cfg)
	for did := (entpublish.DeletedContent{Deleted: 1}); did.Deleted > 0; {
		did, err = b.deleteContent(t.Context(), s)
		require.NoError(t, err)
	}
	require.Zero(t, b.count(`SELECT count(*) FROM blob_storage_blobs`))
	require.Zero(t, b.recorder.Namespace(namespace), "all was given back")
}

func TestDeleteContent(t *testing.T) {
	t.Parallel()
	b := setup(t)
	namespace, _ := b.namespace(3)
	b.walk(collect.Config{Grace: time.Hour, Interval: time.Hour, BatchSize: 10})
	errStorage := errors.New("storage is away")
	var asked []entpublish.Content
	fails := true
	remove := func(_ context.Context, c entpublish.Content) error {
		asked = append(asked, c)
		if fails {
			return errStorage
		}
		return nil
	}
	run := func(limit int) (did entpublish.DeletedContent) {
		t.Helper()
		asked = nil
		require.NoError(t, b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) (err error) {
			did, err = entpublish.DeleteContent(ctx, tx, limit, remove)
			return err
		}))
		return did
	}

	t.Run("waits for the grace", func(t *testing.T) {
		require.Equal(t, entpublish.DeletedContent{}, run(10))
	})
	b.exec(`UPDATE blob_storage_deletions SET due_at = now()`)
	t.Run("puts off what fails, longer each time", func(t *testing.T) {
		did := run(2)
		require.Len(t, did.Failures, 2)
		require.ErrorIs(t, did.Failures[0], errStorage)
		require.ErrorContains(t, did.Failures[0], asked[0].Digest.String())
		require.Equal(t, namespace, asked[0].NamespaceID)
		require.EqualValues(t, 1, asked[0].Size)
		require.EqualValues(t, 2, b.count(`SELECT count(*) FROM blob_storage_deletions WHERE failures = 1 AND due_at > now()`))
		b.exec(`UPDATE blob_storage_deletions SET failures = 40, due_at = now()`)
		require.Len(t, run(10).Failures, 3)
		require.EqualValues(t, 3, b.count(`SELECT count(*) FROM blob_storage_deletions WHERE due_at BETWEEN now() + interval '50 minutes' AND now() + interval '61 minutes'`))
	})
	b.exec(`UPDATE blob_storage_deletions SET due_at = now()`)
	fails = false
	t.Run("comes again after a rollback", func(t *testing.T) {
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			did, err := entpublish.DeleteContent(ctx, tx, 10, remove)
			require.Equal(t, 3, did.Deleted)
			return errors.Join(err, errStorage)
		})
		require.ErrorIs(t, err, errStorage)
		require.EqualValues(t, 3, b.count(`SELECT count(*) FROM blob_storage_deletions`))
	})
	t.Run("skips what a push under way has taken", func(t *testing.T) {
		require.NoError(t, pgx.BeginFunc(t.Context(), b.pool, func(push pgx.Tx) error {
			_, err := push.Exec(t.Context(), `INSERT INTO blob_storage_blobs SELECT namespace_id, sha256, size_bytes FROM blob_storage_deletions ORDER BY sha256 LIMIT 1`)
			require.NoError(t, err)
			require.Equal(t, 2, run(10).Deleted)
			return nil
		}))
		require.Zero(t, b.count(`SELECT count(*) FROM blob_storage_deletions`))
		require.Zero(t, run(10).Deleted)
	})
	t.Run("refuses a limit that deletes nothing", func(t *testing.T) {
		require.ErrorIs(t, b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			_, err := entpublish.DeleteContent(ctx, tx, 0, remove)
			return err
		}), entpublish.ErrInvalid)
	})
}

func TestConfigIsChecked(t *testing.T) {
	t.Parallel()
	err := collect.Config{Grace: -1}.Validate()
	for _, field := range []string{"grace", "interval", "batch_size"} {
		require.ErrorContains(t, err, field)
	}
}
