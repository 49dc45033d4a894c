package accounting_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLocks explores what TestModel takes for single steps: how a writer's
// shared lock, its reading of the marker and its commit interleave with a
// pass's mark, exclusive lock, snapshot and commit, and how the row's lock
// orders a drain and a write-back. Nothing fails here, so every violation is
// one of order alone. Each transaction is a list of statements; a mutant has
// one statement moved or left out.
func TestLocks(t *testing.T) {
	t.Parallel()
	var (
		writer = program{lockShared, readMarker, commit, emit}
		drain  = program{freeze, lockRow, readSince, apply}
		pass   = program{mark, lockExclusive, snapshot, commitMark, lockRow, sumLedger, writeBack}
	)
	t.Run("all rules hold", func(t *testing.T) {
		t.Parallel()
		got := locks{writer, drain, pass}.explore()
		require.Zero(t, got.violations, "%s", got)
		require.NotZero(t, got.quiet)
	})
	for _, tc := range []struct {
		name   string
		mutant locks
	}{
		{"R1 a writer without the lock", locks{program{readMarker, commit, emit}, drain, pass}},
		{"R1 a writer that reads the marker before it has the lock", locks{program{readMarker, lockShared, commit, emit}, drain, pass}},
		{"R1 a writer that gives the lock back before its commit", locks{program{lockShared, readMarker, unlockShared, commit, emit}, drain, pass}},
		{"R3 a drain that fills in the ledger after its commit", locks{writer, program{freeze, lockRow, readSince, applyUnrecorded, record}, pass}},
		{"R4 a drain that reads the row's marker before it has the row's lock", locks{writer, program{freeze, readSince, lockRow, apply}, pass}},
		{"R5 a snapshot before the exclusive lock", locks{writer, drain, program{mark, snapshot, lockExclusive, commitMark, lockRow, sumLedger, writeBack}}},
		{"R5 a snapshot after the mark's commit", locks{writer, drain, program{mark, lockExclusive, commitMark, snapshot, lockRow, sumLedger, writeBack}}},
		{"R5 an exclusive lock given back before the mark's commit", locks{writer, drain, program{mark, lockExclusive, snapshot, unlockExclusive, commitMark, lockRow, sumLedger, writeBack}}},
		{"R5 a mark no later than the one before", locks{writer, drain, program{markAgain, lockExclusive, snapshot, commitMark, lockRow, sumLedger, writeBack}}},
		{"R6 a write-back that sums the ledger before it has the row's lock", locks{writer, drain, program{mark, lockExclusive, snapshot, commitMark, sumLedger, lockRow, writeBack}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.NotZero(t, tc.mutant.explore().violations)
		})
	}
}

const (
	lockWriters = 2
	lockPasses  = 2
	lockMarkers = lockPasses + 1
)

// locks is what each kind of actor does, statement by statement. There are two
// writers, two passes and one drain, which begins anew when it is done.
type locks struct{ writer, drain, pass program }

type program []statement

// statement changes the world for the actor numbered i of its kind, or
// changes nothing and reports that it has to wait.
type statement func(w *world, i int) bool

// world is one namespace's row, the deltas on their way to it, and what each
// actor holds. The fields named at count an actor's finished statements.
type world struct {
	row, since uint8
	marker     uint8              // as committed: a mark is seen by others from its commit on
	buffer     [lockMarkers]uint8 // emitted deltas by marker
	ledger     [lockMarkers]uint8 // applied deltas by marker
	rowLocked  bool
	marking    bool // a mark is uncommitted: the statistics row is locked by it

	writers [lockWriters]struct {
		at, saw          uint8
		locks, committed bool
	}
	passes [lockPasses]struct {
		at, mark, value, sum uint8
		locks                bool
	}
	drain struct{ at, marker, delta, since uint8 }
}

func (m locks) explore() exploration[world] { return explore(world{}, m.next, m.judge) }

