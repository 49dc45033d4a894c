package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
)

const (
	// writers publish at once, into one namespace.
	writers = 64
	// connections is what entdb's README says to give a registry's process.
	connections = 25
	// blobSize is that of each published version's one blob, in bytes.
	blobSize = 4096
	// many and few are how many publishes make some seconds, without and with rows
	// that every writer must lock.
	many, few = 4000, 1000
)

func publishMeasures() []measure {
	return []measure{
		{
			ID: "P1", Unit: "publishes/s", Want: atLeast(0.90), prepare: preparePublish,
			What:    "publishes by 64 writers into one namespace, counted",
			Against: "the same client with counting off",
		},
		{
			ID: "P2-update", Unit: "publishes/s", Want: atLeast(3), prepare: prepareAgainstUpdate,
			What:    "publishes by 64 writers into one namespace, counted",
			Against: "counters kept by UPDATE in the transaction",
		},
		{
			ID: "P2-trigger", Unit: "publishes/s", Want: atLeast(3), prepare: prepareAgainstTrigger,
			What:    "publishes by 64 writers into one namespace, counted",
			Against: "counters kept by AFTER triggers",
		},
		{
			ID: "P7", Unit: "transactions/s", Want: atLeast(0.7), prepare: prepareAgainstRaw,
			What:    "publishes by 4 writers, emitting nothing",
			Against: "the same statements sent by pgx alone",
		},
		{
			ID: "P7-ent", Unit: "transactions/s", Want: atLeast(0.7), prepare: prepareEntAgainstRaw,
			What:    "versions created by 4 writers with the generated client, emitting nothing",
			Against: "the same statements sent by pgx alone",
		},
		{
			ID: "P9", Unit: "connections", Want: atMost(connections), prepare: prepareConnections,
			What:    "connections to the database while 500 publish at once",
			Against: "the pool's documented size",
		},
		{
			ID: "P10", Unit: "ms", Want: excessOf(50), prepare: prepareStall,
			What:    "longest publish while its namespace is reconciled in a loop",
			Against: "99th percentile without reconciliation",
		},
	}
}

// registry is a client with one repository, into which everything is published.
type registry struct {
	db                    *entdb.Client
	pool                  *pgxpool.Pool
	redis                 rueidis.Client // nil when it emits nothing
	namespace, repository uuid.UUID
	published             atomic.Int64
}

// registry makes one in a database of its own, that emits to Redis.
func (l *lab) registry(ctx context.Context) (*registry, error) {
	redis, err := l.redis(ctx)
	if err != nil {
		return nil, err
	}
	return l.registryOf(ctx, entdb.Config{Redis: redis})
}

func (l *lab) registryOf(ctx context.Context, cfg entdb.Config) (*registry, error) {
	var err error
	if cfg.Pool, err = l.newDatabase(ctx, connections); err != nil {
		return nil, err
	}
	db, err := l.clientOf(cfg)
	if err != nil {
		return nil, err
	}
	namespace, err := db.Namespace.Create().SetSlug("hot").Save(ctx)
	if err != nil {
		return nil, err
	}
	repository, err := db.Repository.Create().SetNamespaceID(namespace.ID).SetName("npm").
		SetFormat(schematype.FormatNPM).SetKind(schematype.KindHosted).Save(ctx)
	if err != nil {
		return nil, err
	}
	return &registry{db: db, pool: cfg.Pool, redis: cfg.Redis, namespace: namespace.ID, repository: repository.ID}, nil
}

// version is one that was never published, with a blob that never was either.
func (r *registry) version() entpublish.Version {
	n := r.published.Add(1)
	v := entpublish.Version{Ref: entpublish.Ref{
		RepositoryID: r.repository, Name: "package-" + strconv.FormatInt(n%1000, 10), Version: "1.0." + strconv.FormatInt(n, 10),
	}}
	blob := entpublish.Blob{Size: blobSize}
	_, _ = rand.Read(blob.Digest[:]) // it never fails
	v.Blobs = []entpublish.Blob{blob}
	return v
}

