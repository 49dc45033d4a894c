package enthook

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/versions"
)

func TestEveryFormatNeedsACountingPath(t *testing.T) {
	t.Parallel()
	require.NoError(t, Register(ent.NewClient()))

	used := 0
	paths := map[schematype.Format]path{}
	for _, format := range append(schematype.Formats(), 4) {
		paths[format] = path{
			use:  func(hooks ...ent.Hook) { used += len(hooks) },
			hook: func(versions.Table) ent.Hook { return forgetRepositories },
		}
	}
	require.NoError(t, register(schematype.Formats(), paths))
	require.Equal(t, len(schematype.Formats()), used)

	err := register(append(schematype.Formats(), 4), paths)
	require.ErrorIs(t, err, ErrNoCountingPath, "a hook without a table")
	require.ErrorContains(t, err, "format(4)")

	delete(paths, schematype.FormatMaven)
	err = register(schematype.Formats(), paths)
	require.ErrorIs(t, err, ErrNoCountingPath, "a table without a hook")
	require.ErrorContains(t, err, "maven")
}
