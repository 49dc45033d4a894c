package schemareview

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// compat lists what the version of the application that base belongs to can no
// longer do when the schema is as it is now, while both run beside each other. That
// version is taken to need all that base has: to name every table, column and
// function, to write every column, and to say ON CONFLICT with every unique key.
func compat(base, now *catalog) []breakage {
	c := comparison{base: base, now: now}
	c.tables()
	c.columns()
	c.constraints()
	c.uniqueKeys()
	c.functions()
	c.triggers()
	c.enums()
	return c.found
}

// breakage is comparable, so that the statement that brought it can be found.
type breakage struct{ rule, message string }

type comparison struct {
	base, now *catalog
	found     []breakage
}

func (c *comparison) breaks(rule, format string, args ...any) {
	c.found = append(c.found, breakage{"compat/" + rule, fmt.Sprintf(format, args...)})
}

func (c *comparison) tables() {
	for _, was := range c.base.Tables {
		now, stands := c.now.table(was.ID)
		switch {
		case !stands:
			c.breaks("table-dropped", "table %s is gone", was.Name)
		case now.Name != was.Name:
			c.breaks("table-renamed", "table %s is called %s", was.Name, now.Name)
		case now.RLS && !was.RLS:
			c.breaks("row-security", "table %s hides rows by row security", was.Name)
		}
	}
}

func (c *comparison) columns() {
	for _, was := range c.base.Columns {
		if _, stands := c.now.table(was.Table); !stands {
			continue
		}
		name := c.base.tableName(was.Table) + "." + was.Name
		now, stands := c.now.column(was.Table, was.Number)
		if !stands { // or made again
			now, stands = c.now.columnNamed(was.Table, was.Name)
		}
		if !stands {
			c.breaks("column-dropped", "column %s is gone", name)
			continue
		}
		c.column(name, was, now)
	}
	for _, now := range c.now.Columns {
		_, existing := c.base.table(now.Table)
		_, stood := c.base.column(now.Table, now.Number)
		_, written := c.base.columnNamed(now.Table, now.Name)
		if !existing || stood || written {
			continue
		}
		if now.NotNull && now.Default == "" && now.Identity == "" && now.Generated == "" {
			c.breaks("column-required", "column %s.%s is NOT NULL and has no default, and the previous version does not write it", c.base.tableName(now.Table), now.Name)
		}
	}
}

func (c *comparison) column(name string, was, now column) {
	if now.Name != was.Name {
		c.breaks("column-renamed", "column %s is called %s", name, now.Name)
	}
	if now.Type != was.Type {
		c.breaks("column-type", "column %s was %s and is %s", name, was.Type, now.Type)
	}
	if now.NotNull && !was.NotNull {
		c.breaks("column-not-null", "column %s may no longer be NULL", name)
	}
	if was.Default != "" && now.Default == "" && now.NotNull {
		c.breaks("default-dropped", "column %s has lost its default (%s)", name, was.Default)
	}
	if now.Generated != was.Generated || now.Identity == "a" && was.Identity != "a" {
		c.breaks("column-generated", "column %s takes no values any more, or other ones", name)
	}
}

// constraints are new for a writer even when they are NOT VALID. One on columns that
// the writer does not know bothers it if it demands a value, or if it is unique and
// the default is not NULL: its second row has the same.
func (c *comparison) constraints() {
	for _, now := range c.now.Constraints {
		if _, existing := c.base.table(now.Table); !existing || slices.ContainsFunc(c.base.Constraints, now.sameRule) {
			continue
		}
		unique := now.Kind == "u" || now.Kind == "p" || now.Kind == "x"
		demands := now.Kind == "c" && strings.Contains(now.Definition, "NOT NULL")
		if demands || c.mayRefuse(now.Table, now.Columns, unique) {
			c.breaks("constraint-added", "%s on %s refuses rows that the previous version may write: %s", now.Name, c.base.tableName(now.Table), now.rule().name)
		}
	}
	for _, now := range c.now.Indexes {
		if _, existing := c.base.table(now.Table); !existing || !now.Unique || now.Owned || slices.ContainsFunc(c.base.Indexes, now.sameKey) {
			continue
		}
		if c.mayRefuse(now.Table, now.Columns, true) {
			c.breaks("constraint-added", "unique index %s on %s refuses rows that the previous version may write", now.Name, c.base.tableName(now.Table))
		}
	}
}

// rule is what it holds rows to, whether or not those that stand were checked.
func (c constraint) rule() tableAndName {
	return tableAndName{c.Table, strings.TrimSuffix(c.Definition, " NOT VALID")}
}

// sameRule also holds when only names changed: then the server's id is the same.
func (c constraint) sameRule(other constraint) bool {
	return c.ID == other.ID || c.rule() == other.rule()
}

func (i index) sameKey(other index) bool {
	return i.ID == other.ID && i.Unique == other.Unique || i.Table == other.Table && i.Unique && other.Unique && i.Predicate == other.Predicate && slices.Equal(i.Columns, other.Columns)
}

