package entdb_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent"
	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/hook"
)

func TestControlStatementsAreFoundBehindCommentsAndSemicolons(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, sql := range []string{
		"SAVEPOINT\na", "SAVEPOINT\ta", "-- c\nSAVEPOINT a", "/* c */ ROLLBACK TO a", "SELECT 1; SAVEPOINT a", "-- done\nCOMMIT", "/* a */ -- b\n commit;",
	} {
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			_, err := tx.Pgx().Exec(ctx, sql)
			return err
		})
		require.ErrorContains(t, err, "is refused in a counted transaction", sql)
	}
	err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		_, err := tx.Pgx().Exec(ctx, "/* c */ SELECT $1::text -- end", "a; commit")
		return err
	})
	require.NoError(t, err, "a parameter may hold anything")
}

// The raw connection is not guarded; what it ends is not taken for committed.
func TestTransactionEndedBehindItsBackIsUnknown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)
	err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		newVersion(tx, r, 5).SaveX(ctx)
		_, err := tx.Pgx().Conn().Exec(ctx, "COMMIT")
		return err
	})
	require.ErrorIs(t, err, entdb.ErrCommitUnknown)
	require.Empty(t, b.recorder.Emissions())
	b.requireRequested(t, b.namespace.ID)
}

func TestCancelledReadsDoNotKeepEmissionsBack(t *testing.T) {
	t.Parallel()
	b, _, _ := setupRedis(t)
	r := b.npm(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 {
		_, err := b.db.NamespaceUsage(ctx, b.namespace.ID)
		require.Error(t, err)
	}
	b.publish(t, r, 1)
	require.Zero(t, metric(t, b.registry, "stowage_counter_emit_failures_total"))
}

// A registry's hooks run inside the counting ones.
func TestHooksOfTheRegistry(t *testing.T) {
	t.Parallel()

	t.Run("one that sets the size is found out", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		r := b.npm(t)
		v := b.publish(t, r, 100)[0]
		b.db.NPMVersion.Use(hook.On(func(next ent.Mutator) ent.Mutator {
			return hook.NPMVersionFunc(func(ctx context.Context, m *ent.NPMVersionMutation) (ent.Value, error) {
				m.SetSizeBytes(7)
				return next.Mutate(ctx, m)
			})
		}, ent.OpUpdateOne))
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			require.ErrorIs(t, tx.NPMVersion.UpdateOneID(v.ID).ClearSoftDeletedAt().Exec(ctx), entdb.ErrHookSetSize)
			return nil
		})
		require.ErrorIs(t, err, entdb.ErrHookSetSize)
		b.requireExact(t, r)
	})

	t.Run("one that fails after the statement refuses the transaction", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		r := b.npm(t)
		b.db.NPMVersion.Use(func(next ent.Mutator) ent.Mutator {
			return hook.NPMVersionFunc(func(ctx context.Context, m *ent.NPMVersionMutation) (ent.Value, error) {
				if _, err := next.Mutate(ctx, m); err != nil {
					return nil, err
				}
				return nil, errWanted
			})
		})
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			require.ErrorIs(t, newVersion(tx, r, 5).Exec(ctx), errWanted)
			return nil
		})
		require.ErrorIs(t, err, errWanted)
		b.requireExact(t, r)
	})
}
