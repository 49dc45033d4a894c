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
	"slices"
	"strings"
	"time"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed down
var downFiles embed.FS

// DownOptions of Down; the zero value refuses to lose rows.
type DownOptions struct {
	// AllowDataLoss takes the migration down with the rows that it holds.
	AllowDataLoss bool
	// Logger gets a record of what was done. Nil means none.
	Logger *slog.Logger
	// LockTimeout bounds each wait for a table's lock. Zero means
	// DefaultLockTimeout.
	LockTimeout time.Duration
}

// Down takes back the newest migration, in one transaction with its record. It
// is for development and tests, where a migration changes until it is right: in
// production the next migration undoes what one did. Only this build's newest
// migration has a way back.
//
// It refuses, naming tables and numbers of rows, when a table that it drops has
// rows, or a column that it drops has other values than its default.
func Down(ctx context.Context, pool *pgxpool.Pool, opts DownOptions) error {
	dir, err := directory()
	if err != nil {
		return err
	}
	downs, err := fs.Sub(downFiles, "down")
	if err != nil {
		return err
	}
	return down(ctx, pool, dir, downs, opts)
}

func down(ctx context.Context, pool *pgxpool.Pool, dir atlas.Dir, downs fs.FS, opts DownOptions) error {
	m := newMigrator(pool, dir, opts.Logger, opts.LockTimeout)
	return m.work(ctx, func() error {
		file, err := m.newestApplied(ctx)
		if err != nil {
			return err
		}
		content, err := fs.ReadFile(downs, file.Name())
		if err != nil {
			return fmt.Errorf("migration %s has no way back (%w): only the newest of the directory has one", file.Name(), err)
		}
		start := time.Now()
		err = m.retry(ctx, file.Name(), func() error { return m.takeBack(ctx, file, string(content), opts.AllowDataLoss) })
		if err != nil {
			return fmt.Errorf("taking back migration %s: %w", file.Name(), err)
		}
		m.logger.InfoContext(ctx, "migration taken back", "version", file.Version(), "description", file.Desc(), "duration", time.Since(start))
		return nil
	})
}

// newestApplied is the file of the newest record.
func (m *migrator) newestApplied(ctx context.Context) (atlas.File, error) {
	revs, err := revisions{m.conn}.ReadRevisions(ctx)
	if err != nil {
		return nil, err
	}
	if len(revs) == 0 {
		return nil, errors.New("no migration is applied: there is nothing to take back")
	}
	newest := revs[len(revs)-1]
	if !complete(newest) {
		return nil, fmt.Errorf("migration %s is half applied: apply it first", newest.Version)
	}
	files, err := m.dir.Files()
	if err != nil {
		return nil, err
	}
	i := atlas.FilesLastIndex(files, func(f atlas.File) bool { return f.Version() == newest.Version })
	if i < 0 {
		return nil, fmt.Errorf("migration %s (%s) is applied, but this build does not have it", newest.Version, newest.Description)
	}
	return files[i], nil
}

func (m *migrator) takeBack(ctx context.Context, file atlas.File, content string, allowDataLoss bool) error {
	return m.inTx(ctx, func(tx *sql.Tx) error {
		if !allowDataLoss {
			if err := refuseLoss(ctx, tx, content); err != nil {
				return err
			}
		}
		if _, err := tx.ExecContext(ctx, content); err != nil {
			return err
		}
		return revisions{tx}.DeleteRevision(ctx, file.Version())
	})
}

// ownRows is the line of a down file with the tables whose rows the migration
// made itself, so that nothing is lost with them.
var ownRows = regexp.MustCompile(`(?m)^-- made by the migration itself: (.+)$`)

