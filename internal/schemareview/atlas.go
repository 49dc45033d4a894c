package schemareview

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"ariga.io/atlas/schemahcl"
	atlas "ariga.io/atlas/sql/migrate"
	"ariga.io/atlas/sql/postgres"
	_ "ariga.io/atlas/sql/postgres/postgrescheck" // the analyzers
	"ariga.io/atlas/sql/schema"
	"ariga.io/atlas/sql/sqlcheck"
)

// analysis collects what the analyzers of Atlas want to know of a file.
type analysis struct {
	driver atlas.Driver
	file   *sqlcheck.File
	// realm is what Atlas saw last, seen the catalog at that time.
	realm *schema.Realm
	seen  *catalog
	// stood is the catalog at the beginning of the file.
	stood *catalog
	// lines of the statements by the position that the analyzers report.
	lines map[int]int
}

func newAnalysis(ctx context.Context, driver atlas.Driver, base *catalog) (*analysis, error) {
	a := &analysis{driver: driver}
	return a, a.inspect(ctx, base)
}

// begin is before the first statement of a file.
func (a *analysis) begin(ctx context.Context, file *File, now *catalog) error {
	if !a.seen.sameShape(now) {
		if err := a.inspect(ctx, now); err != nil {
			return err
		}
	}
	a.stood, a.lines = now, map[int]int{}
	a.file = &sqlcheck.File{File: atlas.NewLocalFile(file.Name, []byte(file.content)), From: a.realm}
	return nil
}

// inspect looks only into schemas that have tables other than partitions, which
// follow their parent and would take most of the time.
func (a *analysis) inspect(ctx context.Context, now *catalog) (err error) {
	schemas := []string{"public"}
	for _, t := range now.Tables {
		schemas = append(schemas, t.Schema)
	}
	slices.Sort(schemas)
	a.realm, err = a.driver.InspectRealm(ctx, &schema.InspectRealmOption{Schemas: slices.Compact(schemas)})
	if err != nil {
		return fmt.Errorf("inspecting the schema as Atlas does: %w", err)
	}
	a.seen = now
	return nil
}

// add is after a statement. An inspection is what a review spends most of its time
// on, and the analyzers have nothing against tables that the file itself makes: what
// happens to those is seen with the next change of another.
func (a *analysis) add(ctx context.Context, s *Statement) error {
	standing := func(id uint32) bool { _, ok := a.stood.table(id); return ok }
	if !slices.ContainsFunc(slices.Collect(maps.Keys(s.tablesTouched())), standing) {
		return nil
	}
	before := a.realm
	if err := a.inspect(ctx, s.after); err != nil {
		return err
	}
	changes, err := a.driver.RealmDiff(before, a.realm)
	if err != nil {
		return fmt.Errorf("comparing the schemas as Atlas does: %w", err)
	}
	a.lines[s.position] = s.Line
	a.file.Changes = append(a.file.Changes, &sqlcheck.Change{Changes: renames(changes, s), Stmt: &atlas.Stmt{Pos: s.position, Text: s.SQL}})
	return nil
}

// findings are those about the file, which is at its end.
func (a *analysis) findings(ctx context.Context, file *File) (found []Finding, err error) {
	a.file.To = a.realm
	// By default an analyzer that finds something also fails.
	quiet := &schemahcl.Resource{Children: []*schemahcl.Resource{{Type: "destructive", Attrs: []*schemahcl.Attr{schemahcl.BoolAttr("error", false)}}}}
	analyzers, err := sqlcheck.AnalyzerFor(postgres.DriverName, quiet)
	if err != nil {
		return nil, err
	}
	pass := &sqlcheck.Pass{File: a.file, Reporter: sqlcheck.ReportWriterFunc(func(r sqlcheck.Report) {
		for _, d := range r.Diagnostics {
			found = append(found, Finding{Rule: "atlas/" + d.Code, Blocking: true, File: file.Name, Line: a.lines[d.Pos], Message: d.Text})
		}
	})}
	return found, sqlcheck.Analyzers(analyzers).Analyze(ctx, pass)
}

// renames puts the renames in place of the drops and additions for which Atlas,
// which compares names, takes them.
func renames(changes schema.Changes, s *Statement) schema.Changes {
	for _, was := range s.before.Tables {
		now, stands := s.after.table(was.ID)
		if !stands || now.Name == was.Name {
			continue
		}
		dropped, added := changes.IndexDropTable(bare(was)), changes.IndexAddTable(bare(now))
		if dropped < 0 || added < 0 {
			continue
		}
		rename := &schema.RenameTable{From: changes[dropped].(*schema.DropTable).T, To: changes[added].(*schema.AddTable).T}
		changes = slices.DeleteFunc(changes, func(c schema.Change) bool { return c == changes[dropped] || c == changes[added] })
		changes = append(changes, rename)
	}
	for _, change := range changes {
		if m, ok := change.(*schema.ModifyTable); ok {
			renameColumns(m, s)
			keepForeignKeys(m, s)
		}
	}
	return changes
}

// bare is the name without the schema, as Atlas has it.
func bare(t table) string {
	if t.Schema == "public" {
		return t.Name
	}
	return t.Name[len(t.Schema)+1:]
}

func renameColumns(m *schema.ModifyTable, s *Statement) {
	for _, was := range s.before.Columns {
		now, stands := s.after.column(was.Table, was.Number)
		owner, _ := s.after.table(was.Table)
		if !stands || now.Name == was.Name || bare(owner) != m.T.Name {
			continue
		}
		changes := schema.Changes(m.Changes)
		dropped, added := changes.IndexDropColumn(was.Name), changes.IndexAddColumn(now.Name)
		if dropped < 0 || added < 0 {
			continue
		}
		rename := &schema.RenameColumn{From: changes[dropped].(*schema.DropColumn).C, To: changes[added].(*schema.AddColumn).C}
		gone := []schema.Change{changes[dropped], changes[added]}
		m.Changes = append(slices.DeleteFunc(changes, func(c schema.Change) bool { return slices.Contains(gone, c) }), rename)
	}
}

// keepForeignKeys leaves out keys that Atlas takes for dropped: renamed ones, and
// those that PostgreSQL derives for each partition of the table that a key refers to.
func keepForeignKeys(m *schema.ModifyTable, s *Statement) {
	m.Changes = slices.DeleteFunc(m.Changes, func(change schema.Change) bool {
		dropped, ok := change.(*schema.DropForeignKey)
		if !ok {
			return false
		}
		was, declared := find(s.before.Constraints, func(c constraint) bool {
			owner, _ := s.before.table(c.Table)
			return c.Name == dropped.F.Symbol && bare(owner) == m.T.Name
		})
		_, stands := find(s.after.Constraints, func(c constraint) bool { return c.ID == was.ID })
		return !declared || stands
	})
}
