// Package versions knows where the versions of each format are and what hangs on
// them, and is the one way to delete them.
package versions

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/schematype"
)

// ErrReferenced says that an image index refers to a manifest that was to be
// deleted without it.
var ErrReferenced = errors.New("an image index refers to the manifest: delete the index first, or with it")

// Table is where the versions of one format are.
type Table struct {
	Format schematype.Format
	Name   string
	// Key is the column that, with repository_id and name, is a version's
	// natural key.
	Key string
	// Tags are names that move from version to version; the zero value when the
	// format has none.
	Tags Hanging
	// others hang on versions too.
	others []Hanging
}

// Hanging is a table whose rows hang on versions, by a column that holds the
// version's id.
type Hanging struct{ Table, Column string }

var tables = map[schematype.Format]Table{
	schematype.FormatContainer: {
		Format: schematype.FormatContainer, Name: "container_manifests", Key: "digest",
		Tags: Hanging{"container_tags", "manifest_id"},
		others: []Hanging{
			{"container_manifest_references", "index_id"},
			{"container_manifest_references", "child_id"},
		},
	},
	schematype.FormatMaven: {
		Format: schematype.FormatMaven, Name: "maven_versions", Key: "version",
		others: []Hanging{{"maven_files", "version_id"}},
	},
	schematype.FormatNPM: {
		Format: schematype.FormatNPM, Name: "npm_versions", Key: "version",
		Tags: Hanging{"npm_dist_tags", "version_id"},
	},
}

// Of is the table of a format; ok is false when nobody has written one.
func Of(format schematype.Format) (t Table, ok bool) {
	t, ok = tables[format]
	return t, ok
}

// Version is what counting needs to know of a version. Size is in bytes.
type Version struct {
	ID, Namespace, Repository uuid.UUID
	Size                      int64
}

// Lock keeps everybody else from changing the versions that meet a condition,
// and from hanging anything on them, until the transaction ends. It locks in
// the order of the ids.
func (t Table) Lock(ctx context.Context, tx pgx.Tx, where string, args ...any) ([]Version, error) {
	rows, err := tx.Query(ctx,
		`SELECT id, namespace_id, repository_id, size_bytes FROM `+t.Name+` WHERE `+where+` ORDER BY id FOR UPDATE`, args...)
	if err != nil {
		return nil, fmt.Errorf("lock versions: %w", err)
	}
	locked, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (v Version, err error) {
		return v, row.Scan(&v.ID, &v.Namespace, &v.Repository, &v.Size)
	})
	if err != nil {
		return nil, fmt.Errorf("lock versions: %w", err)
	}
	return locked, nil
}

// CheckUnreferenced fails with ErrReferenced, naming both, when an index that is
// not among the locked versions refers to one that is.
func (t Table) CheckUnreferenced(ctx context.Context, tx pgx.Tx, locked []Version) error {
	if t.Format != schematype.FormatContainer {
		return nil
	}
	var name string
	var child, index schematype.Digest
	err := tx.QueryRow(ctx, `
		SELECT c.name, c.digest, i.digest
		FROM container_manifest_references r
		JOIN container_manifests c ON c.id = r.child_id
		JOIN container_manifests i ON i.id = r.index_id
		WHERE r.child_id = ANY ($1) AND r.index_id <> ALL ($1)
		ORDER BY c.name, c.digest, i.digest
		LIMIT 1`, ids(locked)).Scan(&name, &child, &index)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look for indexes: %w", err)
	default:
		return fmt.Errorf("%w: index %s refers to %s@%s", ErrReferenced, index, name, child)
	}
}

// Delete deletes locked versions with all that hangs on them, the references of
// image indexes to them too.
//
// What hangs on them is looked for after the lock, in statements of their own:
// a publish that held a version meanwhile may have hung on more.
func (t Table) Delete(ctx context.Context, tx pgx.Tx, locked []Version) error {
	batch := t.release(locked)
	batch.Queue(`DELETE FROM `+t.Name+` WHERE id = ANY ($1)`, ids(locked))
	if err := tx.SendBatch(ctx, batch).Close(); err != nil {
		return fmt.Errorf("delete versions: %w", err)
	}
	return nil
}

// Release removes what hangs on locked versions, for a caller that deletes the
// versions itself.
func (t Table) Release(ctx context.Context, tx pgx.Tx, locked []Version) error {
	if err := tx.SendBatch(ctx, t.release(locked)).Close(); err != nil {
		return fmt.Errorf("release versions: %w", err)
	}
	return nil
}

func (t Table) release(locked []Version) *pgx.Batch {
	batch := &pgx.Batch{}
	// No foreign key ties attachments to three tables.
	batch.Queue(`DELETE FROM blob_storage_attachments WHERE version_table = $1 AND version_id = ANY ($2)`, int16(t.Format), ids(locked))
	if t.Tags.Table != "" {
		// In the order in which they are set: whoever sets several of them
		// meanwhile may hold one and want another.
		batch.Queue(`
			DELETE FROM `+t.Tags.Table+` WHERE id IN (
				SELECT id FROM `+t.Tags.Table+` WHERE `+t.Tags.Column+` = ANY ($1) ORDER BY repository_id, name, tag FOR UPDATE)`, ids(locked))
	}
	for _, h := range t.others {
		batch.Queue(`DELETE FROM `+h.Table+` WHERE `+h.Column+` = ANY ($1)`, ids(locked))
	}
	return batch
}

func ids(versions []Version) []uuid.UUID {
	all := make([]uuid.UUID, 0, len(versions))
	for _, v := range versions {
		all = append(all, v.ID)
	}
	return all
}
