package migrate

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Object is one thing that stands in a schema.
type Object struct {
	// Kind is type, sequence, function, table, partitions, foreign key, index
	// or trigger.
	Kind string
	// Name is unique among the objects of a kind in one schema.
	Name string
	// Definition is SQL that makes it again. For partitions it is a comment.
	Definition string
}

//go:embed objects.sql
var objectsSQL string

// Objects reads what stands in a schema of the database, in an order in which
// the definitions can run, whatever the settings of pool. Two databases whose
// objects are equal have the same schema, but for owners, privileges and
// comments, and for the children of partitioned tables.
func Objects(ctx context.Context, pool *pgxpool.Pool, schema string) ([]Object, error) {
	var objects []Object
	err := pgx.BeginTxFunc(ctx, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		// The catalog renders names and instants by these settings.
		if _, err := tx.Exec(ctx, "SET LOCAL search_path = public; SET LOCAL timezone = 'UTC'"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, objectsSQL, schema)
		if err != nil {
			return err
		}
		objects, err = pgx.CollectRows(rows, pgx.RowToStructByPos[Object])
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("reading schema %s from the catalog: %w", schema, err)
	}
	return objects, nil
}

// dumpedSchemas are what the migrations make. The schema of the partitions
// stands there without its content, which Objects tells in comments.
var dumpedSchemas = []string{"public", "partitions", "river"}

const dumpHeader = `-- The whole schema after all migrations, for people to read and for Verify to
-- compare with. Written by "stowage migrate schema". Do not edit.
`

// Dump renders the schema of a database as the text of schema.sql.
func Dump(ctx context.Context, pool *pgxpool.Pool) (string, error) {
	var b strings.Builder
	b.WriteString(dumpHeader)
	for _, schema := range dumpedSchemas {
		if schema != "public" {
			fmt.Fprintf(&b, "\n-- schema %s\nCREATE SCHEMA %s;\n", schema, schema)
		}
		objects, err := Objects(ctx, pool, schema)
		if err != nil {
			return "", err
		}
		for _, o := range objects {
			fmt.Fprintf(&b, "\n%s%s\n", title(schema, o), o.Definition)
		}
	}
	return b.String(), nil
}

// title is the line above an object in schema.sql, by which Verify finds it.
func title(schema string, o Object) string {
	return fmt.Sprintf("-- %s %s.%s\n", o.Kind, schema, strings.TrimPrefix(o.Name, schema+"."))
}

//go:embed schema.sql
var schemaSQL string

// compare tells each object of want that have lacks or has otherwise.
func compare(want, have string) error {
	standing := sections(have)
	var problems []error
	expected := sections(want)
	for _, name := range slices.Sorted(maps.Keys(expected)) {
		definition := expected[name]
		found, ok := standing[name]
		switch {
		case !ok:
			problems = append(problems, fmt.Errorf("%s is missing", name))
		case found != definition:
			problems = append(problems, fmt.Errorf("%s differs: the migrations leave\n%s\nbut the database has\n%s", name, definition, found))
		}
	}
	return errors.Join(problems...)
}

var titleLine = regexp.MustCompile(`(?m)^-- ((?:type|sequence|function|table|partitions|foreign key|index|trigger) (?:public|river)\..+)$`)

// sections are the objects of a dump by their titles.
func sections(dump string) map[string]string {
	found := map[string]string{}
	lines := titleLine.FindAllStringSubmatchIndex(dump, -1)
	for i, line := range lines {
		end := len(dump)
		if i+1 < len(lines) {
			end = lines[i+1][0]
		}
		found[dump[line[2]:line[3]]] = strings.TrimSpace(dump[line[1]:end])
	}
	return found
}
