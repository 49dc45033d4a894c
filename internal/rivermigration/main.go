// Command rivermigration writes the migration that creates River's tables in
// schema river, from the SQL in the pinned module. Run it in the root of the
// repository after a new version of River:
//
//	go run ./internal/rivermigration
//
// It writes one file with the versions that the directory lacks, and nothing
// when it lacks none. Then go on as for any other migration (stowage migrate
// hash, schema.sql).
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

const (
	schema    = "river"
	directory = "migrate/migrations"
)

func main() {
	if err := run(directory, time.Now()); err != nil {
		fmt.Fprintln(os.Stderr, "rivermigration:", err)
		os.Exit(1)
	}
}

// run writes the versions that dir lacks into a file of their own.
func run(dir string, now time.Time) error {
	all, err := moduleVersions()
	if err != nil {
		return err
	}
	held, err := heldVersion(dir)
	if err != nil {
		return err
	}
	if held >= len(all) {
		fmt.Printf("%s holds River's versions up to %d, and so does the module: nothing to write\n", dir, held)
		return nil
	}
	name := filepath.Join(dir, now.UTC().Format("20060102150405")+"_"+fileVerb(held)+"_river.sql")
	fmt.Println("writing", name)
	return os.WriteFile(name, []byte(generate(all[held:])), 0o644)
}

func fileVerb(held int) string {
	if held == 0 {
		return "create"
	}
	return "update"
}

// moduleVersions are River's migrations, oldest first; River numbers them from
// 1 without a gap.
func moduleVersions() ([]rivermigrate.Migration, error) {
	migrator, err := rivermigrate.New(riverpgxv5.New(nil), nil)
	if err != nil {
		return nil, fmt.Errorf("reading the River module's migrations: %w", err)
	}
	return migrator.AllVersions(), nil
}

var header = regexp.MustCompile(`(?m)^-- River's migrations (\d+) to (\d+)\b`)

// heldVersion is the newest River version in the directory's files, 0 when
// there is none.
func heldVersion(dir string) (int, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*_river.sql"))
	if err != nil {
		return 0, err
	}
	held := 0
	for _, file := range files {
		content, err := os.ReadFile(file)
		if err != nil {
			return 0, err
		}
		match := header.FindSubmatch(content)
		if match == nil {
			return 0, fmt.Errorf("%s: no header line %q, so it cannot be told which versions it holds; was it written by this program?", file, header)
		}
		last, err := strconv.Atoi(string(match[2]))
		if err != nil {
			return 0, fmt.Errorf("%s: %w", file, err)
		}
		held = max(held, last)
	}
	return held, nil
}

// generate is one file that, in one transaction, leaves what River's own
// migrator leaves, its record of versions included.
func generate(versions []rivermigrate.Migration) string {
	first, last := versions[0].Version, versions[len(versions)-1].Version
	var b strings.Builder
	fmt.Fprintf(&b, `-- River's migrations %d to %d, generated from the pinned module by
-- go run ./internal/rivermigration. Do not edit.
--
-- River runs each in a transaction of its own, because a value that ALTER TYPE
-- adds to an enum cannot be used in the same transaction. Here the type is
-- created with all its values, so the file runs in one.

`, first, last)
	if first == 1 {
		fmt.Fprintf(&b, "CREATE SCHEMA %s;\n\n", schema)
	}
	var body strings.Builder
	for _, v := range versions {
		fmt.Fprintf(&body, "-- Version %d: %s\n\n%s\n\n", v.Version, v.Name, statements(v.SQLUp))
	}
	b.WriteString(foldEnumValues(body.String()))
	fmt.Fprintf(&b, "-- What River's migrator records, so that it finds nothing to do.\nINSERT INTO %s.river_migration (line, version)\nSELECT 'main', generate_series(%d, %d);\n", schema, first, last)
	return b.String()
}

// statements is River's SQL with the schema filled in, each line without
// trailing blanks.
func statements(sql string) string {
	sql = strings.ReplaceAll(sql, "/* TEMPLATE: schema */", schema+".")
	lines := strings.Split(strings.TrimSpace(sql), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " \t")
	}
	return strings.Join(lines, "\n")
}

var addValue = regexp.MustCompile(`(?m)^ALTER TYPE (\S+) ADD VALUE IF NOT EXISTS ('\w+') AFTER ('\w+');$`)

// foldEnumValues moves every value that an ALTER TYPE adds into the CREATE TYPE
// of the same text. An ALTER TYPE of a type from an earlier file stays.
func foldEnumValues(sql string) string {
	for _, match := range addValue.FindAllStringSubmatch(sql, -1) {
		alter, enum, value, after := match[0], match[1], match[2], match[3]
		create := regexp.MustCompile(`(?s)CREATE TYPE ` + regexp.QuoteMeta(enum) + ` AS ENUM\s*\(.*?` + after)
		place := create.FindStringIndex(sql)
		if place == nil {
			continue
		}
		sql = sql[:place[1]] + ",\n  " + value + sql[place[1]:]
		sql = strings.Replace(sql, alter, "-- (created with the type, see above)", 1)
	}
	return sql
}
