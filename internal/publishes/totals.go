package publishes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"

	"github.com/stowage-dev/stowage/ent/schematype"
)

// Totals are what an accountant must report for a set of versions in one
// namespace. Bytes count a blob that stands twice in a version once.
type Totals struct {
	Versions int64 `json:"versions"`
	// LogicalBytes is the sum over versions.
	LogicalBytes  int64 `json:"logical_bytes"`
	DistinctBlobs int64 `json:"distinct_blobs"`
	// DeduplicatedBytes counts each distinct blob of the namespace once.
	DeduplicatedBytes int64 `json:"deduplicated_bytes"`
}

// Overall is the key of the totals of all formats together in Expected.
const Overall = "overall"

// Expected is totals.json: totals by the name of the format, and Overall.
type Expected struct {
	AllPublished  map[string]Totals `json:"all_lines_published"`
	AfterDeletion map[string]Totals `json:"after_deleting_even_lines_and_gc"`
}

// LoadExpected reads totals.json.
func LoadExpected(fsys fs.FS) (Expected, error) {
	const name = "totals.json"
	content, err := fs.ReadFile(fsys, name)
	if err != nil {
		return Expected{}, fmt.Errorf("read expected totals: %w", err)
	}
	var e Expected
	if err := json.Unmarshal(content, &e); err != nil {
		return Expected{}, fmt.Errorf("%s: %w", name, err)
	}
	return e, nil
}

// Check fails when the lines do not have the expected totals: then the one or
// the other was changed.
func (e Expected) Check(lines []Publish) error {
	return errors.Join(
		check("all_lines_published", e.AllPublished, lines),
		check("after_deleting_even_lines_and_gc", e.AfterDeletion, Kept(lines)))
}

func check(what string, want map[string]Totals, lines []Publish) error {
	byFormat := map[string][]Publish{Overall: lines}
	for _, p := range lines {
		byFormat[p.Format.String()] = append(byFormat[p.Format.String()], p)
	}
	var errs []error
	for format, some := range byFormat {
		if got := Sum(some); got != want[format] {
			errs = append(errs, fmt.Errorf("totals.json: %s.%s is %+v, but the lines give %+v", what, format, want[format], got))
		}
	}
	return errors.Join(errs...)
}

// Sum computes the totals of lines that are published into one namespace.
func Sum(lines []Publish) Totals {
	var t Totals
	namespace := make(map[schematype.Digest]bool)
	for _, p := range lines {
		t.Versions++
		version := make(map[schematype.Digest]bool, len(p.Blobs))
		for _, b := range p.Blobs {
			if !version[b.SHA256] {
				version[b.SHA256] = true
				t.LogicalBytes += b.Size
			}
			if !namespace[b.SHA256] {
				namespace[b.SHA256] = true
				t.DistinctBlobs++
				t.DeduplicatedBytes += b.Size
			}
		}
	}
	return t
}

// Times is n times the totals.
func (t Totals) Times(n int64) Totals {
	return Totals{
		Versions:          n * t.Versions,
		LogicalBytes:      n * t.LogicalBytes,
		DistinctBlobs:     n * t.DistinctBlobs,
		DeduplicatedBytes: n * t.DeduplicatedBytes,
	}
}

// Kept are the lines that stay when every second line of each file is deleted:
// numbers 1, 3, 5, ...
func Kept(lines []Publish) []Publish { return filter(lines, 1) }

// Deleted are the lines with the numbers 2, 4, 6, ...
func Deleted(lines []Publish) []Publish { return filter(lines, 0) }

func filter(lines []Publish, remainder int) []Publish {
	var some []Publish
	for _, p := range lines {
		if p.Line%2 == remainder {
			some = append(some, p)
		}
	}
	return some
}
