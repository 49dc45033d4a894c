package migrate_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/internal/dbtest"
)

// shadowDifference counts the rows that only one of the two tables has.
const shadowDifference = `
	WITH blobs AS (SELECT namespace_id, sha256, size_bytes FROM blob_storage_blobs),
		shadow AS (SELECT namespace_id, sha256, size_bytes FROM blob_storage_blobs_by_namespace)
	SELECT count(*) FROM ((TABLE blobs EXCEPT ALL TABLE shadow) UNION ALL (TABLE shadow EXCEPT ALL TABLE blobs)) AS difference`

func TestAC15ShadowEqualsBlobs(t *testing.T) {
	t.Parallel()

	t.Run("AC15 trigger by trigger", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		namespace := newNamespace(t, pool)
		shadowed := func() int {
			return value[int](t, pool, "SELECT count(*) FROM blob_storage_blobs_by_namespace WHERE namespace_id = $1 AND sha256 = $2 AND size_bytes = 7", namespace, digest("content"))
		}
		const insert = "INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) VALUES ($1, $2, 7)"
		const remove = "DELETE FROM blob_storage_blobs"

		exec(t, pool, insert, namespace, digest("content"))
		require.Equal(t, 1, shadowed(), "an insert is followed")
		require.Zero(t, exec(t, pool, insert+" ON CONFLICT DO NOTHING", namespace, digest("content")))
		require.Equal(t, 1, shadowed(), "an insert that changes nothing is not")
		exec(t, pool, remove)
		require.Zero(t, shadowed(), "a delete is followed")
		require.Zero(t, exec(t, pool, remove))
		require.Zero(t, value[int](t, pool, shadowDifference))

		exec(t, pool, insert, namespace, digest("content"))
		setTrigger(t, pool, "blob_storage_blobs", "trg_blob_storage_blobs_shadow_delete", "DISABLE")
		exec(t, pool, remove)
		require.Equal(t, 1, shadowed(), "no delete is followed when its trigger is disabled")
		_, err := pool.Exec(t.Context(), insert, namespace, digest("content"))
		requireCode(t, err, uniqueViolation) // the drift is told, not covered up
		exec(t, pool, "DELETE FROM blob_storage_blobs_by_namespace")
		setTrigger(t, pool, "blob_storage_blobs", "trg_blob_storage_blobs_shadow_insert", "DISABLE")
		exec(t, pool, insert, namespace, digest("content"))
		require.Zero(t, shadowed(), "no insert is followed when its trigger is disabled")
	})
	t.Run("AC15 after any concurrent mix of inserts, deletes and rollbacks", func(t *testing.T) {
		t.Parallel()
		pool := dbtest.New(t)
		namespaces := []uuid.UUID{newNamespace(t, pool), newNamespace(t, pool), newNamespace(t, pool)}
		group, ctx := errgroup.WithContext(t.Context())
		for writer := range 8 {
			random := rand.New(rand.NewPCG(15, uint64(writer)))
			group.Go(func() error { return churn(ctx, pool, namespaces, random, 60) })
		}
		require.NoError(t, group.Wait())
		require.Zero(t, value[int](t, pool, shadowDifference))
		require.NotZero(t, value[int](t, pool, "SELECT count(*) FROM blob_storage_blobs"), "the mix left nothing to compare")
	})
}

var errRollback = errors.New("rolled back on purpose")

// churn runs transactions of random statements over few blobs, so that writers
// meet, and rolls half of them back, in whole or to a savepoint. Each
// transaction touches blobs in one order, so that none deadlocks.
func churn(ctx context.Context, pool *pgxpool.Pool, namespaces []uuid.UUID, random *rand.Rand, transactions int) error {
	for range transactions {
		err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			namespace := namespaces[random.IntN(len(namespaces))]
			for blob := range 12 {
				err := pgx.BeginFunc(ctx, tx, func(savepoint pgx.Tx) error {
					if err := churnBlob(ctx, savepoint, namespace, fmt.Sprint(blob), random.IntN(4)); err != nil {
						return err
					}
					return randomly(random)
				})
				if err != nil && !errors.Is(err, errRollback) {
					return err
				}
			}
			return randomly(random)
		})
		if err != nil && !errors.Is(err, errRollback) {
			return err
		}
	}
	return nil
}

