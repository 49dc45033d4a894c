package entpublish

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
)

// SoftDelete hides a version. It goes on to count until it is purged. Doing it
// again changes nothing. Errors: ErrNotFound; ErrInvalid; entdb.ErrRepository.
func SoftDelete(ctx context.Context, tx *entdb.Tx, ref Ref) error {
	return markVersion(ctx, tx, ref, `coalesce(soft_deleted_at, now())`)
}

// Restore undoes SoftDelete. Doing it again changes nothing. Errors:
// ErrNotFound, also when the version was purged; ErrInvalid;
// entdb.ErrRepository.
func Restore(ctx context.Context, tx *entdb.Tx, ref Ref) error {
	return markVersion(ctx, tx, ref, `NULL`)
}

func markVersion(ctx context.Context, tx *entdb.Tx, ref Ref, softDeletedAt string) error {
	_, t, err := resolve(ctx, tx, ref)
	if err != nil {
		return err
	}
	return setSoftDeleted(ctx, tx, t, ref, softDeletedAt)
}

func setSoftDeleted(ctx context.Context, tx *entdb.Tx, t table, ref Ref, value string) error {
	tag, err := tx.Pgx().Exec(ctx, `UPDATE `+t.name+` SET soft_deleted_at = `+value+t.where(), t.key(ref)...)
	if err != nil {
		return fmt.Errorf("version %s: %w", ref.Name, err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("version %s: %w", ref.Name, ErrNotFound)
	}
	return nil
}

// Purge removes a version, soft-deleted or not, and gives up its component and
// its logical bytes. Its blobs stay until CollectBlobs finds them without a
// version. Of several that purge one version at the same time, one succeeds
// and the others get ErrNotFound. Errors: ErrNotFound; ErrInvalid;
// entdb.ErrRepository.
func Purge(ctx context.Context, tx *entdb.Tx, ref Ref) error {
	repository, t, err := resolve(ctx, tx, ref)
	if err != nil {
		return err
	}
	var id uuid.UUID
	var size int64
	err = tx.Pgx().QueryRow(ctx, `DELETE FROM `+t.name+t.where()+` RETURNING id, size_bytes`, t.key(ref)...).Scan(&id, &size)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("purge %s: %w", ref.Name, err)
	}
	if err := detach(ctx, tx, t, []uuid.UUID{id}); err != nil {
		return fmt.Errorf("purge %s: %w", ref.Name, err)
	}
	return count(tx, repository.NamespaceID, ref.RepositoryID, entdb.Counters{Bytes: -size, Components: -1})
}

// DeleteRepository removes a repository with all of its versions, soft-deleted
// or not, in the one transaction, and gives back its components. Its blobs
// stay until CollectBlobs. Errors: entdb.ErrRepository.
func DeleteRepository(ctx context.Context, tx *entdb.Tx, id uuid.UUID) error {
	repository, err := tx.FindRepository(ctx, id)
	if err != nil {
		return err
	}
	// Publishers hold the row's key through their foreign key: the lock waits
	// for those at work and keeps others out.
	var locked uuid.UUID
	err = tx.Pgx().QueryRow(ctx, `SELECT id FROM repositories WHERE id = $1 FOR UPDATE`, id).Scan(&locked)
	if errors.Is(err, pgx.ErrNoRows) {
		return entdb.ErrRepository
	}
	if err != nil {
		return fmt.Errorf("delete repository: lock: %w", err)
	}
	t := tables[repository.Format]
	if err := deleteVersions(ctx, tx, t, repository.NamespaceID, id); err != nil {
		return fmt.Errorf("delete repository: %w", err)
	}
	if _, err := tx.Pgx().Exec(ctx, `DELETE FROM repositories WHERE id = $1`, id); err != nil {
		return fmt.Errorf("delete repository: %w", err)
	}
	return nil
}

// deleteVersions counts for the namespace only: the repository's own counters
// go with its row. Versions go before their attachments: a publish that holds
// a version while we wait for it may attach more.
func deleteVersions(ctx context.Context, tx *entdb.Tx, t table, namespace, repository uuid.UUID) error {
	rows, err := tx.Pgx().Query(ctx, `DELETE FROM `+t.name+` WHERE repository_id = $1 RETURNING id`, repository)
	if err != nil {
		return fmt.Errorf("versions: %w", err)
	}
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return fmt.Errorf("versions: %w", err)
	}
	if err := detach(ctx, tx, t, ids); err != nil {
		return err
	}
	return tx.Report(entdb.Change{NamespaceID: namespace, Counters: entdb.Counters{Components: -int64(len(ids))}})
}

// detach unties the blobs of versions that are gone.
func detach(ctx context.Context, tx *entdb.Tx, t table, versions []uuid.UUID) error {
	_, err := tx.Pgx().Exec(ctx,
		`DELETE FROM blob_storage_attachments WHERE version_table = $1 AND version_id = ANY ($2)`, int16(t.format), versions)
	if err != nil {
		return fmt.Errorf("detach blobs: %w", err)
	}
	return nil
}
