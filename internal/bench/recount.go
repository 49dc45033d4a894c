package main

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/reconcile"
)

const (
	recountNamespaces = 500_000
	recountBlobs      = 1_600_000
	recountLargest    = 353_000
	// recountVersions stand in recountRepositories of the largest namespace.
	recountVersions     = 20_000
	recountRepositories = 20
	recounts            = 40
)

func recountMeasures() []measure {
	const what = "recount of a namespace with 353,000 of 1,600,000 blobs, and 20,000 versions"
	measures := []measure{
		{ID: "P5-shadow", What: what, Against: "bare sum of its blobs over the table by namespace", Want: atLeast(0.8)},
		{ID: "P5-blobs", What: what, Against: "bare sum of its blobs over blob_storage_blobs", Want: atLeast(2)},
	}
	for i, table := range []string{"blob_storage_blobs_by_namespace", "blob_storage_blobs"} {
		measures[i].Unit = "recounts/s"
		measures[i].prepare = func(ctx context.Context, l *lab) (sides, error) { return prepareRecounts(ctx, l, table) }
	}
	return measures
}

// prepareRecounts is fair: both sides sum the same rows, one at a time on one
// connection, with every page in memory and marked as visible to all; and the sum is
// no more than a part of a recount.
func prepareRecounts(ctx context.Context, l *lab, peer string) (sides, error) {
	pool, err := l.newDatabase(ctx, 1)
	if err != nil {
		return sides{}, err
	}
	l.progress.InfoContext(ctx, "making the blobs that are recounted")
	if err := blobsToRecount(ctx, l, pool); err != nil {
		return sides{}, err
	}
	var largest uuid.UUID
	if err := pool.QueryRow(ctx, `SELECT namespace_id FROM repositories LIMIT 1`).Scan(&largest); err != nil {
		return sides{}, err
	}
	want := accounting.Counters{Bytes: int64(l.size(recountLargest)) * recountBlobSize, Components: int64(l.size(recountVersions))}
	sum := `SELECT sum(size_bytes)::bigint FROM ` + peer + ` WHERE namespace_id = $1`
	return sides{
		ours: func(ctx context.Context) (float64, error) {
			return perSecond(ctx, 1, l.size(recounts), func(ctx context.Context, _ int) error { return recount(ctx, pool, largest, want) })
		},
		peer: func(ctx context.Context) (float64, error) {
			return perSecond(ctx, 1, l.size(recounts), func(ctx context.Context, _ int) error {
				var bytes int64
				return pool.QueryRow(ctx, sum, largest).Scan(&bytes)
			})
		},
	}, nil
}

// recount is that of a pass, and of `stowage namespace verify`.
func recount(ctx context.Context, pool *pgxpool.Pool, namespace uuid.UUID, want accounting.Counters) error {
	snapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	return pgx.BeginTxFunc(ctx, pool, snapshot, func(tx pgx.Tx) error {
		got, err := reconcile.Recount(ctx, tx, namespace, func(uuid.UUID, accounting.Counters) error { return nil })
		if err == nil && got != want {
			err = fmt.Errorf("recounted %+v instead of %+v", got, want)
		}
		return err
	})
}

const recountBlobSize = 1 << 20

// blobsToRecount fills both tables of blobs, without the triggers, which would fill
// the second row by row. The blobs of the largest namespace lie between all others,
// as if they had come in their time.
func blobsToRecount(ctx context.Context, l *lab, pool *pgxpool.Pool) error {
	namespaces, blobs, largest := l.size(recountNamespaces), l.size(recountBlobs), l.size(recountLargest)
	return statements(ctx, pool,
		`SET session_replication_role = replica`,
		fmt.Sprintf(`CREATE TEMPORARY TABLE ids AS SELECT n, gen_random_uuid() AS id FROM generate_series(0, %d) AS n`, namespaces-1),
		`INSERT INTO namespaces (id, slug) SELECT id, 'n' || n FROM ids`,
		`INSERT INTO namespace_statistics (namespace_id) SELECT id FROM ids`,
		fmt.Sprintf(`INSERT INTO repositories (id, namespace_id, name, format, kind)
			SELECT gen_random_uuid(), id, 'r' || r, 3, 1 FROM ids, generate_series(1, %d) AS r WHERE n = 0`, recountRepositories),
		fmt.Sprintf(`INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes)
			SELECT gen_random_uuid(), namespace_id, r.id, 'package', v::text, 1
			FROM generate_series(1, %d) AS v JOIN repositories r ON r.name = 'r' || (1 + v %% %d)`, l.size(recountVersions), recountRepositories),
		fmt.Sprintf(`INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes)
			SELECT ids.id, sha256(int4send(b)), %[4]d
			FROM generate_series(0, %[1]d - 1) AS b JOIN ids ON n = CASE WHEN b::bigint * %[2]d %% %[1]d < %[2]d THEN 0 ELSE 1 + b %% (%[3]d - 1) END`,
			blobs, largest, namespaces, recountBlobSize),
		`INSERT INTO blob_storage_blobs_by_namespace SELECT namespace_id, sha256, size_bytes FROM blob_storage_blobs`,
		`RESET session_replication_role`,
		`VACUUM ANALYZE`)
}
