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
	"regexp"
	"time"

	atlas "ariga.io/atlas/sql/migrate"
	"ariga.io/atlas/sql/postgres"
	"ariga.io/atlas/sql/schema"
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
	// Logger gets one record for each migration applied, and one for each time
	// that one is tried again. Nil means none.
	Logger *slog.Logger
	// LockTimeout bounds each wait for a table's lock, in whole milliseconds. Zero
	// means DefaultLockTimeout.
	LockTimeout time.Duration
}

// Apply applies the pending migrations in order, each in a transaction of its
// own together with its record: a failed one leaves nothing behind, and calling
// Apply again goes on from it. Only a migration that says "atlas:txmode none"
// runs without a transaction and may be left half done; the next call continues
// at the statement that failed.
//
// A migration that waits for a table's lock longer than LockTimeout is tried
// again a few times: Logger gets a record that names the sessions that hold it,
// and so does the error in the end. For that it takes a second connection of
// pool, if there is one.
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
	m := newMigrator(pool, dir, opts.Logger, opts.LockTimeout)
	return m.work(ctx, func() error { return m.applyPending(ctx, opts.To) })
}

// migrator is the one at work on a database.
type migrator struct {
	pool        *pgxpool.Pool
	conn        *sql.Conn // while it works
	dir         atlas.Dir
	logger      *slog.Logger
	lockTimeout time.Duration
}

func newMigrator(pool *pgxpool.Pool, dir atlas.Dir, logger *slog.Logger, lockTimeout time.Duration) *migrator {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	if lockTimeout == 0 {
		lockTimeout = DefaultLockTimeout
	}
	return &migrator{pool: pool, dir: dir, logger: logger, lockTimeout: lockTimeout}
}

// work runs fn when no other migrator is at work, on a session of its own.
func (m *migrator) work(ctx context.Context, fn func() error) error {
	return withSession(ctx, m.pool, func(conn *sql.Conn) error {
		if err := lock(ctx, conn); err != nil {
			return err
		}
		if err := setLockTimeout(ctx, conn, m.lockTimeout); err != nil {
			return err
		}
		if err := createRevisions(ctx, conn); err != nil {
			return err
		}
		m.conn = conn
		return fn()
	})
}

func (m *migrator) applyPending(ctx context.Context, to string) error {
	pending, err := pendingFiles(ctx, m.conn, m.dir)
	if err != nil {
		return err
	}
	pending, err = upTo(pending, m.dir, to)
	if err != nil {
		return err
	}
	for _, file := range pending {
		start := time.Now()
		if err := m.retry(ctx, file.Name(), func() error { return m.applyFile(ctx, file) }); err != nil {
			return fmt.Errorf("migration %s: %w", file.Name(), err)
		}
		m.logger.InfoContext(ctx, "migration applied", "version", file.Version(), "description", file.Desc(), "duration", time.Since(start))
	}
	if len(pending) == 0 {
		m.logger.InfoContext(ctx, "no migration is pending")
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

func (m *migrator) applyFile(ctx context.Context, file atlas.File) error {
	if withoutTx(file) {
		if err := dropInvalidIndexes(ctx, m.conn, file); err != nil {
			return err
		}
		return execute(ctx, m.conn, m.dir, file)
	}
	return m.inTx(ctx, func(tx *sql.Tx) error { return execute(ctx, tx, m.dir, file) })
}

func (m *migrator) inTx(ctx context.Context, fn func(*sql.Tx) error) error {
	tx, err := m.conn.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		// When the rollback fails, the session is broken; it is closed in the end,
		// which rolls back too.
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// execute runs a file, or the rest of it. Of a statement's failure it leaves out
// what only follows from it.
func execute(ctx context.Context, db schema.ExecQuerier, dir atlas.Dir, file atlas.File) error {
	executor, err := newExecutor(db, dir)
	if err != nil {
		return err
	}
	if err := takeUp(ctx, db, dir, file); err != nil {
		return err
	}
	err = executor.Execute(ctx, file)
	if failed, ok := errors.AsType[*atlas.StmtExecError](err); ok {
		return failed
	}
	return err
}

// takeUp writes into the record of a file that was left half done what the file
// says today. The executor refuses it when statements that ran were changed, but
// it would keep the checksum and the number of statements of the first attempt,
// and a file whose rest was mended would count as changed or pending for ever.
func takeUp(ctx context.Context, db schema.ExecQuerier, dir atlas.Dir, file atlas.File) error {
	record := revisions{db}
	rev, err := record.ReadRevision(ctx, file.Version())
	if errors.Is(err, atlas.ErrRevisionNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	driver, err := postgres.Open(db)
	if err != nil {
		return err
	}
	stmts, err := atlas.FileStmtDecls(driver, file)
	if err != nil {
		return err
	}
	if len(stmts) < rev.Applied {
		return fmt.Errorf("%d of its statements were applied, and now it has only %d: bring back those that were applied", rev.Applied, len(stmts))
	}
	sum, err := dir.Checksum()
	if err != nil {
		return err
	}
	rev.Total = len(stmts)
	if rev.Hash, err = sum.SumByName(file.Name()); err != nil {
		return err
	}
	return record.WriteRevision(ctx, rev)
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

var concurrentIndex = regexp.MustCompile(`(?i)^CREATE\s+(?:UNIQUE\s+)?INDEX\s+CONCURRENTLY\s+(?:IF\s+NOT\s+EXISTS\s+)?"?(\w+)`)

// dropInvalidIndexes removes what a CREATE INDEX CONCURRENTLY of the file left
// when it failed or its migrator was killed: an index that serves no query, and
// whose name is in the way of the next attempt.
func dropInvalidIndexes(ctx context.Context, db schema.ExecQuerier, file atlas.File) error {
	stmts, err := file.StmtDecls()
	if err != nil {
		return err
	}
	for _, stmt := range stmts {
		name := concurrentIndex.FindStringSubmatch(stmt.Text)
		if name == nil {
			continue
		}
		invalid, err := exists(ctx, db, "SELECT EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass(quote_ident($1)) AND NOT indisvalid)", name[1])
		if err != nil {
			return err
		}
		if !invalid {
			continue
		}
		if _, err := db.ExecContext(ctx, `DROP INDEX CONCURRENTLY "`+name[1]+`"`); err != nil {
			return err
		}
	}
	return nil
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