func randomly(random *rand.Rand) error {
	if random.IntN(4) == 0 {
		return errRollback
	}
	return nil
}

func churnBlob(ctx context.Context, tx pgx.Tx, namespace uuid.UUID, content string, what int) error {
	const (
		insert = "INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) VALUES ($1, $2, 5) ON CONFLICT DO NOTHING"
		remove = "DELETE FROM blob_storage_blobs WHERE namespace_id = $1 AND sha256 = $2"
	)
	var err error
	for _, sql := range [][]string{{}, {insert}, {remove}, {remove, insert}}[what] {
		_, failed := tx.Exec(ctx, sql, namespace, digest(content))
		err = errors.Join(err, failed)
	}
	return err
}

func TestBlobsAreImmutable(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	namespace := newNamespace(t, pool)
	newBlob(t, pool, namespace, "content")
	const update = "UPDATE blob_storage_blobs SET size_bytes = 8"

	t.Run("an update is refused, again and again", func(t *testing.T) {
		for range 2 {
			_, err := pool.Exec(t.Context(), update)
			requireCode(t, err, restrictViolation)
		}
		require.Equal(t, 7, value[int](t, pool, "SELECT size_bytes FROM blob_storage_blobs"))
	})
	t.Run("an upsert is refused", func(t *testing.T) {
		_, err := pool.Exec(t.Context(), "INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) VALUES ($1, $2, 8) ON CONFLICT (namespace_id, sha256) DO UPDATE SET size_bytes = excluded.size_bytes", namespace, digest("content"))
		requireCode(t, err, restrictViolation)
	})
	t.Run("nothing is refused when the trigger is disabled", func(t *testing.T) {
		setTrigger(t, pool, "blob_storage_blobs", "trg_blob_storage_blobs_immutable", "DISABLE")
		require.EqualValues(t, 1, exec(t, pool, update))
	})
}

func TestContentOfABlobThatIsStoredAgainIsKept(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	namespace := newNamespace(t, pool)
	const collected = "INSERT INTO blob_storage_deletions (namespace_id, sha256, size_bytes, due_at) VALUES ($1, $2, 7, now())"
	exec(t, pool, collected, namespace, digest("content"))
	exec(t, pool, collected, namespace, digest("another"))
	exec(t, pool, collected, uuid.New(), digest("content"))
	left := func() int { return value[int](t, pool, "SELECT count(*) FROM blob_storage_deletions") }

	newBlob(t, pool, namespace, "content")
	require.Equal(t, 2, left(), "only that blob, of that namespace")
	exec(t, pool, "DELETE FROM blob_storage_blobs")
	newBlob(t, pool, namespace, "content")
	require.Equal(t, 2, left(), "again, with nothing to keep")

	setTrigger(t, pool, "blob_storage_blobs", "trg_blob_storage_blobs_keep_content", "DISABLE")
	newBlob(t, pool, namespace, "another")
	require.Equal(t, 2, left(), "nothing is kept when the trigger is disabled")
}

func TestAttachedBlobCannotBeDeleted(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	namespace := newNamespace(t, pool)
	newBlob(t, pool, namespace, "content")
	const attach = "INSERT INTO blob_storage_attachments (namespace_id, sha256, repository_id, version_table, version_id) VALUES ($1, $2, $3, 1, $4)"
	version := uuid.Must(uuid.NewV7())
	exec(t, pool, attach, namespace, digest("content"), uuid.New(), version)

	_, err := pool.Exec(t.Context(), attach, namespace, digest("content"), uuid.New(), version)
	require.Error(t, err, "one row per version and blob")
	_, err = pool.Exec(t.Context(), "DELETE FROM blob_storage_blobs")
	requireCode(t, err, foreignKeyViolation)
	_, err = pool.Exec(t.Context(), attach, namespace, digest("unknown"), uuid.New(), version)
	requireCode(t, err, foreignKeyViolation)
	exec(t, pool, "DELETE FROM blob_storage_attachments")
	require.EqualValues(t, 1, exec(t, pool, "DELETE FROM blob_storage_blobs"))
}
