package devstack

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// PostgresVersions are those that Stowage is tested on, oldest first.
func PostgresVersions() []int { return []int{15, 16, 17, 18} }

// servers pins one package for each version and machine. npm installs those
// that fit this machine, and checks them against the lock file's digests.
//
//go:embed servers/package.json servers/package-lock.json
var servers embed.FS

var npmPackages = []string{"nodejs", "npm"}

// Npm is what FetchPostgres needs.
func Npm() Need {
	return Need{npmPackages, func() bool { _, err := findNpm(); return err == nil }}
}

func findNpm() (string, error) {
	_, nodeErr := exec.LookPath("node")
	npm, err := exec.LookPath("npm")
	if err := errors.Join(err, nodeErr); err != nil {
		return "", &MissingError{Packages: npmPackages}
	}
	return npm, nil
}

// FetchPostgres fetches a server of each of PostgresVersions by npm, once, into
// this account's cache folder, and writes to out what it does. When it fails, or
// ctx ends, it leaves nothing.
func FetchPostgres(ctx context.Context, out io.Writer) (err error) {
	dir, err := fetchedServers()
	if err != nil || isDirectory(dir) {
		return err
	}
	npm, err := findNpm()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(dir), 0o755); err != nil {
		return err
	}
	partial, err := os.MkdirTemp(filepath.Dir(dir), "partial-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(partial)) }()
	if err := fetchInto(ctx, out, npm, partial); err != nil {
		return err
	}
	// Of two that fetch at once the later one finds the folder there, complete.
	if err := os.Rename(partial, dir); err != nil && !isDirectory(dir) {
		return err
	}
	return nil
}

func fetchInto(ctx context.Context, out io.Writer, npm, dir string) error {
	pins, err := fs.Sub(servers, "servers")
	if err != nil {
		return err
	}
	if err := os.CopyFS(dir, pins); err != nil {
		return err
	}
	if err := runLoud(ctx, out, npm, "ci", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund"); err != nil {
		return err
	}
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

// fetchedServers is the folder of the fetched servers. It is named after what is
// pinned, so that other pins are fetched anew.
func fetchedServers() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep PostgreSQL servers: %w: set XDG_CACHE_HOME", err)
	}
	lock, err := servers.ReadFile("servers/package-lock.json")
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(lock)
	return filepath.Join(cache, "stowage", "postgres-"+hex.EncodeToString(sum[:6])), nil
}

// fetchedPostgres is the folder with bin, lib and share of a fetched version.
func fetchedPostgres(version int) (string, error) {
	dir, err := fetchedServers()
	if err != nil {
		return "", err
	}
	native := filepath.Join(dir, serverPackage(version), "native")
	if !isExecutable(filepath.Join(native, "bin", "postgres")) {
		return "", fmt.Errorf("PostgreSQL %d is not on this machine, in %s: fetch it with stowagelab setup --postgres", version, native)
	}
	return native, nil
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
