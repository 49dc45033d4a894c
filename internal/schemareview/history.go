package schemareview

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"

	atlas "ariga.io/atlas/sql/migrate"
)

// migrations is the folder of the directory below root.
const migrations = "migrations"

var fileName = regexp.MustCompile(`^[0-9]{14}(_[a-z0-9]+){2,}\.sql$`)

// history compares the directory at base with that of the working tree. It returns
// the files that are new, in their order, and what is wrong with the others: an
// applied file never changes, and what comes after it sorts after it.
func history(base, head fs.FS) (old, added []atlas.File, findings []Finding, err error) {
	old, _, err = directory(base)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("at base: %w", err)
	}
	all, stale, err := directory(head)
	if err != nil {
		return nil, nil, nil, err
	}
	if stale {
		findings = append(findings, historic("history/checksums", "atlas.sum", "atlas.sum is not that of the files: run stowage migrate hash"))
	}
	for _, file := range old {
		now, stands := find(all, named(file.Name()))
		switch {
		case !stands:
			findings = append(findings, historic("history/removed", file.Name(), "it was removed, but databases may have applied it: put it back, and undo it in a new migration"))
		case string(now.Bytes()) != string(file.Bytes()):
			findings = append(findings, historic("history/edited", file.Name(), "it was edited, but databases may have applied it as it was: put it back, and change it in a new migration"))
		}
	}
	for _, file := range all {
		if slices.ContainsFunc(old, named(file.Name())) {
			continue
		}
		findings = append(findings, misplaced(file, slices.Concat(old, added))...)
		added = append(added, file)
	}
	return old, added, findings, nil
}

// misplaced is what is wrong with the name of a new file that follows others.
func misplaced(file atlas.File, earlier []atlas.File) (findings []Finding) {
	if !fileName.MatchString(file.Name()) {
		findings = append(findings, historic("history/name", file.Name(), "its name is not <yyyymmddhhmmss>_<verb>_<object>.sql, so it sorts wherever it happens to"))
	}
	if len(earlier) == 0 {
		return findings
	}
	last := earlier[len(earlier)-1]
	if file.Version() <= last.Version() {
		findings = append(findings, historic("history/order", file.Name(), "its version is not after that of "+last.Name()+", which databases may have applied: give it a newer one"))
	}
	return findings
}

func named(name string) func(atlas.File) bool {
	return func(f atlas.File) bool { return f.Name() == name }
}

func historic(rule, file, message string) Finding {
	return Finding{Rule: rule, Blocking: true, File: file, Message: message}
}

// directory reads the files in their order, and whether their checksums are stale.
func directory(root fs.FS) (files []atlas.File, stale bool, err error) {
	entries, err := fs.ReadDir(root, migrations)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	dir := &atlas.MemDir{}
	for _, entry := range entries {
		content, err := fs.ReadFile(root, path.Join(migrations, entry.Name()))
		if err != nil {
			return nil, false, err
		}
		if err := dir.WriteFile(entry.Name(), content); err != nil {
			return nil, false, err
		}
	}
	files, err = dir.Files()
	return files, atlas.Validate(dir) != nil, err
}
