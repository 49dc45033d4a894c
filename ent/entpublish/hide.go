package entpublish

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/namespace"
	"github.com/stowage-dev/stowage/ent/repository"
	"github.com/stowage-dev/stowage/internal/versions"
)

// SoftDelete hides a version. It goes on to count until it is purged, and keeps
// its tags, which name it again when it is restored: whoever reads a tag must
// look at the version's soft_deleted_at. Doing it again changes nothing.
// Errors: ErrNotFound; ErrInvalid; entdb.ErrRepository.
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
		return fmt.Errorf("version of %s: %w", quoted(ref.Name), err)
	}
	if tag.RowsAffected() == 0 {
		return fmt.Errorf("version of %s: %w", quoted(ref.Name), ErrNotFound)
	}
	return nil
}

// SoftDeleteRepository hides a repository. All of its content goes on to count,
// and it takes no more: what would add something is entdb.ErrSoftDeleted. It
// waits for those who are adding something. Doing it again changes nothing.
// Error: entdb.ErrRepository.
func SoftDeleteRepository(ctx context.Context, tx *entdb.Tx, id uuid.UUID) error {
	if err := lockRow(ctx, tx, repository.Table, id, entdb.ErrRepository); err != nil {
		return fmt.Errorf("soft-delete repository: %w", err)
	}
	return tx.Repository.Update().Where(repository.ID(id), repository.SoftDeletedAtIsNil()).SetSoftDeletedAt(time.Now()).Exec(ctx)
}

// RestoreRepository undoes SoftDeleteRepository. Versions that were hidden
// themselves stay hidden. Doing it again changes nothing. Errors of entdb:
// ErrRepository; ErrDeleting when its deletion, or that of its namespace, was
// asked for.
func RestoreRepository(ctx context.Context, tx *entdb.Tx, id uuid.UUID) error {
	facts, err := tx.FindRepository(ctx, id)
	if err == nil && facts.Deleting {
		err = entdb.ErrDeleting
	}
	if err != nil {
		return fmt.Errorf("restore repository: %w", err)
	}
	return tx.Repository.Update().Where(repository.ID(id)).ClearSoftDeletedAt().Exec(ctx)
}

// SoftDeleteNamespace hides a namespace, as SoftDeleteRepository hides a
// repository: none of its repositories takes anything more. Error: ErrNotFound.
func SoftDeleteNamespace(ctx context.Context, tx *entdb.Tx, id uuid.UUID) error {
	if err := lockRow(ctx, tx, namespace.Table, id, ErrNotFound); err != nil {
		return fmt.Errorf("soft-delete namespace: %w", err)
	}
	return tx.Namespace.Update().Where(namespace.ID(id), namespace.SoftDeletedAtIsNil()).SetSoftDeletedAt(time.Now()).Exec(ctx)
}

// RestoreNamespace undoes SoftDeleteNamespace. Repositories that were hidden
// themselves stay hidden. Doing it again changes nothing. Errors: ErrNotFound;
// entdb.ErrDeleting when its deletion was asked for.
func RestoreNamespace(ctx context.Context, tx *entdb.Tx, id uuid.UUID) error {
	err := lockRow(ctx, tx, namespace.Table, id, ErrNotFound)
	if err == nil {
		err = refuseDeleting(ctx, tx, id)
	}
	if err != nil {
		return fmt.Errorf("restore namespace: %w", err)
	}
	return tx.Namespace.Update().Where(namespace.ID(id)).ClearSoftDeletedAt().Exec(ctx)
}

// refuseDeleting fails when the deletion of a locked namespace was asked for. It is a
// statement after the one that locked it: that one may have waited for whoever asked
// for the deletion, and then does not see the request.
func refuseDeleting(ctx context.Context, tx *entdb.Tx, namespaceID uuid.UUID) error {
	var deleting bool
	err := tx.Pgx().QueryRow(ctx, `SELECT EXISTS (SELECT FROM deletion_requests WHERE scope_id = $1)`, namespaceID).Scan(&deleting)
	if err == nil && deleting {
		err = entdb.ErrDeleting
	}
	return err
}

// lockRow waits for those who publish into a repository or a namespace, for they
// hold its key, and keeps others from beginning to.
func lockRow(ctx context.Context, tx *entdb.Tx, table string, id uuid.UUID, absent error) error {
	err := tx.Pgx().QueryRow(ctx, `SELECT id FROM `+table+` WHERE id = $1 FOR UPDATE`, id).Scan(&id)
	if errors.Is(err, pgx.ErrNoRows) {
		return absent
	}
	return err
}
