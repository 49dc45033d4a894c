package devstack

import (
	"context"
	"errors"
	"os/exec"
	"strconv"
	"syscall"

	"github.com/redis/rueidis"
)

// RedisOptions choose how much a throw-away Redis remembers.
type RedisOptions struct {
	// AppendOnly keeps an append-only file, so that the data outlive Stop and
	// Restart. Without it a restarted Redis is empty.
	AppendOnly bool
}

// Redis is a throw-away Redis server without a password, bound to loopback,
// with maxmemory-policy noeviction. Its methods are not safe for concurrent
// use.
type Redis struct {
	opts    RedisOptions
	binary  string
	port    *port
	scratch *scratch
	process *process // nil while stopped
}

// StartRedis starts a server and returns when it answers. ctx bounds the start,
// not the server's life; Close ends that.
func StartRedis(ctx context.Context, opts RedisOptions) (*Redis, error) {
	binary, err := findRedis()
	if err != nil {
		return nil, err
	}
	port, err := reservePort()
	if err != nil {
		return nil, err
	}
	s, err := newScratch("stowage-redis-", syscall.SIGTERM)
	if err != nil {
		return nil, errors.Join(err, port.release())
	}
	r := &Redis{opts: opts, binary: binary, port: port, scratch: s}
	if err := r.Start(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Addr is host:port. It stays the same over Stop and Start.
func (r *Redis) Addr() string { return r.port.addr() }

// Start starts the server again after Stop and returns when it answers.
func (r *Redis) Start(ctx context.Context) error {
	if r.process != nil {
		return errors.New("devstack: Redis is running already: Stop it first")
	}
	appendOnly := "no"
	if r.opts.AppendOnly {
		appendOnly = "yes"
	}
	cmd := exec.Command(r.binary,
		"--bind", "127.0.0.1", "--port", strconv.Itoa(r.port.number), "--dir", r.scratch.dir,
		"--save", "", "--appendonly", appendOnly, "--maxmemory-policy", "noeviction")
	cmd.Dir = r.scratch.dir
	cmd.SysProcAttr = ownGroup()
	p, err := startProcess("redis-server", r.scratch, cmd)
	if err != nil {
		return err
	}
	r.process = p
	return waitReady(ctx, p, r.ping)
}

// ping also fails while an append-only file is being loaded.
func (r *Redis) ping(ctx context.Context) error {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{r.Addr()}, ForceSingleClient: true, DisableCache: true, DisableRetry: true,
	})
	if err != nil {
		return err
	}
	defer client.Close()
	return client.Do(ctx, client.B().Ping().Build()).Error()
}

// Stop kills the server; clients see their connections break. What an
// append-only server acknowledged is still there after Start: it was handed to
// the kernel before the answer.
func (r *Redis) Stop() error {
	if r.process == nil {
		return nil
	}
	p := r.process
	r.process = nil
	return p.stop(syscall.SIGKILL)
}

// Pause freezes the server: connections stay open and nothing answers.
func (r *Redis) Pause() error { return r.signal(syscall.SIGSTOP) }

// Resume lets a paused server go on.
func (r *Redis) Resume() error { return r.signal(syscall.SIGCONT) }

func (r *Redis) signal(s syscall.Signal) error {
	if r.process == nil {
		return errors.New("devstack: Redis is stopped: Start it first")
	}
	return r.process.signal(s)
}

// Close kills the server and removes all that it left. The Redis cannot be used
// afterwards.
func (r *Redis) Close() error {
	return errors.Join(r.Stop(), r.scratch.remove(), r.port.release())
}
