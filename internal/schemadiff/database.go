package schemadiff

import (
	"context"
	"errors"
	"slices"

	atlas "ariga.io/atlas/sql/migrate"
	"ariga.io/atlas/sql/postgres"
	"ariga.io/atlas/sql/schema"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

func withDriver(pool *pgxpool.Pool, fn func(atlas.Driver) error) error {
	db := stdlib.OpenDBFromPool(pool)
	driver, err := postgres.Open(db)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	return errors.Join(fn(driver), db.Close())
}

// tableChanges are what Atlas finds between the tables of two databases.
func tableChanges(ctx context.Context, current, desired *pgxpool.Pool) (changes []schema.Change, err error) {
	from, err := inspect(ctx, current)
	if err != nil {
		return nil, err
	}
	to, err := inspect(ctx, desired)
	if err != nil {
		return nil, err
	}
	err = withDriver(current, func(driver atlas.Driver) error {
		changes, err = driver.SchemaDiff(from, to)
		return err
	})
	return changes, err
}

func inspect(ctx context.Context, pool *pgxpool.Pool) (*schema.Schema, error) {
	var found *schema.Schema
	err := withDriver(pool, func(driver atlas.Driver) (err error) {
		found, err = driver.InspectSchema(ctx, "public", nil)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, table := range found.Tables {
		table.ForeignKeys = slices.DeleteFunc(table.ForeignKeys, intoPartition)
	}
	return found, nil
}

// intoPartition finds the keys that PostgreSQL derives, one for each partition
// of the table that a declared key points to.
func intoPartition(key *schema.ForeignKey) bool {
	return key.RefTable.Schema != nil && key.RefTable.Schema.Name == "partitions"
}