// refuseLoss finds out what content drops by running it, takes that back, and
// looks for rows there. Nobody can add any until the transaction ends.
func refuseLoss(ctx context.Context, tx *sql.Tx, content string) error {
	dropped, err := droppedBy(ctx, tx, content)
	if err != nil {
		return err
	}
	var own []string
	for _, line := range ownRows.FindAllStringSubmatch(content, -1) {
		own = append(own, strings.Split(line[1], ", ")...)
	}
	var lost []string
	for _, d := range dropped {
		if slices.Contains(own, d.table) {
			continue
		}
		n, err := d.rows(ctx, tx)
		if err != nil {
			return err
		}
		if n > 0 {
			lost = append(lost, fmt.Sprintf("%s (%d rows)", d.name(), n))
		}
	}
	if len(lost) > 0 {
		return fmt.Errorf("this would be lost: %s; delete it first, or allow the loss (--allow-data-loss)", strings.Join(lost, ", "))
	}
	return nil
}

// dropped is a table, or a column of one that stays, with the names as SQL.
type dropped struct {
	table     string
	column    string // empty for the whole table
	byDefault string // the column's default
}

func (d dropped) name() string {
	if d.column == "" {
		return d.table
	}
	return d.table + "." + d.column
}

// rows counts those that would be lost, as text because not every type compares.
func (d dropped) rows(ctx context.Context, tx *sql.Tx) (n int, err error) {
	if _, err := tx.ExecContext(ctx, "LOCK TABLE "+d.table+" IN ACCESS EXCLUSIVE MODE"); err != nil {
		return 0, err
	}
	query := "SELECT count(*) FROM " + d.table
	if d.column != "" {
		query += fmt.Sprintf(" WHERE %s::text IS DISTINCT FROM (%s)::text", d.column, d.byDefault)
	}
	err = tx.QueryRowContext(ctx, query).Scan(&n)
	return n, err
}

func droppedBy(ctx context.Context, tx *sql.Tx, content string) ([]dropped, error) {
	// The first table keeps what stood before, also over the savepoint.
	const note = `CREATE TEMPORARY TABLE stowage_before ON COMMIT DROP AS
		SELECT c.oid, a.attnum, format('%I.%I', n.nspname, c.relname) AS table_name, quote_ident(a.attname) AS column_name,
			coalesce(pg_get_expr(d.adbin, d.adrelid), 'NULL') AS by_default
		FROM pg_class AS c
			JOIN pg_namespace AS n ON n.oid = c.relnamespace
			JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
			LEFT JOIN pg_attrdef AS d ON d.adrelid = c.oid AND d.adnum = a.attnum
		WHERE c.relkind IN ('r', 'p') AND NOT c.relispartition AND n.nspname <> 'information_schema' AND n.nspname NOT LIKE 'pg\_%'`
	if _, err := tx.ExecContext(ctx, note+"; SAVEPOINT stowage_before"); err != nil {
		return nil, err
	}
	if _, err := tx.ExecContext(ctx, content); err != nil {
		return nil, err
	}
	found, err := missing(ctx, tx)
	if err != nil {
		return nil, err
	}
	_, err = tx.ExecContext(ctx, "ROLLBACK TO SAVEPOINT stowage_before; DROP TABLE stowage_before")
	return found, err
}

// missing are the tables and columns that stood before and do not now.
func missing(ctx context.Context, tx *sql.Tx) (all []dropped, err error) {
	rows, err := tx.QueryContext(ctx, `
		SELECT DISTINCT table_name, '' AS column_name, '' FROM stowage_before AS b
		WHERE NOT EXISTS (SELECT FROM pg_class WHERE pg_class.oid = b.oid)
		UNION ALL
		SELECT table_name, column_name, by_default FROM stowage_before AS b
		WHERE EXISTS (SELECT FROM pg_class WHERE pg_class.oid = b.oid)
			AND NOT EXISTS (SELECT FROM pg_attribute AS a WHERE a.attrelid = b.oid AND a.attnum = b.attnum AND NOT a.attisdropped)
		ORDER BY table_name, column_name`)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var d dropped
		if err := rows.Scan(&d.table, &d.column, &d.byDefault); err != nil {
			return nil, err
		}
		all = append(all, d)
	}
	return all, rows.Err()
}
