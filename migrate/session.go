package migrate

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"
)

// lockName is the Atlas CLI's, so that it and we wait for each other.
const lockName = "atlas_migrate_execute"

// withSession runs fn on a connection of its own, whose settings do not depend
// on the role's or the database's. It is closed afterwards and not given back:
// it carries settings and a lock.
func withSession(ctx context.Context, pool *pgxpool.Pool, fn func(*sql.Conn) error) (err error) {
	db := stdlib.OpenDBFromPool(pool)
	conn, err := db.Conn(ctx)
	if err != nil {
		return errors.Join(err, db.Close())
	}
	defer func() {
		closed := conn.Raw(func(driverConn any) error {
			return driverConn.(*stdlib.Conn).Conn().Close(context.WithoutCancel(ctx))
		})
		// conn.Close reports that the connection beneath is closed already.
		_ = conn.Close()
		err = errors.Join(err, closed, db.Close())
	}()
	_, err = conn.ExecContext(ctx, `SET search_path = public; SET timezone = 'UTC'; SET statement_timeout = 0; SET lock_timeout = 0; SET idle_in_transaction_session_timeout = 0`)
	if err != nil {
		return err
	}
	return fn(conn)
}

// lock takes the advisory lock of the session. It asks again and again instead
// of waiting in the server: a waiting statement holds a snapshot, for which a
// CREATE INDEX CONCURRENTLY of the migrator at work would wait in turn.
func lock(ctx context.Context, conn *sql.Conn) error {
	name := fnv.New32()
	_, _ = name.Write([]byte(lockName)) // a hash never fails
	ticker := time.NewTicker(200 * time.Millisecond)
	defer ticker.Stop()
	for {
		var locked bool
		err := conn.QueryRowContext(ctx, "SELECT pg_try_advisory_lock($1)", int64(name.Sum32())).Scan(&locked)
		if locked || err != nil && ctx.Err() == nil {
			return err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for another migrator to finish (advisory lock %d): %w", name.Sum32(), context.Cause(ctx))
		case <-ticker.C:
		}
	}
}

func setLockTimeout(ctx context.Context, conn *sql.Conn, timeout time.Duration) error {
	_, err := conn.ExecContext(ctx, "SELECT set_config('lock_timeout', $1, false)", fmt.Sprintf("%dms", timeout.Milliseconds()))
	return err
}
