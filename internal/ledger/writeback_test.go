package ledger

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/requests"
)

const passMarker accounting.Marker = 1_000_000

func TestWriteBack(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)

	t.Run("E18 corrects what is off, stamps the rows, and records new minus old", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		right := b.newRepository()
		b.exec(`UPDATE repositories SET size_bytes = 10, artifacts_count = 3 WHERE namespace_id = $1`, b.namespace.ID)
		pass := b.pass(passMarker)
		back := b.writeBack(pass, valueOf(b.repository, 4, 5), valueOf(right, 10, 3))
		require.Equal(t, WriteBack{Corrections: []Correction{{
			Scope: b.repository, Counters: accounting.Counters{Bytes: -6, Components: 2},
			Value: accounting.Counters{Bytes: 4, Components: 5}, Old: accounting.Counters{Bytes: 10, Components: 3},
		}}}, back)
		require.Equal(t, row{accounting.Counters{Bytes: 4, Components: 5}, passMarker}, b.row(b.repository))
		require.Equal(t, row{accounting.Counters{Bytes: 10, Components: 3}, passMarker}, b.row(right))
		require.Equal(t, []entryOf{{accounting.KindRepository, b.namespace.ID, int64(passMarker), -6, 2, 0, accounting.OutcomeCorrection}}, b.entries(b.repository))
		require.Empty(t, b.entries(right), "what was right is no correction")
	})
	t.Run("the namespace as well", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		b.exec(`UPDATE namespace_statistics SET deduplicated_size_bytes = 10, components_count = 3 WHERE namespace_id = $1`, b.namespace.ID)
		back, err := WriteBackNamespace(t.Context(), b.db, b.pass(passMarker), accounting.Counters{Bytes: 4, Components: 3})
		require.NoError(t, err)
		require.Equal(t, WriteBack{Corrections: []Correction{{
			Scope: b.namespace, Counters: accounting.Counters{Bytes: -6},
			Value: accounting.Counters{Bytes: 4, Components: 3}, Old: accounting.Counters{Bytes: 10, Components: 3},
		}}}, back)
		require.Equal(t, row{accounting.Counters{Bytes: 4, Components: 3}, passMarker}, b.row(b.namespace))
		require.Equal(t, []entryOf{{accounting.KindNamespace, b.namespace.ID, int64(passMarker), -6, 0, 0, accounting.OutcomeCorrection}}, b.entries(b.namespace))
	})
	t.Run("AC8 R6 keeps what was applied since the snapshot, and nothing older", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		b.apply(flushOf(b.repository, passMarker-1, 1, 1), flushOf(b.repository, passMarker, 10, 10), flushOf(b.repository, passMarker+1, 100, 100), flushOf(b.namespace, passMarker, 5, 5))
		back := b.writeBack(b.pass(passMarker), valueOf(b.repository, 1, 1))
		require.Empty(t, back.Corrections, "the row was right")
		require.Equal(t, accounting.Counters{Bytes: 111, Components: 111}, b.row(b.repository).Counters)
	})
	t.Run("R6 sums neither corrections nor what was counted or gone", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		gone := flushOf(b.repository, passMarker+1, 1000, 1)
		b.exec(`DELETE FROM repositories WHERE namespace_id = $1`, b.namespace.ID)
		require.Equal(t, []Verdict{Gone}, b.apply(gone))
		b.exec(`INSERT INTO repositories (id, namespace_id, name, format, kind) VALUES ($1, $2, 'again', 3, 1)`, b.repository.ID, b.namespace.ID)
		b.writeBack(b.pass(passMarker), valueOf(b.repository, 7, 1)) // a correction with the marker passMarker
		b.exec(`UPDATE repositories SET last_reconciled_at = 'epoch' WHERE namespace_id = $1`, b.namespace.ID)
		b.writeBack(b.pass(passMarker), valueOf(b.repository, 7, 1))
		require.Equal(t, accounting.Counters{Bytes: 7, Components: 1}, b.row(b.repository).Counters)

		b.writeBack(b.pass(passMarker+10), valueOf(b.repository, 7, 1))
		require.Equal(t, []Verdict{Counted}, b.apply(flushOf(b.repository, passMarker+5, 50, 1)))
		b.exec(`UPDATE repositories SET last_reconciled_at = 'epoch' WHERE namespace_id = $1`, b.namespace.ID)
		b.writeBack(b.pass(passMarker), valueOf(b.repository, 7, 1))
		require.Equal(t, accounting.Counters{Bytes: 7, Components: 1}, b.row(b.repository).Counters)
	})
	t.Run("R7 a newer pass is not overwritten by an older one, nor by itself", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		b.writeBack(b.pass(passMarker), valueOf(b.repository, 7, 1))
		for _, marker := range []accounting.Marker{passMarker - 1, passMarker} {
			other := b.newRepository()
			back := b.writeBack(b.pass(marker), valueOf(b.repository, 100, 100), valueOf(other, 0, 0))
			require.Equal(t, WriteBack{Fenced: 1}, back)
			require.Equal(t, row{accounting.Counters{Bytes: 7, Components: 1}, passMarker}, b.row(b.repository))
			require.Equal(t, marker, b.row(other).reconciled)
		}
	})
	t.Run("a scope that is gone is counted", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		gone := accounting.RepositoryScope(b.namespace.ID, newID())
		require.Equal(t, WriteBack{Gone: 1}, b.writeBack(b.pass(passMarker), valueOf(gone, 1, 1), valueOf(b.repository, 0, 0)))
	})
	t.Run("no repositories are no error", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		require.Equal(t, WriteBack{}, b.writeBack(b.pass(passMarker)))
	})
	t.Run("what Review holds stays as it is, and its request open", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		other := b.newRepository()
		b.exec(`INSERT INTO reconciliation_requests VALUES ($1, stowage_marker_time($2))`, b.namespace.ID, int64(passMarker-1))
		pass := b.pass(passMarker)
		var seen []Correction
		pass.Review = func(_ context.Context, _ pgx.Tx, corrections []Correction) (map[uuid.UUID]bool, error) {
			seen = append(seen, corrections...)
			return map[uuid.UUID]bool{b.repository.ID: true, b.namespace.ID: true}, nil
		}
		back := b.writeBack(pass, valueOf(b.repository, 4, 5), valueOf(other, 0, 0))
		require.Equal(t, WriteBack{Held: 1}, back)
		back, err := WriteBackNamespace(t.Context(), b.db, pass, accounting.Counters{Bytes: 4})
		require.NoError(t, err)
		require.Equal(t, WriteBack{Held: 1}, back)
		require.Len(t, seen, 3, "also those that are right")
		require.Equal(t, row{}, b.row(b.repository))
		require.Equal(t, row{}, b.row(b.namespace))
		require.Equal(t, passMarker, b.row(other).reconciled)
		require.Empty(t, b.entries(b.repository))
		var open int
		require.NoError(t, b.db.QueryRow(t.Context(), `SELECT count(*) FROM reconciliation_requests WHERE namespace_id = $1`, b.namespace.ID).Scan(&open))
		require.Equal(t, 1, open)
	})
	t.Run("E20 a failure changes nothing", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		b.apply(flushOf(b.repository, passMarker, 1, 0))
		_, err := WriteBackRepositories(t.Context(), b.db, b.pass(passMarker), []Value{valueOf(b.repository, math.MaxInt64, 0)})
		require.ErrorContains(t, err, "write back 1 repositories")
		require.Equal(t, row{Counters: accounting.Counters{Bytes: 1}}, b.row(b.repository))
	})
}

