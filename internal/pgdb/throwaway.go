package pgdb

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
)

// WithThrowAway runs fn on a new empty database of the server at devURL and drops
// it afterwards.
func WithThrowAway(ctx context.Context, devURL string, fn func(*pgxpool.Pool) error) (err error) {
	server, err := NewPool(ctx, devURL)
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
	pool, err := NewPool(ctx, devURL, func(cfg *pgxpool.Config) { cfg.ConnConfig.Database = name })
	if err != nil {
		return err
	}
	defer pool.Close()
	return fn(pool)
}
