package schemareview

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

const ruleFormat = "format"

// format finds a file that pg_format would change. Its settings are those of the
// file .pg_format at the top of the repository, as for whoever runs it there. The
// comment that begins the file is left out, because pg_format would remove the
// empty line behind it, which makes it one about the file for Atlas and for us.
func format(ctx context.Context, root string, files []*File) (found []Finding, err error) {
	top, err := git(ctx, root, "rev-parse", "--show-toplevel")
	if err != nil {
		return nil, err
	}
	var args []string
	settings := filepath.Join(strings.TrimSpace(string(top)), ".pg_format")
	if _, err := os.Stat(settings); !errors.Is(err, os.ErrNotExist) {
		args = append(args, "--config", settings)
	}
	for _, file := range files {
		problem, err := formatFile(ctx, args, file)
		if err != nil {
			return nil, err
		}
		if problem != "" {
			found = append(found, Finding{Rule: ruleFormat, Blocking: true, File: file.Name, Message: problem})
		}
	}
	return found, nil
}

// formatFile says what is wrong, or nothing.
func formatFile(ctx context.Context, args []string, file *File) (problem string, err error) {
	cmd := exec.CommandContext(ctx, "pg_format", slices.Concat(args, []string{"-"})...)
	head, body := file.split()
	cmd.Stdin = strings.NewReader(body)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("pg_format on %s: %w: %s", file.Name, err, bytes.TrimSpace(stderr.Bytes()))
	}
	if string(out) == body {
		return "", nil
	}
	advice := "run pg_format -i on it"
	if head != "" {
		advice += ", and put back the empty line behind the first comment"
	}
	return fmt.Sprintf("it is not formatted, first in line %d: %s", strings.Count(head, "\n")+firstDifference(string(out), body), advice), nil
}

func firstDifference(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return 1 + strings.Count(a[:i], "\n")
		}
	}
	return 1 + strings.Count(a[:min(len(a), len(b))], "\n")
}
