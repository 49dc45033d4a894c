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
	"path"
	"path/filepath"
)

var npmPackages = []string{"nodejs", "npm"}

// Npm is what FetchPostgres and FetchLinters need.
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

// npmPins are packages of npm at exact versions. npm installs those that fit
// this machine, and checks them against the lock file's digests.
type npmPins struct {
	files  embed.FS
	folder string // of package.json and package-lock.json in files
	name   string // begins the name of the folder in the cache
	// complete checks what npm brought into dir, and makes it fit for use.
	complete func(ctx context.Context, dir string) error
}

// cached is the folder of what is fetched, whether it is there or not. It is
// named after what is pinned, so that other pins are fetched anew.
func (p npmPins) cached() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("where to keep what npm brings: %w: set XDG_CACHE_HOME", err)
	}
	lock, err := p.files.ReadFile(path.Join(p.folder, "package-lock.json"))
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(lock)
	return filepath.Join(cache, "stowage", p.name+"-"+hex.EncodeToString(sum[:6])), nil
}

// fetch makes the cached folder, complete or not at all.
func (p npmPins) fetch(ctx context.Context, out io.Writer) (err error) {
	dir, err := p.cached()
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
	if err := p.fetchInto(ctx, out, npm, partial); err != nil {
		return err
	}
	// Of two that fetch at once the later one finds the folder there, complete.
	if err := os.Rename(partial, dir); err != nil && !isDirectory(dir) {
		return err
	}
	return nil
}

func (p npmPins) fetchInto(ctx context.Context, out io.Writer, npm, dir string) error {
	pins, err := fs.Sub(p.files, p.folder)
	if err != nil {
		return err
	}
	if err := os.CopyFS(dir, pins); err != nil {
		return err
	}
	if err := runLoud(ctx, out, npm, "ci", "--prefix", dir, "--ignore-scripts", "--no-audit", "--no-fund"); err != nil {
		return err
	}
	return p.complete(ctx, dir)
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
