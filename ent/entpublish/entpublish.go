// Package entpublish is a registry's write path: publishing versions with
// their content, tagging, hiding and restoring, purging, and collecting blobs
// that nothing refers to any more. Every function works in a counted
// transaction of ent/entdb, joins whatever else the registry does in it, and
// counts what the database really changed. See README.md.
package entpublish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/versions"
)

// Sentinel errors, beside ErrRepository, ErrVirtual, ErrSoftDeleted, ErrDeleting
// and ErrFormat of entdb. After any error return it from the function given to
// WithTx, which rolls back.
var (
	// ErrNotFound says that the version, file, tag, blob, child or namespace is
	// not there; the text says which.
	ErrNotFound = entdb.ErrNotFound
	// ErrConflict says that what is there does not agree with what was asked:
	// a version has other content, a blob another size, or an image index refers
	// to a manifest that was to be purged.
	ErrConflict = errors.New("conflicts with what is there")
	// ErrImmutable is an ErrConflict: what was published does not change. Purge
	// the npm version, or delete the Maven file, first.
	ErrImmutable = fmt.Errorf("%w: published content is immutable", ErrConflict)
	// ErrInvalid says that the arguments cannot be stored; the text names the
	// field and the value. Nothing was asked of the database, or only what the
	// repository is.
	ErrInvalid = errors.New("invalid")
)

const (
	// maxBlobSize is the largest size of a blob or a version in bytes: 2^50, the
	// bound of the CHECK constraints.
	maxBlobSize = 1 << 50
	// maxText bounds names, versions, tags and paths in bytes, so that two of
	// them fit into an index entry of PostgreSQL.
	maxText = 1024
)

// Blob is a piece of content, kept once a namespace.
type Blob struct {
	Digest schematype.Digest
	// Size is in bytes.
	Size int64
}

// File is a file of a Maven version.
type File struct {
	// Path is below the version's folder, mostly a file name alone.
	Path string
	Blob
}

// Ref names a version by its natural key.
type Ref struct {
	RepositoryID uuid.UUID
	// Name is the image's name, the Maven coordinates group:artifact, or the
	// npm package's name.
	Name string
	// Version is for Maven and npm; leave it empty for containers. The empty
	// version of a Maven artifact holds the artifact's own metadata files.
	Version string
	// Digest is the manifest's, for containers only.
	Digest schematype.Digest
}

// Version is what is published: a version with its content, in any order.
type Version struct {
	Ref
	// Blobs are those of a manifest or the tarball of an npm version. A blob
	// that is listed twice counts once. Whether a manifest's own bytes are among
	// its blobs is the registry's to decide.
	Blobs []Blob
	// Children are the manifests that an image index refers to, of the same name
	// in the same repository.
	Children []schematype.Digest
	// Files are for Maven: those that are deployed now, checksums and metadata
	// among them. Files of the version that are not listed stay.
	Files []File
}

// Published says what a publish did.
type Published struct {
	// ID is the version's.
	ID uuid.UUID
	// Created is true when the version was new.
	Created bool
	// Restored is true when it was soft-deleted and is not any more.
	Restored bool
	// Size is the version's size in bytes: the sum of its distinct blobs.
	Size int64
}

// isVersion is the condition on a version's natural key; key gives its
// arguments.
func isVersion(t versions.Table) string {
	return `repository_id = $1 AND name = $2 AND ` + t.Key + ` = $3`
}

func key(t versions.Table, ref Ref) []any {
	if t.Format == schematype.FormatContainer {
		return []any{ref.RepositoryID, ref.Name, ref.Digest[:]}
	}
	return []any{ref.RepositoryID, ref.Name, ref.Version}
}

// resolve finds the repository that a ref names, and checks the ref against
// its format.
func resolve(ctx context.Context, tx *entdb.Tx, ref Ref) (entdb.Repository, versions.Table, error) {
	if err := checkText("name", ref.Name); err != nil {
		return entdb.Repository{}, versions.Table{}, err
	}
	repository, err := tx.FindRepository(ctx, ref.RepositoryID)
	if err != nil {
		return entdb.Repository{}, versions.Table{}, err
	}
	t, _ := versions.Of(repository.Format)
	return repository, t, checkVersion(t.Format, ref)
}

// resolveOpen is resolve for what adds something: the repository must take it.
func resolveOpen(ctx context.Context, tx *entdb.Tx, ref Ref) (entdb.Repository, versions.Table, error) {
	repository, t, err := resolve(ctx, tx, ref)
	switch {
	case err != nil:
	case repository.Kind == schematype.KindVirtual:
		err = entdb.ErrVirtual
	case repository.Deleting:
		err = entdb.ErrDeleting
	case repository.SoftDeleted:
		err = entdb.ErrSoftDeleted
	}
	return repository, t, err
}

