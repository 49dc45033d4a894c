package entpgx

import (
	"context"
	"fmt"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// Pgx is the transaction for statements of the caller's own, such as River
// inserts. It refuses what would end the transaction behind the back of its
// owner, and savepoints: rolling back to one releases the markers' locks and
// undoes changes that are tallied already.
func (t *Tx) Pgx() pgx.Tx { return guardedTx{Tx: t.tx, owner: t} }

type guardedTx struct {
	pgx.Tx
	owner *Tx
}

func (g guardedTx) Begin(context.Context) (pgx.Tx, error) {
	return nil, refusal("a savepoint (pgx.Tx.Begin)")
}

func (g guardedTx) Commit(context.Context) error { return refusal("COMMIT") }

func (g guardedTx) Rollback(context.Context) error { return refusal("ROLLBACK") }

func (g guardedTx) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	if err := g.check(query); err != nil {
		return pgconn.CommandTag{}, err
	}
	return g.Tx.Exec(ctx, query, args...)
}

func (g guardedTx) Query(ctx context.Context, query string, args ...any) (pgx.Rows, error) {
	if err := g.check(query); err != nil {
		return nil, err
	}
	return g.Tx.Query(ctx, query, args...)
}

func (g guardedTx) QueryRow(ctx context.Context, query string, args ...any) pgx.Row {
	if err := g.check(query); err != nil {
		return failedRow{err}
	}
	return g.Tx.QueryRow(ctx, query, args...)
}

func (g guardedTx) SendBatch(ctx context.Context, batch *pgx.Batch) pgx.BatchResults {
	for _, queued := range batch.QueuedQueries {
		if err := g.check(queued.SQL); err != nil {
			return failedBatch{err}
		}
	}
	return g.Tx.SendBatch(ctx, batch)
}

func (g guardedTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, src pgx.CopyFromSource) (int64, error) {
	if g.owner.ended {
		return 0, ErrEnded
	}
	return g.Tx.CopyFrom(ctx, table, columns, src)
}

func (g guardedTx) Prepare(ctx context.Context, name, query string) (*pgconn.StatementDescription, error) {
	if err := g.check(query); err != nil {
		return nil, err
	}
	return g.Tx.Prepare(ctx, name, query)
}

// Conn is nil once the transaction has ended: the connection is another's then.
func (g guardedTx) Conn() *pgx.Conn {
	if g.owner.ended {
		return nil
	}
	return g.Tx.Conn()
}

func (g guardedTx) check(query string) error {
	if g.owner.ended {
		return ErrEnded
	}
	if word := controlWord(query); word != "" {
		return refusal(word)
	}
	return nil
}

// controlWord is the first word of a statement in query that controls
// transactions, in upper case, or "". It looks behind every semicolon, also one
// in a literal: values belong in parameters.
func controlWord(query string) string {
	for statement := range strings.SplitSeq(query, ";") {
		switch word := firstWord(statement); word {
		case "SAVEPOINT", "RELEASE", "ROLLBACK", "ABORT", "COMMIT", "END", "BEGIN", "START", "PREPARE":
			return word
		}
	}
	return ""
}

// firstWord skips white space, parentheses and comments.
func firstWord(statement string) string {
	for {
		statement = strings.TrimLeft(statement, " \t\r\n\f\v(")
		switch {
		case strings.HasPrefix(statement, "--"):
			_, statement, _ = strings.Cut(statement, "\n")
		case strings.HasPrefix(statement, "/*"):
			_, statement, _ = strings.Cut(statement, "*/")
		default:
			end := strings.IndexFunc(statement, func(r rune) bool { return !unicode.IsLetter(r) })
			if end < 0 {
				end = len(statement)
			}
			return strings.ToUpper(statement[:end])
		}
	}
}

func refusal(what string) error {
	return fmt.Errorf("%s is refused in a counted transaction: savepoints would undo changes that are counted already; return an error from the function given to WithTx to roll all of it back, and use one WithTx for each unit that may fail alone", what)
}

type failedRow struct{ err error }

func (r failedRow) Scan(...any) error { return r.err }

type failedBatch struct{ err error }

func (b failedBatch) Exec() (pgconn.CommandTag, error) { return pgconn.CommandTag{}, b.err }
func (b failedBatch) Query() (pgx.Rows, error)         { return nil, b.err }
func (b failedBatch) QueryRow() pgx.Row                { return failedRow(b) }
func (b failedBatch) Tx() pgx.Tx                       { return nil }
func (b failedBatch) Close() error                     { return b.err }
