// Package schemareview reviews the migrations that a change brings, for whoever
// reads its merge request: what they do to the schema, which locks they take and
// what they do to rows, measured by running them on a throw-away database with
// rows, whether the previous version of the application still works afterwards,
// and what linters have against them. README.md lists the rules and what is not
// guaranteed.
package schemareview

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	atlas "ariga.io/atlas/sql/migrate"
	"ariga.io/atlas/sql/postgres"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/stowage-dev/stowage/internal/pgdb"
)

// Options of Review, all needed but the logger.
type Options struct {
	// Root is the folder of package migrate in a git working tree.
	Root string
	// Base is the git ref to compare with: what is, or may be, deployed.
	Base string
	// DevURL is a server where databases may be made and dropped.
	DevURL string
	// Logger gets one record for each file before it is measured. Nil means none.
	Logger *slog.Logger
}

// NeedsError says what a review lacks: a repository, the base, or a program. Then
// nothing was done.
type NeedsError struct{ message string }

func (e *NeedsError) Error() string { return e.message }

func needs(format string, args ...any) error {
	return &NeedsError{fmt.Sprintf(format, args...)}
}

// Review compares the directory of migrations in the working tree with that at
// base. It needs git, pg_format and squawk on PATH. An error means that it could not
// be made; what is wrong with the migrations is in the report.
func Review(ctx context.Context, opts Options) (*Report, error) {
	if err := programs(); err != nil {
		return nil, err
	}
	if opts.Logger == nil {
		opts.Logger = slog.New(slog.DiscardHandler)
	}
	base, err := atRef(ctx, opts.Root, opts.Base)
	if err != nil {
		return nil, err
	}
	head := os.DirFS(opts.Root)
	old, added, findings, err := history(base, head)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(opts.Root, migrations), err)
	}
	r := &Report{logger: opts.Logger, Base: opts.Base, Findings: findings, Objects: []Change{}, Files: []*File{}, NoRows: []NoRows{}}
	// Over another history, or an invalid one, the rest would say nothing true.
	if len(findings) > 0 || len(added) == 0 {
		r.conclude()
		return r, nil
	}
	if r.Files, err = newFiles(added); err != nil {
		return nil, err
	}
	if err := r.lint(ctx, opts.Root); err != nil {
		return nil, err
	}
	if err := r.measure(ctx, opts.DevURL, old); err != nil {
		return nil, err
	}
	r.Findings = append(r.Findings, declared(base, head, r.Files)...)
	r.conclude()
	return r, nil
}

func newFiles(added []atlas.File) (files []*File, err error) {
	for _, file := range added {
		statements, err := file.StmtDecls()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file.Name(), err)
		}
		f := &File{Name: file.Name(), Transaction: !withoutTransaction(file), content: string(file.Bytes()), Statements: []*Statement{}}
		for _, s := range statements {
			line := 1 + strings.Count(f.content[:s.Pos], "\n")
			f.Statements = append(f.Statements, &Statement{Line: line, SQL: s.Text, position: s.Pos})
		}
		files = append(files, f)
	}
	return files, nil
}

func withoutTransaction(file atlas.File) bool {
	local, ok := file.(*atlas.LocalFile)
	return ok && slices.Contains(local.Directive("txmode"), "none")
}

// lint reads the texts.
func (r *Report) lint(ctx context.Context, root string) error {
	unformatted, err := format(ctx, root, r.Files)
	if err != nil {
		return err
	}
	problems, err := squawk(ctx, root, r.Files)
	r.Findings = slices.Concat(r.Findings, unformatted, problems)
	return err
}

// measure runs the migrations against rows. When they fail there, it does so again
// without rows, so that the rest of the report can be made.
func (r *Report) measure(ctx context.Context, devURL string, old []atlas.File) error {
	r.WithRows = true
	err := r.run(ctx, devURL, old)
	failed, ok := errors.AsType[*failure](err)
	if !ok {
		return err
	}
	r.failed(ruleFailsOnRows, failed)
	r.WithRows = false
	for _, file := range r.Files {
		for i, s := range file.Statements {
			file.Statements[i] = &Statement{Line: s.Line, SQL: s.SQL, position: s.position}
		}
	}
	err = r.run(ctx, devURL, old)
	if failed, ok := errors.AsType[*failure](err); ok {
		r.failed(ruleFails, failed)
		return nil
	}
	return err
}

