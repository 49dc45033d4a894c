package devstack

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLintersAreFetched(t *testing.T) {
	t.Setenv("PATH", npmWith(t, "linters/package-lock.json", "mkdir -p "+squawkBin()+"; echo >"+squawkBin()+"/squawk; chmod +x "+squawkBin()+"/squawk"))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var out bytes.Buffer
	require.NoError(t, FetchLinters(t.Context(), &out))
	require.Contains(t, out.String(), "npm ci")
	dir, err := LinterPath()
	require.NoError(t, err)
	require.FileExists(t, filepath.Join(dir, "squawk"))
}

func TestLintersThatDoNotComeAreTold(t *testing.T) {
	t.Setenv("PATH", npmWith(t, "linters/package-lock.json", ""))
	cache := t.TempDir()
	t.Setenv("XDG_CACHE_HOME", cache)
	require.ErrorContains(t, FetchLinters(t.Context(), &bytes.Buffer{}), "npm brought no squawk for linux/")
	entries, err := os.ReadDir(filepath.Join(cache, "stowage"))
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestLinterPinsNameNoRegistry(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"linters/package.json", "linters/package-lock.json"} {
		content, err := linters.ReadFile(file)
		require.NoError(t, err)
		require.NotContains(t, string(content), "http")
		require.Contains(t, string(content), "squawk-arm64")
	}
}
