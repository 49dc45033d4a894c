package entpublish

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/blobs"
)

// Content is what a collected blob has left in the registry's storage.
type Content struct {
	NamespaceID uuid.UUID
	Blob
}

// DeletedContent says what DeleteContent did.
type DeletedContent struct {
	// Deleted is how many were deleted.
	Deleted int
	// Failures are the errors of those that were not. They come again, after a
	// pause that grows up to an hour.
	Failures []error
}

// contentTimeout bounds one deletion of content: a server that hears nothing for
// longer ends the transaction, and with it the lock that keeps the content from being
// stored meanwhile.
const contentTimeout = 30 * time.Second

// DeleteContent has remove delete, from the registry's storage, the content of blobs
// that were collected and whose grace is over, at most limit of them. Call it in
// further transactions until it deletes none, from any number of processes. remove
// must succeed when the content is gone already: it is called at least once, and
// again when the commit fails.
//
// A blob whose content is being deleted is locked. A PutBlobs or Publish of it waits
// until the transaction ends; one that came first keeps the content. So a registry
// may move content into its place only after PutBlobs or Publish has returned, and
// before the COMMIT of that transaction. README.md tells more.
//
// Errors: ErrInvalid, and those of the database. That remove failed is no error.
func DeleteContent(ctx context.Context, tx *entdb.Tx, limit int, remove func(ctx context.Context, c Content) error) (DeletedContent, error) {
	var did DeletedContent
	if limit < 1 {
		return did, fmt.Errorf("%w: the limit is %d, want 1 or more", ErrInvalid, limit)
	}
	due, err := lockContent(ctx, tx.Pgx(), limit)
	if err != nil {
		return did, fmt.Errorf("content to delete: %w", err)
	}
	for _, c := range due {
		failure := removeWithin(ctx, c, remove)
		if ctx.Err() != nil {
			return did, ctx.Err()
		}
		// At once, so that a transaction that has ended is found out before the next
		// content is deleted.
		if err := settleContent(ctx, tx.Pgx(), c, failure); err != nil {
			return did, fmt.Errorf("content of %s: %w", c.Digest, err)
		}
		if failure != nil {
			did.Failures = append(did.Failures, fmt.Errorf("content of %s: %w", c.Digest, failure))
		} else {
			did.Deleted++
		}
	}
	return did, nil
}

func lockContent(ctx context.Context, tx pgx.Tx, limit int) ([]Content, error) {
	rows, err := tx.Query(ctx, `
		SELECT namespace_id, sha256, size_bytes FROM blob_storage_deletions
		WHERE due_at <= now() ORDER BY due_at LIMIT $1
		FOR UPDATE SKIP LOCKED`, limit)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (c Content, err error) {
		return c, row.Scan(&c.NamespaceID, &c.Digest, &c.Size)
	})
}

func removeWithin(ctx context.Context, c Content, remove func(ctx context.Context, c Content) error) error {
	ctx, cancel := context.WithTimeout(ctx, contentTimeout)
	defer cancel()
	return remove(ctx, c)
}

// settleContent forgets content that is deleted, or puts off what is not.
func settleContent(ctx context.Context, tx pgx.Tx, c Content, failure error) error {
	sql := `DELETE FROM blob_storage_deletions WHERE namespace_id = $1 AND sha256 = $2`
	if failure != nil {
		sql = `UPDATE blob_storage_deletions
			SET failures = failures + 1, due_at = now() + least(interval '1 hour', interval '1 second' * power(2, least(failures, 12)))
			WHERE namespace_id = $1 AND sha256 = $2`
	}
	_, err := tx.Exec(ctx, sql, c.NamespaceID, c.Digest[:])
	return err
}

// Figures are a number of blobs and their sizes in bytes.
type Figures struct{ Blobs, Bytes int64 }

// Unreferenced is what a namespace has that no version needs.
type Unreferenced struct {
	// Unattached blobs count as stored: nothing refers to them, and they were not
	// collected yet.
	Unattached Figures
	// Content is that of collected blobs which was not deleted yet. It counts no
	// more.
	Content Figures
}

// FindUnreferenced reads what a namespace has that no version needs, exactly. It
// reads the keys of all its blobs: a second for a million. A namespace that was deleted
// has no blobs, but content until DeleteContent has deleted it; one that never was has
// neither, which is no error.
func FindUnreferenced(ctx context.Context, tx *entdb.Tx, namespaceID uuid.UUID) (Unreferenced, error) {
	u, err := blobs.FindUnreferenced(ctx, tx.Pgx(), namespaceID)
	return Unreferenced{Figures(u.Unattached), Figures(u.Content)}, err
}
