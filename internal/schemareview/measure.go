package schemareview

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed measured.sql
var measuredSQL string

type pgxQuerier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// bench runs the new migrations on a throw-away database and looks after every
// statement.
type bench struct {
	pool *pgxpool.Pool
	conn *pgx.Conn
	// tables are all that ever stood, partitions too, by id.
	tables  map[uint32]relation
	catalog *catalog
}

// relation is a table, or the table that a partition belongs to.
type relation struct {
	name     string
	existing bool // at base
}

// counted is a row of measured.sql.
type counted struct {
	ID, Root                          uint32
	Name                              string
	File                              uint32
	Scans, Inserted, Updated, Deleted int64
}

func newBench(ctx context.Context, pool *pgxpool.Pool, conn *pgx.Conn) (*bench, error) {
	b := &bench{pool: pool, conn: conn, tables: map[uint32]relation{}}
	counts, err := b.count(ctx, measuredSQL)
	if err != nil {
		return nil, err
	}
	for id, c := range counts {
		b.tables[id] = relation{c.Name, true}
	}
	b.catalog, err = readCatalog(ctx, conn)
	return b, err
}

// failure is a statement that the server refused.
type failure struct {
	statement *Statement
	err       *pgconn.PgError
}

// transactionEnded stands for the refusal that the server does not give: what follows
// would be applied without its record.
const transactionEnded = "it ends the transaction in which the file and its record are applied: leave BEGIN, COMMIT and ROLLBACK out"

func (f *failure) Error() string {
	if f.err.Code == activeTransaction {
		return f.err.Message + ": give it a file of its own that begins with -- atlas:txmode none and an empty line"
	}
	return f.err.Message
}

// run runs a file as a migrator would, and calls after for every statement while
// what it left is open to the bench's connection.
func (b *bench) run(ctx context.Context, file *File, after func(*Statement) error) error {
	if len(file.Statements) == 0 {
		return nil
	}
	if file.Transaction {
		return b.together(ctx, file.Statements, after)
	}
	for _, s := range file.Statements {
		err := b.together(ctx, []*Statement{s}, after)
		if failed, ok := errors.AsType[*failure](err); ok && failed.err.Code == activeTransaction {
			err = b.separately(ctx, s, after)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// together runs statements in one transaction.
func (b *bench) together(ctx context.Context, statements []*Statement, after func(*Statement) error) (err error) {
	if _, err := b.conn.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_, undone := b.conn.Exec(context.WithoutCancel(ctx), "ROLLBACK")
			err = errors.Join(err, undone)
		}
	}()
	for _, s := range statements {
		if err := b.measure(ctx, s); err != nil {
			return err
		}
		if err := b.look(ctx, s, after); err != nil {
			return err
		}
	}
	return b.exec(ctx, statements[len(statements)-1], "COMMIT")
}

// separately runs a statement that cannot run in a transaction.
func (b *bench) separately(ctx context.Context, s *Statement, after func(*Statement) error) error {
	if err := b.alone(ctx, s); err != nil {
		return err
	}
	if _, err := b.conn.Exec(ctx, "BEGIN"); err != nil {
		return err
	}
	looked := b.look(ctx, s, after)
	_, err := b.conn.Exec(context.WithoutCancel(ctx), "ROLLBACK")
	return errors.Join(looked, err)
}

// activeTransaction is the SQLSTATE of what cannot run in a transaction.
const activeTransaction = "25001"

// exec runs text, whose refusal is the statement's failure.
func (b *bench) exec(ctx context.Context, s *Statement, text string) error {
	tag, err := b.conn.Exec(ctx, text)
	if refused, ok := errors.AsType[*pgconn.PgError](err); ok && ctx.Err() == nil {
		return &failure{s, refused}
	}
	if text == s.SQL {
		s.tag = tag.String()
	}
	return err
}

// measure measures a statement in the transaction that is open.
func (b *bench) measure(ctx context.Context, s *Statement) error {
	pid := b.conn.PgConn().PID()
	held, err := heldLocks(ctx, b.conn, pid)
	if err != nil {
		return err
	}
	before, err := b.count(ctx, measuredSQL)
	if err != nil {
		return err
	}
	start := time.Now()
	if err := b.exec(ctx, s, s.SQL); err != nil {
		return err
	}
	if b.conn.PgConn().TxStatus() == 'I' {
		return &failure{s, &pgconn.PgError{Message: transactionEnded}}
	}
	s.Milliseconds = time.Since(start).Milliseconds()
	taken, err := heldLocks(ctx, b.conn, pid)
	if err != nil {
		return err
	}
	after, err := b.count(ctx, measuredSQL)
	if err != nil {
		return err
	}
	b.conclude(s, before, after, held, taken)
	return nil
}

// look reads what the statement left. What the look itself locks is given back.
func (b *bench) look(ctx context.Context, s *Statement, after func(*Statement) error) error {
	// A name is written as the rest of the review has it, whatever the statement SET.
	if _, err := b.conn.Exec(ctx, "SAVEPOINT look; SET LOCAL search_path = public"); err != nil {
		return err
	}
	now, err := readCatalog(ctx, b.conn)
	if err != nil {
		return err
	}
	s.before, s.after, b.catalog = b.catalog, now, now
	if err := after(s); err != nil {
		return err
	}
	_, err = b.conn.Exec(ctx, "ROLLBACK TO look; RELEASE look")
	return err
}

func (b *bench) count(ctx context.Context, query string) (map[uint32]counted, error) {
	rows, err := b.conn.Query(ctx, query)
	if err != nil {
		return nil, err
	}
	all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[counted])
	if err != nil {
		return nil, fmt.Errorf("reading what a statement did to rows: %w", err)
	}
	found := map[uint32]counted{}
	for _, c := range all {
		found[c.ID] = c
	}
	return found, nil
}

