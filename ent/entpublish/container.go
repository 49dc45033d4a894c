package entpublish

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
)

// MountBlob makes a blob of one namespace available in another, or finds that
// the one namespace has it, without a transfer of its content. It returns the
// blob. In the target it is a blob that was put ahead of its version, as with
// PutBlobs. Whether the client may read the source is the registry's to check.
//
// Errors: ErrNotFound when the source has no such blob, or there is no such
// target; ErrConflict when the target has the digest with another size;
// ErrSoftDeleted and ErrDeleting of entdb, for the target.
func MountBlob(ctx context.Context, tx *entdb.Tx, fromNamespaceID, toNamespaceID uuid.UUID, digest schematype.Digest) (Blob, error) {
	blob := Blob{Digest: digest}
	if err := openNamespace(ctx, tx, toNamespaceID); err != nil {
		return Blob{}, fmt.Errorf("mount blob %s: %w", digest, err)
	}
	// The lock keeps the collector off until the transaction ends.
	err := tx.Pgx().QueryRow(ctx,
		`SELECT size_bytes FROM blob_storage_blobs WHERE namespace_id = $1 AND sha256 = $2 FOR KEY SHARE`, fromNamespaceID, digest[:]).Scan(&blob.Size)
	if errors.Is(err, pgx.ErrNoRows) {
		err = fmt.Errorf("in the source: %w", ErrNotFound)
	}
	if err == nil && fromNamespaceID != toNamespaceID {
		err = putBlobs(ctx, tx, toNamespaceID, []Blob{blob})
	}
	if err != nil {
		return Blob{}, fmt.Errorf("mount blob %s: %w", digest, err)
	}
	return blob, nil
}

// lockChildren finds the manifests that an index refers to, and keeps them from
// being purged. The ids are sorted.
func (p publisher) lockChildren(ctx context.Context, digests []schematype.Digest) ([]uuid.UUID, error) {
	if len(digests) == 0 {
		return nil, nil
	}
	distinct := slices.Compact(slices.SortedFunc(slices.Values(digests), compareDigests))
	given := make([][]byte, 0, len(distinct))
	for _, d := range distinct {
		given = append(given, d[:])
	}
	rows, err := p.tx.Pgx().Query(ctx, `
		SELECT id, digest FROM container_manifests
		WHERE repository_id = $1 AND name = $2 AND digest = ANY ($3) AND soft_deleted_at IS NULL
		ORDER BY id
		FOR KEY SHARE`, p.ref.RepositoryID, p.ref.Name, given)
	if err != nil {
		return nil, fmt.Errorf("find children: %w", err)
	}
	var ids []uuid.UUID
	var id uuid.UUID
	var digest schematype.Digest
	_, err = pgx.ForEachRow(rows, []any{&id, &digest}, func() error {
		ids = append(ids, id)
		distinct = slices.DeleteFunc(distinct, func(d schematype.Digest) bool { return d == digest })
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("find children: %w", err)
	}
	if len(distinct) > 0 {
		return nil, fmt.Errorf("child %s: %w: push it first", distinct[0], ErrNotFound)
	}
	return ids, nil
}

// refer notes the children of a new index.
func (p publisher) refer(ctx context.Context, id uuid.UUID) error {
	if len(p.children) == 0 {
		return nil
	}
	_, err := p.tx.Pgx().Exec(ctx,
		`INSERT INTO container_manifest_references (index_id, child_id) SELECT $1, unnest($2::uuid[])`, id, p.children)
	if err != nil {
		return fmt.Errorf("refer to children: %w", err)
	}
	return nil
}
