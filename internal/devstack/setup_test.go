package devstack

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// fakeAPT is a folder with an apt-get in it. The script may make $program.
func fakeAPT(t *testing.T, script string) (dir, program string) {
	t.Helper()
	dir = t.TempDir()
	program = filepath.Join(dir, "program")
	content := "#!/bin/sh\nprogram=" + program + "\necho apt \"$@\"\n" + script + "\n"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "apt-get"), []byte(content), 0o700))
	return dir, program
}

func needFile(path string) Need {
	return Need{[]string{"some-package", "libsome-dev"}, func() bool { _, err := os.Stat(path); return err == nil }}
}

func TestSetupInstallsWhatIsMissingAsRoot(t *testing.T) {
	dir, program := fakeAPT(t, `[ "$1" = update ] || : >"$program"`)
	t.Setenv("PATH", dir)
	var out bytes.Buffer
	require.NoError(t, setup(t.Context(), &out, true, []Need{needFile(program)}))
	apt := filepath.Join(dir, "apt-get")
	require.Equal(t, "setup: "+apt+" update\napt update\n"+
		"setup: "+apt+" install -y --no-install-recommends some-package libsome-dev\n"+
		"apt install -y --no-install-recommends some-package libsome-dev\n", out.String())

	out.Reset()
	require.NoError(t, setup(t.Context(), &out, true, []Need{needFile(program)}))
	require.Empty(t, out.String(), "nothing is missing any more")
}

func TestSetupFailsWhenTheInstallationDoesNotHelp(t *testing.T) {
	dir, program := fakeAPT(t, "")
	t.Setenv("PATH", dir)
	err := setup(t.Context(), &bytes.Buffer{}, true, []Need{needFile(program)})
	require.ErrorContains(t, err, "after the installation")

	dir, _ = fakeAPT(t, "exit 100")
	t.Setenv("PATH", dir)
	require.ErrorContains(t, setup(t.Context(), &bytes.Buffer{}, true, []Need{needFile(program)}), "exit status 100")
}

func TestSetupTellsOthersWhatToInstall(t *testing.T) {
	dir, program := fakeAPT(t, `: >"$program"`)
	for name, tc := range map[string]struct {
		root bool
		path string
	}{
		"an ordinary user":     {false, dir},
		"no Debian to install": {true, t.TempDir()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("PATH", tc.path)
			var out bytes.Buffer
			err := setup(t.Context(), &out, tc.root, []Need{needFile(program), needFile("/")})
			var missing *MissingError
			require.ErrorAs(t, err, &missing)
			require.Equal(t, []string{"some-package", "libsome-dev"}, missing.Packages)
			require.ErrorContains(t, err, "sudo apt-get update && sudo apt-get install -y --no-install-recommends some-package libsome-dev")
			require.Empty(t, out.String())
		})
	}
}

func TestStartWithoutBinariesNamesThePackage(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	_, err := StartRedis(t.Context(), RedisOptions{})
	var missing *MissingError
	require.ErrorAs(t, err, &missing)
	require.Equal(t, []string{"redis-server"}, missing.Packages)
	require.Contains(t, missingPackages(Servers()), "redis-server")

	_, err = firstPostgres([]string{t.TempDir()})
	require.ErrorAs(t, err, &missing)
	require.Equal(t, []string{"postgresql"}, missing.Packages)
}

func TestNewestPostgresOfDebianFirst(t *testing.T) {
	t.Parallel()
	require.Equal(t, []string{"/p/18/bin", "/p/15/bin", "/p/9.6/bin"},
		newestFirst([]string{"/p/15/bin", "/p/18/bin", "/p/9.6/bin"}))
}

func TestFailedStartShowsTheLogAndLeavesNothing(t *testing.T) {
	tmp := t.TempDir()
	bin := t.TempDir()
	script := []byte("#!/bin/sh\necho cannot serve today\nexit 3\n")
	require.NoError(t, os.WriteFile(filepath.Join(bin, "redis-server"), script, 0o700))
	t.Setenv("TMPDIR", tmp)
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	_, err := StartRedis(t.Context(), RedisOptions{})
	require.ErrorContains(t, err, "redis-server ended before it answered (exit status 3):\ncannot serve today")
	entries, err := os.ReadDir(tmp)
	require.NoError(t, err)
	require.Empty(t, entries)
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := StartRedis(ctx, RedisOptions{})
	require.ErrorIs(t, err, context.Canceled)
	_, err = StartPostgres(ctx, PostgresOptions{})
	require.ErrorIs(t, err, context.Canceled)
}
