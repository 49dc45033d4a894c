package entpublish

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/versions"
)

// Publish stores a version with its content, into a hosted repository or into
// the cache that a remote one is. Publishing identical content again changes
// nothing, and restores the version if it was soft-deleted.
//
// A manifest and an npm version are published whole; other content is
// ErrConflict for the one, for its digest determines its content, and
// ErrImmutable for the other. A Maven version is deployed file by file, in one
// call or in many. Another content under a path that is there replaces it, and
// the version's size changes by the difference, when the version ends with
// -SNAPSHOT or is empty, or when the file is maven-metadata.xml or one of its
// checksums; otherwise it is ErrImmutable. Nothing is stored then.
//
// Errors: ErrInvalid; ErrConflict; ErrImmutable; ErrNotFound when a child is
// not there or is soft-deleted; ErrRepository, ErrVirtual, ErrSoftDeleted and
// ErrDeleting of entdb.
func Publish(ctx context.Context, tx *entdb.Tx, v Version) (Published, error) {
	published, err := publish(ctx, tx, v)
	if err != nil {
		return Published{}, fmt.Errorf("publish %s: %w", quoted(v.Name), err)
	}
	return published, nil
}

func publish(ctx context.Context, tx *entdb.Tx, v Version) (Published, error) {
	files, err := distinctFiles(v.Files)
	if err != nil {
		return Published{}, err
	}
	blobs, err := distinct(append(blobsOf(files), v.Blobs...))
	if err != nil {
		return Published{}, err
	}
	repository, t, err := resolveOpen(ctx, tx, v.Ref)
	if err == nil {
		err = checkContent(t.Format, v)
	}
	if err != nil {
		return Published{}, err
	}
	p := publisher{tx: tx, table: t, namespace: repository.NamespaceID, ref: v.Ref, blobs: blobs, files: files}
	if err := putBlobs(ctx, tx, p.namespace, blobs); err != nil {
		return Published{}, err
	}
	if p.children, err = p.lockChildren(ctx, v.Children); err != nil {
		return Published{}, err
	}
	return p.publish(ctx)
}

// publisher is one publish under way.
type publisher struct {
	tx        *entdb.Tx
	table     versions.Table
	namespace uuid.UUID
	ref       Ref
	blobs     []Blob
	files     []File
	// children are ids.
	children []uuid.UUID
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
	if err != nil {
		return Published{}, err
	}
	if err := p.count(entdb.Counters{Bytes: size, Components: 1}); err != nil {
		return Published{}, err
	}
	if _, err := p.attach(ctx, published.ID); err != nil {
		return Published{}, err
	}
	if err := p.refer(ctx, published.ID); err != nil {
		return Published{}, err
	}
	return published, p.putFiles(ctx, published.ID)
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
		err = p.deploy(ctx, &published)
	} else {
		err = p.compare(ctx, published.ID)
	}
	if err == nil && published.Restored {
		err = setSoftDeleted(ctx, p.tx, p.table, p.ref, `NULL`)
	}
	return published, err
}

// compare fails unless the version has exactly the blobs and children that are
// given.
func (p publisher) compare(ctx context.Context, id uuid.UUID) error {
	if err := p.compareBlobs(ctx, id); err != nil {
		return err
	}
	if p.table.Format != schematype.FormatContainer {
		return nil
	}
	rows, err := p.tx.Pgx().Query(ctx, `SELECT child_id FROM container_manifest_references WHERE index_id = $1 ORDER BY child_id`, id)
	if err != nil {
		return err
	}
	children, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	if err != nil {
		return err
	}
	if !slices.Equal(children, p.children) {
		return fmt.Errorf("%w: it refers to %d manifests, which are not the %d that are given", ErrConflict, len(children), len(p.children))
	}
	return nil
}

func (p publisher) compareBlobs(ctx context.Context, id uuid.UUID) error {
	rows, err := p.tx.Pgx().Query(ctx,
		`SELECT sha256 FROM blob_storage_attachments WHERE version_table = $1 AND version_id = $2`, int16(p.table.Format), id)
	if err != nil {
		return err
	}
	attached, err := pgx.CollectRows(rows, pgx.RowTo[schematype.Digest])
	if err != nil {
		return err
	}
	conflict := ErrConflict
	if p.table.Format == schematype.FormatNPM {
		conflict = ErrImmutable
	}
	for _, digest := range attached {
		if !slices.ContainsFunc(p.blobs, func(b Blob) bool { return b.Digest == digest }) {
			return fmt.Errorf("%w: it has blob %s, which is not among those given", conflict, digest)
		}
	}
	if len(attached) != len(p.blobs) {
		return fmt.Errorf("%w: it has %d blobs, %d are given", conflict, len(attached), len(p.blobs))
	}
	return nil
}

// attach ties the blobs to a version and returns the bytes of those that were
// not tied to it before.
func (p publisher) attach(ctx context.Context, id uuid.UUID) (bytes int64, err error) {
	if len(p.blobs) == 0 {
		return 0, nil
	}
	digests, sizes := columns(p.blobs)
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

// resize gives a locked version another size, and counts the difference.
func resize(ctx context.Context, tx *entdb.Tx, t versions.Table, v versions.Version, size int64) error {
	if size == v.Size {
		return nil
	}
	// Too large a size fails here, and the transaction with it: the blobs are
	// attached already.
	_, err := tx.Pgx().Exec(ctx, `UPDATE `+t.Name+` SET size_bytes = $2 WHERE id = $1`, v.ID, size)
	if err != nil && size > maxBlobSize {
		return fmt.Errorf("%w: the version would have %d bytes, at most %d are allowed: %w", ErrInvalid, size, int64(maxBlobSize), err)
	}
	if err != nil {
		return fmt.Errorf("resize: %w", err)
	}
	return count(tx, v.Namespace, v.Repository, entdb.Counters{Bytes: size - v.Size})
}
