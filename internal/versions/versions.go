// Package versions knows where the versions of each format are and what hangs on
// them, and is the one way to delete them.
package versions

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/schematype"
)

// Table is where the versions of one format are.
type Table struct {
	Format schematype.Format
	Name   string
	// Key is the column that, with repository_id and name, is a version's
	// natural key.
	Key string
}

var tables = map[schematype.Format]Table{
	schematype.FormatContainer: {schematype.FormatContainer, "container_manifests", "digest"},
	schematype.FormatMaven:     {schematype.FormatMaven, "maven_versions", "version"},
	schematype.FormatNPM:       {schematype.FormatNPM, "npm_versions", "version"},
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

// Delete deletes locked versions with all that hangs on them.
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
	return batch
}

func ids(versions []Version) []uuid.UUID {
	all := make([]uuid.UUID, 0, len(versions))
	for _, v := range versions {
		all = append(all, v.ID)
	}
	return all
}
