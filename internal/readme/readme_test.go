package readme_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, path))
	require.NoError(t, err)
	return string(content)
}

// readmes are all hand-written Markdown files of the project.
func readmes(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." && path != root {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, ".md") {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			found = append(found, rel)
		}
		return nil
	})
	require.NoError(t, err)
	require.Contains(t, found, "README.md")
	return found
}

// The example is compiled and run as part of the importing module.
func TestImportExampleIsTheOneThatRuns(t *testing.T) {
	t.Parallel()
	_, body, found := strings.Cut(read(t, "testdata/importer/quickstart.go"), "digest schematype.Digest) (err error) {\n")
	require.True(t, found)
	body = strings.TrimSuffix(strings.TrimSpace(body), "}")
	var lines []string
	for line := range strings.Lines(body) {
		lines = append(lines, strings.TrimPrefix(line, "\t"))
	}
	example := strings.TrimSpace(strings.Join(lines, ""))
	require.Contains(t, read(t, "README.md"), "```go\n"+example+"\n```", "the README's example is not the body of quickstart")
}

func TestMakeTargetsExist(t *testing.T) {
	t.Parallel()
	makefile := read(t, "Makefile")
	// Some are named by a variable: LAB := bin/stowagelab.
	for _, m := range regexp.MustCompile(`(?m)^([A-Z]+) := (.*)$`).FindAllStringSubmatch(makefile, -1) {
		makefile = strings.ReplaceAll(makefile, "$("+m[1]+")", m[2])
	}
	targets := make(map[string]bool)
	for _, m := range regexp.MustCompile(`(?m)^([a-z][a-z/-]*):`).FindAllStringSubmatch(makefile, -1) {
		targets[m[1]] = true
	}
	require.NotEmpty(t, targets)
	command := regexp.MustCompile("(?m)(?:`|^ *)make ([a-z][a-z/-]*)")
	for _, path := range readmes(t) {
		for _, m := range command.FindAllStringSubmatch(read(t, path), -1) {
			require.True(t, targets[m[1]], "%s names make %s, which the Makefile does not have", path, m[1])
		}
	}
}

func TestLinksExist(t *testing.T) {
	t.Parallel()
	link := regexp.MustCompile(`\]\(([^)#]+)[^)]*\)`)
	for _, path := range readmes(t) {
		for _, m := range link.FindAllStringSubmatch(read(t, path), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			require.FileExists(t, filepath.Join(root, filepath.Dir(path), m[1]), "%s links to %s", path, m[1])
		}
	}
}
