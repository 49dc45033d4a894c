package devstack

import (
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

// The Debian packages that bring the binaries.
const (
	postgresPackage = "postgresql"
	redisPackage    = "redis-server"
)

// MissingError says that server binaries are not installed, and how to get
// them.
type MissingError struct {
	// Packages are the missing Debian packages.
	Packages []string
}

func (e *MissingError) Error() string {
	packages := strings.Join(e.Packages, " ")
	return fmt.Sprintf("devstack: no server binaries of the Debian packages: %s (searched PATH, pg_config --bindir and %s); install them with: sudo apt-get update && sudo apt-get install -y %s",
		packages, postgresDirs, packages)
}

// Missing are the Debian packages whose binaries are not found, in a fixed
// order.
func Missing() []string {
	var missing []string
	if _, err := findPostgres(); err != nil {
		missing = append(missing, postgresPackage)
	}
	if _, err := findRedis(); err != nil {
		missing = append(missing, redisPackage)
	}
	return missing
}

func findRedis() (string, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return "", &MissingError{Packages: []string{redisPackage}}
	}
	return path, nil
}

// findPostgres is the folder of the first PostgreSQL that has both initdb and
// postgres: the one on PATH, else pg_config's, else Debian's newest.
func findPostgres() (string, error) {
	for _, dir := range postgresCandidates() {
		if isExecutable(filepath.Join(dir, "initdb")) && isExecutable(filepath.Join(dir, "postgres")) {
			return dir, nil
		}
	}
	return "", &MissingError{Packages: []string{postgresPackage}}
}

func postgresCandidates() []string {
	var dirs []string
	// A link on PATH leads to a folder whose library and share folders
	// PostgreSQL finds beside it.
	if path, err := exec.LookPath("postgres"); err == nil {
		if real, err := filepath.EvalSymlinks(path); err == nil {
			dirs = append(dirs, filepath.Dir(real))
		}
	}
	if out, err := exec.Command("pg_config", "--bindir").Output(); err == nil {
		dirs = append(dirs, strings.TrimSpace(string(out)))
	}
	debian, _ := filepath.Glob(postgresDirs) // the pattern is well formed
	slices.SortFunc(debian, func(a, b string) int { return debianVersion(b) - debianVersion(a) })
	return append(dirs, debian...)
}

// debianVersion is the 15 of /usr/lib/postgresql/15/bin, 0 if it is no number.
func debianVersion(dir string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(dir)))
	return n
}

func isExecutable(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0
}
