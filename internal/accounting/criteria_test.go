package accounting_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// moduleRoot is where the tests that CRITERIA.md names are looked for.
const moduleRoot = "../.."

// TestCriteria fails when a criterion has no test and no reason, when the test
// it names does not exist, and when none of its tests carries its number.
func TestCriteria(t *testing.T) {
	t.Parallel()
	table, err := os.ReadFile("CRITERIA.md")
	require.NoError(t, err)
	require.Empty(t, checkCriteria(string(table), criteria(), moduleTests(t)))
}

// criteria are the numbers of all criteria.
func criteria() []string {
	var ids []string
	for _, group := range []struct {
		letters string
		count   int
	}{{"D", 7}, {"AC", 36}, {"E", 21}, {"S", 3}} {
		for n := range group.count {
			ids = append(ids, group.letters+strconv.Itoa(n+1))
		}
	}
	return ids
}

// testIndex holds, by `package.TestName`, the names of a test's subtests.
type testIndex map[string]subtests

// subtests are the names that can be read off the source: the literal ones,
// the texts of tables that may name some, and the beginnings of computed ones.
type subtests struct{ names, beginnings []string }

// row is a line of the table: | D1 | what must hold | its tests, or a reason |.
var row = regexp.MustCompile(`(?m)^\| *([A-Z]+[0-9]+) *\|(.*)\|(.*)\|$`)

// checkCriteria returns what is wrong with the table.
func checkCriteria(table string, ids []string, tests testIndex) []string {
	var wrong []string
	var seen []string
	for _, cells := range row.FindAllStringSubmatch(table, -1) {
		id, proof := cells[1], strings.TrimSpace(cells[3])
		if !slices.Contains(ids, id) {
			wrong = append(wrong, id+": there is no such criterion")
		}
		if slices.Contains(seen, id) {
			wrong = append(wrong, id+": stands there twice")
		}
		seen = append(seen, id)
		wrong = append(wrong, checkProof(id, proof, tests)...)
	}
	for _, id := range ids {
		if !slices.Contains(seen, id) {
			wrong = append(wrong, id+": is missing")
		}
	}
	return wrong
}

const notYet = "not yet: "

func checkProof(id, proof string, tests testIndex) (wrong []string) {
	named := namedTests(proof)
	reason, isMarked := strings.CutPrefix(proof, notYet)
	switch {
	case isMarked && len(named) > 0:
		return []string{id + ": is marked as not yet proven and names tests"}
	case isMarked && strings.TrimSpace(reason) != "":
		return nil
	case len(named) == 0:
		return []string{id + ": names no test and gives no reason"}
	}
	for _, name := range named {
		if !tests.has(name) {
			wrong = append(wrong, fmt.Sprintf("%s: there is no test `%s`", id, name))
		}
	}
	if !slices.ContainsFunc(named, func(name string) bool { return carries(name, id) }) {
		wrong = append(wrong, id+": no test is named after it")
	}
	return wrong
}

// namedTests are the texts in backquotes.
func namedTests(proof string) []string {
	var names []string
	for _, quoted := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(proof, -1) {
		names = append(names, quoted[1])
	}
	return names
}

func (tests testIndex) has(name string) bool {
	packageAndTest, subtest, hasSubtest := cutSubtest(name)
	known, exists := tests[packageAndTest]
	return exists && (!hasSubtest || slices.Contains(known.names, subtest) ||
		slices.ContainsFunc(known.beginnings, func(b string) bool { return strings.HasPrefix(subtest, b) }))
}

// cutSubtest splits `path/to/package.TestName/subtest`.
func cutSubtest(name string) (packageAndTest, subtest string, hasSubtest bool) {
	dot := max(strings.Index(name, ".Test"), 0)
	testName, subtest, hasSubtest := strings.Cut(name[dot:], "/")
	return name[:dot] + testName, subtest, hasSubtest
}

// carries reports whether the number stands in the name as a whole: AC1 does
// not stand in TestAC13.
func carries(name, id string) bool {
	return regexp.MustCompile(`(^|[^A-Z])` + id + `([^0-9]|$)`).MatchString(name)
}

func moduleTests(t *testing.T) testIndex {
	t.Helper()
	tests := make(testIndex)
	require.NoError(t, filepath.WalkDir(moduleRoot, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && strings.HasPrefix(entry.Name(), ".") && path != moduleRoot:
			return fs.SkipDir
		case strings.HasSuffix(path, "_test.go"):
			return tests.add(path)
		}
		return nil
	}))
	return tests
}

func (tests testIndex) add(path string) error {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir, err := filepath.Rel(moduleRoot, filepath.Dir(path))
	if err != nil {
		return err
	}
	for _, decl := range file.Decls {
		if f, isFunc := decl.(*ast.FuncDecl); isFunc && strings.HasPrefix(f.Name.Name, "Test") {
			tests[filepath.ToSlash(dir)+"."+f.Name.Name] = subtestsOf(f)
		}
	}
	return nil
}

