package entpublish

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/repository"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/versions"
)

// Purge removes a version, soft-deleted or not, with its tags and files, and
// gives up its component and its logical bytes. Its blobs stay until
// CollectBlobs finds them without a version. Of several that purge one version
// at the same time, one succeeds and the others get ErrNotFound.
//
// Errors: ErrNotFound; ErrConflict when an image index refers to the manifest
// (entdb.ErrReferenced too; the text names both); ErrInvalid;
// entdb.ErrRepository.
func Purge(ctx context.Context, tx *entdb.Tx, ref Ref) error {
	purged, err := PurgeMany(ctx, tx, []Ref{ref})
	if err == nil && purged == 0 {
		err = fmt.Errorf("purge %s: %w", quoted(ref.Name), ErrNotFound)
	}
	return err
}

// PurgeMany is Purge of many versions in few statements, as an eviction from a
// remote repository's cache and the clean-up of old versions need it. Those that
// are not there are passed over; it returns how many it has purged. An index and
// its children may go together.
//
// Errors: as Purge, but no ErrNotFound.
func PurgeMany(ctx context.Context, tx *entdb.Tx, refs []Ref) (purged int, err error) {
	byRepository := make(map[uuid.UUID][]Ref)
	for _, ref := range refs {
		byRepository[ref.RepositoryID] = append(byRepository[ref.RepositoryID], ref)
	}
	for _, id := range slices.SortedFunc(maps.Keys(byRepository), func(a, b uuid.UUID) int { return bytes.Compare(a[:], b[:]) }) {
		n, err := purgeOf(ctx, tx, id, byRepository[id])
		if err != nil {
			return 0, fmt.Errorf("purge %s: %w", quoted(byRepository[id][0].Name), err)
		}
		purged += n
	}
	return purged, nil
}

// purgeOf purges versions of one repository.
func purgeOf(ctx context.Context, tx *entdb.Tx, repository uuid.UUID, refs []Ref) (purged int, err error) {
	var t versions.Table
	var names, keyTexts []string
	var digests [][]byte
	for _, ref := range refs {
		if _, t, err = resolve(ctx, tx, ref); err != nil {
			return 0, err
		}
		names = append(names, ref.Name)
		keyTexts = append(keyTexts, ref.Version)
		digests = append(digests, ref.Digest[:])
	}
	if t.Format == schematype.FormatContainer {
		return purgeWhere(ctx, tx, t, `repository_id = $1 AND (name, digest) IN (SELECT * FROM unnest($2::text[], $3::bytea[]))`, repository, names, digests)
	}
	return purgeWhere(ctx, tx, t, `repository_id = $1 AND (name, version) IN (SELECT * FROM unnest($2::text[], $3::text[]))`, repository, names, keyTexts)
}

// PurgeName removes all versions of one name, as unpublishing an npm package
// does, or the deletion of an image or of a Maven artifact. It returns how many.
// It works in the one transaction.
//
// Errors: ErrNotFound when there is none; ErrInvalid; entdb.ErrRepository.
func PurgeName(ctx context.Context, tx *entdb.Tx, repositoryID uuid.UUID, name string) (purged int, err error) {
	if err := checkText("name", name); err != nil {
		return 0, fmt.Errorf("purge all versions: %w", err)
	}
	repository, err := tx.FindRepository(ctx, repositoryID)
	if err == nil {
		t, _ := versions.Of(repository.Format)
		purged, err = purgeWhere(ctx, tx, t, `repository_id = $1 AND name = $2`, repositoryID, name)
	}
	if err == nil && purged == 0 {
		err = ErrNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("purge all versions of %s: %w", quoted(name), err)
	}
	return purged, nil
}

func purgeWhere(ctx context.Context, tx *entdb.Tx, t versions.Table, where string, args ...any) (purged int, err error) {
	locked, err := t.Lock(ctx, tx.Pgx(), where, args...)
	if err != nil || len(locked) == 0 {
		return 0, err
	}
	err = t.CheckUnreferenced(ctx, tx.Pgx(), locked)
	if errors.Is(err, entdb.ErrReferenced) {
		err = fmt.Errorf("%w: %w", ErrConflict, err)
	}
	if err != nil {
		return 0, err
	}
	return len(locked), deleteVersions(ctx, tx, t, locked)
}

// DeleteRepository removes a repository with all of its versions, soft-deleted
// or not, in the one transaction, and gives back its components. Its blobs
// stay until CollectBlobs. Errors: entdb.ErrRepository.
func DeleteRepository(ctx context.Context, tx *entdb.Tx, id uuid.UUID) error {
	if err := lockRow(ctx, tx, repository.Table, id, entdb.ErrRepository); err != nil {
		return fmt.Errorf("delete repository: %w", err)
	}
	facts, err := tx.FindRepository(ctx, id)
	if err != nil {
		return fmt.Errorf("delete repository: %w", err)
	}
	t, _ := versions.Of(facts.Format)
	locked, err := t.Lock(ctx, tx.Pgx(), `repository_id = $1`, id)
	if err == nil {
		err = deleteVersions(ctx, tx, t, locked)
	}
	if err == nil {
		err = tx.Repository.DeleteOneID(id).Exec(ctx)
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
