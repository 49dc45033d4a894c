package schemareview

import (
	"fmt"
	"io/fs"
	"path"
	"reflect"
	"regexp"
	"slices"
)

const ruleDeclared = "declared-source"

// declared finds what a migration changes of things that are declared by hand while
// their declaration stays as it was: functions and triggers in triggers, and the
// tables that have a file in tables. The next change would be made from a
// declaration that is not true.
func declared(base, head fs.FS, files []*File) (found []Finding) {
	seen := map[string]bool{}
	for _, file := range files {
		for _, s := range file.Statements {
			for _, t := range s.touches() {
				changed, where := t.declaration(base, head)
				if changed || seen[t.pattern] {
					continue
				}
				seen[t.pattern] = true
				found = append(found, Finding{Rule: ruleDeclared, Blocking: true, File: file.Name, Line: s.Line,
					Message: fmt.Sprintf("%s changes here, but not its declaration in %s: change both", t.name, where)})
			}
		}
	}
	return found
}

// thing is something that may be declared.
type thing struct {
	name, folder string
	// pattern finds its declaration.
	pattern string
	// must be declared, or else it is Ent's.
	must bool
}

// touches are what a statement added, changed or dropped in public.
func (s *Statement) touches() (things []thing) {
	if s.after == nil {
		return nil
	}
	for _, f := range differing(s.before.Functions, s.after.Functions, func(f function) uint32 { return f.ID }) {
		if f.Schema == "public" {
			things = append(things, thing{"function " + f.Name, "triggers", `FUNCTION ` + f.Name + `\b`, true})
		}
	}
	for _, t := range differing(s.before.Triggers, s.after.Triggers, func(t trigger) uint32 { return t.ID }) {
		if t.Schema == "public" {
			things = append(things, thing{"trigger " + t.Name, "triggers", `TRIGGER ` + t.Name + `\b`, true})
		}
	}
	for _, name := range s.publicTables() {
		things = append(things, thing{"table " + name, "tables", `TABLE ` + name + `\b`, false})
	}
	return things
}

// tablesTouched are the tables that differ, or whose columns, constraints or indexes
// do.
func (s *Statement) tablesTouched() map[uint32]bool {
	touched := map[uint32]bool{}
	for _, t := range differing(s.before.Tables, s.after.Tables, func(t table) uint32 { return t.ID }) {
		touched[t.ID] = true
	}
	for _, c := range differing(s.before.Columns, s.after.Columns, func(c column) [2]uint32 { return [2]uint32{c.Table, uint32(c.Number)} }) {
		touched[c.Table] = true
	}
	for _, c := range slices.Concat(without(s.before.Constraints, s.after.Constraints, constraint.rule), without(s.after.Constraints, s.before.Constraints, constraint.rule)) {
		touched[c.Table] = true
	}
	for _, i := range differing(s.before.Indexes, s.after.Indexes, func(i index) uint32 { return i.ID }) {
		touched[i.Table] = true
	}
	return touched
}

// publicTables are the names of those in public, old ones too.
func (s *Statement) publicTables() (names []string) {
	for id := range s.tablesTouched() {
		was, stood := s.before.table(id)
		now, stands := s.after.table(id)
		if stood && was.Schema == "public" {
			names = append(names, was.Name)
		}
		if stands && now.Schema == "public" && now.Name != was.Name {
			names = append(names, now.Name)
		}
	}
	slices.Sort(names)
	return names
}

// differing are the elements that only one side has, or that both have otherwise.
func differing[T any, K comparable](before, after []T, key func(T) K) []T {
	found := without(before, after, key)
	for _, now := range after {
		was, stood := find(before, func(b T) bool { return key(b) == key(now) })
		if !stood || !reflect.DeepEqual(was, now) {
			found = append(found, now)
		}
	}
	return found
}

// declaration tells whether the text that declares a thing differs between base and
// head. What nothing declares counts as changed, unless it must be declared.
func (t thing) declaration(base, head fs.FS) (changed bool, where string) {
	pattern := regexp.MustCompile(`(?i)CREATE (OR REPLACE )?` + t.pattern)
	was, now := declaring(base, t.folder, pattern), declaring(head, t.folder, pattern)
	for name := range was {
		where = path.Join(t.folder, name)
	}
	for name := range now {
		where = path.Join(t.folder, name)
	}
	if where == "" {
		return !t.must, t.folder
	}
	return !reflect.DeepEqual(was, now), where
}

// declaring are the files of a folder that make a thing, by their names.
func declaring(root fs.FS, folder string, pattern *regexp.Regexp) map[string]string {
	found := map[string]string{}
	files, err := fs.Glob(root, folder+"/*.sql")
	if err != nil {
		return found // only for a malformed pattern
	}
	for _, file := range files {
		content, err := fs.ReadFile(root, file)
		if err == nil && pattern.Match(content) {
			found[path.Base(file)] = string(content)
		}
	}
	return found
}
