package entdb_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/ent"
	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/npmversion"
	"github.com/stowage-dev/stowage/ent/repository"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/dbtest"
)

func TestAC25EmitsAfterCommitOnly(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)

	t.Run("one emission a namespace, after the COMMIT", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, pool)
		r := b.npm(t)
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			newVersion(tx, r, 100).SaveX(ctx)
			newVersion(tx, r, 50).SaveX(ctx)
			require.Empty(t, b.recorder.Emissions())
			return nil
		})
		require.NoError(t, err)
		require.Len(t, b.recorder.Emissions(), 1)
		require.Equal(t, entdb.Counters{Bytes: 150, Components: 2}, b.recorder.Repository(r.ID))
		b.requireExact(t, r)
	})

	t.Run("an error rolls back and emits nothing", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, pool)
		r := b.npm(t)
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			newVersion(tx, r, 100).SaveX(ctx)
			return errWanted
		})
		require.ErrorIs(t, err, errWanted)
		require.Empty(t, b.recorder.Emissions())
		b.requireExact(t, r)
	})

	t.Run("a panic rolls back, emits nothing and goes on", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		r := b.npm(t)
		require.PanicsWithValue(t, "wanted", func() {
			_ = b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
				newVersion(tx, r, 100).SaveX(ctx)
				panic("wanted")
			})
		})
		require.Empty(t, b.recorder.Emissions())
		b.requireExact(t, r)
		require.Zero(t, b.pool.Stat().AcquiredConns(), "the connection went back")
	})

	t.Run("a statement that failed leaves nothing to commit", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, pool)
		r := b.npm(t)
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			newVersion(tx, r, 100).SaveX(ctx)
			_, err := tx.Pgx().Exec(ctx, `SELECT 1/0`)
			require.Error(t, err)
			return nil
		})
		require.Error(t, err)
		require.NotErrorIs(t, err, entdb.ErrCommitUnknown)
		require.Empty(t, b.recorder.Emissions())
		b.requireExact(t, r)
	})

	t.Run("changes that cancel out are not emitted", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, pool)
		r := b.npm(t)
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			v := newVersion(tx, r, 100).SaveX(ctx)
			return tx.NPMVersion.DeleteOne(v).Exec(ctx)
		})
		require.NoError(t, err)
		require.Empty(t, b.recorder.Emissions())
	})
}

func TestUncountedMutationIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)
	v := b.publish(t, r, 100)[0]
	ctx := t.Context()
	create := b.db.NPMVersion.Create().SetNamespaceID(r.NamespaceID).SetRepositoryID(r.ID).SetName("a").SetVersion("1").SetSizeBytes(1)

	_, err := create.Save(ctx)
	require.ErrorIs(t, err, entdb.ErrUncounted)
	require.ErrorContains(t, err, "WithTx", "it names the way out")
	require.ErrorIs(t, b.db.NPMVersion.UpdateOne(v).SetSizeBytes(7).Exec(ctx), entdb.ErrUncounted)
	require.ErrorIs(t, b.db.NPMVersion.DeleteOne(v).Exec(ctx), entdb.ErrUncounted)
	_, err = b.db.NPMVersion.Delete().Exec(ctx)
	require.ErrorIs(t, err, entdb.ErrUncounted)
	require.NoError(t, b.db.NPMVersion.UpdateOne(v).SetSoftDeletedAt(time.Now()).Exec(ctx), "what changes no counter needs no counted transaction")
	b.requireExact(t, r)

	t.Run("the outer client inside the function too", func(t *testing.T) {
		err := b.db.WithTx(ctx, func(ctx context.Context, _ *entdb.Tx) error {
			return b.db.NPMVersion.DeleteOne(v).Exec(ctx)
		})
		require.ErrorIs(t, err, entdb.ErrUncounted)
		b.requireExact(t, r)
	})

	t.Run("a transaction begun with the generated Tx is counted as well", func(t *testing.T) {
		tx, err := b.db.Tx(ctx)
		require.NoError(t, err)
		tx.NPMVersion.UpdateOne(v).SetSizeBytes(40).ExecX(ctx)
		require.NoError(t, tx.Commit())
		b.requireExact(t, r)
	})

	t.Run("and so is one through a debug client", func(t *testing.T) {
		err := b.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
			return tx.Debug().NPMVersion.UpdateOne(v).SetSizeBytes(45).Exec(ctx)
		})
		require.NoError(t, err)
		b.requireExact(t, r)
	})
}

