// Package backfill runs changes of very many rows in small batches: in the order of
// a key, each batch in a transaction of its own together with how far it came.
// README.md beside this file says how to write one and what is not guaranteed.
package backfill

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

// Backfill is a walk over the rows of a table.
type Backfill struct {
	// Name is the key of its progress, in lower case with underscores.
	Name string
	// About says in some words what it does.
	About string
	// Table is what it walks over; its size is estimated from the statistics of
	// PostgreSQL.
	Table string
	// Every is how long after its end it begins again by itself. 0 means that it
	// runs when it is started, and once.
	Every time.Duration
	// Limit is how many rows a batch sees at most.
	Limit int
	// Batch works on the rows that follow a key, in the transaction that also keeps
	// the progress. after is what the batch before returned as Last, and empty for
	// the first. It may be called again for a batch that was not committed.
	Batch func(ctx context.Context, tx *entdb.Tx, after string, limit int) (Page, error)
}

// Page is what one batch did.
type Page struct {
	// Last is the key of the last row that it saw.
	Last string
	// Seen and Changed are numbers of rows.
	Seen, Changed int64
	// Done says that no rows follow.
	Done bool
	// Committed is called once the batch is committed. It may be nil.
	Committed func()
}

// State of a backfill.
type State int16

// States, with the numbers that the database holds.
const (
	NotStarted State = iota
	Running
	Paused
	Finished
	Cancelled
)

// String is the state for people.
func (s State) String() string {
	return [...]string{"not started", "running", "paused", "finished", "cancelled"}[s]
}

// Progress is how far a backfill is.
type Progress struct {
	Name  string
	State State
	// RowsSeen and RowsChanged count rows since the start; RowsExpected estimates
	// how many it will see.
	RowsSeen, RowsChanged, RowsExpected int64
	StartedAt, UpdatedAt                time.Time
	// FinishedAt is nil while it has not ended, be it cancelled or finished.
	FinishedAt *time.Time
}

// progressColumns are those of the fields.
const progressColumns = `state, rows_seen, rows_changed, rows_expected, started_at, updated_at, finished_at`

func (p *Progress) fields() []any {
	return []any{&p.State, &p.RowsSeen, &p.RowsChanged, &p.RowsExpected, &p.StartedAt, &p.UpdatedAt, &p.FinishedAt}
}

// ErrState says that the state of a backfill does not allow what was asked for; the
// text says what does.
var ErrState = errors.New("nothing was changed")

// Start begins at the first row. Errors: ErrState when it runs or is paused.
func Start(ctx context.Context, db pgdb.DB, b Backfill) error {
	started, err := begin(ctx, db, b, 0)
	if err != nil || started {
		return err
	}
	p, err := Read(ctx, db, b.Name)
	if err != nil {
		return err
	}
	if p.State == Paused {
		return fmt.Errorf("backfill %s is paused after %d rows: resume it, or cancel it and start it again: %w", b.Name, p.RowsSeen, ErrState)
	}
	return fmt.Errorf("backfill %s is %s already, it has seen %d of about %d rows: %w", b.Name, p.State, p.RowsSeen, p.RowsExpected, ErrState)
}

// begin starts a backfill that has none, or has ended at least that long ago.
func begin(ctx context.Context, db pgdb.DB, b Backfill, ago time.Duration) (started bool, err error) {
	tag, err := db.Exec(ctx, `
		INSERT INTO backfills AS b (name, state, rows_expected)
		SELECT $1, $2, coalesce(sum(greatest(reltuples, 0)), 0) FROM pg_class
		WHERE relkind = 'r' AND (oid = $3::regclass OR oid IN (SELECT inhrelid FROM pg_inherits WHERE inhparent = $3::regclass))
		ON CONFLICT (name) DO UPDATE
		SET state = excluded.state, last_key = '', rows_seen = 0, rows_changed = 0, rows_expected = excluded.rows_expected,
			started_at = now(), updated_at = now(), finished_at = NULL
		WHERE b.finished_at <= now() - $4::interval`, b.Name, Running, b.Table, ago)
	if err != nil {
		return false, fmt.Errorf("start backfill %s: %w", b.Name, err)
	}
	return tag.RowsAffected() == 1, nil
}

// Pause stops a running backfill after the batch under way. Error: ErrState.
func Pause(ctx context.Context, db pgdb.DB, name string) error {
	return change(ctx, db, name, "paused", Paused, Running)
}

// Resume lets a paused backfill go on where it stood. Error: ErrState.
func Resume(ctx context.Context, db pgdb.DB, name string) error {
	return change(ctx, db, name, "resumed", Running, Paused)
}

// Cancel ends a backfill after the batch under way. What it did stays. One that
// begins again by itself does so when its time has come. Error: ErrState.
func Cancel(ctx context.Context, db pgdb.DB, name string) error {
	return change(ctx, db, name, "cancelled", Cancelled, Running, Paused)
}

// change waits for the batch under way, which holds the row.
func change(ctx context.Context, db pgdb.DB, name, done string, to State, from ...State) error {
	tag, err := db.Exec(ctx, `
		UPDATE backfills SET state = $2::smallint, updated_at = now(), finished_at = CASE WHEN $2::smallint = $4::smallint THEN now() END
		WHERE name = $1 AND state = ANY ($3::smallint[])`, name, to, from, Cancelled)
	if err != nil {
		return fmt.Errorf("backfill %s: %w", name, err)
	}
	if tag.RowsAffected() == 1 {
		return nil
	}
	p, err := Read(ctx, db, name)
	if err != nil {
		return err
	}
	return fmt.Errorf("backfill %s is %s, so it cannot be %s: %w", name, p.State, done, ErrState)
}

// Read returns the progress of a backfill; of one that never ran, that it is not
// started.
func Read(ctx context.Context, db pgdb.DB, name string) (Progress, error) {
	p := Progress{Name: name}
	err := db.QueryRow(ctx, `
		SELECT `+progressColumns+` FROM backfills WHERE name = $1`, name).Scan(p.fields()...)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return Progress{}, fmt.Errorf("backfill %s: %w", name, err)
	}
	return p, nil
}
