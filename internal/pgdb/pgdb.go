// Package pgdb is how Stowage connects to PostgreSQL: the pool, transactions
// as the accounting protocol needs them, locks that live as long as their
// connection, and what an error of the server means.
package pgdb

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// DB runs statements: a pool, a connection or a transaction.
type DB interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// Beginner begins transactions: a pool or a connection.
type Beginner interface {
	BeginTx(ctx context.Context, opts pgx.TxOptions) (pgx.Tx, error)
}

// NewPool returns a pool for a PostgreSQL URL or key=value string. Its
// connections are bound to search_path=public, because the tables of River and
// the children of partitioned tables live in schemas of their own, and to UTC.
// They show as "stowage" unless the URL names an application. It does not
// connect yet: the first statement does. The error of a malformed URL does not
// repeat the password.
func NewPool(ctx context.Context, url string, options ...func(*pgxpool.Config)) (*pgxpool.Pool, error) {
	cfg, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("database URL: %w", err)
	}
	params := cfg.ConnConfig.RuntimeParams
	params["search_path"] = "public"
	params["timezone"] = "UTC"
	if params["application_name"] == "" {
		params["application_name"] = "stowage"
	}
	for _, option := range options {
		option(cfg)
	}
	return pgxpool.NewWithConfig(ctx, cfg)
}
