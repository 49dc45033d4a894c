// Package entpgx is an Ent driver over pgx. Ent, the marker, COMMIT and a
// registry's own statements (River inserts among them) then share one pgx
// transaction, and the driver controls the COMMIT: it reads the markers and
// commits in one round trip.
//
// The driver serves no *sql.Rows, so Ent's features sql/execquery and
// sql/modifier stay off.
package entpgx

import (
	"context"
	stdsql "database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"entgo.io/ent/dialect"
	"entgo.io/ent/dialect/sql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Driver is a dialect.Driver over a pgx pool.
type Driver struct {
	pool     *pgxpool.Pool
	timeouts Timeouts
	observer Observer
}

// Timeouts bound a transaction.
type Timeouts struct {
	// Commit is how long a COMMIT may take. It outlives the cancellation of its
	// transaction's context.
	Commit time.Duration
	// Idle is after how long without a statement the server ends the
	// transaction, and so how late a COMMIT that was on its way can arrive.
	Idle time.Duration
}

var _ dialect.Driver = (*Driver)(nil)

// NewDriver is a driver over pool, which stays the caller's to close. The
// observer hears of every counted commit.
func NewDriver(pool *pgxpool.Pool, timeouts Timeouts, observer Observer) *Driver {
	return &Driver{pool: pool, timeouts: timeouts, observer: observer}
}

// Dialect is Postgres.
func (d *Driver) Dialect() string { return dialect.Postgres }

// Close does nothing: the pool is the caller's.
func (d *Driver) Close() error { return nil }

// Exec runs a statement in autocommit; v is nil or a *database/sql.Result.
func (d *Driver) Exec(ctx context.Context, query string, args, v any) error {
	return exec(ctx, d.pool, query, args, v)
}

// Query runs a query in autocommit; v is an Ent *sql.Rows.
func (d *Driver) Query(ctx context.Context, query string, args, v any) error {
	return runQuery(ctx, d.pool, query, args, v)
}

// Tx begins a transaction, READ COMMITTED whatever the server's default is:
// under a higher level the marker would be read from an old snapshot. Plans are
// generic: a write finds rows by key, and to plan the statements of a publish and
// of its foreign keys anew, each time, costs the server more than to run them.
func (d *Driver) Tx(ctx context.Context) (dialect.Tx, error) {
	conn, err := d.pool.Acquire(ctx)
	if err != nil {
		return nil, fmt.Errorf("begin: no connection from the pool: %w", err)
	}
	tx, err := conn.BeginTx(ctx, pgx.TxOptions{BeginQuery: fmt.Sprintf(
		"BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL idle_in_transaction_session_timeout = %d; SET LOCAL plan_cache_mode = force_generic_plan", d.timeouts.Idle.Milliseconds())})
	if err != nil {
		conn.Release()
		return nil, fmt.Errorf("begin: %w", err)
	}
	return &Tx{driver: d, ctx: ctx, conn: conn, tx: tx}, nil
}

// pgxQuerier is what a pool and a transaction have in common.
type pgxQuerier interface {
	Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error)
	Query(ctx context.Context, query string, args ...any) (pgx.Rows, error)
}

func exec(ctx context.Context, db pgxQuerier, query string, args, v any) error {
	argv, err := arguments(args)
	if err != nil {
		return err
	}
	tag, err := db.Exec(ctx, query, argv...)
	if err != nil {
		return err
	}
	switch v := v.(type) {
	case nil:
		return nil
	case *stdsql.Result:
		*v = driver.RowsAffected(tag.RowsAffected())
		return nil
	default:
		return fmt.Errorf("entpgx: exec cannot fill a %T, want a *sql.Result", v)
	}
}

func runQuery(ctx context.Context, db pgxQuerier, query string, args, v any) error {
	dst, ok := v.(*sql.Rows)
	if !ok {
		return fmt.Errorf("entpgx: query cannot fill a %T, want a *sql.Rows of Ent", v)
	}
	argv, err := arguments(args)
	if err != nil {
		return err
	}
	found, err := db.Query(ctx, query, argv...)
	if err != nil {
		return err
	}
	scanner := &rows{rows: found}
	if err := scanner.peek(); err != nil {
		return err
	}
	dst.ColumnScanner = scanner
	return nil
}

func arguments(args any) ([]any, error) {
	argv, ok := args.([]any)
	if !ok {
		return nil, fmt.Errorf("entpgx: arguments are a %T, want []any", args)
	}
	return argv, nil
}

// rows serves pgx rows to Ent.
type rows struct {
	rows   pgx.Rows
	peeked bool
	more   bool
}

// peek fetches the first row, because pgx reports an error of the statement
// only then and Ent expects it from the query.
func (r *rows) peek() error {
	r.more = r.rows.Next()
	r.peeked = true
	if !r.more {
		return r.rows.Err()
	}
	return nil
}

func (r *rows) Next() bool {
	if r.peeked {
		r.peeked = false
		return r.more
	}
	return r.rows.Next()
}

func (r *rows) Scan(dest ...any) error { return r.rows.Scan(dest...) }

func (r *rows) Err() error { return r.rows.Err() }

func (r *rows) Close() error {
	r.rows.Close()
	return r.rows.Err()
}

func (r *rows) NextResultSet() bool { return false }

func (r *rows) Columns() ([]string, error) {
	fields := r.rows.FieldDescriptions()
	names := make([]string, len(fields))
	for i, f := range fields {
		names[i] = f.Name
	}
	return names, nil
}

func (r *rows) ColumnTypes() ([]*stdsql.ColumnType, error) {
	return nil, errors.New("entpgx: column types are not served: they exist in database/sql only")
}
