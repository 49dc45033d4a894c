package entpublish

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/repository"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/versions"
)

// ScheduleRepositoryDeletion has the workers delete a repository with all of its
// versions, in small batches, which give back what they delete as they go. It waits
// for those who are adding something, as SoftDeleteRepository does. From then on the
// repository is soft-deleted, a publish into it is refused with entdb.ErrDeleting, and
// it cannot be taken back. The repository's name is free when the deletion has ended.
// Its blobs are collected as any. Doing it again changes nothing. Error:
// entdb.ErrRepository.
func ScheduleRepositoryDeletion(ctx context.Context, tx *entdb.Tx, id uuid.UUID) error {
	err := SoftDeleteRepository(ctx, tx, id)
	if err == nil {
		err = requestDeletion(ctx, tx, accounting.KindRepository, id)
	}
	if err != nil {
		return fmt.Errorf("schedule the deletion of a repository: %w", err)
	}
	return nil
}

// ScheduleNamespaceDeletion has the workers delete a namespace with all of its
// repositories and blobs, and its statistics, as ScheduleRepositoryDeletion does.
// The content of its blobs is due for DeleteContent after the workers' collect.grace.
// What is put into the namespace meanwhile goes too. Error: ErrNotFound.
func ScheduleNamespaceDeletion(ctx context.Context, tx *entdb.Tx, id uuid.UUID) error {
	err := SoftDeleteNamespace(ctx, tx, id)
	if err == nil {
		err = requestDeletion(ctx, tx, accounting.KindNamespace, id)
	}
	if err != nil {
		return fmt.Errorf("schedule the deletion of a namespace: %w", err)
	}
	return nil
}

func requestDeletion(ctx context.Context, tx *entdb.Tx, kind accounting.ScopeKind, id uuid.UUID) error {
	_, err := tx.Pgx().Exec(ctx, `INSERT INTO deletion_requests (scope_id, scope_kind) VALUES ($1, $2) ON CONFLICT DO NOTHING`, id, kind)
	return err
}

// DeleteVersions deletes at most limit versions of a repository, soft-deleted or
// not, gives back their components and logical bytes, and returns how many: fewer
// than limit means that none is left. Nobody changes anything in the repository until
// the transaction ends. It is what the workers do for ScheduleRepositoryDeletion. Errors: entdb.ErrRepository; ErrInvalid.
func DeleteVersions(ctx context.Context, tx *entdb.Tx, repositoryID uuid.UUID, limit int) (int, error) {
	if limit < 1 {
		return 0, fmt.Errorf("%w: the limit is %d, want 1 or more", ErrInvalid, limit)
	}
	// Before the versions, as everybody locks: whoever purges one of them meanwhile
	// holds the repository's key, and DeleteRepository may follow.
	if err := lockRow(ctx, tx, repository.Table, repositoryID, entdb.ErrRepository); err != nil {
		return 0, fmt.Errorf("delete versions: %w", err)
	}
	facts, err := tx.FindRepository(ctx, repositoryID)
	if err != nil {
		return 0, fmt.Errorf("delete versions: %w", err)
	}
	t, _ := versions.Of(facts.Format)
	// By the index of their natural key: a scan of the table would read again for
	// each batch what is deleted already.
	locked, err := t.Lock(ctx, tx.Pgx(),
		`id IN (SELECT id FROM `+t.Name+` WHERE repository_id = $1 ORDER BY repository_id, name, `+t.Key+` LIMIT $2)`, repositoryID, limit)
	if err == nil {
		err = deleteVersions(ctx, tx, t, locked)
	}
	if err != nil {
		return 0, fmt.Errorf("delete versions: %w", err)
	}
	return len(locked), nil
}
