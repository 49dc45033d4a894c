package schemareview

import (
	"context"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stowage-dev/stowage/migrate"
)

// objects are what stands in the database, with the columns and constraints of
// tables beside the tables.
func objects(ctx context.Context, pool *pgxpool.Pool) (all []migrate.Object, err error) {
	rows, err := pool.Query(ctx, `SELECT nspname FROM pg_namespace
		WHERE nspname !~ '^pg_' AND nspname NOT IN ('information_schema', 'partitions_of_the_review') ORDER BY nspname <> 'public', nspname`)
	if err != nil {
		return nil, err
	}
	schemas, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, err
	}
	for _, schema := range schemas {
		found, err := migrate.Objects(ctx, pool, schema)
		if err != nil {
			return nil, err
		}
		if schema != "public" {
			all = append(all, migrate.Object{Kind: "schema", Name: schema, Definition: "CREATE SCHEMA " + schema + ";"})
		}
		for _, o := range found {
			if schema != "public" {
				o.Name = schema + "." + strings.TrimPrefix(o.Name, schema+".")
			}
			all = append(all, o)
		}
	}
	return all, nil
}

// changes compare the objects of two databases. A table that stands in both is
// compared by its columns and constraints, and by what is left of its definition.
func changes(before, after []migrate.Object) []Change {
	all := compareObjects(before, after)
	found := []Change{}
	for _, c := range all {
		if c.Kind != "table" || c.Change != "changed" {
			found = append(found, c)
			continue
		}
		found = append(found, compareObjects(parts(c.Name, c.Before), parts(c.Name, c.After))...)
	}
	return found
}

func compareObjects(before, after []migrate.Object) (found []Change) {
	type key struct{ kind, name string }
	was := map[key]string{}
	for _, o := range before {
		was[key{o.Kind, o.Name}] = o.Definition
	}
	stands := map[key]bool{}
	for _, o := range after {
		k := key{o.Kind, o.Name}
		stands[k] = true
		switch definition, stood := was[k]; {
		case !stood:
			found = append(found, Change{Change: "added", Kind: o.Kind, Name: o.Name, After: o.Definition})
		case definition != o.Definition:
			found = append(found, Change{Change: "changed", Kind: o.Kind, Name: o.Name, Before: definition, After: o.Definition})
		}
	}
	for _, o := range before {
		if !stands[key{o.Kind, o.Name}] {
			found = append(found, Change{Change: "dropped", Kind: o.Kind, Name: o.Name, Before: o.Definition})
		}
	}
	return found
}

// parts are the lines of a table's definition, which package migrate writes with one
// column or constraint in each.
func parts(table, definition string) (found []migrate.Object) {
	lines := strings.Split(definition, "\n")
	end := slices.Index(lines, ")")
	if end < 0 {
		end = slices.IndexFunc(lines, func(line string) bool { return strings.HasPrefix(line, ")") })
	}
	for _, line := range lines[1:end] {
		line = strings.TrimSuffix(strings.TrimSpace(line), ",")
		kind := "column"
		rest, isConstraint := strings.CutPrefix(line, "CONSTRAINT ")
		if isConstraint {
			kind = "constraint"
		}
		name, _, _ := strings.Cut(rest, " ")
		found = append(found, migrate.Object{Kind: kind, Name: table + "." + name, Definition: line})
	}
	return append(found, migrate.Object{Kind: "table", Name: table, Definition: lines[0] + "...\n" + strings.Join(lines[end:], "\n")})
}
