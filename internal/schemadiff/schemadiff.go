// Package schemadiff compares what the directory of migrations leaves with what
// is declared, and writes the migration that is missing. Declared are the
// entities in ent/schema, and migrate/tables and migrate/triggers for what Ent
// cannot model.
//
// It works on two throw-away databases: in one the directory is replayed, in
// the other everything declared is made. Both are then read back, so both are
// in the words of one server.
package schemadiff

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	atlas "ariga.io/atlas/sql/migrate"
	"ariga.io/atlas/sql/schema"
	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"
	entschema "entgo.io/ent/dialect/sql/schema"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	entmigrate "github.com/stowage-dev/stowage/ent/migrate"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/migrate"
)

// Folders are where things are, below the folder of package migrate.
const (
	migrations = "migrations"
	tables     = "tables"
	triggers   = "triggers"
)

// Diff returns the statements that bring the directory's schema to the declared
// one; none when they agree. root is the folder of package migrate, devURL a
// server where databases may be made and dropped.
//
// It tries the statements out. When they fail, or something still differs
// afterwards, it returns an error that names what must be written by hand.
func Diff(ctx context.Context, devURL, root string) (changes []*atlas.Change, err error) {
	err = pgdb.WithThrowAway(ctx, devURL, func(current *pgxpool.Pool) error {
		return pgdb.WithThrowAway(ctx, devURL, func(desired *pgxpool.Pool) error {
			if err := replay(ctx, current, root); err != nil {
				return err
			}
			if err := Declare(ctx, desired, root); err != nil {
				return err
			}
			changes, err = plan(ctx, current, desired, root)
			if err != nil {
				return err
			}
			return prove(ctx, current, desired, root, changes)
		})
	})
	return changes, err
}

// Dump returns what schema.sql must hold: the schema that the directory leaves.
func Dump(ctx context.Context, devURL, root string) (dump string, err error) {
	err = pgdb.WithThrowAway(ctx, devURL, func(current *pgxpool.Pool) error {
		if err := replay(ctx, current, root); err != nil {
			return err
		}
		dump, err = migrate.Dump(ctx, current)
		return err
	})
	return dump, err
}

var validName = regexp.MustCompile(`^[a-z]+(_[a-z0-9]+)+$`)

// Write writes the changes as the newest migration, and the directory's
// checksums. It returns the file's path.
func Write(root, name string, changes []*atlas.Change) (string, error) {
	if !validName.MatchString(name) {
		return "", fmt.Errorf("name %q: want a verb and an object, as in add_repositories_visibility", name)
	}
	dir, err := atlas.NewLocalDir(filepath.Join(root, migrations))
	if err != nil {
		return "", err
	}
	version := atlas.NewVersion()
	if err := atlas.NewPlanner(nil, dir).WritePlan(&atlas.Plan{Version: version, Name: name, Changes: changes}); err != nil {
		return "", err
	}
	return filepath.Join(dir.Path(), version+"_"+name+".sql"), nil
}

// Hash writes atlas.sum for the directory as it is.
func Hash(root string) error {
	dir, err := atlas.NewLocalDir(filepath.Join(root, migrations))
	if err != nil {
		return err
	}
	sum, err := dir.Checksum()
	if err != nil {
		return err
	}
	return atlas.WriteSumFile(dir, sum)
}

// replay runs the directory's files.
func replay(ctx context.Context, pool *pgxpool.Pool, root string) error {
	dir, err := atlas.NewLocalDir(filepath.Join(root, migrations))
	if err != nil {
		return err
	}
	if err := atlas.Validate(dir); err != nil {
		return fmt.Errorf("%s: %w: if its files were meant to change, run stowage migrate hash", dir.Path(), err)
	}
	files, err := dir.Files()
	if err != nil {
		return err
	}
	return withDriver(pool, func(driver atlas.Driver) error {
		executor, err := atlas.NewExecutor(driver, dir, atlas.NopRevisionReadWriter{})
		if err != nil {
			return err
		}
		return executor.ExecuteFiles(ctx, files)
	})
}

// Declare makes the entities' tables, and everything that is declared by hand,
// in an empty database.
func Declare(ctx context.Context, pool *pgxpool.Pool, root string) error {
	// Ent writes into the tables that it makes, and these are for everybody.
	entities, err := entschema.CopyTables(entmigrate.Tables)
	if err != nil {
		return err
	}
	db := stdlib.OpenDBFromPool(pool)
	defer db.Close()
	if err := entmigrate.Create(ctx, entmigrate.NewSchema(entsql.OpenDB(dialect.Postgres, db)), entities); err != nil {
		return fmt.Errorf("making the entities' tables: %w", err)
	}
	for _, folder := range []string{tables, triggers} {
		files, err := filepath.Glob(filepath.Join(root, folder, "*.sql"))
		if err != nil {
			return err
		}
		for _, file := range files {
			content, err := os.ReadFile(file)
			if err != nil {
				return err
			}
			if _, err := pool.Exec(ctx, string(content)); err != nil {
				return fmt.Errorf("%s: %w", file, err)
			}
		}
	}
	return nil
}