func (m locks) next(w world, to func(world)) {
	for i := range w.writers {
		step(m.writer, w, i, func(w *world) *uint8 { return &w.writers[i].at }, to)
	}
	for i := range w.passes {
		step(m.pass, w, i, func(w *world) *uint8 { return &w.passes[i].at }, to)
	}
	step(m.drain, w, 0, func(w *world) *uint8 { return &w.drain.at }, func(w world) {
		if int(w.drain.at) == len(m.drain) {
			w.drain.at, w.drain.marker, w.drain.delta, w.drain.since = 0, 0, 0, 0
		}
		to(w)
	})
}

func step(p program, w world, i int, at func(*world) *uint8, to func(world)) {
	counter := at(&w)
	if int(*counter) == len(p) || !p[*counter](&w, i) {
		return
	}
	*counter++
	to(w)
}

func (m locks) judge(w world) verdict {
	if w.buffer != [lockMarkers]uint8{} || w.drain.at != 0 {
		return busy
	}
	for _, writer := range w.writers {
		if int(writer.at) != len(m.writer) {
			return busy
		}
	}
	for _, pass := range w.passes {
		if at := int(pass.at); at != 0 && at != len(m.pass) {
			return busy
		}
	}
	if w.row != lockWriters {
		return wrong
	}
	return exact
}

func lockShared(w *world, i int) bool {
	for _, p := range w.passes {
		if p.locks {
			return false
		}
	}
	w.writers[i].locks = true
	return true
}

func readMarker(w *world, i int) bool {
	w.writers[i].saw = w.marker
	return true
}

func unlockShared(w *world, i int) bool {
	w.writers[i].locks = false
	return true
}

func commit(w *world, i int) bool {
	w.writers[i].committed = true
	return unlockShared(w, i)
}

func emit(w *world, i int) bool {
	w.buffer[w.writers[i].saw]++
	return true
}

func mark(w *world, i int) bool {
	if w.marking {
		return false
	}
	w.marking = true
	w.passes[i].mark = w.marker + 1
	return true
}

// markAgain is a mark by a clock that stands still.
func markAgain(w *world, i int) bool {
	if !mark(w, i) {
		return false
	}
	w.passes[i].mark = 1
	return true
}

func lockExclusive(w *world, i int) bool {
	for _, writer := range w.writers {
		if writer.locks {
			return false
		}
	}
	for _, p := range w.passes {
		if p.locks {
			return false
		}
	}
	w.passes[i].locks = true
	return true
}

func snapshot(w *world, i int) bool {
	for _, writer := range w.writers {
		if writer.committed {
			w.passes[i].value++
		}
	}
	return true
}

func unlockExclusive(w *world, i int) bool {
	w.passes[i].locks = false
	return true
}

func commitMark(w *world, i int) bool {
	w.marker, w.marking = w.passes[i].mark, false
	return unlockExclusive(w, i)
}

func lockRow(w *world, _ int) bool {
	if w.rowLocked {
		return false
	}
	w.rowLocked = true
	return true
}

func sumLedger(w *world, i int) bool {
	p := &w.passes[i]
	for _, delta := range w.ledger[p.mark:] {
		p.sum += delta
	}
	return true
}

func writeBack(w *world, i int) bool {
	p := &w.passes[i]
	if w.since < p.mark {
		w.row, w.since = p.value+p.sum, p.mark
	}
	w.rowLocked = false
	return true
}

func freeze(w *world, _ int) bool {
	for marker, delta := range w.buffer {
		if delta > 0 {
			w.drain.marker, w.drain.delta = uint8(marker), delta
			w.buffer[marker] = 0
			return true
		}
	}
	return false
}

func readSince(w *world, _ int) bool {
	w.drain.since = w.since
	return true
}

func apply(w *world, i int) bool { return applyUnrecorded(w, i) && record(w, i) }

func applyUnrecorded(w *world, _ int) bool {
	if w.drain.marker >= w.drain.since {
		w.row += w.drain.delta
	}
	w.rowLocked = false
	return true
}

func record(w *world, _ int) bool {
	if w.drain.marker >= w.drain.since {
		w.ledger[w.drain.marker] += w.drain.delta
	}
	return true
}
