package schemadiff

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"

	atlas "ariga.io/atlas/sql/migrate"
	"ariga.io/atlas/sql/postgres"
	"ariga.io/atlas/sql/schema"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/stowage-dev/stowage/internal/pgdb"
)

// withDatabase runs fn on a new empty database and drops it afterwards.
func withDatabase(ctx context.Context, devURL string, fn func(*pgxpool.Pool) error) (err error) {
	server, err := pgdb.NewPool(ctx, devURL)
	if err != nil {
		return err
	}
	defer server.Close()
	name := "stowage_dev_" + strings.ToLower(rand.Text())
	// template0, because a site may have put things into template1.
	if _, err := server.Exec(ctx, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		return fmt.Errorf("making a throw-away database: %w", err)
	}
	defer func() {
		_, dropped := server.Exec(context.WithoutCancel(ctx), "DROP DATABASE "+name+" WITH (FORCE)")
		err = errors.Join(err, dropped)
	}()
	pool, err := pgdb.NewPool(ctx, devURL, func(cfg *pgxpool.Config) { cfg.ConnConfig.Database = name })
	if err != nil {
		return err
	}
	defer pool.Close()
	return fn(pool)
}

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
