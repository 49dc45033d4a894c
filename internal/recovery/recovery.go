// Package recovery brings Redis and Postgres together again after Postgres was
// restored from a backup, or failed over to an asynchronous standby. Redis then
// knows changes that Postgres has forgotten, which nothing notices from inside.
// The argument is in internal/accounting/README.md.
package recovery

import (
	"context"
	"log/slog"
	"slices"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/requests"
)

const (
	// logEvery is how many scopes are set aside between two lines of the log.
	logEvery = 50_000
	// bucketsAtOnce is how many buckets' namespaces are requested between two
	// lines of the log. Each time the table of namespaces is read once.
	bucketsAtOnce = accounting.Buckets / 8
	// pageSize is how many requests one statement writes.
	pageSize = 1000
)

// Deps is what a recovery works with.
type Deps struct {
	Pool   *pgxpool.Pool
	Buffer *buffer.Buffer
	Log    *slog.Logger
}

// Result is what a recovery did.
type Result struct {
	// ID stands in the keys of what was set aside.
	ID uuid.UUID
	// Scopes is how many were set aside.
	Scopes int
	// Namespaces is how many were requested: all that Postgres has.
	Namespaces int64
}

// Run sets everything aside that Redis holds, and then requests every
// namespace. The order is what makes it right: whatever was set aside had been
// committed, or forgotten, before the requests are written, and only a pass
// that begins after them closes them. Workers and registries may run.
//
// After an error, or a kill at any step, run it again. Until then the buckets
// have lost their identities, so that the next tick requests their namespaces.
func Run(ctx context.Context, deps Deps) (Result, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return Result{}, err
	}
	result := Result{ID: id}
	aside, err := setAside(ctx, deps, id)
	result.Scopes = aside.Scopes
	if err == nil {
		result.Namespaces, err = requestAll(ctx, deps, aside.Markers)
	}
	return result, err
}

func setAside(ctx context.Context, deps Deps, id uuid.UUID) (buffer.Aside, error) {
	logged := 0
	return deps.Buffer.SetAside(ctx, id, func(scopes int) {
		if scopes-logged >= logEvery {
			logged = scopes
			deps.Log.InfoContext(ctx, "setting buffers aside", "scopes", scopes)
		}
	})
}

// requestAll requests the namespaces of the markers first: a pass begins later
// than the request that it finds, so none of those deltas can be newer than it,
// even if the clock of the restored server is behind that of the lost one.
func requestAll(ctx context.Context, deps Deps, markers map[uuid.UUID]accounting.Marker) (total int64, err error) {
	var seen []requests.Request
	for namespace, marker := range markers {
		seen = append(seen, requests.Request{Namespace: namespace, Marker: marker})
	}
	for page := range slices.Chunk(seen, pageSize) {
		if err := requests.Raise(ctx, deps.Pool, page); err != nil {
			return 0, err
		}
	}
	var buckets []int
	for bucket := range accounting.Buckets {
		buckets = append(buckets, bucket)
	}
	for some := range slices.Chunk(buckets, bucketsAtOnce) {
		n, err := requests.RaiseBuckets(ctx, deps.Pool, some...)
		total += n
		if err != nil {
			return total, err
		}
		deps.Log.InfoContext(ctx, "requesting namespaces", "namespaces", total, "percent", 100*(some[len(some)-1]+1)/accounting.Buckets)
	}
	return total, nil
}
