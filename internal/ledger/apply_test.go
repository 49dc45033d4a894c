package ledger

import (
	"context"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/dbtest"
)

func TestApply(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)

	t.Run("AC1 AC2 adds to the rows of repositories and namespaces, and says so in the ledger", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		require.Equal(t, []Verdict{Applied, Applied}, b.apply(flushOf(b.repository, 3, 10, 1), flushOf(b.namespace, 4, 7, -2)))
		require.Equal(t, accounting.Counters{Bytes: 10, Components: 1}, b.row(b.repository).Counters)
		require.Equal(t, accounting.Counters{Bytes: 7, Components: -2}, b.row(b.namespace).Counters)
		require.Equal(t, []entryOf{{accounting.KindRepository, b.namespace.ID, 3, 10, 1, 1, accounting.OutcomeApplied}}, b.entries(b.repository))
		require.Equal(t, []entryOf{{accounting.KindNamespace, b.namespace.ID, 4, 7, -2, 1, accounting.OutcomeApplied}}, b.entries(b.namespace))
	})
	t.Run("nothing to apply is no error", func(t *testing.T) {
		t.Parallel()
		results, err := Apply(t.Context(), nil, nil)
		require.NoError(t, err)
		require.Empty(t, results)
	})
	t.Run("E4 R3 a replay changes nothing", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		f, g := flushOf(b.repository, 0, 10, 1), flushOf(b.namespace, 0, 10, 1)
		require.Equal(t, []Verdict{Applied, Applied}, b.apply(f, g))
		require.Equal(t, []Verdict{Replayed, Replayed}, b.apply(f, g))
		require.Equal(t, []Verdict{Replayed, Applied}, b.apply(f, flushOf(b.namespace, 0, 1, 0)))
		require.Equal(t, accounting.Counters{Bytes: 10, Components: 1}, b.row(b.repository).Counters)
		require.Equal(t, accounting.Counters{Bytes: 11, Components: 1}, b.row(b.namespace).Counters)
	})
	t.Run("E9 R3 a flush that many apply at once is added once", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		f := flushOf(b.repository, 0, 10, 1)
		verdicts := make([]Verdict, 8)
		var appliers sync.WaitGroup
		for i := range verdicts {
			appliers.Go(func() {
				results, err := Apply(t.Context(), b.db, []accounting.Flush{f})
				if err == nil {
					verdicts[i] = results[0].Verdict
				}
			})
		}
		appliers.Wait()
		require.Equal(t, accounting.Counters{Bytes: 10, Components: 1}, b.row(b.repository).Counters)
		applied := 0
		for _, v := range verdicts {
			require.Contains(t, []Verdict{Applied, Replayed}, v)
			if v == Applied {
				applied++
			}
		}
		require.Equal(t, 1, applied)
	})
	t.Run("several flushes of one scope are all added, one given twice once", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		f := flushOf(b.repository, 0, 1, 1)
		b.apply(f, flushOf(b.repository, 0, 10, 1), f, flushOf(b.repository, 5, 100, 1))
		require.Equal(t, accounting.Counters{Bytes: 111, Components: 3}, b.row(b.repository).Counters)
	})
	t.Run("AC35 E12 a scope whose row is gone is recorded as gone", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		other := b.newRepository()
		b.exec(`DELETE FROM repositories WHERE id = $1`, b.repository.ID)
		f := flushOf(b.repository, 0, 10, 1)
		require.Equal(t, []Verdict{Gone, Applied}, b.apply(f, flushOf(other, 0, 10, 1)))
		require.Equal(t, []Verdict{Replayed}, b.apply(f), "once")
		require.Equal(t, accounting.OutcomeGone, b.entries(b.repository)[0].Outcome)
	})
	t.Run("AC35 a scope that is being deleted is waited for", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		deleter := b.hold(func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `DELETE FROM repositories WHERE id = $1`, b.repository.ID)
			return err
		})
		var results []Result
		deleter.during(func() (err error) {
			results, err = Apply(t.Context(), b.db, []accounting.Flush{flushOf(b.repository, 0, 10, 1)})
			return err
		})
		require.Equal(t, Gone, results[0].Verdict)
	})
	t.Run("E9 E12 two that apply flushes of scopes that are gone do not deadlock", func(t *testing.T) {
		t.Parallel()
		// A merge join would bring the order by itself.
		db := dbtest.Open(t, dbtest.NewURL(t)+"&enable_mergejoin=off")
		b := setupIn(t, db)
		require.NoError(t, EnsurePartitions(t.Context(), db, time.Now(), time.Now()))
		first := flushOf(accounting.RepositoryScope(b.namespace.ID, newID()), 0, 1, 1)
		second := flushOf(accounting.RepositoryScope(b.namespace.ID, newID()), 0, 1, 1)
		enter := func(tx pgx.Tx, f accounting.Flush) error {
			_, err := lockAndEnter(t.Context(), tx, columnsOf([]accounting.Flush{f}))
			return err
		}
		one := b.hold(func(tx pgx.Tx) error { return enter(tx, first) })
		other := make(chan error, 1)
		go func() {
			_, err := Apply(t.Context(), db, []accounting.Flush{second, first})
			other <- err
		}()
		one.waitUntilBlocking()
		require.NoError(t, enter(one.tx, second))
		require.NoError(t, one.tx.Commit(t.Context()))
		require.NoError(t, <-other)
	})
	t.Run("E13 a namespace without a statistics row is gone", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		b.exec(`DELETE FROM namespace_statistics WHERE namespace_id = $1`, b.namespace.ID)
		require.Equal(t, []Verdict{Gone, Applied}, b.apply(flushOf(b.namespace, 0, 10, 1), flushOf(b.repository, 0, 10, 1)))
	})
	t.Run("is not kept waiting by publishers, nor they by it", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		// A version's foreign key holds its repository FOR KEY SHARE.
		publish := func(tx pgx.Tx) error {
			_, err := tx.Exec(t.Context(), `
				INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes)
				VALUES ($1, $2, $3, 'a', $4, 1)`, newID(), b.namespace.ID, b.repository.ID, newID().String())
			return err
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		b.hold(publish)
		_, err := Apply(ctx, b.db, []accounting.Flush{flushOf(b.repository, 0, 1, 1)})
		require.NoError(t, err)
		b.hold(func(tx pgx.Tx) error {
			_, err := lockAndEnter(ctx, tx, columnsOf([]accounting.Flush{flushOf(b.repository, 0, 1, 1)}))
			return err
		})
		require.NoError(t, pgx.BeginFunc(ctx, b.db, publish))
	})
}

