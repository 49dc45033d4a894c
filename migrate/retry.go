package migrate

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
)

// lockAttempts is how often a migration may meet a lock that is held for longer
// than its LockTimeout before it fails: about a minute with the default.
const lockAttempts = 6

// blockersTimeout bounds a look at the sessions that hold a lock.
const blockersTimeout = 5 * time.Second

// retry runs try again when it failed on a lock that somebody held for too long,
// or in a deadlock: that is what becomes of a CREATE INDEX CONCURRENTLY while an
// Atlas CLI waits for the migrators' lock in a statement, until it gives up.
// It pauses for as long as it waited, so that those who queued behind it get
// through before it queues again.
func (m *migrator) retry(ctx context.Context, name string, try func() error) error {
	holders := "a session that could not be seen"
	for attempt := 1; ; attempt++ {
		seen, err := m.watched(ctx, try)
		if !metLock(err) {
			return err
		}
		holders = cmp.Or(seen, holders)
		if attempt == lockAttempts {
			return fmt.Errorf("a lock was held for longer than %s, %d times in a row, by %s; wait for its transaction or end it (pg_terminate_backend), then try again: %w", m.lockTimeout, attempt, holders, err)
		}
		m.logger.WarnContext(ctx, "migration waited too long for a lock and is tried again", "migration", name, "attempt", attempt, "of", lockAttempts, "held_by", holders)
		select {
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(m.lockTimeout):
		}
	}
}

func metLock(err error) bool {
	const lockNotAvailable, deadlockDetected = "55P03", "40P01"
	pgErr, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (pgErr.Code == lockNotAvailable || pgErr.Code == deadlockDetected)
}

// watched runs do and names the sessions that it waited for last, empty when none
// was seen. The server can tell them only while do waits, so another session asks
// meanwhile, a few times in each lock timeout.
func (m *migrator) watched(ctx context.Context, do func() error) (holders string, err error) {
	pid, err := backend(m.conn)
	if err != nil {
		return "", err
	}
	watching, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		ticker := time.NewTicker(max(m.lockTimeout/5, time.Millisecond))
		defer ticker.Stop()
		for {
			select {
			case <-watching.Done():
				return
			case <-ticker.C:
			}
			// To name them is a courtesy, so what fails here fails nothing.
			if seen, err := m.blockersOf(watching, pid); err == nil {
				holders = cmp.Or(seen, holders)
			}
		}
	})
	err = do()
	stop()
	watcher.Wait()
	return holders, err
}

// blockersOf names the sessions that a session waits for. It tells no statement
// of theirs: those may hold data.
func (m *migrator) blockersOf(ctx context.Context, pid uint32) (string, error) {
	conn, err := m.pool.Acquire(ctx)
	if err != nil {
		return "", err
	}
	defer conn.Release()
	// Not ctx, whose end in the middle would cost the pool its connection.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), blockersTimeout)
	defer cancel()
	rows, err := conn.Query(ctx, `
		SELECT CASE pid WHEN 0 THEN 'a prepared transaction (pg_prepared_xacts)' ELSE
			format('session %s (%s)', pid, concat_ws(', ', 'user ' || usename, 'application ' || nullif(application_name, ''),
				nullif(backend_type, 'client backend'), state,
				'in a transaction since ' || to_char(xact_start AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS "UTC"'))) END
		FROM (SELECT DISTINCT unnest(pg_blocking_pids($1)) AS pid) AS blockers
		LEFT JOIN pg_stat_activity USING (pid)
		ORDER BY pid`, int32(pid))
	if err != nil {
		return "", err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	return strings.Join(names, " and "), err
}

// backend is the server's process of a session.
func backend(conn *sql.Conn) (pid uint32, err error) {
	err = conn.Raw(func(driverConn any) error {
		pid = driverConn.(*stdlib.Conn).Conn().PgConn().PID()
		return nil
	})
	return pid, err
}
