package devstack

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// postgresDirs is where Debian keeps the server binaries of each version: not
// on PATH.
const postgresDirs = "/usr/lib/postgresql/*/bin"

// The Debian packages that bring the servers.
var (
	postgresPackages = []string{"postgresql"}
	redisPackages    = []string{"redis-server"}
)

// Need is something that must be installed on this machine.
type Need struct {
	// packages bring it on Debian.
	packages []string
	found    func() bool
}

// Servers are what StartPostgres and StartRedis need.
func Servers() []Need {
	return []Need{
		{postgresPackages, func() bool { _, err := findPostgres(); return err == nil }},
		{redisPackages, func() bool { _, err := findRedis(); return err == nil }},
	}
}

// RaceDetector is what go test -race needs beside Go: a C compiler.
func RaceDetector() Need {
	return Need{[]string{"gcc", "libc6-dev"}, func() bool { _, err := exec.LookPath("gcc"); return err == nil }}
}

// Promtool is what tests the alerting rules.
func Promtool() Need {
	return Need{[]string{"prometheus"}, func() bool { _, err := exec.LookPath("promtool"); return err == nil }}
}

// MissingError says what is not installed, and how to get it.
type MissingError struct {
	// Packages are the missing Debian packages.
	Packages []string
}

func (e *MissingError) Error() string {
	packages := strings.Join(e.Packages, " ")
	return fmt.Sprintf("missing on this machine: the Debian packages %s (or their programs on PATH; PostgreSQL is also searched by pg_config --bindir and in %s); install them with: sudo apt-get update && sudo apt-get install -y --no-install-recommends %s",
		packages, postgresDirs, packages)
}

func findRedis() (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", &MissingError{Packages: redisPackages}
	}
	return path, nil
}

// findPostgres is the folder of the first PostgreSQL that has both initdb and
// postgres: the one on PATH, else pg_config's, else Debian's newest.
func findPostgres() (string, error) {
	return firstPostgres(postgresCandidates())
}

func firstPostgres(dirs []string) (string, error) {
	for _, dir := range dirs {
		if isExecutable(filepath.Join(dir, "initdb")) && isExecutable(filepath.Join(dir, "postgres")) {
			return dir, nil
		}
	}
	return "", &MissingError{Packages: postgresPackages}
}

func postgresCandidates() []string {
	var dirs []string
	// A link on PATH leads to a folder whose library and share folders
	// PostgreSQL finds beside it.
	if path, err := exec.LookPath("postgres"); err == nil {
		if target, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(target))
		}
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	debian, _ := filepath.Glob(postgresDirs) // the pattern is well formed
	return append(dirs, newestFirst(debian)...)
}

func newestFirst(dirs []string) []string {
	return slices.SortedFunc(slices.Values(dirs), func(a, b string) int {
		return cmp.Compare(debianVersion(b), debianVersion(a))
	})
}

// debianVersion is the 15 of /usr/lib/postgresql/15/bin, 0 if it is no number.
func debianVersion(dir string) float64 {
	version, _ := strconv.ParseFloat(filepath.Base(filepath.Dir(dir)), 64)
	return version
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
