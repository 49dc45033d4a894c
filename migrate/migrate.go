// Package migrate brings a database to the schema that this build needs. It
// embeds the directory of migrations, in the format of Atlas, and keeps its
// record in the Atlas CLI's own table, so either may be used on a database.
// README.md beside this file says how migrations are written and deployed.
package migrate

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"time"

	atlas "ariga.io/atlas/sql/migrate"
	"ariga.io/atlas/sql/postgres"
	"ariga.io/atlas/sql/schema"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed migrations
var files embed.FS

// DefaultLockTimeout is how long a migration waits for a table's lock. While it
// waits, everybody who comes later waits behind it, so it gives up early.
const DefaultLockTimeout = 5 * time.Second

// Options of Apply; the zero value applies everything.
type Options struct {
	// To is the version to stop after. Empty means the newest.
	To string
	// Logger gets one record for each migration applied. Nil means none.
	Logger *slog.Logger
	// LockTimeout bounds each wait for a table's lock. Zero means
	// DefaultLockTimeout.
	LockTimeout time.Duration
}

// Apply applies the pending migrations in order, each in a transaction of its
// own together with its record: a failed one leaves nothing behind, and calling
// Apply again goes on from it. Only a migration that says "atlas:txmode none"
// runs without a transaction and may be left half done; the next call continues
// at the statement that failed.
//
// Several callers may run at once, also beside the Atlas CLI: an advisory lock
// lets one work while the others wait, until ctx ends. The lock belongs to a
// session, so pool must not go through a pooler in transaction mode.
func Apply(ctx context.Context, pool *pgxpool.Pool, opts Options) error {
	dir, err := directory()
	if err != nil {
		return err
	}
	return apply(ctx, pool, dir, opts)
}

func apply(ctx context.Context, pool *pgxpool.Pool, dir atlas.Dir, opts Options) error {
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	if opts.LockTimeout == 0 {
		opts.LockTimeout = DefaultLockTimeout
	}
	return withSession(ctx, pool, func(conn *sql.Conn) error {
		if err := lock(ctx, conn); err != nil {
			return err
		}
		if err := setLockTimeout(ctx, conn, opts.LockTimeout); err != nil {
			return err
		}
		if err := createRevisions(ctx, conn); err != nil {
			return err
		}
		return applyPending(ctx, conn, dir, opts)
	})
}

func applyPending(ctx context.Context, conn *sql.Conn, dir atlas.Dir, opts Options) error {
	pending, err := pendingFiles(ctx, conn, dir)
	if err != nil {
		return err
	}
	pending, err = upTo(pending, dir, opts.To)
	if err != nil {
		return err
	}
	for _, file := range pending {
		start := time.Now()
		if err := applyFile(ctx, conn, dir, file); err != nil {
			return explain(file, opts.LockTimeout, err)
		}
		opts.Logger.InfoContext(ctx, "migration applied", "version", file.Version(), "description", file.Desc(), "duration", time.Since(start))
	}
	if len(pending) == 0 {
		opts.Logger.InfoContext(ctx, "no migration is pending")
	}
	return nil
}

// pendingFiles reads nothing but the record. Tables that are not ours may stand
// in the schema: where they clash, the first migration fails and leaves nothing.
func pendingFiles(ctx context.Context, db schema.ExecQuerier, dir atlas.Dir) ([]atlas.File, error) {
	executor, err := newExecutor(db, dir)
	if err != nil {
		return nil, err
	}
	pending, err := executor.Pending(ctx)
	if errors.Is(err, atlas.ErrNoPendingFiles) {
		return nil, nil
	}
	return pending, err
}

// upTo cuts pending after a version of the directory.
func upTo(pending []atlas.File, dir atlas.Dir, version string) ([]atlas.File, error) {
	if version == "" {
		return pending, nil
	}
	if err := known(dir, version); err != nil {
		return nil, err
	}
	after := atlas.FilesLastIndex(pending, func(f atlas.File) bool { return f.Version() <= version })
	return pending[:after+1], nil
}

func applyFile(ctx context.Context, conn *sql.Conn, dir atlas.Dir, file atlas.File) error {
	if withoutTx(file) {
		return execute(ctx, conn, dir, file)
	}
	tx, err := conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := execute(ctx, tx, dir, file); err != nil {
		_ = tx.Rollback() // the session is closed next, which rolls back too
		return err
	}
	return tx.Commit()
}

func execute(ctx context.Context, db schema.ExecQuerier, dir atlas.Dir, file atlas.File) error {
	executor, err := newExecutor(db, dir)
	if err != nil {
		return err
	}
	return executor.Execute(ctx, file)
}

func newExecutor(db schema.ExecQuerier, dir atlas.Dir) (*atlas.Executor, error) {
	driver, err := postgres.Open(db)
	if err != nil {
		return nil, err
	}
	return atlas.NewExecutor(driver, dir, revisions{db}, atlas.WithAllowDirty(true), atlas.WithOperatorVersion("stowage"))
}

// withoutTx obeys the directive that the library leaves to its caller.
func withoutTx(file atlas.File) bool {
	local, ok := file.(*atlas.LocalFile)
	if !ok {
		return false
	}
	modes := local.Directive("txmode")
	return len(modes) == 1 && modes[0] == "none"
}

// explain names the file, and the way out of the failure that operators meet
// most. It leaves out what only follows from the statement's failure.
func explain(file atlas.File, lockTimeout time.Duration, err error) error {
	const lockNotAvailable = "55P03"
	if failed, ok := errors.AsType[*atlas.StmtExecError](err); ok {
		err = failed
	}
	if pgErr, ok := errors.AsType[*pgconn.PgError](err); ok && pgErr.Code == lockNotAvailable {
		return fmt.Errorf("migration %s: another transaction held a lock for longer than %s; wait for it or end it (pg_locks, pg_stat_activity), then apply again: %w", file.Name(), lockTimeout, err)
	}
	return fmt.Errorf("migration %s: %w", file.Name(), err)
}

// directory is the embedded directory, as the library wants it: checked
// against its atlas.sum.
func directory() (atlas.Dir, error) {
	return load(files, "migrations")
}

func load(fsys fs.FS, root string) (atlas.Dir, error) {
	entries, err := fs.ReadDir(fsys, root)
	if err != nil {
		return nil, err
	}
	dir := &atlas.MemDir{}
	for _, entry := range entries {
		content, err := fs.ReadFile(fsys, root+"/"+entry.Name())
		if err != nil {
			return nil, err
		}
		if err := dir.WriteFile(entry.Name(), content); err != nil {
			return nil, err
		}
	}
	if err := atlas.Validate(dir); err != nil {
		return nil, fmt.Errorf("directory of migrations: %w: a file was changed without its checksum; if that was meant, run stowage migrate hash", err)
	}
	return dir, nil
}

func known(dir atlas.Dir, version string) error {
	all, err := dir.Files()
	if err != nil {
		return err
	}
	if atlas.FilesLastIndex(all, func(f atlas.File) bool { return f.Version() == version }) < 0 {
		return fmt.Errorf("version %q: this build has no such migration, its newest is %s", version, all[len(all)-1].Version())
	}
	return nil
}

// Checksum identifies the content of the embedded directory: the first line of
// its atlas.sum.
func Checksum() (string, error) {
	dir, err := directory()
	if err != nil {
		return "", err
	}
	sum, err := dir.Checksum()
	if err != nil {
		return "", err
	}
	return sum.Sum(), nil
}
