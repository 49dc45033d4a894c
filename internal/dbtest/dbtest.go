// Package dbtest gives each test a migrated database of its own. It is imported
// by tests only.
//
// The first test of a directory of migrations makes a template, and every test
// gets a clone of it, which takes a fraction of the time. The database of a
// failed test is left for inspection; its URL is in the test's log.
package dbtest

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"
	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	"github.com/peterldowns/pgtestdb"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/migrate"
)

// URLVariable names the environment variable with the URL of a database on a
// server where tests may create databases, as a superuser.
const URLVariable = "STOWAGE_TEST_DATABASE_URL"

// maxConns is more than the subtests that share a pool hold at once, each with an
// open transaction, one that waits for it, and a look at both.
const maxConns = 32

// New is a pool on a migrated database of its own, bound to
// search_path=public. It is closed and the database dropped with the test.
func New(t testing.TB) *pgxpool.Pool {
	t.Helper()
	return Open(t, NewURL(t))
}

// NewURL is the URL of a migrated database of its own, bound to
// search_path=public. What the test opens on it, it must close.
func NewURL(t testing.TB) string {
	t.Helper()
	return create(t, migrator{})
}

// NewEmptyURL is as NewURL, but nothing has been migrated.
func NewEmptyURL(t testing.TB) string {
	t.Helper()
	return create(t, pgtestdb.NoopMigrator{})
}

// ServerURL is the test server itself, for what makes databases of its own.
func ServerURL(t testing.TB) string {
	t.Helper()
	conf := server(t)
	return conf.URL()
}

// Open is a pool on a URL, closed with the test.
func Open(t testing.TB, databaseURL string) *pgxpool.Pool {
	t.Helper()
	cfg, err := pgxpool.ParseConfig(databaseURL)
	require.NoError(t, err)
	cfg.MaxConns = maxConns
	pool, err := pgxpool.NewWithConfig(context.Background(), cfg)
	require.NoError(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func create(t testing.TB, m pgtestdb.Migrator) string {
	t.Helper()
	conf := pgtestdb.Custom(t, server(t), m)
	return conf.URL() + "&search_path=public&timezone=UTC"
}

// server is the test server. It is tried first, so that a missing one is told
// in words a reader can act on.
func server(t testing.TB) pgtestdb.Config {
	t.Helper()
	raw := os.Getenv(URLVariable)
	require.NotEmpty(t, raw, "%s is not set: run make test, or set it to the URL of a PostgreSQL where tests may create databases as a superuser", URLVariable)
	u, err := url.Parse(raw)
	require.NoError(t, err, "%s is not a URL", URLVariable)
	require.NotEmpty(t, u.Port(), "%s=%s names no port", URLVariable, u.Redacted())

	db, err := sql.Open("pgx", raw)
	require.NoError(t, err)
	require.NoError(t, db.PingContext(t.Context()), "%s=%s does not answer: run make test, or start that server", URLVariable, u.Redacted())
	require.NoError(t, db.Close())

	password, _ := u.User.Password()
	return pgtestdb.Config{
		DriverName: "pgx",
		Host:       u.Hostname(),
		Port:       u.Port(),
		User:       u.User.Username(),
		Password:   url.QueryEscape(password),
		Database:   u.Path[1:],
		Options:    u.RawQuery,
		// Tests disable triggers and make schemas, so they stay superuser.
		TestRole: &pgtestdb.Role{
			Username:     u.User.Username(),
			Password:     url.QueryEscape(password),
			Capabilities: "SUPERUSER",
		},
	}
}

// migrator makes the template: one for each content of the directory.
type migrator struct{}

func (migrator) Hash() (string, error) { return migrate.Checksum() }

func (migrator) Migrate(ctx context.Context, _ *sql.DB, template pgtestdb.Config) error {
	pool, err := pgxpool.New(ctx, template.URL())
	if err != nil {
		return err
	}
	defer pool.Close()
	return migrate.Apply(ctx, pool, migrate.Options{})
}