func TestWhatTheDatabaseChangedIsCounted(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)

	t.Run("bulk create", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, pool)
		r := b.npm(t)
		b.publish(t, r, 1, 2, 3, 4)
		require.Equal(t, entdb.Counters{Bytes: 10, Components: 4}, b.recorder.Repository(r.ID))
		require.Len(t, b.recorder.Emissions(), 1)
		b.requireExact(t, r)
	})

	t.Run("size changes: set, add, and by predicate", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, pool)
		r := b.npm(t)
		made := b.publish(t, r, 10, 20, 30)
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			tx.NPMVersion.UpdateOne(made[0]).SetSizeBytes(15).ExecX(ctx)
			tx.NPMVersion.UpdateOneID(made[1].ID).AddSizeBytes(-5).ExecX(ctx)
			n := tx.NPMVersion.Update().Where(npmversion.RepositoryID(r.ID), npmversion.SizeBytesLTE(15)).AddSizeBytes(100).SaveX(ctx)
			require.Equal(t, 2, n)
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, entdb.Counters{Bytes: 115 + 115 + 30, Components: 3}, b.recorder.Repository(r.ID))
		b.requireExact(t, r)
	})

	t.Run("delete by predicate, also over an edge", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, pool)
		r := b.npm(t)
		b.publish(t, r, 10, 20, 30)
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			n := tx.NPMVersion.Delete().Where(npmversion.SizeBytesGT(10), npmversion.HasRepositoryWith(repository.ID(r.ID))).ExecX(ctx)
			require.Equal(t, 2, n)
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, entdb.Counters{Bytes: 10, Components: 1}, b.recorder.Repository(r.ID))
		b.requireExact(t, r)
	})

	t.Run("an update or a delete that matches nothing", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, pool)
		r := b.npm(t)
		v := b.publish(t, r, 10)[0]
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			require.Zero(t, tx.NPMVersion.Delete().Where(npmversion.RepositoryID(r.ID), npmversion.SizeBytesGT(1000)).ExecX(ctx))
			require.Error(t, tx.NPMVersion.UpdateOne(v).Where(npmversion.SizeBytesGT(1000)).SetSizeBytes(3).Exec(ctx))
			require.True(t, ent.IsNotFound(tx.NPMVersion.DeleteOne(v).Where(npmversion.SizeBytesGT(1000)).Exec(ctx)))
			require.True(t, ent.IsNotFound(tx.NPMVersion.DeleteOneID(uuid.New()).Exec(ctx)))
			return nil
		})
		require.NoError(t, err)
		b.requireExact(t, r)
	})

	t.Run("a create that violates a constraint", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, pool)
		r := b.npm(t)
		v := b.publish(t, r, 10)[0]
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			return newVersion(tx, r, 10).SetVersion(v.Version).Exec(ctx)
		})
		require.True(t, ent.IsConstraintError(err), "%v", err)
		b.requireExact(t, r)
	})
}

// Each of the two deleters has seen the rows before the other one deletes.
func TestConcurrentDeletersCountOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)
	b.publish(t, r, 10, 20, 30)
	const deleters = 20
	var group errgroup.Group
	for range deleters {
		group.Go(func() error {
			return b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
				_, err := tx.NPMVersion.Delete().Where(npmversion.RepositoryID(r.ID)).Exec(ctx)
				return err
			})
		})
	}
	require.NoError(t, group.Wait())
	require.Equal(t, entdb.Counters{}, b.recorder.Repository(r.ID))
	b.requireExact(t, r)
}

// A row that ceases to match while the mutation waits for its lock is not
// counted.
func TestPredicateIsAskedAgainUnderTheLock(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)
	made := b.publish(t, r, 10, 20)
	held, release := make(chan struct{}), make(chan struct{})
	var group errgroup.Group
	group.Go(func() error {
		return b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			err := tx.NPMVersion.UpdateOne(made[0]).SetSizeBytes(1000).Exec(ctx)
			close(held)
			<-release
			return err
		})
	})
	<-held
	var deleted int
	group.Go(func() error {
		return b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) (err error) {
			deleted, err = tx.NPMVersion.Delete().Where(npmversion.SizeBytesLT(100)).Exec(ctx)
			return err
		})
	})
	b.awaitLockWaiters(t, 1)
	close(release)
	require.NoError(t, group.Wait())
	require.Equal(t, 1, deleted)
	require.Equal(t, entdb.Counters{Bytes: 1000, Components: 1}, b.recorder.Repository(r.ID))
	b.requireExact(t, r)
}

