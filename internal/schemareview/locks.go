package schemareview

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5"
)

// lockLevels are PostgreSQL's modes from the weakest to the strongest, and what
// others must wait with while one is held.
var lockLevels = []struct{ catalog, mode, effect string }{
	{},
	{"AccessShareLock", "ACCESS SHARE", "blocks nobody who reads or writes"},
	{"RowShareLock", "ROW SHARE", "blocks nobody who reads or writes"},
	{"RowExclusiveLock", "ROW EXCLUSIVE", "blocks nobody who reads or writes, but index builds and changes of the schema"},
	{"ShareUpdateExclusiveLock", "SHARE UPDATE EXCLUSIVE", "blocks vacuum and changes of the schema, nobody who reads or writes"},
	{"ShareLock", "SHARE", "blocks writes"},
	{"ShareRowExclusiveLock", "SHARE ROW EXCLUSIVE", "blocks writes"},
	{"ExclusiveLock", "EXCLUSIVE", "blocks writes"},
	{"AccessExclusiveLock", "ACCESS EXCLUSIVE", "blocks reads and writes"},
}

// blocksWrites is the weakest level that does.
const blocksWrites = 5

func level(catalog string) int {
	for i, l := range lockLevels {
		if l.catalog == catalog {
			return i
		}
	}
	return len(lockLevels) - 1
}

// heldLocks are the levels that a session has on relations, or waits for.
func heldLocks(ctx context.Context, conn pgxQuerier, pid uint32) (map[uint32]int, error) {
	rows, err := conn.Query(ctx, `SELECT relation, mode FROM pg_locks
		WHERE pid = $1 AND locktype = 'relation' AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`, int32(pid))
	if err != nil {
		return nil, err
	}
	levels := map[uint32]int{}
	var relation uint32
	var mode string
	_, err = pgx.ForEachRow(rows, []any{&relation, &mode}, func() error {
		levels[relation] = max(levels[relation], level(mode))
		return nil
	})
	return levels, err
}

// onTables are the levels by table, those of partitions with those of the table.
func onTables(levels map[uint32]int, tables map[uint32]relation) map[string]int {
	found := map[string]int{}
	for id, l := range levels {
		if t, ok := tables[id]; ok && t.existing {
			found[t.name] = max(found[t.name], l)
		}
	}
	return found
}

// locks are the levels as the report shows them, the strongest first.
func locks(levels map[string]int) []Lock {
	found := []Lock{}
	for _, name := range slices.Sorted(maps.Keys(levels)) {
		l := lockLevels[levels[name]]
		found = append(found, Lock{Mode: l.mode, Table: name, Effect: l.effect, level: levels[name]})
	}
	slices.SortStableFunc(found, func(a, b Lock) int { return cmp.Compare(b.level, a.level) })
	return found
}

// levelOn is the strongest level on a table while the statement ran.
func (s *Statement) levelOn(table string) (strongest int) {
	for _, l := range slices.Concat(s.Locks, s.Held) {
		if l.Table == table {
			strongest = max(strongest, l.level)
		}
	}
	return strongest
}
