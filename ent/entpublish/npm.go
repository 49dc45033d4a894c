package entpublish

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
)

// Deprecate says why versions of an npm package should not be used any more:
// messages by version, as npm sends them. An empty message takes the
// deprecation back. It changes no counter.
//
// Errors: ErrNotFound when a version is not there; ErrInvalid, also without any
// message; ErrRepository,
// ErrFormat, ErrVirtual, ErrSoftDeleted and ErrDeleting of entdb.
func Deprecate(ctx context.Context, tx *entdb.Tx, repositoryID uuid.UUID, name string, messages map[string]string) error {
	if err := deprecate(ctx, tx, repositoryID, name, messages); err != nil {
		return fmt.Errorf("deprecate versions of %s: %w", quoted(name), err)
	}
	return nil
}

func deprecate(ctx context.Context, tx *entdb.Tx, repositoryID uuid.UUID, name string, messages map[string]string) error {
	if len(messages) == 0 {
		return fmt.Errorf("%w: there are no messages", ErrInvalid)
	}
	given := slices.Sorted(maps.Keys(messages))
	texts := make([]string, 0, len(given))
	for _, version := range given {
		text := messages[version]
		if err := checkUTF8("message", text); err != nil {
			return err
		}
		repository, t, err := resolveOpen(ctx, tx, Ref{RepositoryID: repositoryID, Name: name, Version: version})
		if err != nil {
			return err
		}
		if t.Format != schematype.FormatNPM {
			return wrongFormat(repository, "npm")
		}
		texts = append(texts, text)
	}
	rows, err := tx.Pgx().Query(ctx, `
		WITH locked AS (
			SELECT id, version FROM npm_versions
			WHERE repository_id = $1 AND name = $2 AND version = ANY ($3)
			ORDER BY id
			FOR NO KEY UPDATE)
		UPDATE npm_versions v SET deprecation = nullif(g.message, '')
		FROM locked, unnest($3::text[], $4::text[]) AS g (version, message)
		WHERE v.id = locked.id AND g.version = locked.version
		RETURNING v.version`, repositoryID, name, given, texts)
	if err != nil {
		return err
	}
	found, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, version := range given {
		if !slices.Contains(found, version) {
			return fmt.Errorf("version %s: %w", quoted(version), ErrNotFound)
		}
	}
	return nil
}
