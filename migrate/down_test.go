package migrate_test

import (
	"testing"
	"testing/fstest"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/migrate"
)

func TestD5TheNewestAloneHasAWayBack(t *testing.T) {
	t.Parallel()
	ups, err := directory.ReadDir("migrations")
	require.NoError(t, err)
	downs, err := directory.ReadDir("down")
	require.NoError(t, err)
	require.Len(t, downs, 1, "a down file is written with the newest migration, in the place of the one before")
	require.Equal(t, ups[len(ups)-2].Name(), downs[0].Name()) // atlas.sum is the last
}

func TestD5DownAndUpAgain(t *testing.T) {
	t.Parallel()
	pool := dbtest.New(t)
	namespace := newNamespace(t, pool)
	newBlob(t, pool, namespace, "content")
	last, before := newest(t)
	dump, err := migrate.Dump(t.Context(), pool)
	require.NoError(t, err)

	t.Run("D5 down leaves what the others leave", func(t *testing.T) {
		require.NoError(t, migrate.Down(bounded(t), pool, migrate.DownOptions{}))
		state, err := migrate.Status(t.Context(), pool)
		require.NoError(t, err)
		require.Equal(t, before, state.Current())
		require.ErrorContains(t, migrate.Verify(t.Context(), pool), "migration "+last.Version)
		require.Equal(t, 1, value[int](t, pool, "SELECT count(*) FROM blob_storage_blobs_by_namespace"))
	})
	t.Run("D5 one further down is refused", func(t *testing.T) {
		err := migrate.Down(bounded(t), pool, migrate.DownOptions{AllowDataLoss: true})
		require.ErrorContains(t, err, "migration "+before)
		require.ErrorContains(t, err, "only the newest")
	})
	t.Run("D5 up again makes the same", func(t *testing.T) {
		require.NoError(t, migrate.Apply(bounded(t), pool, migrate.Options{}))
		after, err := migrate.Dump(t.Context(), pool)
		require.NoError(t, err)
		require.Equal(t, dump, after)
		require.NoError(t, migrate.Verify(t.Context(), pool))
	})
}

func TestD5DownRefusesWhatItDoesNotKnow(t *testing.T) {
	t.Parallel()
	pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
	require.ErrorContains(t, migrate.Down(bounded(t), pool, migrate.DownOptions{}), "no migration is applied")

	last, _ := newest(t)
	advance(t, pool, last.Version)
	exec(t, pool, "UPDATE atlas_schema_revisions SET applied = 0 WHERE version = $1", last.Version)
	require.ErrorContains(t, migrate.Down(bounded(t), pool, migrate.DownOptions{}), "half applied")
	exec(t, pool, "UPDATE atlas_schema_revisions SET applied = total, version = '29991231000000' WHERE version = $1", last.Version)
	require.ErrorContains(t, migrate.Down(bounded(t), pool, migrate.DownOptions{}), "this build does not have it")
}

func TestD5DownDropsTriggerFunctionAndTableOrTheColumn(t *testing.T) {
	t.Parallel()
	const tables = "CREATE TABLE a (id uuid PRIMARY KEY);\n"
	const own = "-- made by the migration itself: public.c\n"
	for name, tc := range map[string]struct{ up, down, rows, lost string }{
		"D5 trigger, function and table": {
			up: `CREATE TABLE b (a_id uuid PRIMARY KEY);
				CREATE FUNCTION make_b () RETURNS trigger LANGUAGE plpgsql AS 'BEGIN INSERT INTO b VALUES (NEW.id); RETURN NULL; END';
				CREATE TRIGGER trg_make_b AFTER INSERT ON a FOR EACH ROW EXECUTE FUNCTION make_b ();`,
			down: "DROP TRIGGER trg_make_b ON a; DROP FUNCTION make_b; DROP TABLE b;",
			rows: "INSERT INTO a VALUES ($1)",
			lost: "public.b (1 rows)",
		},
		"D5 the rows that it made itself": {
			up:   "CREATE TABLE b (id uuid); CREATE TABLE c (id int); INSERT INTO c VALUES (1), (2);",
			down: own + "DROP TABLE b, c;",
			rows: "WITH made AS (INSERT INTO a VALUES ($1) RETURNING id) INSERT INTO b SELECT id FROM made",
			lost: "public.b (1 rows)",
		},
		"D5 the column": {
			up:   "ALTER TABLE a ADD COLUMN seen timestamptz NOT NULL DEFAULT 'epoch', ADD COLUMN note json;",
			down: "ALTER TABLE a DROP COLUMN seen, DROP COLUMN note;",
			rows: "INSERT INTO a VALUES ($1, now())",
			lost: "public.a.seen (1 rows)",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pool := dbtest.Open(t, dbtest.NewEmptyURL(t))
			dir := newDir(t, map[string]string{"1_a.sql": tables, "2_b.sql": tc.up})
			require.NoError(t, migrate.ApplyDir(bounded(t), pool, newDir(t, map[string]string{"1_a.sql": tables}), migrate.Options{}))
			exec(t, pool, "INSERT INTO a VALUES ($1)", uuid.New())
			before, err := migrate.Objects(t.Context(), pool, "public")
			require.NoError(t, err)
			down := func(opts migrate.DownOptions) error {
				return migrate.DownDir(bounded(t), pool, dir, fstest.MapFS{"2_b.sql": {Data: []byte(tc.down)}}, opts)
			}
			for range 2 {
				require.NoError(t, migrate.ApplyDir(bounded(t), pool, dir, migrate.Options{}))
				require.NoError(t, down(migrate.DownOptions{}), "older rows have nothing to lose")
				after, err := migrate.Objects(t.Context(), pool, "public")
				require.NoError(t, err)
				require.Equal(t, before, after)
			}

			require.NoError(t, migrate.ApplyDir(bounded(t), pool, dir, migrate.Options{}))
			exec(t, pool, tc.rows, uuid.New())
			require.ErrorContains(t, down(migrate.DownOptions{}), "this would be lost: "+tc.lost+";")
			require.NoError(t, down(migrate.DownOptions{AllowDataLoss: true}))
			require.Equal(t, 2, value[int](t, pool, "SELECT count(*) FROM a"))
		})
	}
}
