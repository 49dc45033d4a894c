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

// linters pins squawk for each kind of machine, at one version, so that every
// machine finds the same.
//
//go:embed linters/package.json linters/package-lock.json
var linters embed.FS

func linterPins() npmPins {
	return npmPins{files: linters, folder: "linters", name: "linters", complete: func(_ context.Context, dir string) error {
		if !isExecutable(filepath.Join(dir, squawkBin(), "squawk")) {
			return fmt.Errorf("setup: npm brought no squawk for %s/%s: is its registry reached, and is there one for this machine?", runtime.GOOS, runtime.GOARCH)
		}
		return nil
	}}
}

// squawkBin is where npm puts squawk, below the folder it works in.
func squawkBin() string {
	return filepath.Join("node_modules", "squawk-"+runtime.GOARCH, "bin")
}

// FetchLinters fetches what lints migrations and is no Debian package, which is
// squawk, by npm, once, into this account's cache folder, and writes to out what
// it does. When it fails, or ctx ends, it leaves nothing.
func FetchLinters(ctx context.Context, out io.Writer) error {
	return linterPins().fetch(ctx, out)
}

// LinterPath is the folder that FetchLinters fills, for PATH. What does not find
// squawk there tells how to get it.
func LinterPath() (string, error) {
	dir, err := linterPins().cached()
	return filepath.Join(dir, squawkBin()), err
}

// PgFormat is what formats SQL.
func PgFormat() Need {
	return Need{[]string{"pgformatter"}, func() bool { _, err := exec.LookPath("pg_format"); return err == nil }}
}
