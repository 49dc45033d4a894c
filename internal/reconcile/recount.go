package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

// ErrOverflow says that the content of a scope sums to more bytes than a
// counter (a bigint) can hold.
var ErrOverflow = errors.New("sum exceeds a bigint")

// LATERAL makes the planner visit the versions repository by repository, by
// the covering index on repository_id: the version tables hold the rows of all
// namespaces. A repository is looked for in every version table, because its
// format does not bind the tables. Soft-deleted rows count until purged.
const recountRepositoriesSQL = `
SELECT r.id, coalesce(v.bytes, 0), coalesce(v.components, 0)
FROM repositories r
LEFT JOIN LATERAL (
    SELECT sum(size_bytes) AS bytes, count(*) AS components
    FROM (
        SELECT size_bytes FROM container_manifests WHERE repository_id = r.id
        UNION ALL
        SELECT size_bytes FROM maven_versions WHERE repository_id = r.id
        UNION ALL
        SELECT size_bytes FROM npm_versions WHERE repository_id = r.id
    ) AS versions
) AS v ON r.kind <> $2
WHERE r.namespace_id = $1`

// The shadow table holds a namespace's blobs in one partition, and its index
// on namespace_id covers the sum.
const recountBytesSQL = `
SELECT coalesce(sum(size_bytes), 0)
FROM blob_storage_blobs_by_namespace
WHERE namespace_id = $1`

// Recount recomputes a namespace from the source tables. It hands the counters
// of each repository to each, in no particular order, as they arrive from the
// server, so that memory stays bounded, and returns those of the namespace
// itself. An error of each ends it. Run it in one REPEATABLE READ transaction,
// or the repositories and the namespace belong to different moments; each must
// not use that transaction.
func Recount(ctx context.Context, tx pgx.Tx, namespace uuid.UUID, each func(repository uuid.UUID, counters accounting.Counters) error) (accounting.Counters, error) {
	components, err := recountRepositories(ctx, tx, namespace, each)
	if err != nil {
		return accounting.Counters{}, fmt.Errorf("recount repositories: %w", err)
	}
	bytes, err := recountBytes(ctx, tx, namespace)
	if err != nil {
		return accounting.Counters{}, fmt.Errorf("recount blobs: %w", err)
	}
	return accounting.Counters{Bytes: bytes, Components: components}, nil
}

// recountRepositories returns the components of all repositories together.
func recountRepositories(ctx context.Context, db pgdb.DB, namespace uuid.UUID, each func(uuid.UUID, accounting.Counters) error) (int64, error) {
	rows, err := db.Query(ctx, recountRepositoriesSQL, namespace, schematype.KindVirtual)
	if err != nil {
		return 0, err
	}
	var (
		total      int64
		repository uuid.UUID
		sum        pgtype.Numeric
		counters   accounting.Counters
	)
	_, err = pgx.ForEachRow(rows, []any{&repository, &sum, &counters.Components}, func() (err error) {
		if counters.Bytes, err = toBigint(sum); err != nil {
			return fmt.Errorf("repository %s: %w", repository, err)
		}
		total += counters.Components
		return each(repository, counters)
	})
	return total, err
}

func recountBytes(ctx context.Context, db pgdb.DB, namespace uuid.UUID) (int64, error) {
	var sum pgtype.Numeric
	if err := db.QueryRow(ctx, recountBytesSQL, namespace).Scan(&sum); err != nil {
		return 0, err
	}
	return toBigint(sum)
}

// toBigint narrows a sum of bigints, which PostgreSQL makes a numeric.
func toBigint(sum pgtype.Numeric) (int64, error) {
	n, err := sum.Int64Value()
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrOverflow, err)
	}
	return n.Int64, nil
}