func (r *registry) publish(ctx context.Context) error {
	return r.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.Publish(ctx, tx, r.version())
		return err
	})
}

// publishUncounted takes back what Publish reports. The tally is zero, so COMMIT goes
// alone and nothing is emitted.
func (r *registry) publishUncounted(ctx context.Context, last func(ctx context.Context, tx pgx.Tx) error) error {
	return r.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		if _, err := entpublish.Publish(ctx, tx, r.version()); err != nil {
			return err
		}
		off := entdb.Counters{Bytes: -blobSize, Components: -1}
		if err := errors.Join(
			tx.Report(entdb.Change{NamespaceID: r.namespace, RepositoryID: r.repository, Counters: off}),
			tx.Report(entdb.Change{NamespaceID: r.namespace, Counters: off}),
		); err != nil {
			return err
		}
		return last(ctx, tx.Pgx())
	})
}

func nothing(context.Context, pgx.Tx) error { return nil }

// rateOf is how many publishes a second 64 writers make, when they make n.
func (l *lab) rateOf(n int, publish func(ctx context.Context) error) func(ctx context.Context) (float64, error) {
	return func(ctx context.Context) (float64, error) {
		return perSecond(ctx, writers, l.size(n), func(ctx context.Context, _ int) error { return publish(ctx) })
	}
}

// preparePublish has both sides write into the same namespace, so that they meet the
// same tables.
func preparePublish(ctx context.Context, l *lab) (sides, error) {
	r, err := l.registry(ctx)
	if err != nil {
		return sides{}, err
	}
	return sides{
		ours: l.rateOf(many, r.publish),
		peer: l.rateOf(many, func(ctx context.Context) error { return r.publishUncounted(ctx, nothing) }),
	}, nil
}

// preparePeer makes ours in one database and the peer in another. The connections of
// both know every partition already: few publishes would not show them all.
func preparePeer(ctx context.Context, l *lab) (ours, peer *registry, err error) {
	if ours, err = l.registry(ctx); err != nil {
		return nil, nil, err
	}
	if peer, err = l.registry(ctx); err != nil {
		return nil, nil, err
	}
	for _, r := range []*registry{ours, peer} {
		if _, err := l.rateOf(many, func(ctx context.Context) error { return r.publishUncounted(ctx, nothing) })(ctx); err != nil {
			return nil, nil, err
		}
	}
	return ours, peer, nil
}

// prepareAgainstUpdate is fair to the peer: it adds to both counters in one round trip,
// last before COMMIT, so that the rows are locked for as short a time as this client can.
func prepareAgainstUpdate(ctx context.Context, l *lab) (sides, error) {
	ours, peer, err := preparePeer(ctx, l)
	if err != nil {
		return sides{}, err
	}
	add := func(ctx context.Context, tx pgx.Tx) error {
		batch := &pgx.Batch{}
		batch.Queue(`UPDATE repositories SET size_bytes = size_bytes + $2, artifacts_count = artifacts_count + 1 WHERE id = $1`, peer.repository, blobSize)
		batch.Queue(`UPDATE namespace_statistics SET deduplicated_size_bytes = deduplicated_size_bytes + $2, components_count = components_count + 1 WHERE namespace_id = $1`, peer.namespace, blobSize)
		return tx.SendBatch(ctx, batch).Close()
	}
	return sides{
		ours: l.rateOf(many, ours.publish),
		peer: peer.right(l.rateOf(few, func(ctx context.Context) error { return peer.publishUncounted(ctx, add) })),
	}, nil
}

