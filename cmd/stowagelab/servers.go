package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/internal/devstack"
	"github.com/stowage-dev/stowage/internal/redisconn"
)

// cleanupTimeout bounds the removal of what the demo left on servers that are
// not its own.
const cleanupTimeout = 30 * time.Second

// cleanups take down what was brought up, last first, also when the context
// has ended.
type cleanups []func() error

func (c *cleanups) add(f func() error) { *c = append(*c, f) }

func (c *cleanups) run() error {
	var errs []error
	for _, down := range slices.Backward(*c) {
		errs = append(errs, down())
	}
	return errors.Join(errs...)
}

// startDatabase gives the URL of a migrated database of the demo's own.
func startDatabase(ctx context.Context, opts demoOptions, down *cleanups) (string, error) {
	server := opts.databaseURL
	if server == "" {
		postgres, err := devstack.StartPostgres(ctx, devstack.PostgresOptions{Durable: true})
		if err != nil {
			return "", err
		}
		down.add(postgres.Close)
		server = postgres.URL()
	}
	name := "stowage_demo_" + strings.ToLower(rand.Text()[:8])
	database, err := inDatabase(server, name)
	if err != nil {
		return "", err
	}
	if err := execute(ctx, server, "CREATE DATABASE "+name); err != nil {
		return "", fmt.Errorf("make a database for the demo: %w", err)
	}
	down.add(func() error {
		ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
		defer cancel()
		return execute(ctx, server, "DROP DATABASE "+name+" WITH (FORCE)")
	})
	return database, migrateDatabase(ctx, database)
}

// inDatabase is the URL of another database of the same server. The error does
// not repeat the URL: it may hold a password.
func inDatabase(server, name string) (string, error) {
	u, err := url.Parse(server)
	if err != nil || (u.Scheme != "postgres" && u.Scheme != "postgresql") {
		return "", errors.New("--database-url: want postgres://user:password@host:port/database")
	}
	u.Path = "/" + name
	return u.String(), nil
}

func execute(ctx context.Context, server, sql string) error {
	conn, err := pgx.Connect(ctx, server)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, sql)
	return errors.Join(err, conn.Close(ctx))
}

// startRedis tells how to reach a Redis without data of a Stowage.
func startRedis(ctx context.Context, opts demoOptions, down *cleanups) (rueidis.ClientOption, error) {
	if opts.redisURL == "" {
		redis, err := devstack.StartRedis(ctx, devstack.RedisOptions{})
		if err != nil {
			return rueidis.ClientOption{}, err
		}
		down.add(redis.Close)
		return rueidis.ClientOption{InitAddress: []string{redis.Addr()}}, nil
	}
	reach, err := rueidis.ParseURL(opts.redisURL)
	if err != nil {
		return reach, errors.New("--redis-url: want redis://user:password@host:port")
	}
	if reach.SelectDB != 0 {
		return reach, fmt.Errorf("--redis-url: database %d: Stowage uses database 0 only", reach.SelectDB)
	}
	client, err := redisconn.Open(reach, "stowage-demo")
	if err != nil {
		return reach, err
	}
	defer client.Close()
	if err := refuseForeign(ctx, client); err != nil {
		return reach, err
	}
	down.add(func() error { return removeKeys(reach) })
	return reach, nil
}

// refuseForeign keeps the demo away from the buffers of a real Stowage: its
// worker would take them for those of a database that was lost.
func refuseForeign(ctx context.Context, client rueidis.Client) error {
	return eachKey(ctx, client, func(key string) error {
		return fmt.Errorf("--redis-url: this Redis serves a Stowage already, it has %s: give another one, or remove its keys stowage:*", key)
	})
}

// removeKeys removes what the demo and its worker wrote.
func removeKeys(reach rueidis.ClientOption) error {
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	client, err := redisconn.Open(reach, "stowage-demo")
	if err != nil {
		return err
	}
	defer client.Close()
	return eachKey(ctx, client, func(key string) error {
		return client.Do(ctx, client.B().Unlink().Key(key).Build()).Error()
	})
}

// eachKey visits every key of Stowage.
func eachKey(ctx context.Context, client rueidis.Client, visit func(key string) error) error {
	for _, node := range client.Nodes() {
		scan := rueidis.NewScanner(func(cursor uint64) (rueidis.ScanEntry, error) {
			return node.Do(ctx, node.B().Scan().Cursor(cursor).Match("stowage:*").Count(1000).Build()).AsScanEntry()
		})
		for key := range scan.Iter() {
			if err := visit(key); err != nil {
				return err
			}
		}
		if err := scan.Err(); err != nil {
			return err
		}
	}
	return nil
}

// workerProgram is the stowage beside this program.
func workerProgram() (string, error) {
	self, err := os.Executable()
	if err != nil {
		return "", err
	}
	program := filepath.Join(filepath.Dir(self), "stowage")
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("the worker's program: %w: run make build", err)
	}
	return program, nil
}

// workerCmd is a worker in a hurry: nobody wants to wait ten seconds for a tick.
func workerCmd(program, database string, redis rueidis.ClientOption, flags ...string) *exec.Cmd {
	cmd := exec.Command(program, append([]string{"worker",
		"--admin-listen", "127.0.0.1:0",
		"--drain-interval", "500ms",
		"--reconciliation-interval", "200ms",
		"--shutdown-timeout", "5s"}, flags...)...)
	cmd.Env = append(os.Environ(),
		"STOWAGE_DATABASE__URL="+database,
		"STOWAGE_REDIS__ADDRESSES="+strings.Join(redis.InitAddress, ","),
		"STOWAGE_REDIS__USERNAME="+redis.Username,
		"STOWAGE_REDIS__PASSWORD="+redis.Password,
		fmt.Sprintf("STOWAGE_REDIS__TLS__ENABLED=%t", redis.TLSConfig != nil))
	return cmd
}

// startWorker starts a worker as a process of its own.
func startWorker(program, database string, redis rueidis.ClientOption, down *cleanups) (*devstack.Program, error) {
	// The grace is short, for the demo waits until content is due for deletion.
	worker, err := devstack.StartProgram("stowage worker", workerCmd(program, database, redis, "--collect-grace", "1s"))
	if err != nil {
		return nil, err
	}
	down.add(worker.Close)
	return worker, nil
}

// withWorker is a context that ends, with the reason, when the worker does.
func withWorker(ctx context.Context, worker *devstack.Program) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-worker.Done():
			cancel(worker.Err())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
