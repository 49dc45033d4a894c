package deletion

import (
	"context"
	"errors"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/blobs"
)

// done is what a batch removed.
type done struct {
	versions     int
	blobs, bytes int64
	// everything says that the scope itself is gone.
	everything bool
}

func (w *Worker) remove(ctx context.Context, tx *entdb.Tx, r request) (done, error) {
	if r.kind == accounting.KindRepository {
		return w.removeFromRepository(ctx, tx, r.scope)
	}
	return w.removeFromNamespace(ctx, tx, r.scope)
}

// removeFromRepository deletes a batch of versions, and with the last of them the
// repository, so that nobody can publish in between.
func (w *Worker) removeFromRepository(ctx context.Context, tx *entdb.Tx, id uuid.UUID) (done, error) {
	n, err := entpublish.DeleteVersions(ctx, tx, id, w.batch)
	if errors.Is(err, entdb.ErrRepository) {
		return done{everything: true}, nil
	}
	did := done{versions: n, everything: n < w.batch}
	if err == nil && did.everything {
		err = entpublish.DeleteRepository(ctx, tx, id)
	}
	return did, err
}

// removeFromNamespace deletes a batch of one of the namespace's repositories; when
// it has none, a batch of its blobs; and when it has none of them either, itself.
// Somebody who puts more into it meanwhile makes the last step fail, and then there
// is another batch to delete.
func (w *Worker) removeFromNamespace(ctx context.Context, tx *entdb.Tx, id uuid.UUID) (done, error) {
	var repository uuid.UUID
	err := tx.Pgx().QueryRow(ctx, `SELECT id FROM repositories WHERE namespace_id = $1 ORDER BY id LIMIT 1`, id).Scan(&repository)
	switch {
	case err == nil:
		did, err := w.removeFromRepository(ctx, tx, repository)
		did.everything = false
		return did, err
	case !errors.Is(err, pgx.ErrNoRows):
		return done{}, err
	}
	if more, err := w.dropAttachments(ctx, tx.Pgx(), id); err != nil || more {
		return done{}, err
	}
	page, err := blobs.Of(ctx, tx.Pgx(), blobs.Key{Namespace: id}, w.batch)
	if err != nil {
		return done{}, err
	}
	if page.Seen == 0 {
		_, err := tx.Pgx().Exec(ctx, `DELETE FROM namespaces WHERE id = $1`, id)
		return done{everything: true}, err
	}
	var did done
	collected, err := blobs.Collect(ctx, tx, page.Unattached, blobs.Grace{Content: w.grace})
	did.blobs, did.bytes = blobs.Total(collected)
	return did, err
}

// dropAttachments deletes those that somebody has left by deleting versions in SQL of
// their own: they would keep the blobs for ever. more says that there may be others.
func (w *Worker) dropAttachments(ctx context.Context, tx pgx.Tx, namespace uuid.UUID) (more bool, err error) {
	tag, err := tx.Exec(ctx, `
		DELETE FROM blob_storage_attachments WHERE (version_id, version_table, sha256) IN (
			SELECT version_id, version_table, sha256 FROM blob_storage_attachments WHERE namespace_id = $1 LIMIT $2)`, namespace, w.batch)
	return tag.RowsAffected() == int64(w.batch), err
}
