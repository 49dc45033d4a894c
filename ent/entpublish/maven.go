package entpublish

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/versions"
)

// DeleteFile removes one file of a Maven version, of a release too, and gives
// up its bytes unless another file of the version has the same content. The
// version stays, also without files, and counts as a component until it is
// purged.
//
// Errors: ErrNotFound, for the version or the file; ErrInvalid; ErrRepository
// and ErrFormat of entdb.
func DeleteFile(ctx context.Context, tx *entdb.Tx, ref Ref, filePath string) error {
	if err := deleteFile(ctx, tx, ref, filePath); err != nil {
		return fmt.Errorf("delete file %s of %s: %w", quoted(filePath), quoted(ref.Name), err)
	}
	return nil
}

func deleteFile(ctx context.Context, tx *entdb.Tx, ref Ref, filePath string) error {
	if err := checkText("path", filePath); err != nil {
		return err
	}
	t, v, err := lockVersion(ctx, tx, ref, schematype.FormatMaven)
	if err != nil {
		return err
	}
	var deleted schematype.Digest
	err = tx.Pgx().QueryRow(ctx,
		`DELETE FROM maven_files WHERE version_id = $1 AND path = $2 RETURNING sha256`, v.ID, filePath).Scan(&deleted)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	if err != nil {
		return err
	}
	detached, err := detach(ctx, tx, v.ID, []schematype.Digest{deleted})
	if err != nil {
		return err
	}
	return resize(ctx, tx, t, v, v.Size-detached)
}

// lockVersion locks the version of a ref that must be of the format.
func lockVersion(ctx context.Context, tx *entdb.Tx, ref Ref, format schematype.Format) (versions.Table, versions.Version, error) {
	repository, t, err := resolve(ctx, tx, ref)
	if err != nil {
		return t, versions.Version{}, err
	}
	if t.Format != format {
		return t, versions.Version{}, wrongFormat(repository, format.String())
	}
	locked, err := t.Lock(ctx, tx.Pgx(), isVersion(t), key(t, ref)...)
	if err != nil {
		return t, versions.Version{}, err
	}
	if len(locked) == 0 {
		return t, versions.Version{}, ErrNotFound
	}
	return t, locked[0], nil
}

func wrongFormat(repository entdb.Repository, want string) error {
	return fmt.Errorf("%w: it is %s, this is for %s", entdb.ErrFormat, repository.Format, want)
}

// deploy adds files to a locked version, and replaces those that may be.
func (p publisher) deploy(ctx context.Context, published *Published) error {
	replaced, err := p.replacedBy(ctx, published.ID)
	if err != nil {
		return err
	}
	if err := p.putFiles(ctx, published.ID); err != nil {
		return err
	}
	attached, err := p.attach(ctx, published.ID)
	if err != nil {
		return err
	}
	detached, err := detach(ctx, p.tx, published.ID, replaced)
	if err != nil {
		return err
	}
	v := versions.Version{ID: published.ID, Namespace: p.namespace, Repository: p.ref.RepositoryID, Size: published.Size}
	published.Size += attached - detached
	return resize(ctx, p.tx, p.table, v, published.Size)
}

// replacedBy are the contents that the files take the place of. It fails before
// anything is changed when one of them must stay.
func (p publisher) replacedBy(ctx context.Context, id uuid.UUID) ([]schematype.Digest, error) {
	given := make(map[string]schematype.Digest, len(p.files))
	for _, f := range p.files {
		given[f.Path] = f.Digest
	}
	rows, err := p.tx.Pgx().Query(ctx,
		`SELECT path, sha256 FROM maven_files WHERE version_id = $1 AND path = ANY ($2) ORDER BY path`, id, pathsOf(p.files))
	if err != nil {
		return nil, fmt.Errorf("find files: %w", err)
	}
	var replaced []schematype.Digest
	var filePath string
	var digest schematype.Digest
	_, err = pgx.ForEachRow(rows, []any{&filePath, &digest}, func() error {
		if digest == given[filePath] {
			return nil
		}
		if !replaceable(p.ref.Version, filePath) {
			return fmt.Errorf("%w: file %s of release %s is %s, given is %s", ErrImmutable, quoted(filePath), quoted(p.ref.Version), digest, given[filePath])
		}
		replaced = append(replaced, digest)
		return nil
	})
	return replaced, err
}

