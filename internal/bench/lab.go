package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/rueidis"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/devstack"
	"github.com/stowage-dev/stowage/internal/pgdb"
	"github.com/stowage-dev/stowage/internal/redisconn"
	"github.com/stowage-dev/stowage/migrate"
)

const (
	postgresVersion = 18
	templateName    = "template_stowage"
	closeTimeout    = 30 * time.Second
)

// lab is the throw-away servers, and what the measure under way has opened there.
type lab struct {
	postgres *devstack.Postgres
	server   *devstack.Redis
	// scale multiplies the sizes of data sets: 1, but where it only matters that
	// everything works.
	scale float64
	// progress tells what is going on, for people.
	progress *slog.Logger

	databases int
	opened    []func() error
}

// settings are what an administrator sets first: the defaults are for a machine of
// 1996, and a benchmark under them would measure checkpoints. Durability is untouched.
func settings() []string {
	return []string{"shared_buffers=1GB", "max_wal_size=8GB", "wal_compression=on", "checkpoint_timeout=30min"}
}

// startLab starts the servers and makes the migrated template.
func startLab(ctx context.Context, version int, scale float64, progress *slog.Logger) (_ *lab, err error) {
	l := &lab{scale: scale, progress: progress}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.stop())
		}
	}()
	if l.postgres, err = devstack.StartPostgres(ctx, devstack.PostgresOptions{Version: version, Durable: true, Settings: settings()}); err != nil {
		return nil, err
	}
	if l.server, err = devstack.StartRedis(ctx, devstack.RedisOptions{}); err != nil {
		return nil, err
	}
	if err := l.execute(ctx, `CREATE DATABASE `+templateName); err != nil {
		return nil, err
	}
	pool, err := pgdb.NewPool(ctx, l.urlOf(templateName))
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	return l, migrate.Apply(ctx, pool, migrate.Options{})
}

// stop ends the servers and removes what they wrote.
func (l *lab) stop() error {
	var errs []error
	if l.server != nil {
		errs = append(errs, l.server.Close())
	}
	if l.postgres != nil {
		errs = append(errs, l.postgres.Close())
	}
	return errors.Join(errs...)
}

// onClose is called when the measure is over, the last one first.
func (l *lab) onClose(f func() error) { l.opened = append(l.opened, f) }

func (l *lab) closeAll() error {
	var errs []error
	for _, f := range slices.Backward(l.opened) {
		errs = append(errs, f())
	}
	l.opened = nil
	return errors.Join(errs...)
}

// size is so many, scaled, and at least 1.
func (l *lab) size(n int) int { return max(1, int(float64(n)*l.scale)) }

// urlOf is the URL of a database, bound as Stowage wants it.
func (l *lab) urlOf(database string) string {
	u, err := url.Parse(l.postgres.URL())
	if err != nil {
		panic(err) // devstack made it
	}
	u.Path = "/" + database
	return u.String()
}

// database makes a migrated database and returns its URL. It is dropped with the
// measure.
func (l *lab) database(ctx context.Context) (string, error) {
	l.databases++
	name := fmt.Sprintf("bench_%d", l.databases)
	if err := l.execute(ctx, `CREATE DATABASE `+name+` TEMPLATE `+templateName+` STRATEGY file_copy`); err != nil {
		return "", err
	}
	l.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return l.execute(ctx, `DROP DATABASE `+name+` WITH (FORCE)`)
	})
	return l.urlOf(name), nil
}

// pool opens a pool on a database, with at most so many connections.
func (l *lab) pool(ctx context.Context, databaseURL string, connections int) (*pgxpool.Pool, error) {
	pool, err := pgdb.NewPool(ctx, databaseURL, func(c *pgxpool.Config) { c.MaxConns = int32(connections) })
	if err != nil {
		return nil, err
	}
	l.onClose(func() error { pool.Close(); return nil })
	return pool, nil
}

// newDatabase makes a migrated database and a pool on it, with at most so many
// connections.
func (l *lab) newDatabase(ctx context.Context, connections int) (*pgxpool.Pool, error) {
	databaseURL, err := l.database(ctx)
	if err != nil {
		return nil, err
	}
	return l.pool(ctx, databaseURL, connections)
}

// redis empties the server and opens a client of it.
func (l *lab) redis(ctx context.Context) (rueidis.Client, error) {
	client, err := redisconn.Open(l.server.Reach(), "stowage-bench")
	if err != nil {
		return nil, err
	}
	l.onClose(func() error { client.Close(); return nil })
	return client, client.Do(ctx, client.B().Flushall().Build()).Error()
}

// newBuffer is on a server that redis has emptied.
func newBuffer(redis rueidis.Client) *buffer.Buffer {
	return buffer.New(redis, buffer.Config{TTL: entdb.DefaultBufferTTL, LeaseTTL: time.Minute})
}

// clientOf makes a registry's client, and fills in what every one needs.
func (l *lab) clientOf(cfg entdb.Config) (*entdb.Client, error) {
	cfg.Logger, cfg.Registerer = l.progress, prometheus.NewRegistry()
	db, err := entdb.New(cfg)
	if err != nil {
		return nil, err
	}
	l.onClose(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
		defer cancel()
		return db.Close(ctx)
	})
	return db, nil
}

// execute runs a statement in the maintenance database.
func (l *lab) execute(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, l.postgres.URL())
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// statements runs one after the other, for data and for VACUUM.
func statements(ctx context.Context, pool *pgxpool.Pool, all ...string) error {
	for _, sql := range all {
		if _, err := pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	return nil
}

// perSecond is how often each second op succeeds, when so many workers call it n
// times together. An error of op ends it.
func perSecond(ctx context.Context, workers, n int, op func(ctx context.Context, i int) error) (float64, error) {
	group, ctx := errgroup.WithContext(ctx)
	var next atomic.Int64
	began := time.Now()
	for range workers {
		group.Go(func() error {
			for i := int(next.Add(1)) - 1; i < n; i = int(next.Add(1)) - 1 {
				if err := op(ctx, i); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := group.Wait()
	return float64(n) / time.Since(began).Seconds(), err
}
