// Package requests keeps the requests for reconciliation: a row of
// reconciliation_requests says that a namespace must be reconciled by a pass
// that starts after the row's marker. Whoever knows or suspects that a delta
// was lost raises one.
//
// A request for a namespace that no longer exists is harmless: the pass that
// finds the namespace gone drops it.
package requests

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

// pageSize is how many namespaces one statement of RaiseBuckets requests.
const pageSize = 1000

// Request asks for a reconciliation of a namespace. Marker is the newest one
// that the caller saw, or zero: what is stored is never less than the time of
// writing.
type Request struct {
	Namespace uuid.UUID
	Marker    accounting.Marker
}

// Only a pass that begins after this statement may close the request [R8]. So
// its marker is at least the clock; and a microsecond more than what a pass that
// has begun, but is not committed yet, makes its own of: the namespace's marker
// and an open request, both perhaps ahead of the clock after that was set back.
const raiseSQL = `
INSERT INTO reconciliation_requests AS r (namespace_id, marker)
SELECT g.namespace_id,
       greatest(stowage_marker_time(max(g.marker)), clock_timestamp(), max(s.reconciliation_marker) + interval '1 microsecond')
FROM unnest($1::uuid[], $2::bigint[]) AS g(namespace_id, marker)
LEFT JOIN namespace_statistics s ON s.namespace_id = g.namespace_id
GROUP BY g.namespace_id
ORDER BY g.namespace_id
ON CONFLICT (namespace_id) DO UPDATE SET marker = greatest(r.marker + interval '1 microsecond', excluded.marker)`

// Raise records the requests in one statement; a namespace may stand in it
// more than once. A request that is open already is raised, always.
// Rows are written in the order of their ids, so that callers do not deadlock.
func Raise(ctx context.Context, db pgdb.DB, reqs []Request) error {
	if len(reqs) == 0 {
		return nil
	}
	namespaces := make([]uuid.UUID, len(reqs))
	markers := make([]int64, len(reqs))
	for i, r := range reqs {
		namespaces[i], markers[i] = r.Namespace, int64(r.Marker)
	}
	if _, err := db.Exec(ctx, raiseSQL, namespaces, markers); err != nil {
		return fmt.Errorf("request reconciliation of %d namespaces: %w", len(reqs), err)
	}
	return nil
}

// RaiseBuckets requests every namespace of the buckets, in pages by keyset, and
// returns how many. It reads the whole table of namespaces once, however many
// buckets are given: after a restart of Redis it is all of them. With a pool
// each page commits by itself; an error leaves the earlier pages requested.
func RaiseBuckets(ctx context.Context, db pgdb.DB, buckets ...int) (int64, error) {
	var total int64
	var after uuid.UUID
	for {
		page, err := namespacesOf(ctx, db, buckets, after)
		if err != nil || len(page) == 0 {
			return total, err
		}
		if err := Raise(ctx, db, page); err != nil {
			return total, err
		}
		total += int64(len(page))
		after = page[len(page)-1].Namespace
	}
}

func namespacesOf(ctx context.Context, db pgdb.DB, buckets []int, after uuid.UUID) ([]Request, error) {
	rows, err := db.Query(ctx, `
		SELECT id, 0::bigint FROM namespaces
		WHERE id > $1 AND stowage_bucket(id) = ANY ($2)
		ORDER BY id LIMIT $3`, after, buckets, pageSize)
	return collect(rows, err, "list namespaces of buckets")
}

// Open lists up to limit open requests, the oldest first: in the order of ids,
// namespaces that are requested all the time could keep others out. Pass the
// last one for the next page, and the zero Request for the first.
func Open(ctx context.Context, db pgdb.DB, after Request, limit int) ([]Request, error) {
	rows, err := db.Query(ctx, `
		SELECT namespace_id, stowage_marker_micros(marker) FROM reconciliation_requests
		WHERE (marker, namespace_id) > (stowage_marker_time($1), $2)
		ORDER BY marker, namespace_id LIMIT $3`, int64(after.Marker), after.Namespace, limit)
	return collect(rows, err, "list requests")
}

// Close deletes the namespace's request if its marker is less than that of the
// pass that ends now: one made while the pass ran stays open [R8]. Call it in
// the transaction that stamps the namespace.
func Close(ctx context.Context, db pgdb.DB, namespace uuid.UUID, pass accounting.Marker) error {
	_, err := db.Exec(ctx, `
		DELETE FROM reconciliation_requests
		WHERE namespace_id = $1 AND marker < stowage_marker_time($2)`, namespace, int64(pass))
	if err != nil {
		return fmt.Errorf("close request: %w", err)
	}
	return nil
}

// Drop deletes the request of a namespace that does not exist any more.
func Drop(ctx context.Context, db pgdb.DB, namespace uuid.UUID) error {
	if _, err := db.Exec(ctx, `DELETE FROM reconciliation_requests WHERE namespace_id = $1`, namespace); err != nil {
		return fmt.Errorf("drop request: %w", err)
	}
	return nil
}

func collect(rows pgx.Rows, err error, what string) ([]Request, error) {
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	reqs, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Request])
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return reqs, nil
}
