package schemareview

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// The rules about statements. Those about the rows that stand are told from what
// was measured, not from the text: a statement that reads as harmless and rewrites
// a table is found, and one that reads as dangerous and is not is left alone.
const (
	ruleFails        = "fails"
	ruleFailsOnRows  = "fails-on-rows"
	ruleRewrite      = "table-rewrite"
	ruleIndex        = "concurrent-index"
	ruleNotValid     = "constraint-not-valid"
	ruleNotNull      = "not-null-scan"
	ruleScan         = "blocking-scan"
	ruleReplace      = "replace-function"
	ruleName         = "object-name"
	ruleEnum         = "no-enum"
	ruleData         = "data-change"
	ruleEveryRow     = "every-row"
	ruleOneStatement = "one-statement"
	ruleNoStatement  = "no-statement"
	ruleSetLocal     = "set-local"
)

// check is what the rules have against the statements of a file.
func check(base *catalog, file *File) (found []Finding) {
	for _, s := range file.Statements {
		if s.after == nil {
			break
		}
		report := func(rule, format string, args ...any) {
			found = append(found, Finding{Rule: rule, Blocking: true, File: file.Name, Line: s.Line, Message: fmt.Sprintf(format, args...)})
		}
		checkRows(base, s, report)
		checkNames(s, report)
		if createFunction.MatchString(s.SQL) {
			report(ruleReplace, "write CREATE OR REPLACE: a file that is replayed meets the function")
		}
		if s.tag == "SET" && !setLocal.MatchString(s.SQL) {
			report(ruleSetLocal, "it holds for the migrator's session, and so for later files too: write SET LOCAL")
		}
		if s.changesRows() && slices.ContainsFunc(file.Statements, (*Statement).changesSchema) {
			report(ruleData, "it changes rows in a file that changes the schema too, whose locks it then holds: put it into a file of its own, or state the reason")
		}
	}
	if len(file.Statements) == 0 {
		found = append(found, Finding{Rule: ruleNoStatement, Blocking: true, File: file.Name,
			Message: "it holds no statement, and once it is applied it can get none: write one, or remove the file"})
	}
	if !file.Transaction && len(file.Statements) > 1 {
		found = append(found, Finding{Rule: ruleOneStatement, Blocking: true, File: file.Name, Line: file.Statements[1].Line,
			Message: "a file without a transaction holds one statement: what fails behind the first leaves the file half done"})
	}
	return found
}

var createFunction = regexp.MustCompile(`(?i)^CREATE\s+(FUNCTION|PROCEDURE)\b`)

var setLocal = regexp.MustCompile(`(?i)^SET\s+LOCAL\b`)

type reporter func(rule, format string, args ...any)

// checkRows is about tables that have rows: those that stand at base.
func checkRows(base *catalog, s *Statement, report reporter) {
	for _, name := range s.Rewritten {
		report(ruleRewrite, "it writes every row of %s anew under %s", name, lockLevels[s.levelOn(name)].mode)
	}
	for _, name := range s.Scanned {
		held := s.levelOn(name)
		if held < blocksWrites || slices.Contains(s.Rewritten, name) {
			continue
		}
		rule, what := reasonToScan(base, s, name)
		report(rule, "%s of %s under %s, which %s: %s", what.does, name, lockLevels[held].mode, lockLevels[held].effect, what.instead)
	}
	for _, c := range s.Rows {
		_, stands := find(base.Tables, func(t table) bool { return base.tableName(t.ID) == c.Table })
		if stands && c.Updated+c.Deleted >= rowsEach {
			report(ruleEveryRow, "it changes every row of %s, which may be millions, in one transaction: make it a backfill (internal/backfill), or state the reason", c.Table)
		}
	}
}

type advice struct{ does, instead string }