// A flush that is applied while the write-back waits for its lock is in no
// snapshot taken before: the sum must be a statement of its own after the lock.
func TestE17WriteBackSumsAfterItHasLocked(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	setupHeld := func(t *testing.T, scope func(*bundle) accounting.Scope) (*bundle, *held) {
		t.Helper()
		b := setupIn(t, db)
		require.NoError(t, EnsurePartitions(t.Context(), b.db, time.Now(), time.Now()))
		return b, b.hold(func(tx pgx.Tx) error {
			_, err := lockAndEnter(t.Context(), tx, columnsOf([]accounting.Flush{flushOf(scope(b), passMarker, 5, 1)}))
			return err
		})
	}
	t.Run("R6 of a repository", func(t *testing.T) {
		t.Parallel()
		b, applier := setupHeld(t, func(b *bundle) accounting.Scope { return b.repository })
		applier.during(func() error {
			_, err := WriteBackRepositories(t.Context(), b.db, b.pass(passMarker), []Value{valueOf(b.repository, 100, 10)})
			return err
		})
		require.Equal(t, row{accounting.Counters{Bytes: 105, Components: 11}, passMarker}, b.row(b.repository))
	})
	t.Run("R6 of a namespace", func(t *testing.T) {
		t.Parallel()
		b, applier := setupHeld(t, func(b *bundle) accounting.Scope { return b.namespace })
		applier.during(func() error {
			_, err := WriteBackNamespace(t.Context(), b.db, b.pass(passMarker), accounting.Counters{Bytes: 100, Components: 10})
			return err
		})
		require.Equal(t, row{accounting.Counters{Bytes: 105, Components: 11}, passMarker}, b.row(b.namespace))
	})
}

