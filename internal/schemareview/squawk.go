package schemareview

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// oldestServer is the oldest PostgreSQL that a migration must run on.
const oldestServer = "15"

// leftToOthers are the rules of squawk that are switched off, each with the reason.
var leftToOthers = []struct{ rule, reason string }{
	// Against the project's rules.
	{"prefer-robust-stmts", "a file is one transaction with its record: it leaves nothing when it fails, and IF NOT EXISTS would hide what stands there by other means"},
	{"require-lock-timeout", "the migrator sets it, and tries again"},
	{"require-statement-timeout", "a build that is under way is waited for; what it blocks is measured"},
	{"prefer-bigint-over-smallint", "smallint holds closed sets, with a CHECK"},
	// Told by what was measured, which the text alone cannot tell.
	{"adding-field-with-default", "measured: " + ruleRewrite},
	{"changing-column-type", "measured: " + ruleRewrite + " and compat/column-type"},
	{"adding-not-nullable-field", "measured: " + ruleNotNull + " and compat/column-not-null"},
	{"adding-required-field", "measured: compat/column-required"},
	{"constraint-missing-not-valid", "measured: " + ruleNotValid},
	{"adding-foreign-key-constraint", "measured: " + ruleNotValid},
	{"disallowed-unique-constraint", "measured: " + ruleIndex},
	{"adding-serial-primary-key-field", "measured: " + ruleIndex},
	{"require-concurrent-index-creation", "measured: " + ruleIndex},
	{"ban-concurrent-index-creation-in-transaction", "it fails: " + ruleFails},
	// Told by Atlas and by compat from the catalog.
	{"ban-drop-table", "atlas/DS102 and compat/table-dropped"},
	{"ban-drop-column", "atlas/DS103 and compat/column-dropped"},
	{"renaming-table", "atlas/BC101 and compat/table-renamed"},
	{"renaming-column", "atlas/BC102 and compat/column-renamed"},
	{"ban-drop-not-null", "what an older version reads as NOT NULL stays so until somebody writes NULL"},
}

// squawk are the findings of the linter of that name. It is told which files run in
// a transaction.
func squawk(ctx context.Context, root string, files []*File) (found []Finding, err error) {
	for _, transaction := range []bool{true, false} {
		alike := slices.DeleteFunc(slices.Clone(files), func(f *File) bool { return f.Transaction != transaction })
		if len(alike) == 0 {
			continue
		}
		args := []string{"--reporter", "json", "--pg-version", oldestServer, "--exclude", excluded()}
		if transaction {
			args = append(args, "--assume-in-transaction")
		}
		problems, err := runSquawk(ctx, root, args, alike)
		if err != nil {
			return nil, err
		}
		for _, p := range problems {
			file, known := find(alike, func(f *File) bool { return f.Name == filepath.Base(p.File) })
			if !known {
				return nil, fmt.Errorf("squawk found something in %s, which it was not given", p.File)
			}
			message := strings.TrimSpace(strings.ReplaceAll(p.Message+" "+p.Help, "\n", " "))
			found = append(found, Finding{Rule: "squawk/" + p.Rule, Blocking: true, File: file.Name, Line: file.statementAt(p.Line + 1), Message: message})
		}
	}
	return found, nil
}

// problem is what squawk says in JSON.
type problem struct {
	File    string `json:"file"`
	Line    int    `json:"line"` // from 0
	Message string `json:"message"`
	Help    string `json:"help"`
	Rule    string `json:"rule_name"`
}

func runSquawk(ctx context.Context, root string, args []string, files []*File) (problems []problem, err error) {
	for _, file := range files {
		args = append(args, filepath.Join(migrations, file.Name))
	}
	cmd := exec.CommandContext(ctx, "squawk", args...)
	cmd.Dir = root
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	// It ends with 1 when it found something.
	out, failed := cmd.Output()
	if err := json.Unmarshal(out, &problems); err != nil {
		return nil, fmt.Errorf("squawk: %w: %s", errors.Join(failed, err), bytes.TrimSpace(stderr.Bytes()))
	}
	return problems, nil
}

func excluded() string {
	var rules []string
	for _, l := range leftToOthers {
		rules = append(rules, l.rule)
	}
	return strings.Join(rules, ",")
}

// statementAt is the line where the statement begins that a line belongs to.
func (f *File) statementAt(line int) int {
	for _, s := range f.Statements {
		if line <= s.Line+strings.Count(s.SQL, "\n") {
			return s.Line
		}
	}
	return line
}