// failed adds what the server said of a statement. It fails without rows too: then
// that is all that is to be said.
func (r *Report) failed(rule string, f *failure) {
	for _, file := range r.Files {
		if slices.ContainsFunc(file.Statements, func(s *Statement) bool { return s.position == f.statement.position && s.SQL == f.statement.SQL }) {
			r.Findings = slices.DeleteFunc(r.Findings, func(f Finding) bool { return f.Rule == ruleFailsOnRows })
			r.Findings = append(r.Findings, Finding{Rule: rule, Blocking: true, File: file.Name, Line: f.statement.Line, Message: f.Error()})
			return
		}
	}
}

// run is one run on a database of its own.
func (r *Report) run(ctx context.Context, devURL string, old []atlas.File) error {
	return pgdb.WithThrowAway(ctx, devURL, func(pool *pgxpool.Pool) error {
		return withSession(ctx, pool, func(conn *pgx.Conn, driver atlas.Driver) error {
			if err := replay(ctx, conn, old); err != nil {
				return err
			}
			if r.WithRows {
				var err error
				if r.NoRows, err = seed(ctx, conn); err != nil {
					return fmt.Errorf("making rows: %w", err)
				}
			}
			return r.onDatabase(ctx, pool, conn, driver)
		})
	})
}

// withSession gives one session as pgx and as a driver of Atlas.
func withSession(ctx context.Context, pool *pgxpool.Pool, fn func(*pgx.Conn, atlas.Driver) error) error {
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	session, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer session.Close()
	driver, err := postgres.Open(session)
	if err != nil {
		return err
	}
	conn, err := pgxOf(session)
	if err != nil {
		return err
	}
	return fn(conn, driver)
}

// pgxOf is the connection beneath a session, which must outlive its use.
func pgxOf(session *sql.Conn) (conn *pgx.Conn, err error) {
	err = session.Raw(func(driverConn any) error {
		conn = driverConn.(*stdlib.Conn).Conn()
		return nil
	})
	return conn, err
}

// replay runs the files of base.
func replay(ctx context.Context, conn *pgx.Conn, old []atlas.File) error {
	for _, file := range old {
		statements, err := file.StmtDecls()
		if err != nil {
			return fmt.Errorf("%s: %w", file.Name(), err)
		}
		for _, s := range statements {
			if _, err := conn.Exec(ctx, s.Text); err != nil {
				return fmt.Errorf("%s, which base has, does not run on this server: %w", file.Name(), err)
			}
		}
	}
	return nil
}

// onDatabase measures the new files where those of base have run.
func (r *Report) onDatabase(ctx context.Context, pool *pgxpool.Pool, conn *pgx.Conn, driver atlas.Driver) error {
	before, err := objects(ctx, pool)
	if err != nil {
		return err
	}
	b, err := newBench(ctx, pool, conn)
	if err != nil {
		return err
	}
	base := b.catalog
	if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int / 10000").Scan(&r.Server); err != nil {
		return err
	}
	analysis, err := newAnalysis(ctx, driver, base)
	if err != nil {
		return err
	}
	var found []Finding
	for _, file := range r.Files {
		r.logger.InfoContext(ctx, "measuring a migration", "file", file.Name, "statements", len(file.Statements), "with_rows", r.WithRows)
		if err := analysis.begin(ctx, file, b.catalog); err != nil {
			return err
		}
		if err := b.run(ctx, file, func(s *Statement) error { return analysis.add(ctx, s) }); err != nil {
			return err
		}
		atlasFound, err := analysis.findings(ctx, file)
		if err != nil {
			return err
		}
		found = append(append(found, atlasFound...), check(base, file)...)
	}
	after, err := objects(ctx, pool)
	if err != nil {
		return err
	}
	r.Objects = changes(before, after)
	r.Findings = slices.Concat(r.Findings, found, attribute(base, r.Files))
	return nil
}

// conclude applies the suppressions and sorts.
func (r *Report) conclude() {
	r.Findings = suppress(r.Files, r.Findings)
	r.sort()
	r.Blocking = 0
	for _, f := range r.Findings {
		if f.Blocking {
			r.Blocking++
		}
	}
}