func TestWriteBackClosesTheRequest(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	open := func(t *testing.T, b *bundle) []requests.Request {
		t.Helper()
		page, err := requests.Open(t.Context(), b.db, requests.Request{}, 1000)
		require.NoError(t, err)
		return slices.DeleteFunc(page, func(r requests.Request) bool { return r.Namespace != b.namespace.ID })
	}
	request := func(t *testing.T, b *bundle) accounting.Marker {
		t.Helper()
		require.NoError(t, requests.Raise(t.Context(), b.db, []requests.Request{{Namespace: b.namespace.ID}}))
		return open(t, b)[0].Marker
	}
	writeBack := func(t *testing.T, b *bundle, marker accounting.Marker) WriteBack {
		t.Helper()
		back, err := WriteBackNamespace(t.Context(), b.db, b.pass(marker), accounting.Counters{})
		require.NoError(t, err)
		return back
	}

	t.Run("R8 that is older than the pass", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		writeBack(t, b, request(t, b)+1)
		require.Empty(t, open(t, b))
	})
	t.Run("R8 and not one that was made while the pass ran", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		marker := request(t, b)
		writeBack(t, b, marker)
		require.Len(t, open(t, b), 1)
		require.Equal(t, marker, b.row(b.namespace).reconciled, "although the namespace is stamped")
	})
	t.Run("R8 with the stamp, or not at all", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		marker := request(t, b)
		b.exec(`CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused at commit'; END $$`)
		b.exec(`CREATE CONSTRAINT TRIGGER refuse AFTER UPDATE ON namespace_statistics DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
		_, err := WriteBackNamespace(t.Context(), b.db, b.pass(marker+1), accounting.Counters{})
		require.ErrorContains(t, err, "refused at commit")
		require.Len(t, open(t, b), 1)
	})
	t.Run("not if a newer pass has written", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		marker := request(t, b)
		writeBack(t, b, marker+10)
		require.NoError(t, requests.Raise(t.Context(), b.db, []requests.Request{{Namespace: b.namespace.ID}}))
		again := open(t, b)[0].Marker
		b.exec(`UPDATE namespace_statistics SET last_reconciled_at = stowage_marker_time($2) WHERE namespace_id = $1`, b.namespace.ID, int64(again+100))
		require.Equal(t, WriteBack{Fenced: 1}, writeBack(t, b, again+50))
		require.Len(t, open(t, b), 1)
	})
	t.Run("of a namespace that is gone", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		marker := request(t, b)
		b.exec(`DELETE FROM repositories WHERE namespace_id = $1`, b.namespace.ID)
		b.exec(`DELETE FROM namespaces WHERE id = $1`, b.namespace.ID)
		require.Equal(t, WriteBack{Gone: 1}, writeBack(t, b, marker+1))
		require.Empty(t, open(t, b))
	})
}