func (b *bundle) awaitLockWaiters(t *testing.T, n int) {
	t.Helper()
	require.Eventually(t, func() bool {
		var waiting int
		err := b.pool.QueryRow(context.Background(),
			`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waiting)
		return err == nil && waiting == n
	}, time.Minute, 5*time.Millisecond)
}

func TestSavepointsAreRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)
	err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		newVersion(tx, r, 100).SaveX(ctx)
		p := tx.Pgx()
		_, err := p.Begin(ctx)
		require.ErrorContains(t, err, "savepoint")
		require.ErrorContains(t, p.Commit(ctx), "refused")
		require.ErrorContains(t, p.Rollback(ctx), "refused")
		for _, sql := range []string{"SAVEPOINT a", " savepoint a;", "ROLLBACK TO a", "RELEASE a", "COMMIT", "END", "abort;", "PREPARE TRANSACTION 'x'"} {
			_, err := p.Exec(ctx, sql)
			require.ErrorContains(t, err, "one WithTx for each unit", sql)
			require.ErrorContains(t, p.QueryRow(ctx, sql).Scan(), "refused", sql)
			batch := &pgx.Batch{}
			batch.Queue("SELECT 1")
			batch.Queue(sql)
			require.ErrorContains(t, p.SendBatch(ctx, batch).Close(), "refused", sql)
		}
		return nil
	})
	require.NoError(t, err)
	b.requireExact(t, r)
}

func TestEndedTransactionIsRefused(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)
	var kept *entdb.Tx
	require.NoError(t, b.db.WithTx(t.Context(), func(_ context.Context, tx *entdb.Tx) error {
		kept = tx
		return nil
	}))
	require.ErrorContains(t, newVersion(kept, r, 100).Exec(t.Context()), "has ended")
	b.requireExact(t, r)
}

func TestVersionsMustFitTheirRepository(t *testing.T) {
	t.Parallel()
	b := setup(t)
	other := b.db.Namespace.Create().SetSlug("other").SaveX(t.Context())
	create := func(r *ent.Repository, namespace uuid.UUID) error {
		return b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			return newVersion(tx, r, 1).SetNamespaceID(namespace).Exec(ctx)
		})
	}
	hosted := b.npm(t)
	require.NoError(t, create(hosted, b.namespace.ID))
	require.ErrorIs(t, create(hosted, other.ID), entdb.ErrNamespace)
	require.ErrorIs(t, create(b.repository(t, schematype.FormatMaven, schematype.KindHosted), b.namespace.ID), entdb.ErrFormat)
	require.ErrorIs(t, create(b.repository(t, schematype.FormatNPM, schematype.KindVirtual), b.namespace.ID), entdb.ErrVirtual)
	require.ErrorIs(t, create(&ent.Repository{ID: uuid.New(), NamespaceID: other.ID}, other.ID), entdb.ErrRepository)
}

func TestCountersCannotBeSet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ctx := t.Context()
	create := func() *ent.RepositoryCreate {
		return b.db.Repository.Create().SetNamespaceID(b.namespace.ID).SetName("r").SetFormat(schematype.FormatNPM).SetKind(schematype.KindHosted)
	}
	require.ErrorContains(t, create().SetSizeBytes(5).Exec(ctx), "size_bytes cannot be set to 5")
	require.ErrorContains(t, create().SetArtifactsCount(5).Exec(ctx), "artifacts_count cannot be set")
	require.ErrorContains(t, create().SetLastReconciledAt(time.Now()).Exec(ctx), "last_reconciled_at cannot be set")
	require.NoError(t, create().Exec(ctx))

	require.Error(t, b.db.NamespaceStatistics.Create().SetID(uuid.New()).SetNamespaceID(b.namespace.ID).Exec(ctx))
	require.ErrorContains(t, b.db.NamespaceStatistics.DeleteOneID(b.namespace.ID).Exec(ctx), "only the accounting protocol")
	_, err := b.db.NamespaceStatistics.Delete().Exec(ctx)
	require.ErrorContains(t, err, "only the accounting protocol")
	require.ErrorContains(t, b.db.NamespaceStatistics.UpdateOneID(b.namespace.ID).Exec(ctx), "only the accounting protocol")
}

func TestReportCountsRawSQL(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)
	b.publish(t, r, 10, 20)
	err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		tag, err := tx.Pgx().Exec(ctx, `DELETE FROM npm_versions WHERE size_bytes = 20`)
		require.NoError(t, err)
		gone := -tag.RowsAffected()
		require.NoError(t, tx.Report(entdb.Change{NamespaceID: r.NamespaceID, RepositoryID: r.ID, Counters: entdb.Counters{Bytes: 20 * gone, Components: gone}}))
		require.ErrorIs(t, tx.Report(entdb.Change{RepositoryID: r.ID}), entdb.ErrNilID)
		return tx.Report(entdb.Change{NamespaceID: r.NamespaceID, Counters: entdb.Counters{Components: gone}})
	})
	require.NoError(t, err)
	b.requireExact(t, r)
}

type noticeArgs struct {
	Version string `json:"version"`
}

func (noticeArgs) Kind() string { return "notice" }

// A registry's own River job exists only if the publish does.
func TestRiverInsertJoinsTheTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)
	jobs, err := river.NewClient(riverpgxv5.New(b.pool), &river.Config{Schema: "river"})
	require.NoError(t, err)
	for _, end := range []error{errWanted, nil} {
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			v := newVersion(tx, r, 5).SaveX(ctx)
			_, err := jobs.InsertTx(ctx, tx.Pgx(), noticeArgs{Version: v.Version}, nil)
			require.NoError(t, err)
			return end
		})
		require.ErrorIs(t, err, end)
	}
	var n int
	require.NoError(t, b.pool.QueryRow(t.Context(), `SELECT count(*) FROM river.river_job`).Scan(&n))
	require.Equal(t, 1, n)
	b.requireExact(t, r)
}

func TestTransactionIsReadCommittedAndDurable(t *testing.T) {
	t.Parallel()
	b := setup(t, func(cfg *entdb.Config) {
		pool := cfg.Pool.Config()
		pool.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
		pool.ConnConfig.RuntimeParams["synchronous_commit"] = "off"
		p, err := pgxpool.NewWithConfig(t.Context(), pool)
		require.NoError(t, err)
		t.Cleanup(p.Close)
		cfg.Pool = p
	})
	r := b.npm(t)
	b.publish(t, r, 100)
	b.requireExact(t, r)
}

func TestEmissionCarriesTheMarker(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)
	b.publish(t, r, 1)
	require.Zero(t, b.recorder.Emissions()[0].Marker)
	const marker = 1_790_000_000_123_456
	_, err := b.pool.Exec(t.Context(), `UPDATE namespace_statistics SET reconciliation_marker = stowage_marker_time($1)`, int64(marker))
	require.NoError(t, err)
	b.publish(t, r, 1)
	require.EqualValues(t, marker, b.recorder.Emissions()[1].Marker)
	require.Zero(t, b.requests(t))

	t.Run("a namespace without a statistics row is emitted and requested", func(t *testing.T) {
		_, err := b.pool.Exec(t.Context(), `DELETE FROM namespace_statistics`)
		require.NoError(t, err)
		b.publish(t, r, 1)
		require.Zero(t, b.recorder.Emissions()[2].Marker)
		b.requireRequested(t, b.namespace.ID)
	})
}

func TestManyNamespacesInOneTransaction(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first := b.npm(t)
	b.namespace = b.db.Namespace.Create().SetSlug("second").SaveX(t.Context())
	second := b.npm(t)
	var group errgroup.Group
	for i := range 16 {
		group.Go(func() error {
			return b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
				order := []*ent.Repository{first, second}
				return errors.Join(newVersion(tx, order[i%2], 10).Exec(ctx), newVersion(tx, order[(i+1)%2], 10).Exec(ctx))
			})
		})
	}
	require.NoError(t, group.Wait())
	b.requireExact(t, first)
	b.requireExact(t, second)
}

func TestAC16EntHookStandsInForTheTrigger(t *testing.T) {
	t.Parallel()
	for _, trigger := range []string{"ENABLE", "DISABLE"} {
		t.Run(trigger, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			ctx := t.Context()
			_, err := b.pool.Exec(ctx, fmt.Sprintf(`ALTER TABLE namespaces %s TRIGGER trg_namespaces_create_statistics`, trigger))
			require.NoError(t, err)
			single := b.db.Namespace.Create().SetSlug("single").SaveX(ctx)
			bulk := b.db.Namespace.CreateBulk(b.db.Namespace.Create().SetSlug("a"), b.db.Namespace.Create().SetSlug("b")).SaveX(ctx)
			for _, n := range append(bulk, single) {
				s := b.db.NamespaceStatistics.GetX(ctx, n.ID)
				require.Zero(t, s.DeduplicatedSizeBytes)
				require.Zero(t, s.ComponentsCount)
				require.True(t, s.LastReconciledAt.Equal(time.Unix(0, 0)))
			}
			require.Equal(t, b.db.Namespace.Query().CountX(ctx), b.db.NamespaceStatistics.Query().CountX(ctx))
		})
	}
}
