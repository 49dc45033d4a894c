package schemareview

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"

	"github.com/jackc/pgx/v5"
)

//go:embed catalog.sql
var catalogSQL string

// catalog is what stands in a database, by the server's own ids: a thing that was
// renamed keeps its id, and one that was dropped and made again has another.
type catalog struct {
	Tables      []table
	Columns     []column
	Constraints []constraint
	Indexes     []index
	Functions   []function
	Triggers    []trigger
	Enums       []enum
}

type table struct {
	ID           uint32
	Name, Schema string
	RLS          bool
}

type column struct {
	Table               uint32
	Number              int
	Name, Type, Default string
	NotNull             bool
	Generated, Identity string
}

type constraint struct {
	ID, Table                      uint32
	Schema, Name, Kind, Definition string
	Validated                      bool
	Columns                        []string
}

type index struct {
	ID, Table               uint32
	Schema, Name, Predicate string
	Unique                  bool
	// Owned by a constraint, which has the same name.
	Owned   bool
	Columns []string
}

type function struct {
	ID                                                             uint32
	Schema, Name, Signature, Arguments, Result, Source, Definition string
}

type trigger struct {
	ID, Table, Function      uint32
	Schema, Name, Definition string
	Before                   bool
}

type enum struct {
	ID           uint32
	Schema, Name string
	Labels       []string
}

func readCatalog(ctx context.Context, conn *pgx.Conn) (*catalog, error) {
	var document []byte
	if err := conn.QueryRow(ctx, catalogSQL).Scan(&document); err != nil {
		return nil, fmt.Errorf("reading the catalog: %w", err)
	}
	c := &catalog{}
	return c, json.Unmarshal(document, c)
}

// sameShape is whether Atlas, which knows no functions and triggers, would see a
// difference.
func (c *catalog) sameShape(other *catalog) bool {
	a, b := *c, *other
	a.Functions, b.Functions, a.Triggers, b.Triggers = nil, nil, nil, nil
	return reflect.DeepEqual(a, b)
}

func (c *catalog) table(id uint32) (table, bool) {
	return find(c.Tables, func(t table) bool { return t.ID == id })
}

func (c *catalog) tableName(id uint32) string {
	t, _ := c.table(id)
	return t.Name
}

func (c *catalog) column(table uint32, number int) (column, bool) {
	return find(c.Columns, func(col column) bool { return col.Table == table && col.Number == number })
}

func (c *catalog) columnNamed(table uint32, name string) (column, bool) {
	return find(c.Columns, func(col column) bool { return col.Table == table && col.Name == name })
}

func (c *catalog) function(id uint32) (function, bool) {
	return find(c.Functions, func(f function) bool { return f.ID == id })
}

// find is the first element that is meant.
func find[T any](all []T, meant func(T) bool) (found T, ok bool) {
	i := slices.IndexFunc(all, meant)
	if i < 0 {
		return found, false
	}
	return all[i], true
}

// without are the elements of all whose key none of others has.
func without[T any, K comparable](all, others []T, key func(T) K) (left []T) {
	seen := map[K]bool{}
	for _, o := range others {
		seen[key(o)] = true
	}
	for _, a := range all {
		if !seen[key(a)] {
			left = append(left, a)
		}
	}
	return left
}
