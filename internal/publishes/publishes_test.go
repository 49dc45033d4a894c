package publishes

import (
	"io/fs"
	"os"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/schematype"
)

const dataDir = "../../testdata/publishes"

func load(t *testing.T) ([]Publish, Expected) {
	t.Helper()
	lines, err := Load(os.DirFS(dataDir))
	require.NoError(t, err)
	expected, err := LoadExpected(os.DirFS(dataDir))
	require.NoError(t, err)
	return lines, expected
}

func TestInputHasTheStatedTotals(t *testing.T) {
	t.Parallel()
	lines, expected := load(t)
	require.NoError(t, expected.Check(lines))
	require.Len(t, expected.AllPublished, len(schematype.Formats())+1)
	require.Len(t, lines, len(Kept(lines))+len(Deleted(lines)))
	require.Equal(t, expected.AllPublished[Overall], Sum(lines))
	require.Equal(t, expected.AfterDeletion[Overall], Sum(Kept(lines)))

	err := expected.Check(lines[1:])
	require.ErrorContains(t, err, "all_lines_published.container is ")
	require.ErrorContains(t, err, "after_deleting_even_lines_and_gc.overall is ")
	require.NotContains(t, err.Error(), "npm")
}

func TestVersionsAreDistinct(t *testing.T) {
	t.Parallel()
	lines, _ := load(t)
	requireDistinct(t, lines)
}

func TestRepeatScalesEveryTotal(t *testing.T) {
	t.Parallel()
	lines, expected := load(t)
	const n = 3
	repeated := Repeat(lines, n)
	require.Equal(t, lines, repeated[:len(lines)], "the first repetition is the input")
	require.Equal(t, expected.AllPublished[Overall].Times(n), Sum(repeated))
	require.Equal(t, expected.AfterDeletion[Overall].Times(n), Sum(Kept(repeated)))
	require.Equal(t, repeated, Repeat(lines, n), "the same each time")
	requireDistinct(t, repeated)
}

func requireDistinct(t *testing.T, lines []Publish) {
	t.Helper()
	type key struct {
		repository, name, version string
		digest                    schematype.Digest
	}
	seen := make(map[key]Publish)
	for _, p := range lines {
		k := key{p.Repository, p.Name, p.Version, p.Digest}
		require.NotContains(t, seen, k)
		seen[k] = p
	}
}

func TestLoadNamesTheMistakenLine(t *testing.T) {
	t.Parallel()
	const digest = "ca7dd9ec2225f2385955c43b2379305acd51543c28cf1d4e94522b3d94cce3ce"
	const good = `{"format":"npm","repository":"r","name":"ms","version":"1","blobs":[{"sha256":"` + digest + `","size_bytes":1}]}`
	for name, tc := range map[string]struct{ line, want string }{
		"no JSON":        {`{`, "npm.jsonl:2: unexpected end of JSON input"},
		"unknown format": {`{"format":"pypi"}`, `npm.jsonl:2: format "pypi" is unknown`},
		"no blobs":       {`{"format":"npm","repository":"r","name":"ms","version":"1"}`, "npm.jsonl:2: no blobs"},
		"size zero": {
			`{"format":"npm","repository":"r","name":"ms","version":"1","blobs":[{"sha256":"` + digest + `"}]}`,
			"size_bytes 0 is not above zero",
		},
		"bad digest": {
			`{"format":"npm","blobs":[{"sha256":"abc"}]}`,
			`npm.jsonl:2: digest "abc": want 64 lower-case hex digits`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Load(fstest.MapFS{
				"container.jsonl": {}, "maven.jsonl": {}, "npm.jsonl": {Data: []byte(good + "\n" + tc.line)},
			})
			require.ErrorContains(t, err, tc.want)
		})
	}
}

func TestMissingFilesAreErrors(t *testing.T) {
	t.Parallel()
	_, err := Load(fstest.MapFS{})
	require.ErrorIs(t, err, fs.ErrNotExist)
	_, err = LoadExpected(fstest.MapFS{})
	require.ErrorIs(t, err, fs.ErrNotExist)
}
