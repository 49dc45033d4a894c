package entpublish

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/blobs"
)

// PutBlobs stores blobs in a namespace ahead of the version that will attach
// them, as clients of container registries do. A blob that is there already
// is kept. Until it is attached, only the grace period of CollectBlobs keeps
// it. Errors: ErrInvalid; ErrNotFound when there is no such namespace;
// ErrConflict when a digest is there with another size; ErrSoftDeleted and
// ErrDeleting of entdb.
func PutBlobs(ctx context.Context, tx *entdb.Tx, namespaceID uuid.UUID, blobs []Blob) error {
	sorted, err := distinct(blobs)
	if err != nil {
		return err
	}
	if err := openNamespace(ctx, tx, namespaceID); err != nil {
		return fmt.Errorf("store blobs: %w", err)
	}
	return putBlobs(ctx, tx, namespaceID, sorted)
}

// openNamespace finds out whether a namespace takes blobs, and keeps others from
// hiding or deleting it until the transaction ends.
func openNamespace(ctx context.Context, tx *entdb.Tx, id uuid.UUID) error {
	var softDeleted, deleting bool
	err := tx.Pgx().QueryRow(ctx, `
		SELECT n.soft_deleted_at IS NOT NULL, EXISTS (SELECT FROM deletion_requests d WHERE d.scope_id = n.id)
		FROM namespaces n WHERE n.id = $1
		FOR KEY SHARE OF n`, id).Scan(&softDeleted, &deleting)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return fmt.Errorf("namespace: %w", ErrNotFound)
	case err != nil:
		return err
	case deleting:
		return entdb.ErrDeleting
	case softDeleted:
		if err := refuseDeleting(ctx, tx, id); err != nil {
			return err
		}
		return entdb.ErrSoftDeleted
	default:
		return nil
	}
}

// putBlobs leaves every blob stored and locked against the collector, and
// counts the bytes of those that were not there.
func putBlobs(ctx context.Context, tx *entdb.Tx, namespace uuid.UUID, blobs []Blob) error {
	if len(blobs) == 0 {
		return nil
	}
	digests, sizes := columns(blobs)
	rows, err := tx.Pgx().Query(ctx, `SELECT size, created FROM stowage_put_blobs($1, $2, $3)`, namespace, digests, sizes)
	if err != nil {
		return fmt.Errorf("store blobs: %w", err)
	}
	var size, created int64
	var isNew bool
	var conflict error
	row := 0
	_, err = pgx.ForEachRow(rows, []any{&size, &isNew}, func() error {
		blob := blobs[row]
		row++
		if isNew {
			created += size
		} else if size != blob.Size && conflict == nil {
			conflict = fmt.Errorf("blob %s of %d bytes: %w: the namespace has it with %d bytes", blob.Digest, blob.Size, ErrConflict, size)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("store blobs: %w", err)
	}
	// What is stored is counted also when there is a conflict: the caller may
	// go on and commit.
	return errors.Join(tx.Report(entdb.Change{NamespaceID: namespace, Counters: entdb.Counters{Bytes: created}}), conflict)
}

// CollectBlobs removes blobs of a namespace that no version has attached and
// that were stored at least grace ago, at most limit of them, and returns them.
// Call it in further transactions until it returns none. Their content stays
// for another grace and is then deleted by DeleteContent. A grace of 0 is for a
// registry that stores blobs only with their version: a blob that was put ahead
// of its version would be lost.
//
// It is for those who cannot wait for the workers, which collect everywhere by
// themselves (collect.interval), and reads all blobs of the namespace that come
// before those it returns.
//
// It is safe beside publishes of the same blobs: those wait for it or it for
// them. Error: ErrInvalid.
func CollectBlobs(ctx context.Context, tx *entdb.Tx, namespaceID uuid.UUID, grace time.Duration, limit int) ([]Blob, error) {
	if grace < 0 {
		return nil, fmt.Errorf("%w: the grace period is %s, want 0 or more", ErrInvalid, grace)
	}
	if limit < 1 {
		return nil, fmt.Errorf("%w: the limit is %d, want 1 or more", ErrInvalid, limit)
	}
	const pageSize = 1000
	var all []Blob
	after := blobs.Key{Namespace: namespaceID}
	for len(all) < limit {
		page, err := blobs.Of(ctx, tx.Pgx(), after, pageSize)
		if err != nil {
			return nil, err
		}
		some := page.Unattached[:min(len(page.Unattached), limit-len(all))]
		collected, err := blobs.Collect(ctx, tx, some, blobs.Grace{Row: grace, Content: grace})
		if err != nil {
			return nil, err
		}
		for _, c := range collected {
			for _, blob := range c.Blobs {
				all = append(all, Blob(blob))
			}
		}
		if page.Seen < pageSize {
			break
		}
		after = page.Last
	}
	return all, nil
}