// conclude compares the two looks at a statement.
func (b *bench) conclude(s *Statement, before, after map[uint32]counted, held, taken map[uint32]int) {
	for id, c := range after {
		if _, known := b.tables[id]; !known {
			b.tables[id] = relation{c.Name, b.tables[c.Root].existing}
		}
	}
	s.Measured = true
	earlier := onTables(held, b.tables)
	now := onTables(taken, b.tables)
	maps.DeleteFunc(now, func(table string, level int) bool { return level <= earlier[table] })
	s.Locks, s.Held = locks(now), locks(earlier)
	s.Rewritten, s.Scanned = b.touched(before, after)
	s.Rows = b.written(before, after)
}

// touched are the existing tables with another file, and those that were read from
// one end to the other.
func (b *bench) touched(before, after map[uint32]counted) (rewritten, scanned []string) {
	rewritten, scanned = []string{}, []string{}
	for id, was := range before {
		now, stands := after[id]
		if !stands || !b.tables[id].existing {
			continue
		}
		if now.File != was.File {
			rewritten = append(rewritten, b.tables[id].name)
		}
		if now.Scans > was.Scans {
			scanned = append(scanned, b.tables[id].name)
		}
	}
	slices.Sort(rewritten)
	slices.Sort(scanned)
	return slices.Compact(rewritten), slices.Compact(scanned)
}

func (b *bench) written(before, after map[uint32]counted) []RowChange {
	sums := map[string]*RowChange{}
	for id, now := range after {
		was, name := before[id], b.tables[id].name
		if sums[name] == nil {
			sums[name] = &RowChange{Table: name}
		}
		sums[name].Inserted += now.Inserted - was.Inserted
		sums[name].Updated += now.Updated - was.Updated
		sums[name].Deleted += now.Deleted - was.Deleted
	}
	found := []RowChange{}
	for _, name := range slices.Sorted(maps.Keys(sums)) {
		if c := *sums[name]; c.Inserted+c.Updated+c.Deleted > 0 {
			found = append(found, c)
		}
	}
	return found
}

// alone measures what cannot run in a transaction, such as a concurrent build. It
// gives its locks back while it runs, so other sessions look meanwhile: one holds
// it up as a writer of every table would, until it waits.
func (b *bench) alone(ctx context.Context, s *Statement) error {
	sinceStart := strings.ReplaceAll(measuredSQL, "_xact_", "_")
	before, err := b.flushed(ctx, sinceStart)
	if err != nil {
		return err
	}
	writer, err := b.writeEverywhere(ctx)
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	start := time.Now()
	go func() { done <- b.exec(ctx, s, s.SQL) }()
	taken, err := b.watch(ctx, b.conn.PgConn().PID(), writer, done)
	if err != nil {
		return err
	}
	s.Milliseconds = time.Since(start).Milliseconds()
	after, err := b.flushed(ctx, sinceStart)
	if err != nil {
		return err
	}
	b.conclude(s, before, after, nil, taken)
	return nil
}

// flushed makes the session tell the server what it counted, and counts.
func (b *bench) flushed(ctx context.Context, query string) (map[uint32]counted, error) {
	if _, err := b.conn.Exec(ctx, "SELECT pg_stat_force_next_flush()"); err != nil {
		return nil, err
	}
	return b.count(ctx, query)
}

// writeEverywhere is a transaction that has a writer's lock on every table.
func (b *bench) writeEverywhere(ctx context.Context) (pgx.Tx, error) {
	tx, err := b.pool.Begin(ctx)
	if err != nil {
		return nil, err
	}
	for _, t := range b.catalog.Tables {
		if _, err := tx.Exec(ctx, "LOCK TABLE "+t.Name+" IN ROW EXCLUSIVE MODE"); err != nil {
			return nil, errors.Join(err, tx.Rollback(ctx))
		}
	}
	return tx, nil
}

// watch collects the locks of a session until done, and lets the writer go as soon
// as the session waits for it.
func (b *bench) watch(ctx context.Context, pid uint32, writer pgx.Tx, done <-chan error) (map[uint32]int, error) {
	seen := map[uint32]int{}
	var problem error
	ticker := time.NewTicker(time.Millisecond)
	defer ticker.Stop()
	for {
		select {
		case err := <-done:
			if writer != nil {
				err = errors.Join(err, writer.Rollback(ctx))
			}
			return seen, errors.Join(problem, err)
		case <-ticker.C:
		}
		if problem != nil {
			continue // the statement ends by itself
		}
		waits, err := b.sample(ctx, pid, seen)
		if (waits || err != nil) && writer != nil {
			err = errors.Join(err, writer.Rollback(ctx))
			writer = nil
		}
		problem = err
	}
}

// sample adds the locks of a session to seen, and tells whether it waits.
func (b *bench) sample(ctx context.Context, pid uint32, seen map[uint32]int) (waits bool, err error) {
	if err := b.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_locks WHERE pid = $1 AND NOT granted)", int32(pid)).Scan(&waits); err != nil {
		return false, err
	}
	levels, err := heldLocks(ctx, b.pool, pid)
	for id, l := range levels {
		seen[id] = max(seen[id], l)
	}
	return waits, err
}
