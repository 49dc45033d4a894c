// Package entpublish is a registry's write path: publishing versions with
// their blobs, soft deletion, restoring, purging, deleting repositories and
// collecting blobs that nothing refers to any more. Every function works in a
// counted transaction of ent/entdb, joins whatever else the registry does in
// it, and counts what the database really changed. See README.md.
package entpublish

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/versions"
)

// Sentinel errors, beside entdb.ErrVirtual and entdb.ErrRepository. After any
// error return it from the function given to WithTx, which rolls back.
var (
	// ErrNotFound says that the version, or the repository, is not there.
	ErrNotFound = entdb.ErrNotFound
	// ErrConflict says that a version exists with other content, or a blob
	// with another size. Versions of containers and npm are immutable: purge
	// the old one first.
	ErrConflict = errors.New("exists already with other content")
	// ErrInvalid says that the arguments cannot be stored; the text names the
	// field and the value. Nothing was asked of the database, or only what the
	// repository's format is.
	ErrInvalid = errors.New("invalid")
)

// maxBlobSize is the largest size of a blob or a version in bytes: 2^50, the
// bound of the CHECK constraints.
const maxBlobSize = 1 << 50

// Blob is a piece of content, kept once a namespace.
type Blob struct {
	Digest schematype.Digest
	// Size is in bytes.
	Size int64
}

// Ref names a version by its natural key.
type Ref struct {
	RepositoryID uuid.UUID
	// Name is the image's name, the Maven coordinates group:artifact, or the
	// npm package's name.
	Name string
	// Version is for Maven and npm; leave it empty for containers.
	Version string
	// Digest is the manifest's, for containers only.
	Digest schematype.Digest
}

// Version is what is published: a version and all of its blobs, in any order.
// A blob that is listed twice counts once.
type Version struct {
	Ref
	Blobs []Blob
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
	if ref.Name == "" {
		return entdb.Repository{}, versions.Table{}, fmt.Errorf("%w: the name is empty", ErrInvalid)
	}
	repository, err := tx.FindRepository(ctx, ref.RepositoryID)
	if err != nil {
		return entdb.Repository{}, versions.Table{}, err
	}
	t, _ := versions.Of(repository.Format)
	isContainer := t.Format == schematype.FormatContainer
	switch {
	case isContainer && (ref.Version != "" || ref.Digest == schematype.Digest{}):
		err = fmt.Errorf("%w: %s in a container repository needs a digest and no version, got version %q", ErrInvalid, ref.Name, ref.Version)
	case !isContainer && (ref.Version == "" || ref.Digest != schematype.Digest{}):
		err = fmt.Errorf("%w: %s in a repository of %s needs a version and no digest, got version %q", ErrInvalid, ref.Name, t.Format, ref.Version)
	}
	return repository, t, err
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
	return cmp.Or(slices.Compare(a.Digest[:], b.Digest[:]), cmp.Compare(a.Size, b.Size))
}

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