func TestApplyGuard(t *testing.T) {
	t.Parallel()
	db := dbtest.New(t)
	const pass = 1_000_000

	for name, scope := range map[string]func(*bundle) accounting.Scope{
		"repository": func(b *bundle) accounting.Scope { return b.repository },
		"namespace":  func(b *bundle) accounting.Scope { return b.namespace },
	} {
		t.Run("AC30 AC8 R4 of a "+name, func(t *testing.T) {
			t.Parallel()
			b := setupIn(t, db)
			s := scope(b)
			require.Equal(t, []Verdict{Applied}, b.apply(flushOf(s, 0, 5, 1)), "the first delta of a scope that was never reconciled")
			require.Equal(t, accounting.Counters{Bytes: 5, Components: 1}, b.row(s).Counters)

			b.writeBack(b.pass(pass), valueOf(b.repository, 7, 2))
			_, err := WriteBackNamespace(t.Context(), b.db, b.pass(pass), accounting.Counters{Bytes: 7, Components: 2})
			require.NoError(t, err)
			for marker, verdict := range map[accounting.Marker]Verdict{0: Counted, pass - 1: Counted, pass: Applied, pass + 1: Applied} {
				before := b.row(s)
				require.Equal(t, []Verdict{verdict}, b.apply(flushOf(s, marker, 1, 1)), "marker %d", marker)
				if verdict == Counted {
					require.Equal(t, before, b.row(s), "marker %d", marker)
				}
			}
			require.Equal(t, accounting.Counters{Bytes: 9, Components: 4}, b.row(s).Counters)
		})
	}

	// The row holds 0 and a buffered delta of 5, which the pass has counted: the
	// truth is 5. If the guard read the row before it is locked, it would read
	// the row of before the write-back and add the delta to the row of after it:
	// 10. Random attack does not find this.
	t.Run("AC8 E17 R4 reads the row that it has locked", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		require.NoError(t, EnsurePartitions(t.Context(), b.db, time.Now(), time.Now()))
		writer := b.hold(func(tx pgx.Tx) error {
			_, err := writeBack(t.Context(), tx, repositoryRows(), b.pass(pass), []Value{valueOf(b.repository, 5, 1)})
			return err
		})
		var results []Result
		writer.during(func() (err error) {
			results, err = Apply(t.Context(), b.db, []accounting.Flush{flushOf(b.repository, 0, 5, 1)})
			return err
		})
		require.Equal(t, Counted, results[0].Verdict)
		require.Equal(t, row{accounting.Counters{Bytes: 5, Components: 1}, pass}, b.row(b.repository))
	})
	t.Run("AC8 E17 R4 reads the namespace row that it has locked", func(t *testing.T) {
		t.Parallel()
		b := setupIn(t, db)
		require.NoError(t, EnsurePartitions(t.Context(), b.db, time.Now(), time.Now()))
		writer := b.hold(func(tx pgx.Tx) error {
			_, err := writeBack(t.Context(), tx, namespaceRows(), b.pass(pass), []Value{valueOf(b.namespace, 5, 1)})
			return err
		})
		var results []Result
		writer.during(func() (err error) {
			results, err = Apply(t.Context(), b.db, []accounting.Flush{flushOf(b.namespace, 0, 5, 1)})
			return err
		})
		require.Equal(t, Counted, results[0].Verdict)
		require.Equal(t, row{accounting.Counters{Bytes: 5, Components: 1}, pass}, b.row(b.namespace))
	})
}

