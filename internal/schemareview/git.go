package schemareview

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing/fstest"
)

// programs finds what a review runs. To skip a linter that is missing would be to
// find nothing.
func programs() error {
	for _, p := range []struct{ name, install string }{
		{"git", "install it"},
		{"pg_format", "install the Debian package pgformatter, as stowagelab setup --tests does"},
		{"squawk", "fetch it with stowagelab setup --tests and run this in stowagelab run, as make review does, or: npm install --global squawk-cli"},
	} {
		if _, err := exec.LookPath(p.name); err != nil {
			return needs("%s is not on PATH, and without it nothing would be found: %s", p.name, p.install)
		}
	}
	return nil
}

// atRef is the folder root as it is at a git ref. It takes nothing from the
// working tree and leaves it as it is. A ref without the folder gives none of its
// files.
func atRef(ctx context.Context, root, ref string) (fstest.MapFS, error) {
	if _, err := os.Stat(root); err != nil {
		return nil, needs("%v: run this at the top of the repository, or name the folder with --root", err)
	}
	if _, err := git(ctx, root, "rev-parse", "--show-toplevel"); err != nil {
		return nil, needs("%s is not in a git repository: %v", root, err)
	}
	commit, err := git(ctx, root, "rev-parse", "--verify", "--quiet", "--end-of-options", ref+"^{commit}")
	if err != nil {
		return nil, needs("base %q: no such commit here: fetch it (a shallow clone has only the newest: git fetch --unshallow), or name another", ref)
	}
	hash := strings.TrimSpace(string(commit))
	listed, err := git(ctx, root, "ls-tree", "--name-only", hash)
	if err != nil || len(listed) == 0 {
		return fstest.MapFS{}, err
	}
	archive, err := git(ctx, root, "archive", "--format=tar", hash)
	if err != nil {
		return nil, err
	}
	return untar(archive)
}

func untar(archive []byte) (fstest.MapFS, error) {
	files := fstest.MapFS{}
	for r := tar.NewReader(bytes.NewReader(archive)); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files, nil
		}
		if err != nil {
			return nil, fmt.Errorf("git archive: %w", err)
		}
		if header.Typeflag != tar.TypeReg {
			continue
		}
		content, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("git archive: %w", err)
		}
		files[filepath.ToSlash(header.Name)] = &fstest.MapFile{Data: content}
	}
}

func git(ctx context.Context, dir string, args ...string) ([]byte, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = dir
	out, err := cmd.Output()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return nil, fmt.Errorf("git %s: %s", strings.Join(args, " "), bytes.TrimSpace(exit.Stderr))
	}
	return out, err
}