// reasonToScan tells why a table was read from one end to the other.
func reasonToScan(base *catalog, s *Statement, name string) (string, advice) {
	existing, _ := find(base.Tables, func(t table) bool { return s.before.tableName(t.ID) == name })
	for _, i := range without(s.after.Indexes, s.before.Indexes, func(i index) uint32 { return i.ID }) {
		if i.Table == existing.ID {
			return ruleIndex, advice{"it builds index " + i.Name + " from the rows", "build it with CREATE INDEX CONCURRENTLY in a file of its own with -- atlas:txmode none (a constraint then takes it with USING INDEX)"}
		}
	}
	for _, c := range without(s.after.Constraints, s.before.Constraints, func(c constraint) uint32 { return c.ID }) {
		other := strings.Contains(c.Definition, "REFERENCES "+name+"(")
		if c.Validated && (c.Table == existing.ID || other) {
			return ruleNotValid, advice{"it checks " + c.Name + " against every row", "add it NOT VALID here, and VALIDATE it in the next file"}
		}
	}
	for _, c := range s.after.Columns {
		was, stood := s.before.column(c.Table, c.Number)
		if stood && c.Table == existing.ID && c.NotNull && !was.NotNull {
			return ruleNotNull, advice{"it looks for NULL in " + c.Name + " in every row", "first add CHECK (" + c.Name + " IS NOT NULL) NOT VALID, VALIDATE it in the next file, then SET NOT NULL, which trusts it"}
		}
	}
	return ruleScan, advice{"it reads every row", "do it in a file of its own, before or after what takes the lock"}
}

// prefixes of the names of constraints, by their kind in the catalog.
var prefixes = map[string]string{"p": "pk_", "u": "uq_", "f": "fk_", "c": "ck_", "x": "ex_"}

// checkNames holds new objects to the names that the project gives: a name that the
// server made up differs from server to server. River's are River's.
func checkNames(s *Statement, report reporter) {
	want := func(kind, schema, name, prefix string) {
		if schema == "public" && !strings.HasPrefix(name, prefix) {
			report(ruleName, "%s %s: give it a name of its own that begins with %s", kind, name, prefix)
		}
	}
	for _, c := range without(s.after.Constraints, s.before.Constraints, constraintName) {
		want("constraint", c.Schema, c.Name, prefixes[c.Kind])
	}
	for _, i := range without(s.after.Indexes, s.before.Indexes, func(i index) string { return i.Schema + "." + i.Name }) {
		switch {
		case i.Owned: // has its constraint's name
		case i.Unique:
			want("unique index", i.Schema, i.Name, "uq_")
		default:
			want("index", i.Schema, i.Name, "index_")
		}
	}
	for _, t := range without(s.after.Triggers, s.before.Triggers, func(t trigger) string { return t.Schema + "." + t.Name }) {
		want("trigger", t.Schema, t.Name, "trg_")
	}
	for _, f := range without(s.after.Functions, s.before.Functions, func(f function) string { return f.Schema + "." + f.Name }) {
		want("function", f.Schema, f.Name, "stowage_")
	}
	for _, e := range without(s.after.Enums, s.before.Enums, func(e enum) string { return e.Name }) {
		if e.Schema == "public" {
			report(ruleEnum, "type %s: a value of an ENUM can never be removed; use smallint with a CHECK", e.Name)
		}
	}
}

type tableAndName struct {
	table uint32
	name  string
}

func constraintName(c constraint) tableAndName { return tableAndName{c.Table, c.Name} }

// changesRows is by the server's word for the statement, or, for what has another
// word such as DO, by what it wrote.
func (s *Statement) changesRows() bool {
	word, _, _ := strings.Cut(s.tag, " ")
	return slices.Contains([]string{"INSERT", "UPDATE", "DELETE", "MERGE", "TRUNCATE"}, word) || len(s.Rows) > 0
}

func (s *Statement) changesSchema() bool {
	return s.after != nil && (!s.after.sameShape(s.before) || len(s.after.Triggers) != len(s.before.Triggers) || len(s.after.Functions) != len(s.before.Functions))
}
