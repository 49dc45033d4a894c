package entpublish

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/versions"
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

func setSoftDeleted(ctx context.Context, tx *entdb.Tx, t versions.Table, ref Ref, value string) error {
	tag, err := tx.Pgx().Exec(ctx, `UPDATE `+t.Name+` SET soft_deleted_at = `+value+` WHERE `+isVersion(t), key(t, ref)...)
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
	_, t, err := resolve(ctx, tx, ref)
	if err != nil {
		return err
	}
	locked, err := t.Lock(ctx, tx.Pgx(), isVersion(t), key(t, ref)...)
	if err == nil && len(locked) == 0 {
		err = ErrNotFound
	}
	if err == nil {
		err = deleteVersions(ctx, tx, t, locked)
	}
	if err != nil {
		return fmt.Errorf("purge %s: %w", ref.Name, err)
	}
	return nil
}

// DeleteRepository removes a repository with all of its versions, soft-deleted
// or not, in the one transaction, and gives back its components. Its blobs
// stay until CollectBlobs. Errors: entdb.ErrRepository.
func DeleteRepository(ctx context.Context, tx *entdb.Tx, id uuid.UUID) error {
	// Publishers hold the row's key through their foreign key: the lock waits
	// for those at work and keeps others out.
	var format schematype.Format
	err := tx.Pgx().QueryRow(ctx, `SELECT format FROM repositories WHERE id = $1 FOR UPDATE`, id).Scan(&format)
	if errors.Is(err, pgx.ErrNoRows) {
		return entdb.ErrRepository
	}
	if err != nil {
		return fmt.Errorf("delete repository: lock: %w", err)
	}
	t, _ := versions.Of(format)
	locked, err := t.Lock(ctx, tx.Pgx(), `repository_id = $1`, id)
	if err == nil {
		err = deleteVersions(ctx, tx, t, locked)
	}
	if err == nil {
		_, err = tx.Pgx().Exec(ctx, `DELETE FROM repositories WHERE id = $1`, id)
	}
	if err != nil {
		return fmt.Errorf("delete repository: %w", err)
	}
	return nil
}

// deleteVersions is how locked versions go, whoever wants it: with all that
// hangs on them, and counted. Of a repository that goes too, the workers drop
// what is counted.
func deleteVersions(ctx context.Context, tx *entdb.Tx, t versions.Table, locked []versions.Version) error {
	if err := t.Delete(ctx, tx.Pgx(), locked); err != nil {
		return err
	}
	for _, v := range locked {
		if err := count(tx, v.Namespace, v.Repository, entdb.Counters{Bytes: -v.Size, Components: -1}); err != nil {
			return err
		}
	}
	return nil
}
