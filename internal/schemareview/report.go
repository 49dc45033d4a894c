package schemareview

import "log/slog"

// Report is what a review found. It holds no time and no id that another review of
// the same change would not have, but for the milliseconds of the statements,
// which only JSON shows.
type Report struct {
	// Base is the git ref as it was given.
	Base string `json:"base"`
	// Blocking is the number of findings that block.
	Blocking int `json:"blocking"`
	// Server is the major version that was measured on, 0 when nothing was.
	Server int `json:"server,omitempty"`
	// WithRows is whether the statements met rows.
	WithRows bool      `json:"with_rows"`
	Findings []Finding `json:"findings"`
	Objects  []Change  `json:"objects"`
	Files    []*File   `json:"files"`
	// NoRows are the tables for which no rows could be made.
	NoRows []NoRows `json:"no_rows"`

	logger *slog.Logger
}

// Finding is what one rule has against one statement, or against a file.
type Finding struct {
	Rule string `json:"rule"`
	// Blocking is false for a suppressed finding.
	Blocking bool   `json:"blocking"`
	File     string `json:"file"`
	// Line is where the statement begins, 0 when the whole file is meant.
	Line    int    `json:"line,omitempty"`
	Message string `json:"message"`
	// Reason is given by the line that suppresses the finding.
	Reason string `json:"reason,omitempty"`
}

// Change is what became of one object between base and head.
type Change struct {
	// Change is added, changed or dropped.
	Change string `json:"change"`
	Kind   string `json:"kind"`
	Name   string `json:"name"`
	// Before and After are SQL that makes it, empty where it does not stand.
	Before string `json:"before,omitempty"`
	After  string `json:"after,omitempty"`
}

// File is a migration that is new since base.
type File struct {
	Name string `json:"name"`
	// Transaction is false for txmode none.
	Transaction bool         `json:"transaction"`
	Statements  []*Statement `json:"statements"`

	content string
}

// Statement is one statement with what was measured. Tables that the change
// itself makes are left out: nobody else sees them yet, and they have no rows.
type Statement struct {
	Line int    `json:"line"`
	SQL  string `json:"sql"`
	// Measured is false behind a statement that failed.
	Measured bool `json:"measured"`
	// Locks are those that the statement took, the strongest on each table.
	Locks []Lock `json:"locks"`
	// Held are those that earlier statements of the transaction took.
	Held      []Lock   `json:"held"`
	Rewritten []string `json:"rewritten"`
	Scanned   []string `json:"scanned"`
	// Rows are also those of tables that the change makes.
	Rows         []RowChange `json:"rows"`
	Milliseconds int64       `json:"milliseconds"`

	position int // in the file, in bytes
	tag      string
	before   *catalog
	after    *catalog
}

// Lock is a mode, and the table with its partitions.
type Lock struct {
	Mode  string `json:"mode"`
	Table string `json:"table"`
	// Effect is what others must wait with.
	Effect string `json:"effect"`

	level int
}

// RowChange is how many rows of a table a statement wrote.
type RowChange struct {
	Table    string `json:"table"`
	Inserted int64  `json:"inserted"`
	Updated  int64  `json:"updated"`
	Deleted  int64  `json:"deleted"`
}

// NoRows is a table and why no rows could be made in it.
type NoRows struct {
	Table string `json:"table"`
	Why   string `json:"why"`
}