func (c *comparison) mayRefuse(table uint32, columns []string, unique bool) bool {
	if len(columns) == 0 {
		return true // an expression
	}
	return slices.ContainsFunc(columns, func(name string) bool {
		if now, known := c.now.columnNamed(table, name); known {
			_, stood := c.base.column(table, now.Number)
			return stood || unique && now.Default != ""
		}
		return true // an expression
	})
}

func (c *comparison) uniqueKeys() {
	for _, was := range c.base.Indexes {
		if _, stands := c.now.table(was.Table); !stands || !was.Unique || slices.ContainsFunc(c.now.Indexes, was.sameKey) || c.lostColumn(was) {
			continue
		}
		c.breaks("unique-dropped", "%s is gone, and with it what ON CONFLICT (%s) on %s needs", was.Name, strings.Join(was.Columns, ", "), c.base.tableName(was.Table))
	}
}

// lostColumn is when the loss of a column says it already.
func (c *comparison) lostColumn(i index) bool {
	return slices.ContainsFunc(i.Columns, func(name string) bool {
		was, stood := c.base.columnNamed(i.Table, name)
		_, stands := c.now.column(i.Table, was.Number)
		return stood && !stands
	})
}

// functions of triggers are not called by an application.
func (c *comparison) functions() {
	for _, was := range c.base.Functions {
		if was.Result == "trigger" {
			continue
		}
		now, stands := find(c.now.Functions, func(f function) bool { return f.Signature == was.Signature })
		switch {
		case !stands && slices.ContainsFunc(c.now.Functions, func(f function) bool { return f.Schema == was.Schema && f.Name == was.Name }):
			c.breaks("function-signature", "function %s is gone, and others of its name take other arguments", was.Signature)
		case !stands:
			c.breaks("function-dropped", "function %s is gone", was.Signature)
		case now.Result != was.Result:
			c.breaks("function-result", "function %s returned %s and returns %s", was.Signature, was.Result, now.Result)
		case now.Arguments != was.Arguments:
			c.breaks("function-signature", "function %s took (%s) and takes (%s)", was.Signature, was.Arguments, now.Arguments)
		}
	}
}

var raises = regexp.MustCompile(`(?i)\bRAISE\b\s*(EXCEPTION|'|SQLSTATE|USING|;|[a-z_]+_[a-z_]+)`)

func (c *comparison) triggers() {
	for _, now := range c.now.Triggers {
		if _, existing := c.base.table(now.Table); !existing {
			continue
		}
		name := now.Name + " on " + c.base.tableName(now.Table)
		f, _ := c.now.function(now.Function)
		was, stood := find(c.base.Triggers, now.sameTrigger)
		before, _ := c.base.function(was.Function)
		refusesMore := raises.MatchString(f.Source) && (!stood || f.Source != before.Source && !raises.MatchString(before.Source))
		changes := now.Before && !stood
		switch {
		case refusesMore:
			c.breaks("trigger-refuses", "trigger %s may refuse what the previous version writes", name)
		case changes:
			c.breaks("trigger-refuses", "trigger %s stands before what the previous version writes, and may change or skip it", name)
		case stood && now.Definition != was.Definition && c.now.tableName(now.Table) == c.base.tableName(was.Table):
			c.breaks("trigger-changed", "trigger %s fires for other writes than before", name)
		}
	}
	for _, was := range c.base.Triggers {
		if _, stands := c.now.table(was.Table); stands && !slices.ContainsFunc(c.now.Triggers, was.sameTrigger) {
			c.breaks("trigger-dropped", "trigger %s on %s is gone, and the previous version may rely on what it does", was.Name, c.base.tableName(was.Table))
		}
	}
}

func (t trigger) sameTrigger(other trigger) bool {
	return t.Table == other.Table && t.Name == other.Name
}

func (c *comparison) enums() {
	for _, was := range c.base.Enums {
		now, stands := find(c.now.Enums, func(e enum) bool { return e.Name == was.Name })
		if !stands {
			c.breaks("type-dropped", "type %s is gone", was.Name)
			continue
		}
		for _, label := range was.Labels {
			if !slices.Contains(now.Labels, label) {
				c.breaks("type-dropped", "value %s of type %s is gone", label, was.Name)
			}
		}
	}
}

// attribute finds the statement that each breakage stands since: what one statement
// breaks and a later one mends is none.
func attribute(base *catalog, files []*File) (found []Finding) {
	type place struct {
		file string
		line int
	}
	since := map[breakage]place{}
	var last []breakage
	for _, file := range files {
		for _, s := range file.Statements {
			if s.after == nil {
				continue
			}
			last = compat(base, s.after)
			now := map[breakage]place{}
			for _, b := range last {
				now[b] = place{file.Name, s.Line}
				if earlier, stood := since[b]; stood {
					now[b] = earlier
				}
			}
			since = now
		}
	}
	for _, b := range last {
		found = append(found, Finding{Rule: b.rule, Blocking: true, File: since[b].file, Line: since[b].line, Message: b.message})
	}
	return found
}