// plan lists the statements in an order in which they can run.
func plan(ctx context.Context, current, desired *pgxpool.Pool, root string) ([]*atlas.Change, error) {
	tableChanges, err := planTables(ctx, current, desired, root)
	if err != nil {
		return nil, err
	}
	before, err := declaredObjects(ctx, current)
	if err != nil {
		return nil, err
	}
	after, err := declaredObjects(ctx, desired)
	if err != nil {
		return nil, err
	}
	return slices.Concat(
		drops(before, after, "trigger"),
		tableChanges,
		makes(before, after, "function"),
		makes(before, after, "trigger"),
		drops(before, after, "function"),
	), nil
}

// planTables compares tables as Atlas does. A table that is declared by hand and
// new is written as its file says, comments included.
func planTables(ctx context.Context, current, desired *pgxpool.Pool, root string) (planned []*atlas.Change, err error) {
	changes, err := tableChanges(ctx, current, desired)
	if err != nil {
		return nil, err
	}
	var left []schema.Change
	for _, change := range changes {
		add, ok := change.(*schema.AddTable)
		if !ok || isEntity(add.T.Name) {
			left = append(left, change)
			continue
		}
		content, err := declaration(root, add.T.Name)
		if err != nil {
			return nil, err
		}
		planned = append(planned, &atlas.Change{Cmd: strings.TrimSuffix(strings.TrimSpace(content), ";")})
	}
	err = withDriver(current, func(driver atlas.Driver) error {
		p, err := driver.PlanChanges(ctx, "", left, unqualified)
		if err != nil {
			return err
		}
		for _, change := range p.Changes {
			planned = append(planned, namePrimaryKey(change))
		}
		return nil
	})
	return planned, err
}

func unqualified(o *atlas.PlanOptions) {
	o.SchemaQualifier = new(string)
	o.Indent = "    "
}

// namePrimaryKey gives a new table's primary key the name that the planner
// leaves out.
func namePrimaryKey(change *atlas.Change) *atlas.Change {
	if add, ok := change.Source.(*schema.AddTable); ok {
		change.Cmd = strings.Replace(change.Cmd, "PRIMARY KEY", `CONSTRAINT "pk_`+add.T.Name+`" PRIMARY KEY`, 1)
	}
	return change
}

func isEntity(table string) bool {
	return slices.ContainsFunc(entmigrate.Tables, func(t *entschema.Table) bool { return t.Name == table })
}

// declaration is the content of the file in tables that is named after the
// table, behind a number that puts the files into the order of their references.
func declaration(root, table string) (string, error) {
	pattern := filepath.Join(root, tables, "*_"+table+".sql")
	files, err := filepath.Glob(pattern)
	if err != nil {
		return "", err
	}
	if len(files) != 1 {
		return "", fmt.Errorf("table %s: want one file %s, found %d", table, pattern, len(files))
	}
	content, err := os.ReadFile(files[0])
	return string(content), err
}

// prove runs the changes where the directory was replayed and compares again.
func prove(ctx context.Context, current, desired *pgxpool.Pool, root string, changes []*atlas.Change) error {
	for _, change := range changes {
		if _, err := current.Exec(ctx, change.Cmd); err != nil {
			return fmt.Errorf("this change cannot be planned, write its migration by hand:\n%s\n%w", change.Cmd, err)
		}
	}
	left, err := plan(ctx, current, desired, root)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("this still differs after all planned changes, write its migration by hand:\n%s", left[0].Cmd)
	}
	return sameTables(ctx, current, desired)
}

// sameTables finds what Atlas does not compare, such as storage parameters. It
// leaves out the entities' tables: Ent names no primary keys.
func sameTables(ctx context.Context, current, desired *pgxpool.Pool) error {
	before, err := declaredObjects(ctx, current)
	if err != nil {
		return err
	}
	after, err := declaredObjects(ctx, desired)
	if err != nil {
		return err
	}
	for name, want := range after {
		if have := before[name]; name.kind == "table" && !isEntity(name.name) && lines(have) != lines(want) {
			return fmt.Errorf("table %s differs in a way that cannot be planned, write its migration by hand; the directory leaves\n%s\nand declared is\n%s", name.name, have, want)
		}
	}
	return nil
}

// lines is a definition without the order of its lines: a column that was added
// later stands last.
func lines(definition string) string {
	all := strings.Split(definition, "\n")
	for i := range all {
		all[i] = strings.TrimSuffix(all[i], ",")
	}
	slices.Sort(all)
	return strings.Join(all, "\n")
}