func TestApplyPoisoned(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.exec(`UPDATE repositories SET size_bytes = $1`, int64(math.MaxInt64-1))
	b.exec(`UPDATE namespace_statistics SET components_count = $1`, int64(math.MinInt64))
	var flushes []accounting.Flush
	var want []Verdict
	for range 3 {
		flushes = append(flushes, flushOf(b.newRepository(), 0, 1, 1))
		want = append(want, Applied)
	}
	poison := []accounting.Flush{flushOf(b.repository, 0, 2, 0), flushOf(b.namespace, 0, 0, -1)}
	flushes, want = append(flushes, poison...), append(want, Poisoned, Poisoned)
	for range 4 {
		flushes = append(flushes, flushOf(b.newRepository(), 0, 1, 1))
		want = append(want, Applied)
	}

	require.Equal(t, want, b.apply(flushes...))
	require.EqualValues(t, math.MaxInt64-1, b.row(b.repository).Bytes)
	for i, f := range flushes {
		if want[i] == Poisoned {
			require.Empty(t, b.entries(f.Scope), "nothing is recorded, so that it can be applied once the row is mended")
			continue
		}
		require.Equal(t, accounting.Counters{Bytes: 1, Components: 1}, b.row(f.Scope).Counters)
	}
	b.exec(`UPDATE repositories SET size_bytes = 0 WHERE id = $1`, b.repository.ID)
	require.Equal(t, []Verdict{Applied, Poisoned}, b.apply(poison...))
}

func TestApplyFailure(t *testing.T) {
	t.Parallel()
	b := setup(t)
	f, g := flushOf(b.repository, 0, 10, 1), flushOf(b.namespace, 0, 10, 1)
	b.exec(`ALTER TABLE namespace_statistics ADD CONSTRAINT ck_full CHECK (deduplicated_size_bytes < 10)`)
	_, err := Apply(t.Context(), b.db, []accounting.Flush{f, g})
	require.ErrorContains(t, err, "apply 2 flushes")
	require.Zero(t, b.row(b.repository), "E3: all of it or nothing")
	require.Empty(t, b.entries(b.repository))

	b.exec(`ALTER TABLE namespace_statistics DROP CONSTRAINT ck_full`)
	require.Equal(t, []Verdict{Applied, Applied}, b.apply(f, g), "E3: applied once later")
}

func TestVerdictNames(t *testing.T) {
	t.Parallel()
	for v, name := range map[Verdict]string{
		Applied: "applied", Counted: "counted", Gone: "gone", Replayed: "replayed", Poisoned: "poisoned", 0: "verdict(0)",
	} {
		require.Equal(t, name, v.String())
	}
}
