package dbtest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
)

func TestNewIsMigratedAndAlone(t *testing.T) {
	t.Parallel()
	one, other := dbtest.New(t), dbtest.New(t)

	_, err := one.Exec(t.Context(), "INSERT INTO namespaces (id, slug) VALUES (gen_random_uuid(), 'a')")
	require.NoError(t, err)

	var path string
	var rows int
	require.NoError(t, other.QueryRow(t.Context(), "SELECT current_setting('search_path'), (SELECT count(*) FROM namespaces)").Scan(&path, &rows))
	require.Equal(t, "public", path)
	require.Zero(t, rows, "the tests share a database")
}
