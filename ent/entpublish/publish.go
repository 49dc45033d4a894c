package entpublish

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/internal/versions"
)

// Publish stores a version with its blobs. Publishing identical content again
// changes nothing, and restores the version if it was soft-deleted. A Maven
// version takes further files; the version of another format does not.
//
// Errors: ErrInvalid; ErrConflict; entdb.ErrRepository; entdb.ErrVirtual;
// entdb.ErrDeleting.
func Publish(ctx context.Context, tx *entdb.Tx, v Version) (Published, error) {
	blobs, err := distinct(v.Blobs)
	if err != nil {
		return Published{}, err
	}
	repository, t, err := resolve(ctx, tx, v.Ref)
	if err != nil {
		return Published{}, err
	}
	if repository.Kind == schematype.KindVirtual {
		return Published{}, fmt.Errorf("publish %s: %w", v.Name, entdb.ErrVirtual)
	}
	if repository.Deleting {
		return Published{}, fmt.Errorf("publish %s: %w", v.Name, entdb.ErrDeleting)
	}
	p := publisher{tx: tx, table: t, namespace: repository.NamespaceID, ref: v.Ref, blobs: blobs}
	if err := putBlobs(ctx, tx, p.namespace, blobs); err != nil {
		return Published{}, fmt.Errorf("publish %s: %w", v.Name, err)
	}
	published, err := p.publish(ctx)
	if err != nil {
		return Published{}, fmt.Errorf("publish %s: %w", v.Name, err)
	}
	return published, nil
}

// publisher is one publish under way.
type publisher struct {
	tx        *entdb.Tx
	table     versions.Table
	namespace uuid.UUID
	ref       Ref
	blobs     []Blob
}

// publish goes round again when the version that was in the way is purged
// before it is locked.
func (p publisher) publish(ctx context.Context) (Published, error) {
	for {
		published, err := p.create(ctx)
		if err == nil || !errors.Is(err, pgx.ErrNoRows) {
			return published, err
		}
		published, err = p.republish(ctx)
		if err == nil || !errors.Is(err, pgx.ErrNoRows) {
			return published, err
		}
	}
}

// create inserts the version; pgx.ErrNoRows when it is there already.
func (p publisher) create(ctx context.Context) (Published, error) {
	size := sizeOf(p.blobs)
	args := append(key(p.table, p.ref), uuid.Must(uuid.NewV7()), p.namespace, size)
	published := Published{Created: true, Size: size}
	err := p.tx.Pgx().QueryRow(ctx, `
		INSERT INTO `+p.table.Name+` (repository_id, name, `+p.table.Key+`, id, namespace_id, size_bytes)
		VALUES ($1, $2, $3, $4, $5, $6)
		ON CONFLICT (repository_id, name, `+p.table.Key+`) DO NOTHING
		RETURNING id`, args...).Scan(&published.ID)
	if pgdb.IsForeignKeyViolation(err) {
		return Published{}, entdb.ErrRepository
	}
	if err != nil {
		return Published{}, err
	}
	if err := p.count(entdb.Counters{Bytes: size, Components: 1}); err != nil {
		return Published{}, err
	}
	_, err = p.attach(ctx, published.ID, p.blobs)
	return published, err
}

// republish compares what is published with what is given; pgx.ErrNoRows when
// the version is gone.
func (p publisher) republish(ctx context.Context) (Published, error) {
	var published Published
	err := p.tx.Pgx().QueryRow(ctx,
		`SELECT id, size_bytes, soft_deleted_at IS NOT NULL FROM `+p.table.Name+` WHERE `+isVersion(p.table)+` FOR UPDATE`,
		key(p.table, p.ref)...).Scan(&published.ID, &published.Size, &published.Restored)
	if err != nil {
		return Published{}, err
	}
	if p.table.Format == schematype.FormatMaven {
		err = p.extend(ctx, &published)
	} else {
		err = p.compare(ctx, published.ID)
	}
	if err == nil && published.Restored {
		err = setSoftDeleted(ctx, p.tx, p.table, p.ref, `NULL`)
	}
	return published, err
}

// extend attaches the blobs that the version does not have yet.
func (p publisher) extend(ctx context.Context, published *Published) error {
	attached, err := p.attach(ctx, published.ID, p.blobs)
	if err != nil || attached == 0 {
		return err
	}
	published.Size += attached
	// Too large a size fails here, and the transaction with it: the blobs are
	// attached already.
	_, err = p.tx.Pgx().Exec(ctx, `UPDATE `+p.table.Name+` SET size_bytes = $2 WHERE id = $1`, published.ID, published.Size)
	if err != nil {
		return fmt.Errorf("the version would have %d bytes, at most %d are allowed: %w", published.Size, int64(maxBlobSize), err)
	}
	return p.count(entdb.Counters{Bytes: attached})
}

// compare fails unless the version has exactly the blobs that are given.
func (p publisher) compare(ctx context.Context, id uuid.UUID) error {
	rows, err := p.tx.Pgx().Query(ctx,
		`SELECT sha256 FROM blob_storage_attachments WHERE version_table = $1 AND version_id = $2`, int16(p.table.Format), id)
	if err != nil {
		return err
	}
	attached, err := pgx.CollectRows(rows, pgx.RowTo[schematype.Digest])
	if err != nil {
		return err
	}
	given := make(map[schematype.Digest]bool, len(p.blobs))
	for _, b := range p.blobs {
		given[b.Digest] = true
	}
	for _, digest := range attached {
		if !given[digest] {
			return fmt.Errorf("%w: it has blob %s, which is not among those given", ErrConflict, digest)
		}
	}
	if len(attached) != len(given) {
		return fmt.Errorf("%w: it has %d blobs, %d are given", ErrConflict, len(attached), len(given))
	}
	return nil
}

// attach ties blobs to a version and returns the bytes of those that were not
// tied to it before.
func (p publisher) attach(ctx context.Context, id uuid.UUID, blobs []Blob) (bytes int64, err error) {
	digests, sizes := columns(blobs)
	attached, err := collectBlobs(p.tx.Pgx().Query(ctx, `
		WITH given AS (SELECT * FROM unnest($5::bytea[], $6::bigint[]) AS given (sha256, size_bytes)),
		attached AS (
			INSERT INTO blob_storage_attachments (namespace_id, repository_id, version_table, version_id, sha256)
			SELECT $1, $2, $3, $4, sha256 FROM given
			ON CONFLICT DO NOTHING
			RETURNING sha256)
		SELECT sha256, size_bytes FROM given JOIN attached USING (sha256)`,
		p.namespace, p.ref.RepositoryID, int16(p.table.Format), id, digests, sizes))
	if err != nil {
		return 0, fmt.Errorf("attach blobs: %w", err)
	}
	return sizeOf(attached), nil
}

func (p publisher) count(change entdb.Counters) error {
	return count(p.tx, p.namespace, p.ref.RepositoryID, change)
}

// count adds a change of versions to their repository, and their number to
// the namespace. The namespace's bytes are those of its blobs.
func count(tx *entdb.Tx, namespace, repository uuid.UUID, change entdb.Counters) error {
	return errors.Join(
		tx.Report(entdb.Change{NamespaceID: namespace, RepositoryID: repository, Counters: change}),
		tx.Report(entdb.Change{NamespaceID: namespace, Counters: entdb.Counters{Components: change.Components}}),
	)
}
