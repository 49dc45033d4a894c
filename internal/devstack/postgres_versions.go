package devstack

import (
	"context"
	"embed"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"runtime"
)

// PostgresVersions are those that Stowage is tested on, oldest first.
func PostgresVersions() []int { return []int{15, 16, 17, 18} }

// servers pins one package for each version and machine.
//
//go:embed servers/package.json servers/package-lock.json
var servers embed.FS

func serverPins() npmPins {
	return npmPins{files: servers, folder: "servers", name: "postgres", complete: hydrateServers}
}

// FetchPostgres fetches a server of each of PostgresVersions by npm, once, into
// this account's cache folder, and writes to out what it does. When it fails, or
// ctx ends, it leaves nothing.
func FetchPostgres(ctx context.Context, out io.Writer) error {
	return serverPins().fetch(ctx, out)
}

// hydrateServers makes the packages in dir to servers that run.
func hydrateServers(ctx context.Context, dir string) error {
	for _, version := range PostgresVersions() {
		folder := filepath.Join(dir, serverPackage(version))
		// The packages are optional, because each fits one kind of machine: npm
		// passes over what it could not get.
		if !isDirectory(folder) {
			return fmt.Errorf("setup: npm brought no PostgreSQL %d for %s/%s: is its registry reached, and is there one for this machine?", version, runtime.GOOS, runtime.GOARCH)
		}
		// The packages hold no links; this script of theirs makes them, and works
		// on the folder it is called in.
		cmd := exec.CommandContext(ctx, "node", "scripts/hydrate-symlinks.js")
		cmd.Dir = folder
		if output, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("setup: PostgreSQL %d: node scripts/hydrate-symlinks.js: %w: %s", version, err, output)
		}
	}
	return nil
}

// serverPackage is where npm puts a version, below the folder it works in.
func serverPackage(version int) string {
	return filepath.Join("node_modules", fmt.Sprintf("postgres-%d-%s", version, runtime.GOARCH))
}

// fetchedPostgres is the folder with bin, lib and share of a fetched version.
func fetchedPostgres(version int) (string, error) {
	dir, err := serverPins().cached()
	if err != nil {
		return "", err
	}
	native := filepath.Join(dir, serverPackage(version), "native")
	if !isExecutable(filepath.Join(native, "bin", "postgres")) {
		return "", fmt.Errorf("PostgreSQL %d is not on this machine, in %s: fetch it with stowagelab setup --postgres", version, native)
	}
	return native, nil
}
