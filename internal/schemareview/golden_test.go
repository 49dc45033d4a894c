package schemareview_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/schemareview"
)

// updateGolden names the variable that makes the test write the comments anew.
const updateGolden = "STOWAGE_TEST_UPDATE_GOLDEN"

// Each folder of testdata is a change: migrations in the order of their names, and
// what is declared. review.md is the comment about it, which a reviewer of a change
// to the rules reads.
func TestGoldenReviews(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"good", "rows", "text", "compat", "required", "fails", "allowed"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			report := reviewOfFolder(t, filepath.Join("testdata", name))
			got := strings.ReplaceAll(markdown(t, report), fmt.Sprintf("PostgreSQL %d", report.Server), "PostgreSQL N")
			golden := filepath.Join("testdata", name, "review.md")
			if os.Getenv(updateGolden) != "" {
				require.NoError(t, os.WriteFile(golden, []byte(got), 0o600))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			require.Equal(t, string(want), got, "if that is right, run the test with %s=1 and read the difference", updateGolden)
		})
	}
}

// Each rule of the project, and of the library, has a change that it is against, and
// is silent about the good one.
func TestEveryRuleIsInAGoldenReview(t *testing.T) {
	t.Parallel()
	golden, err := filepath.Glob("testdata/*/review.md")
	require.NoError(t, err)
	fired := map[string]bool{}
	for _, file := range golden {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		for _, match := range regexp.MustCompile("(?m)^\\| (?:blocks|allowed) \\| `([^`]+)`").FindAllStringSubmatch(string(content), -1) {
			fired[match[1]] = true
		}
		if filepath.Base(filepath.Dir(file)) == "good" {
			require.Contains(t, string(content), "Schema review: passed")
			require.NotContains(t, string(content), "### Findings")
		}
	}
	for rule := range strings.FieldsSeq(`
		fails fails-on-rows table-rewrite concurrent-index constraint-not-valid not-null-scan blocking-scan
		replace-function object-name no-enum data-change every-row one-statement no-statement set-local declared-source format
		suppression/reason suppression/unused
		atlas/DS102 atlas/DS103 atlas/CD101 atlas/BC101 atlas/BC102 atlas/MF101 atlas/MF103 atlas/MF104
		compat/table-dropped compat/table-renamed compat/row-security compat/column-dropped compat/column-renamed
		compat/column-type compat/column-not-null compat/column-required compat/column-generated compat/default-dropped
		compat/constraint-added compat/unique-dropped compat/function-dropped compat/function-signature
		compat/function-result compat/trigger-refuses compat/trigger-changed compat/trigger-dropped compat/type-dropped
		squawk/prefer-timestamp-tz squawk/prefer-text-field`) {
		require.True(t, fired[rule], rule)
	}
}

func reviewOfFolder(t *testing.T, folder string) *schemareview.Report {
	t.Helper()
	r := newRepository(t)
	files, err := filepath.Glob(filepath.Join(folder, "*.sql"))
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for i, file := range files {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		r.writeRaw(t, newName(i), string(content))
	}
	declared, err := filepath.Glob(filepath.Join(folder, "t*", "*.sql"))
	require.NoError(t, err)
	for _, file := range declared {
		content, err := os.ReadFile(file)
		require.NoError(t, err)
		inRoot, err := filepath.Rel(folder, file)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(r.root(), inRoot), content, 0o600))
	}
	return r.review(t)
}
