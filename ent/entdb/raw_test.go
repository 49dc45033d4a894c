package entdb_test

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
)

// Raw SQL in a counted transaction, with what it changed reported.
func TestRawSQLWithReport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)
	b.publish(t, r, 100, 10, 1)

	t.Run("AC25 what is reported is emitted after COMMIT", func(t *testing.T) {
		require.NoError(t, b.db.WithTx(t.Context(), deletesRaw(r.NamespaceID, r.ID, 10)))
		b.requireExact(t, r)
		require.Equal(t, entdb.Counters{Bytes: 1, Components: 1}, b.recorder.Repository(r.ID))
	})

	t.Run("AC25 a rollback takes the report with it", func(t *testing.T) {
		emitted := len(b.recorder.Emissions())
		err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			require.NoError(t, deletesRaw(r.NamespaceID, r.ID, 0)(ctx, tx))
			return errWanted
		})
		require.ErrorIs(t, err, errWanted)
		require.Len(t, b.recorder.Emissions(), emitted)
		b.requireExact(t, r)
	})

	t.Run("a change without a namespace is refused", func(t *testing.T) {
		err := b.db.WithTx(t.Context(), func(_ context.Context, tx *entdb.Tx) error {
			return tx.Report(entdb.Change{RepositoryID: r.ID, Counters: entdb.Counters{Bytes: 1}})
		})
		require.ErrorIs(t, err, entdb.ErrNilID)
	})
}

// deletesRaw deletes the versions of at least a size with SQL of its own.
func deletesRaw(namespace, repository uuid.UUID, size int64) func(context.Context, *entdb.Tx) error {
	return func(ctx context.Context, tx *entdb.Tx) error {
		var bytes, versions int64
		err := tx.Pgx().QueryRow(ctx, `
			WITH deleted AS (DELETE FROM npm_versions WHERE repository_id = $1 AND size_bytes >= $2 RETURNING size_bytes)
			SELECT coalesce(sum(size_bytes), 0)::bigint, count(*) FROM deleted`, repository, size).Scan(&bytes, &versions)
		if err != nil {
			return err
		}
		err = tx.Report(entdb.Change{NamespaceID: namespace, RepositoryID: repository, Counters: entdb.Counters{Bytes: -bytes, Components: -versions}})
		if err != nil {
			return err
		}
		return tx.Report(entdb.Change{NamespaceID: namespace, Counters: entdb.Counters{Components: -versions}})
	}
}

func TestCheckComparesFormatsWithTheDatabase(t *testing.T) {
	t.Parallel()
	b := setup(t)
	require.NoError(t, b.db.Check(t.Context()))
	for _, c := range []struct{ table, constraint, column, want string }{
		{"repositories", "ck_repositories_format", "format", "[1 2 3 4]"},
		{"blob_storage_attachments", "ck_blob_storage_attachments_version_table", "version_table", "[1 2]"},
	} {
		allowed := "1, 2, 3, 4"
		if c.want == "[1 2]" {
			allowed = "1, 2"
		}
		_, err := b.pool.Exec(t.Context(), `ALTER TABLE `+c.table+` DROP CONSTRAINT `+c.constraint)
		require.NoError(t, err)
		require.ErrorContains(t, b.db.Check(t.Context()), c.constraint+" is not there")
		_, err = b.pool.Exec(t.Context(), `ALTER TABLE `+c.table+` ADD CONSTRAINT `+c.constraint+` CHECK (`+c.column+` IN (`+allowed+`))`)
		require.NoError(t, err)
		err = b.db.Check(t.Context())
		require.ErrorIs(t, err, entdb.ErrFormats)
		require.ErrorContains(t, err, c.constraint+" allows "+c.want)
		_, err = b.pool.Exec(t.Context(), `ALTER TABLE `+c.table+` DROP CONSTRAINT `+c.constraint+`, ADD CONSTRAINT `+c.constraint+` CHECK (`+c.column+` BETWEEN 1 AND `+string('0'+rune(len(schematype.Formats())))+`)`)
		require.NoError(t, err)
		require.NoError(t, b.db.Check(t.Context()))
	}
}
