package schemadiff_test

import (
	"path/filepath"
	"testing"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/schemadiff"
)

// The tests of the committed directory can fail. That it is compared with the
// entities and the declared SQL, the tests of Diff prove.

func TestSchemaSQLFallsBehindAMigration(t *testing.T) {
	t.Parallel()
	c := newCheckout(t)
	c.write(t, "migrations/29990101000000_add_namespaces_note.sql", "ALTER TABLE namespaces ADD COLUMN note text;\n")
	require.NoError(t, schemadiff.Hash(string(c)))
	dump, err := schemadiff.Dump(t.Context(), dbtest.ServerURL(t), string(c))
	require.NoError(t, err)
	require.Contains(t, dump, "note text")
	require.NotEqual(t, c.read(t, "schema.sql"), dump)
}

func TestChecksumsFallBehind(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ file, content string }{
		"a file that was edited": {"20261130100002_create_namespace_statistics.sql", "SELECT 1;"},
		"a file that is new":     {"29990101000000_add_it.sql", "SELECT 1;"},
		"a file that is gone":    {"20261130100001_create_namespaces_and_repositories.sql", ""},
		"no checksums at all":    {"atlas.sum", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCheckout(t)
			if tc.content == "" {
				c.remove(t, "migrations/"+tc.file)
			} else {
				c.write(t, "migrations/"+tc.file, tc.content)
			}
			dir, err := atlas.NewLocalDir(filepath.Join(string(c), "migrations"))
			require.NoError(t, err)
			require.Error(t, atlas.Validate(dir))
		})
	}
}