func subtestsOf(f *ast.FuncDecl) (found subtests) {
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CallExpr:
			if method, isMethod := n.Fun.(*ast.SelectorExpr); isMethod && method.Sel.Name == "Run" && len(n.Args) == 2 {
				found.addName(n.Args[0])
			}
		case *ast.CompositeLit:
			for _, element := range n.Elts {
				found.addText(element)
			}
		}
		return true
	})
	return found
}

func (s *subtests) addName(name ast.Expr) {
	if sum, isSum := name.(*ast.BinaryExpr); isSum {
		s.beginnings = append(s.beginnings, textOf(sum.X)...)
		return
	}
	s.names = append(s.names, textOf(name)...)
}

// addText takes an element of a slice or struct, and the key and value of a map
// or field.
func (s *subtests) addText(element ast.Expr) {
	if pair, isPair := element.(*ast.KeyValueExpr); isPair {
		s.names = append(s.names, textOf(pair.Key)...)
		element = pair.Value
	}
	s.names = append(s.names, textOf(element)...)
}

// textOf is the text of a literal, or nothing.
func textOf(e ast.Expr) []string {
	literal, isLiteral := e.(*ast.BasicLit)
	if !isLiteral || literal.Kind != token.STRING {
		return nil
	}
	text, err := strconv.Unquote(literal.Value)
	if err != nil {
		return nil
	}
	return []string{text}
}

// The check must be able to fail.
func TestCriteriaCheck(t *testing.T) {
	t.Parallel()
	tests := testIndex{
		"internal/x.TestAC1Holds": {names: []string{"a/b"}},
		"x.TestOther":             {names: []string{"AC1 too"}, beginnings: []string{"AC1 of a "}},
		"x.TestAC13Holds":         {},
	}
	for _, tc := range []struct{ name, table, want string }{
		{"a test", "| AC1 | rule | `internal/x.TestAC1Holds` |", ""},
		{"a subtest", "| AC1 | rule | `internal/x.TestAC1Holds/a/b` |", ""},
		{"a number in a subtest", "| AC1 | rule | `x.TestOther/AC1 too` |", ""},
		{"a computed subtest", "| AC1 | rule | `x.TestOther/AC1 of a repository` |", ""},
		{"several tests", "| AC1 | rule | `x.TestOther`, `internal/x.TestAC1Holds` |", ""},
		{"a reason", "| AC1 | rule | not yet: because |", ""},
		{"no table", "", "AC1: is missing"},
		{"no test", "| AC1 | rule | |", "AC1: names no test and gives no reason"},
		{"no reason", "| AC1 | rule | not yet: |", "AC1: names no test and gives no reason"},
		{"a reason and a test", "| AC1 | rule | not yet: only `x.TestOther` |", "AC1: is marked as not yet proven and names tests"},
		{"an unknown package", "| AC1 | rule | `x.TestAC1Holds` |", "AC1: there is no test `x.TestAC1Holds`"},
		{"an unknown test", "| AC1 | rule | `internal/x.TestAC1Hold` |", "AC1: there is no test `internal/x.TestAC1Hold`"},
		{"an unknown subtest", "| AC1 | rule | `internal/x.TestAC1Holds/a` |", "AC1: there is no test `internal/x.TestAC1Holds/a`"},
		{"no test at all", "| AC1 | rule | `AC1` |", "AC1: there is no test `AC1`"},
		{"another number", "| AC1 | rule | `x.TestAC13Holds` |", "AC1: no test is named after it"},
		{"an unknown criterion", "| AC1 | rule | not yet: because |\n| AC2 | rule | not yet: because |", "AC2: there is no such criterion"},
		{"a criterion twice", "| AC1 | rule | not yet: because |\n| AC1 | rule | not yet: because |", "AC1: stands there twice"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.want, strings.Join(checkCriteria(tc.table, []string{"AC1"}, tests), "\n"))
		})
	}
}

func TestSubtestsOf(t *testing.T) {
	t.Parallel()
	file, err := parser.ParseFile(token.NewFileSet(), "", `package x
func TestX(t *testing.T) {
	t.Run("literal", nil)
	t.Run("of a "+kind, nil)
	t.Run(tc.name, nil)
	_ = map[string]string{"key": "value"}
	_ = []struct{ name string }{{"element"}, {name: "field"}}
	require.Zero(t, 1, "a message")
}`, 0)
	require.NoError(t, err)
	require.Equal(t, subtests{
		names:      []string{"literal", "key", "value", "element", "field"},
		beginnings: []string{"of a "},
	}, subtestsOf(file.Decls[0].(*ast.FuncDecl)))
}
