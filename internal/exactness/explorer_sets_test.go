package exactness

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/rivertype"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/internal/drain"
	"github.com/stowage-dev/stowage/internal/failpoint"
)

// stops are the points where an actor is stopped. Left out are those before
// which nothing has happened, since the one before, that others could see.
func stops() []failpoint.Point {
	return []failpoint.Point{
		failpoint.WriterWrote, failpoint.WriterCommitted,
		failpoint.DrainClaimed, failpoint.DrainLocked, failpoint.DrainEntered, failpoint.DrainCommitted,
		failpoint.PassAdvanced, failpoint.PassLocked, failpoint.PassSnapshot, failpoint.PassMarked,
		failpoint.PassRowsLocked, failpoint.PassRowsWritten, failpoint.PassChunk, failpoint.PassClosed,
	}
}

// sets are what is explored. Each begins with a version whose deltas, of the
// marker 0, are buffered.
func sets() []set {
	writes := func(acts ...act) script { return script{"writer", acts} }
	drains := func(acts ...act) script { return script{"drain", acts} }
	passes := script{"pass", []act{passing}}
	drainsTwice := drains(draining, draining)
	return []set{
		{"AC4 E9 two drains", 3, []script{drains(draining), drains(draining)}},
		{"AC8 E17 drain, pass", 3, []script{drains(draining), passes}},
		{"AC4 writer, drain", 3, []script{writes(publishing("1")), drainsTwice}},
		{"E16 writer, pass", 2, []script{passes, writes(publishing("1"))}},
		{"E16 E17 writer, pass, drain", 2, []script{passes, writes(publishing("1")), drainsTwice}},
		{"E16 E17 purge, pass, drain", 2, []script{writes(purging("0")), passes, drains(draining)}},
		{"E9 E16 E17 two drains, pass, writer", 2, []script{drains(draining), passes, writes(publishing("1")), drainsTwice}},

		{"R7 two passes", 2, []script{passes, passes}},
		{"R7 pass, older one", 1, []script{passes, writes(publishing("1")), passes, drainsTwice}},
		{"R8 pass, lost emission", 2, []script{passes, writes(losing("1"))}},
		{"R7 R8 two passes, lost emission", 1, []script{passes, writes(losing("1")), passes}},
		{"R2 E8 drain, newer claim", 2, []script{drains(draining), {"others", []act{draining, publishing("1"), dying(failpoint.DrainClaimed)}}}},
		{"R2 AC4 drain, emission, newer claim", 2, []script{drains(draining), writes(publishing("1"), publishing("2")), drains(dying(failpoint.DrainCommitted), draining)}},

		{"AC35 E12 deletion, drain", 3, []script{writes(deleting), drains(draining)}},
		{"E12 E16 deletion, pass", 2, []script{writes(deleting), passes}},
		{"E12 E17 deletion, pass, drain", 1, []script{writes(deleting, collecting), passes, drainsTwice}},
		{"AC21 deletion, publish", 3, []script{writes(deleting), writes(publishing("1"))}},
		{"collector, publish of the same blob", 2, []script{writes(purging("0"), collecting), writes(publishing("0"), publishing("1"))}},
		{"collector, publish of the same blob, pass", 1, []script{writes(purging("0"), collecting), writes(publishing("1")), passes}},
		{"AC19 two purges", 3, []script{writes(purging("0")), writes(purging("0"))}},
		{"AC17 two publishes", 3, []script{writes(publishing("1")), writes(publishing("1"))}},
	}
}

func TestExplorer(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	for _, set := range sets() {
		t.Run(set.name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			n := newExplorer(t, s, set).explore()
			t.Logf("%d schedules with at most %d delays in %s", n, set.delays, time.Since(began).Round(time.Millisecond))
		})
	}
}

func draining(ctx context.Context, a *player) error {
	return workDrain(ctx, a.process, a.stage.bucket)
}

// dying is a drain that ends at a point.
func dying(at failpoint.Point) act {
	return func(_ context.Context, a *player) error {
		err := draining(a.armed(at), a)
		if errors.Is(err, errInjected) {
			return nil
		}
		return err
	}
}

// workDrain works a job that has room for one chunk.
func workDrain(ctx context.Context, p *process, bucket int) error {
	return p.drains.Work(ctx, &river.Job[drain.BucketArgs]{
		JobRow: &rivertype.JobRow{ScheduledAt: time.Now()}, Args: drain.BucketArgs{Bucket: bucket, Scopes: chunk},
	})
}

// dropLease does what time does to the lease of a drain that sleeps.
func dropLease(redis rueidis.Client, bucket int) error {
	return redis.Do(context.Background(), redis.B().Del().Key(bucketKey(bucket, "lease")).Build()).Error()
}

// passing is one pass. That it finds the locks busy is an end like any other,
// and so is that the server ends it, because it held writers up too long.
func passing(ctx context.Context, a *player) error {
	began := time.Now()
	pass, err := a.process.passes.Reconcile(ctx, a.stage.namespace)
	if pass.Marker == 0 && time.Since(began) > markIdleTimeout {
		return nil
	}
	return err
}

// markIdleTimeout is that of the mark.
const markIdleTimeout = 2 * time.Second

func (a *player) ref(version string) entpublish.Ref {
	return entpublish.Ref{RepositoryID: a.stage.repository(), Name: "package", Version: version}
}

// publishing publishes a version of two blobs: that of the version "0", and one
// of 10 bytes of its own.
func publishing(version string) act {
	return func(ctx context.Context, a *player) error { return a.publish(ctx, a.process.db, version) }
}

func (a *player) publish(ctx context.Context, db *entdb.Client, version string) error {
	return a.write(ctx, db, func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.Publish(ctx, tx, entpublish.Version{Ref: a.ref(version), Blobs: []entpublish.Blob{
			{Digest: digestOf("0"), Size: 100}, {Digest: digestOf(version), Size: sizeOfBlob(version)},
		}})
		return err
	})
}

func sizeOfBlob(version string) int64 {
	if version == "0" {
		return 100
	}
	return 10
}

// losing publishes, Redis does not hear of it, and the request for that is
// written.
func losing(version string) act {
	return func(_ context.Context, a *player) error {
		db, err := entdb.New(entdb.Config{
			Pool: a.process.pool.Pool, Redis: a.process.redis, Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
		})
		if err != nil {
			return err
		}
		return errors.Join(a.publish(a.armed(failpoint.WriterEmits), db, version), db.Close(context.Background()))
	}
}

func purging(version string) act {
	return func(ctx context.Context, a *player) error {
		return a.write(ctx, a.process.db, func(ctx context.Context, tx *entdb.Tx) error {
			return entpublish.Purge(ctx, tx, a.ref(version))
		})
	}
}

func deleting(ctx context.Context, a *player) error {
	return a.write(ctx, a.process.db, func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.DeleteRepository(ctx, tx, a.stage.repository())
	})
}

func collecting(ctx context.Context, a *player) error {
	return a.write(ctx, a.process.db, func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.CollectBlobs(ctx, tx, a.stage.namespace, 0, 10)
		return err
	})
}

// write is a counted transaction. That another writer was faster is no error.
func (a *player) write(ctx context.Context, db *entdb.Client, fn func(context.Context, *entdb.Tx) error) error {
	err := db.WithTx(ctx, fn)
	if errors.Is(err, entpublish.ErrNotFound) || errors.Is(err, entdb.ErrRepository) || errors.Is(err, entpublish.ErrConflict) {
		return nil
	}
	return err
}
