// Package publishes reads testdata/publishes, real artifact publishes with the
// totals that a correct accountant must report, and scales them.
package publishes

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"strconv"

	"github.com/stowage-dev/stowage/ent/schematype"
)

// Blob is a blob as a line lists it. Size is in bytes.
type Blob struct {
	// Name is a file's, of a Maven version only.
	Name   string            `json:"name"`
	SHA256 schematype.Digest `json:"sha256"`
	Size   int64             `json:"size_bytes"`
}

// Publish is one line: one version of one repository.
type Publish struct {
	// Line is its number in its file; the first is 1.
	Line       int
	Format     schematype.Format
	Repository string
	// Name is the image, the package, or group id, colon and artifact id.
	Name string
	// Version is empty for container, whose version is the Digest.
	Version string
	// Reference is a container image's tag, which its platforms share; empty for
	// the other formats.
	Reference string
	// Digest of the manifest; zero for the other formats.
	Digest schematype.Digest
	// Blobs in the order of the line; a blob may stand there twice.
	Blobs []Blob
}

// record is a line of any of the three files.
type record struct {
	Format     string            `json:"format"`
	Repository string            `json:"repository"`
	Name       string            `json:"name"`
	GroupID    string            `json:"group_id"`
	ArtifactID string            `json:"artifact_id"`
	Version    string            `json:"version"`
	Reference  string            `json:"reference"`
	Digest     schematype.Digest `json:"digest"`
	Blobs      []Blob            `json:"blobs"`
	Files      []Blob            `json:"files"`
}

func (r record) publish(line int) (Publish, error) {
	format, err := schematype.ParseFormat(r.Format)
	if err != nil {
		return Publish{}, err
	}
	p := Publish{
		Line: line, Format: format, Repository: r.Repository,
		Name: r.Name, Version: r.Version, Reference: r.Reference, Digest: r.Digest, Blobs: r.Blobs,
	}
	if format == schematype.FormatMaven {
		p.Name, p.Blobs = r.GroupID+":"+r.ArtifactID, r.Files
	}
	return p, p.validate()
}

func (p Publish) validate() error {
	var errs []error
	need := func(ok bool, what string) {
		if !ok {
			errs = append(errs, errors.New(what))
		}
	}
	need(p.Repository != "", "repository is empty")
	need(p.Name != "" && p.Name != ":", "the name of what is published is empty")
	need((p.Version == "") == (p.Format == schematype.FormatContainer), "want a version, or for container a digest")
	need((p.Digest == schematype.Digest{}) == (p.Format != schematype.FormatContainer), "want a digest for container only")
	need(len(p.Blobs) > 0, "no blobs")
	for _, b := range p.Blobs {
		need((b.Name == "") == (p.Format != schematype.FormatMaven), fmt.Sprintf("blob %s: want a name for maven only", b.SHA256))
		need(b.Size > 0, fmt.Sprintf("blob %s: size_bytes %d is not above zero", b.SHA256, b.Size))
	}
	return errors.Join(errs...)
}

// Load reads the lines of all formats, container first, then maven, then npm,
// each in the order of its file.
func Load(fsys fs.FS) ([]Publish, error) {
	var all []Publish
	for _, format := range schematype.Formats() {
		lines, err := loadFile(fsys, format.String()+".jsonl")
		if err != nil {
			return nil, err
		}
		all = append(all, lines...)
	}
	return all, nil
}

func loadFile(fsys fs.FS, name string) ([]Publish, error) {
	content, err := fs.ReadFile(fsys, name)
	if err != nil {
		return nil, fmt.Errorf("read publishes: %w", err)
	}
	var lines []Publish
	scanner := bufio.NewScanner(bytes.NewReader(content))
	for scanner.Scan() {
		p, err := parse(scanner.Bytes(), len(lines)+1)
		if err != nil {
			return nil, fmt.Errorf("%s:%d: %w", name, len(lines)+1, err)
		}
		lines = append(lines, p)
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("%s:%d: %w", name, len(lines)+1, err)
	}
	return lines, nil
}

func parse(line []byte, number int) (Publish, error) {
	var r record
	if err := json.Unmarshal(line, &r); err != nil {
		return Publish{}, err
	}
	return r.publish(number)
}

// Repeat gives the lines n times. The first repetition is the input itself. In
// repetition k = 1, 2, ... every digest d becomes SHA-256(d, "/", k) and every
// version gets the suffix "+k"; repositories, names, sizes and line numbers
// stay. So blobs are shared inside a repetition as in the input and never
// across two, and every total is n times that of the input.
func Repeat(lines []Publish, n int) []Publish {
	all := make([]Publish, 0, n*len(lines))
	for k := range n {
		for _, p := range lines {
			all = append(all, p.repetition(k))
		}
	}
	return all
}

func (p Publish) repetition(k int) Publish {
	if k == 0 {
		return p
	}
	if p.Format == schematype.FormatContainer {
		p.Digest = derive(p.Digest, k)
	} else {
		p.Version += "+" + strconv.Itoa(k)
	}
	blobs := make([]Blob, 0, len(p.Blobs))
	for _, b := range p.Blobs {
		blobs = append(blobs, Blob{Name: b.Name, SHA256: derive(b.SHA256, k), Size: b.Size})
	}
	p.Blobs = blobs
	return p
}

func derive(d schematype.Digest, k int) schematype.Digest {
	return sha256.Sum256(append(d[:], "/"+strconv.Itoa(k)...))
}