func checkVersion(format schematype.Format, ref Ref) error {
	noDigest := ref.Digest == schematype.Digest{}
	switch {
	case format == schematype.FormatContainer && (ref.Version != "" || noDigest):
		return fmt.Errorf("%w: %s in a container repository needs a digest and no version, got version %s", ErrInvalid, quoted(ref.Name), quoted(ref.Version))
	case format == schematype.FormatContainer:
		return nil
	case !noDigest || ref.Version == "" && format == schematype.FormatNPM:
		return fmt.Errorf("%w: %s in a repository of %s needs a version and no digest, got version %s", ErrInvalid, quoted(ref.Name), format, quoted(ref.Version))
	case ref.Version == "":
		return nil
	default:
		return checkText("version", ref.Version)
	}
}

func checkText(what, text string) error {
	switch {
	case text == "":
		return fmt.Errorf("%w: the %s is empty", ErrInvalid, what)
	case len(text) > maxText:
		return fmt.Errorf("%w: the %s has %d bytes, want at most %d", ErrInvalid, what, len(text), maxText)
	default:
		return checkUTF8(what, text)
	}
}

// quoted is a name as errors show it. Clients choose names: one could end a line of a
// log, or fill it.
func quoted(name string) string {
	const shown = 100
	if len(name) <= shown {
		return strconv.Quote(name)
	}
	return fmt.Sprintf("%q... (%d bytes)", name[:shown], len(name))
}

// checkUTF8 refuses what the column type text cannot hold.
func checkUTF8(what, text string) error {
	if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
		return fmt.Errorf("%w: the %s %s is not UTF-8 without NUL", ErrInvalid, what, quoted(text))
	}
	return nil
}

// checkContent refuses content that a version of the format cannot have.
func checkContent(format schematype.Format, v Version) error {
	for _, c := range []struct {
		what string
		n    int
		of   []schematype.Format
	}{
		{"blobs", len(v.Blobs), []schematype.Format{schematype.FormatContainer, schematype.FormatNPM}},
		{"children", len(v.Children), []schematype.Format{schematype.FormatContainer}},
		{"files", len(v.Files), []schematype.Format{schematype.FormatMaven}},
	} {
		if c.n > 0 && !slices.Contains(c.of, format) {
			return fmt.Errorf("%w: %s has %d %s, which a version of %s cannot have", ErrInvalid, quoted(v.Name), c.n, c.what, format)
		}
	}
	return nil
}

// distinct sorts blobs by digest, each once. Every function touches blobs in
// this order, so that two calls never wait for each other.
func distinct(blobs []Blob) ([]Blob, error) {
	sorted := slices.SortedFunc(slices.Values(blobs), compareBlobs)
	for i, b := range sorted {
		if b.Size < 0 || b.Size > maxBlobSize {
			return nil, fmt.Errorf("%w: blob %s has a size of %d bytes, want 0 to %d", ErrInvalid, b.Digest, b.Size, int64(maxBlobSize))
		}
		if i > 0 && sorted[i-1].Digest == b.Digest && sorted[i-1].Size != b.Size {
			return nil, fmt.Errorf("%w: blob %s is given with %d and with %d bytes", ErrInvalid, b.Digest, sorted[i-1].Size, b.Size)
		}
	}
	sorted = slices.Compact(sorted)
	if total := sizeOf(sorted); total > maxBlobSize {
		return nil, fmt.Errorf("%w: the blobs are %d bytes together, want at most %d", ErrInvalid, total, int64(maxBlobSize))
	}
	return sorted, nil
}

func compareBlobs(a, b Blob) int {
	return cmp.Or(compareDigests(a.Digest, b.Digest), cmp.Compare(a.Size, b.Size))
}

func compareDigests(a, b schematype.Digest) int { return slices.Compare(a[:], b[:]) }

func sizeOf(blobs []Blob) int64 {
	var sum int64
	for _, b := range blobs {
		sum += b.Size
	}
	return sum
}

// columns are the blobs as arrays for unnest.
func columns(blobs []Blob) (digests [][]byte, sizes []int64) {
	for _, b := range blobs {
		digests = append(digests, b.Digest[:])
		sizes = append(sizes, b.Size)
	}
	return digests, sizes
}

func collectBlobs(rows pgx.Rows, err error) ([]Blob, error) {
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (b Blob, err error) {
		return b, row.Scan(&b.Digest, &b.Size)
	})
}
