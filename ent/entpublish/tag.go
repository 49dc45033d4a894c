package entpublish

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/versions"
)

// Tag makes tags of a container image, or dist-tags of an npm package, name a
// version; they leave the one that they named before. Doing it again changes
// nothing, and no counter changes. Nothing tags latest by itself: when and where
// it moves is the registry's to say.
//
// Errors: ErrNotFound, also when the version is soft-deleted; ErrInvalid;
// ErrRepository, ErrFormat (Maven has no tags), ErrVirtual, ErrSoftDeleted and
// ErrDeleting of entdb.
func Tag(ctx context.Context, tx *entdb.Tx, ref Ref, tags ...string) error {
	if err := tag(ctx, tx, ref, tags); err != nil {
		return fmt.Errorf("tag %s: %w", quoted(ref.Name), err)
	}
	return nil
}

func tag(ctx context.Context, tx *entdb.Tx, ref Ref, tags []string) error {
	for _, tag := range tags {
		if err := checkText("tag", tag); err != nil {
			return err
		}
	}
	repository, t, err := resolveOpen(ctx, tx, ref)
	if err == nil {
		err = needTags(repository, t)
	}
	if err != nil {
		return err
	}
	// The version before the tags, as whoever purges it locks them.
	var version uuid.UUID
	err = tx.Pgx().QueryRow(ctx,
		`SELECT id FROM `+t.Name+` WHERE `+isVersion(t)+` AND soft_deleted_at IS NULL FOR KEY SHARE`, key(t, ref)...).Scan(&version)
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	if err != nil {
		return err
	}
	return putTags(ctx, tx, t, ref, version, tags)
}

func putTags(ctx context.Context, tx *entdb.Tx, t versions.Table, ref Ref, version uuid.UUID, tags []string) error {
	sorted := slices.Compact(slices.Sorted(slices.Values(tags)))
	ids := make([]uuid.UUID, 0, len(sorted))
	for range sorted {
		ids = append(ids, uuid.Must(uuid.NewV7()))
	}
	_, err := tx.Pgx().Exec(ctx, `
		INSERT INTO `+t.Tags.Table+` AS t (id, repository_id, name, tag, `+t.Tags.Column+`)
		SELECT g.id, $1, $2, g.tag, $3 FROM unnest($4::uuid[], $5::text[]) AS g (id, tag)
		ON CONFLICT (repository_id, name, tag) DO UPDATE
			SET `+t.Tags.Column+` = excluded.`+t.Tags.Column+`, updated_at = now()
			WHERE t.`+t.Tags.Column+` <> excluded.`+t.Tags.Column,
		ref.RepositoryID, ref.Name, version, ids, sorted)
	return err
}

// Untag removes a tag of a container image or a dist-tag of an npm package. The
// version stays. Errors: ErrNotFound; ErrInvalid; ErrRepository and ErrFormat of
// entdb.
func Untag(ctx context.Context, tx *entdb.Tx, repositoryID uuid.UUID, name, tag string) error {
	if err := untag(ctx, tx, repositoryID, name, tag); err != nil {
		return fmt.Errorf("remove tag %s of %s: %w", quoted(tag), quoted(name), err)
	}
	return nil
}

func untag(ctx context.Context, tx *entdb.Tx, repositoryID uuid.UUID, name, tag string) error {
	if err := checkText("name", name); err != nil {
		return err
	}
	if err := checkText("tag", tag); err != nil {
		return err
	}
	repository, err := tx.FindRepository(ctx, repositoryID)
	if err != nil {
		return err
	}
	t, _ := versions.Of(repository.Format)
	if err := needTags(repository, t); err != nil {
		return err
	}
	removed, err := tx.Pgx().Exec(ctx,
		`DELETE FROM `+t.Tags.Table+` WHERE repository_id = $1 AND name = $2 AND tag = $3`, repositoryID, name, tag)
	if err == nil && removed.RowsAffected() == 0 {
		err = ErrNotFound
	}
	return err
}

func needTags(repository entdb.Repository, t versions.Table) error {
	if t.Tags.Table == "" {
		return wrongFormat(repository, "container and npm")
	}
	return nil
}