// replaceable reports whether a file may get another content: those of a
// snapshot, those of the artifact itself, and metadata with its checksums.
func replaceable(version, filePath string) bool {
	return version == "" || strings.HasSuffix(version, "-SNAPSHOT") || strings.HasPrefix(path.Base(filePath), "maven-metadata.xml")
}

// putFiles makes every path of a locked version hold what is given.
func (p publisher) putFiles(ctx context.Context, id uuid.UUID) error {
	if len(p.files) == 0 {
		return nil
	}
	ids := make([]uuid.UUID, 0, len(p.files))
	for range p.files {
		ids = append(ids, uuid.Must(uuid.NewV7()))
	}
	digests, sizes := columns(blobsOf(p.files))
	_, err := p.tx.Pgx().Exec(ctx, `
		INSERT INTO maven_files AS f (id, version_id, path, sha256, size_bytes)
		SELECT g.id, $1, g.path, g.sha256, g.size_bytes
		FROM unnest($2::uuid[], $3::text[], $4::bytea[], $5::bigint[]) AS g (id, path, sha256, size_bytes)
		ON CONFLICT (version_id, path) DO UPDATE
			SET sha256 = excluded.sha256, size_bytes = excluded.size_bytes, updated_at = now()
			WHERE f.sha256 <> excluded.sha256`, id, ids, pathsOf(p.files), digests, sizes)
	if err != nil {
		return fmt.Errorf("store files: %w", err)
	}
	return nil
}

// detach unties blobs from a locked Maven version that none of its files has any
// more, and returns their bytes.
func detach(ctx context.Context, tx *entdb.Tx, version uuid.UUID, digests []schematype.Digest) (bytes int64, err error) {
	if len(digests) == 0 {
		return 0, nil
	}
	given := make([][]byte, 0, len(digests))
	for _, d := range digests {
		given = append(given, d[:])
	}
	detached, err := collectBlobs(tx.Pgx().Query(ctx, `
		DELETE FROM blob_storage_attachments a USING blob_storage_blobs b
		WHERE a.version_table = $1 AND a.version_id = $2 AND a.sha256 = ANY ($3)
			AND b.namespace_id = a.namespace_id AND b.sha256 = a.sha256
			AND NOT EXISTS (SELECT FROM maven_files f WHERE f.version_id = $2 AND f.sha256 = a.sha256)
		RETURNING b.sha256, b.size_bytes`, int16(schematype.FormatMaven), version, given))
	if err != nil {
		return 0, fmt.Errorf("detach blobs: %w", err)
	}
	return sizeOf(detached), nil
}

// distinctFiles sorts files by path, each once.
func distinctFiles(files []File) ([]File, error) {
	sorted := slices.SortedFunc(slices.Values(files), func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	sorted = slices.Compact(sorted)
	for i, f := range sorted {
		if err := checkText("path", f.Path); err != nil {
			return nil, err
		}
		if i > 0 && sorted[i-1].Path == f.Path {
			return nil, fmt.Errorf("%w: file %s is given with blob %s and with %s", ErrInvalid, quoted(f.Path), sorted[i-1].Digest, f.Digest)
		}
	}
	return sorted, nil
}

func blobsOf(files []File) []Blob {
	blobs := make([]Blob, 0, len(files))
	for _, f := range files {
		blobs = append(blobs, f.Blob)
	}
	return blobs
}

func pathsOf(files []File) []string {
	paths := make([]string, 0, len(files))
	for _, f := range files {
		paths = append(paths, f.Path)
	}
	return paths
}
