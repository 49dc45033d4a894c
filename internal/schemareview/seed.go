package schemareview

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// rowsEach is how many rows every table gets: more than one, so that a constraint
// over rows has something to compare.
const rowsEach = 3

//go:embed seed.sql
var seedSQL string

type seedColumn struct {
	Table                                 uint32
	TableName, Name, Type, Category       string
	NotNull, HasDefault, Made             bool
	Parent                                uint32
	ParentName, ParentColumn, ParentOrder string
}

// seed makes rows in every table, so that what a statement does to rows can be
// seen. It knows no more than the catalog: types, foreign keys, and for the CHECKs
// a few ways to fill a row, tried one after the other. It returns the tables that
// stay empty.
func seed(ctx context.Context, conn *pgx.Conn) (empty []NoRows, err error) {
	empty = []NoRows{}
	if err := makePartitions(ctx, conn); err != nil {
		return nil, err
	}
	rows, err := conn.Query(ctx, seedSQL)
	if err != nil {
		return nil, err
	}
	columns, err := pgx.CollectRows(rows, pgx.RowToStructByPos[seedColumn])
	if err != nil {
		return nil, fmt.Errorf("reading the tables to make rows in: %w", err)
	}
	for _, table := range parentsFirst(columns) {
		why, err := fill(ctx, conn, table)
		if err != nil {
			return nil, err
		}
		if why != "" {
			empty = append(empty, NoRows{table[0].TableName, why})
		}
	}
	return empty, nil
}

// makePartitions gives a table that has no partition one for every row.
func makePartitions(ctx context.Context, conn *pgx.Conn) error {
	rows, err := conn.Query(ctx, `SELECT format('CREATE TABLE partitions_of_the_review.%I PARTITION OF %s DEFAULT', oid, oid::regclass)
		FROM pg_class JOIN pg_partitioned_table ON partrelid = oid
		WHERE partstrat IN ('r', 'l') AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = oid)`)
	if err != nil {
		return err
	}
	statements, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(statements) == 0 {
		return err
	}
	for _, statement := range append([]string{"CREATE SCHEMA partitions_of_the_review"}, statements...) {
		if _, err := conn.Exec(ctx, statement); err != nil {
			return err
		}
	}
	return nil
}

// parentsFirst groups the columns by table, each behind the tables that it refers
// to. In a circle somebody is first.
func parentsFirst(columns []seedColumn) (tables [][]seedColumn) {
	byTable := map[uint32][]seedColumn{}
	var order []uint32
	for _, c := range columns {
		if byTable[c.Table] == nil {
			order = append(order, c.Table)
		}
		byTable[c.Table] = append(byTable[c.Table], c)
	}
	visited := map[uint32]bool{}
	var visit func(uint32)
	visit = func(id uint32) {
		if visited[id] {
			return
		}
		visited[id] = true
		for _, c := range byTable[id] {
			if c.Parent != 0 {
				visit(c.Parent)
			}
		}
		tables = append(tables, byTable[id])
	}
	for _, id := range order {
		visit(id)
	}
	return tables
}

// fill makes rows in a table, unless a trigger of another one has. It returns why
// it could not.
func fill(ctx context.Context, conn *pgx.Conn, columns []seedColumn) (why string, err error) {
	var filled bool
	if err := conn.QueryRow(ctx, "SELECT EXISTS (SELECT FROM "+columns[0].TableName+")").Scan(&filled); err != nil || filled {
		return "", err
	}
	for row := 1; row <= rowsEach; row++ {
		made, err := makeRow(ctx, conn, columns, row)
		refused, ok := errors.AsType[*pgconn.PgError](err)
		switch {
		case err != nil && !ok:
			return "", err
		case made:
			filled = true
		case !filled:
			why = refused.Message
		}
	}
	if filled {
		return "", nil
	}
	return why, nil
}

// makeRow tries the ways to fill a row, and returns the last refusal.
func makeRow(ctx context.Context, conn *pgx.Conn, columns []seedColumn, row int) (bool, error) {
	var err error
	for way := range ways {
		if _, err = conn.Exec(ctx, insert(columns, row, way)); err == nil {
			return true, nil
		}
		if ctx.Err() != nil {
			return false, ctx.Err()
		}
	}
	return false, err
}

// ways to fill a row: as a writer would who names what has no default, the same
// without what may be NULL, and with every column.
const ways = 3

func insert(columns []seedColumn, row, way int) string {
	var names, values []string
	for _, c := range columns {
		if c.Made || way < 2 && c.HasDefault || way == 1 && !c.NotNull {
			continue
		}
		names = append(names, pgx.Identifier{c.Name}.Sanitize())
		values = append(values, c.value(row))
	}
	if len(names) == 0 {
		return "INSERT INTO " + columns[0].TableName + " DEFAULT VALUES"
	}
	return fmt.Sprintf("INSERT INTO %s (%s) VALUES (%s)", columns[0].TableName, strings.Join(names, ", "), strings.Join(values, ", "))
}

// value is an expression that differs from row to row where its type allows it.
func (c seedColumn) value(row int) string {
	if c.Parent != 0 {
		// A key of several columns takes all of them from one row.
		return fmt.Sprintf("(SELECT %s FROM %s ORDER BY %s LIMIT 1 OFFSET %d %% greatest((SELECT count(*) FROM %[2]s), 1))",
			pgx.Identifier{c.ParentColumn}.Sanitize(), c.ParentName, c.ParentOrder, row-1)
	}
	switch {
	case c.Type == "uuid":
		return "gen_random_uuid()"
	case c.Type == "bytea":
		return fmt.Sprintf("sha256('%d')", row) // as long as a digest
	case slices.Contains([]string{"json", "jsonb"}, c.Type):
		return "'{}'"
	}
	switch c.Category {
	case "N":
		return fmt.Sprint(row)
	case "S":
		return fmt.Sprintf("'r%d'", row)
	case "B":
		return "false"
	case "D":
		return "now()"
	case "T":
		return fmt.Sprintf("interval '%d second'", row)
	case "E":
		return fmt.Sprintf("(enum_range(NULL::%s))[1]", c.Type)
	case "A":
		return "'{}'"
	}
	return "NULL::" + c.Type
}
