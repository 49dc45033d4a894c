package devstack

import (
	"context"
	"errors"
	"os/exec"
	"slices"
	"strconv"
	"syscall"

	"github.com/redis/rueidis"
)

// RedisOptions choose how much a throw-away Redis remembers.
type RedisOptions struct {
	// AppendOnly keeps an append-only file, so that the data outlive Stop and
	// Start. Without it a restarted Redis is empty.
	AppendOnly bool
}

// Redis is a throw-away Redis server without a password, bound to loopback,
// with maxmemory-policy noeviction. Its methods are not safe for concurrent
// use.
type Redis struct {
	binary  string
	args    []string // beside those of every server
	port    *port
	scratch *scratch
	process *process // nil while stopped
}

// forgetful are the arguments of a server that is empty after each start.
func forgetful() []string { return []string{"--save", "", "--maxmemory-policy", "noeviction"} }

// StartRedis starts a server and returns when it answers. ctx bounds the start,
// not the server's life; Close ends that.
func StartRedis(ctx context.Context, opts RedisOptions) (*Redis, error) {
	args := forgetful()
	if opts.AppendOnly {
		args = append(args, "--appendonly", "yes", "--appendfsync", "always")
	}
	return startRedis(ctx, args...)
}

func startRedis(ctx context.Context, args ...string) (*Redis, error) {
	r, err := newRedis(args...)
	if err != nil {
		return nil, err
	}
	if err := r.Start(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// newRedis takes what the server needs, and starts nothing.
func newRedis(args ...string) (*Redis, error) {
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
	return &Redis{binary: binary, args: args, port: port, scratch: s}, nil
}

// Addr is host:port. It stays the same over Stop and Start.
func (r *Redis) Addr() string { return r.port.addr() }

// Reach is what a user would configure.
func (r *Redis) Reach() rueidis.ClientOption {
	return rueidis.ClientOption{InitAddress: []string{r.Addr()}}
}

// Start starts the server again after Stop and returns when it answers.
func (r *Redis) Start(ctx context.Context) error {
	if r.process != nil {
		return errors.New("devstack: Redis is running already: Stop it first")
	}
	cmd := exec.Command(r.binary, slices.Concat(r.args, []string{
		"--bind", loopback, "--port", strconv.Itoa(r.port.number), "--dir", r.scratch.dir,
	})...)
	cmd.Dir = r.scratch.dir
	cmd.SysProcAttr = ownGroup()
	p, err := startProcess("redis-server", r.scratch, cmd)
	if err != nil {
		return err
	}
	r.process = p
	return r.await(ctx, func(ctx context.Context) error {
		_, err := r.ask(ctx, "PING") // an error also while an append-only file is being loaded
		return err
	})
}

// await returns when condition gives no error, which the server's own end, the
// end of ctx or startTimeout cuts short.
func (r *Redis) await(ctx context.Context, condition func(context.Context) error) error {
	if r.process == nil {
		return errStopped
	}
	return waitReady(ctx, r.process, condition)
}

// ask is the answer of this very server to one command.
func (r *Redis) ask(ctx context.Context, words ...string) (rueidis.RedisMessage, error) {
	client, err := rueidis.NewClient(rueidis.ClientOption{
		InitAddress: []string{r.Addr()}, ForceSingleClient: true, DisableCache: true, DisableRetry: true,
		ConnWriteTimeout: startTimeout,
	})
	if err != nil {
		return rueidis.RedisMessage{}, err
	}
	defer client.Close()
	return client.Do(ctx, client.B().Arbitrary(words...).Build()).ToMessage()
}

// Stop kills the server; clients see their connections break. What an
// append-only server acknowledged is still there after Start, because it syncs
// its file before it answers: by default Redis answers first while an earlier
// sync is under way.
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
		return errStopped
	}
	return r.process.signal(s)
}

// Close kills the server and removes all that it left. The Redis cannot be used
// afterwards.
func (r *Redis) Close() error {
	return errors.Join(r.Stop(), r.scratch.remove(), r.port.release())
}

var errStopped = errors.New("devstack: Redis is stopped: Start it first")
