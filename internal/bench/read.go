package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/accounting"
)

const (
	readNamespaces  = 5_000
	readRows        = 20_000
	readers         = 16
	readConnections = 8
	// readPending: the buffer of one namespace in so many holds a delta. Where drains
	// come every ten seconds, few are written to in between.
	readPending = 50
)

func readMeasures() []measure {
	return []measure{{
		ID:      "P6",
		What:    "reading a namespace's usage through the client, with what is pending, 16 readers",
		Against: "its row by primary key in raw pgx",
		Unit:    "reads/s",
		Want:    atLeast(0.5),
		prepare: prepareReads,
	}}
}

func prepareReads(ctx context.Context, l *lab) (sides, error) {
	pool, err := l.newDatabase(ctx, readConnections)
	if err != nil {
		return sides{}, err
	}
	redis, err := l.redis(ctx)
	if err != nil {
		return sides{}, err
	}
	ids, err := reconciledNamespaces(ctx, pool, l.size(readNamespaces))
	if err != nil {
		return sides{}, err
	}
	if err := fewPending(ctx, redis, ids); err != nil {
		return sides{}, err
	}
	db, err := l.clientOf(entdb.Config{Pool: pool, Redis: redis})
	if err != nil {
		return sides{}, err
	}
	reads := l.size(readRows)
	return sides{
		ours: func(ctx context.Context) (float64, error) {
			return perSecond(ctx, readers, reads, func(ctx context.Context, i int) error {
				_, err := db.NamespaceUsage(ctx, ids[i%len(ids)])
				return err
			})
		},
		// Fair: the same pool, which prepares and caches the statement, and the columns
		// that a usage shows; it knows nothing of what is pending.
		peer: func(ctx context.Context) (float64, error) {
			return perSecond(ctx, readers, reads, func(ctx context.Context, i int) error { return readRow(ctx, pool, ids[i%len(ids)]) })
		},
	}, nil
}

func readRow(ctx context.Context, pool *pgxpool.Pool, id uuid.UUID) error {
	var (
		c          accounting.Counters
		reconciled time.Time
	)
	return pool.QueryRow(ctx, `
		SELECT deduplicated_size_bytes, components_count, last_reconciled_at FROM namespace_statistics
		WHERE namespace_id = $1`, id).Scan(&c.Bytes, &c.Components, &reconciled)
}

// reconciledNamespaces makes namespaces that were reconciled just now, as in a
// registry that has run for a day. Their ids are in no order.
func reconciledNamespaces(ctx context.Context, pool *pgxpool.Pool, n int) ([]uuid.UUID, error) {
	err := statements(ctx, pool,
		fmt.Sprintf(`INSERT INTO namespaces (id, slug) SELECT gen_random_uuid(), 'n' || n FROM generate_series(1, %d) AS n`, n),
		`UPDATE namespace_statistics SET deduplicated_size_bytes = 1 << 30, components_count = 1000, last_reconciled_at = now(), reconciliation_marker = now()`,
		`VACUUM (ANALYZE, FULL) namespace_statistics`, `VACUUM ANALYZE namespaces`)
	if err != nil {
		return nil, err
	}
	rows, err := pool.Query(ctx, `SELECT id FROM namespaces ORDER BY random()`)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
}

func fewPending(ctx context.Context, redis rueidis.Client, ids []uuid.UUID) error {
	buf := newBuffer(redis)
	marker := accounting.MarkerOf(time.Now())
	for i := 0; i < len(ids); i += readPending {
		delta := accounting.Delta{Scope: accounting.NamespaceScope(ids[i]), Counters: accounting.Counters{Bytes: 1 << 20, Components: 1}}
		if _, err := buf.Emit(ctx, ids[i], marker, []accounting.Delta{delta}); err != nil {
			return err
		}
	}
	return nil
}