// triggers keep the counters of both tables. They are fair: a statement fires one
// once, whatever number of rows it inserts.
var triggers = []string{
	`CREATE FUNCTION add_blobs() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		UPDATE namespace_statistics s SET deduplicated_size_bytes = s.deduplicated_size_bytes + a.bytes
		FROM (SELECT namespace_id, sum(size_bytes) AS bytes FROM added GROUP BY namespace_id ORDER BY namespace_id) a
		WHERE s.namespace_id = a.namespace_id;
		RETURN NULL;
	END $$`,
	`CREATE FUNCTION add_versions() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		UPDATE namespace_statistics s SET components_count = s.components_count + a.versions
		FROM (SELECT namespace_id, count(*) AS versions FROM added GROUP BY namespace_id ORDER BY namespace_id) a
		WHERE s.namespace_id = a.namespace_id;
		UPDATE repositories r SET size_bytes = r.size_bytes + a.bytes, artifacts_count = r.artifacts_count + a.versions
		FROM (SELECT repository_id, sum(size_bytes) AS bytes, count(*) AS versions FROM added GROUP BY repository_id ORDER BY repository_id) a
		WHERE r.id = a.repository_id;
		RETURN NULL;
	END $$`,
	`CREATE TRIGGER add_blobs AFTER INSERT ON blob_storage_blobs
		REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION add_blobs()`,
	`CREATE TRIGGER add_versions AFTER INSERT ON npm_versions
		REFERENCING NEW TABLE AS added FOR EACH STATEMENT EXECUTE FUNCTION add_versions()`,
}

func prepareAgainstTrigger(ctx context.Context, l *lab) (sides, error) {
	ours, peer, err := preparePeer(ctx, l)
	if err != nil {
		return sides{}, err
	}
	if err := statements(ctx, peer.pool, triggers...); err != nil {
		return sides{}, err
	}
	return sides{
		ours: l.rateOf(many, ours.publish),
		peer: peer.right(l.rateOf(few, func(ctx context.Context) error { return peer.publishUncounted(ctx, nothing) })),
	}, nil
}

// right refuses the rate of a peer that does not count all that it publishes from now
// on.
func (r *registry) right(rate func(ctx context.Context) (float64, error)) func(ctx context.Context) (float64, error) {
	before := r.published.Load()
	return func(ctx context.Context) (float64, error) {
		figure, err := rate(ctx)
		if err != nil {
			return 0, err
		}
		var repository, namespace entdb.Counters
		err = r.pool.QueryRow(ctx, `
			SELECT r.size_bytes, r.artifacts_count, s.deduplicated_size_bytes, s.components_count
			FROM repositories r JOIN namespace_statistics s USING (namespace_id)
			WHERE r.id = $1`, r.repository).Scan(&repository.Bytes, &repository.Components, &namespace.Bytes, &namespace.Components)
		if err != nil {
			return 0, err
		}
		n := r.published.Load() - before
		if want := (entdb.Counters{Bytes: n * blobSize, Components: n}); repository != want || namespace != want {
			return 0, fmt.Errorf("the peer counts wrong: the repository has %+v, the namespace %+v, want %+v", repository, namespace, want)
		}
		return figure, nil
	}
}

// prepareConnections has no peer: the figure is the most connections that were seen.
func prepareConnections(ctx context.Context, l *lab) (sides, error) {
	r, err := l.registry(ctx)
	if err != nil {
		return sides{}, err
	}
	return sides{ours: func(ctx context.Context) (float64, error) {
		watch, stop := context.WithCancel(ctx)
		peak := make(chan error, 1)
		most := 0
		go func() { peak <- l.watchConnections(watch, r.pool.Config().ConnConfig.Database, &most) }()
		_, err := perSecond(ctx, 500, l.size(5000), func(ctx context.Context, _ int) error { return r.publish(ctx) })
		stop()
		return float64(most), errors.Join(err, <-peak)
	}}, nil
}

// watchConnections notes the most connections that a database has until ctx ends. Its
// own is to another one.
func (l *lab) watchConnections(ctx context.Context, database string, most *int) error {
	conn, err := pgx.Connect(ctx, l.postgres.URL())
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close(context.WithoutCancel(ctx)) }()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var n int
		err := conn.QueryRow(context.WithoutCancel(ctx), `SELECT count(*) FROM pg_stat_activity WHERE datname = $1`, database).Scan(&n)
		if err != nil {
			return err
		}
		*most = max(*most, n)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}
