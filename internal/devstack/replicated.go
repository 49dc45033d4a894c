package devstack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// masterSet is the name by which the sentinel knows the two servers.
const masterSet = "main"

// ReplicatedRedis is a primary, a replica that follows it asynchronously, and
// the sentinel that tells clients which of the two is the primary. Its methods
// are not safe for concurrent use.
type ReplicatedRedis struct {
	Primary, Replica, Sentinel *Redis
}

// StartReplicatedRedis starts the three and returns when the replica follows
// and the sentinel knows it.
func StartReplicatedRedis(ctx context.Context) (*ReplicatedRedis, error) {
	r := &ReplicatedRedis{}
	if err := r.start(ctx); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

func (r *ReplicatedRedis) start(ctx context.Context) (err error) {
	// Waiting for further replicas, 5 s by default, is no use with one.
	if r.Primary, err = startRedis(ctx, append(forgetful(), "--repl-diskless-sync-delay", "0")...); err != nil {
		return err
	}
	if r.Replica, err = startRedis(ctx, append(forgetful(), "--replicaof", loopback, strconv.Itoa(r.Primary.port.number))...); err != nil {
		return err
	}
	// The sentinel asks a primary for its replicas when it meets it, and then
	// every 10 s only.
	if err := r.Replica.await(ctx, r.replicaFollows); err != nil {
		return err
	}
	if err := r.startSentinel(ctx); err != nil {
		return err
	}
	return r.Sentinel.await(ctx, func(ctx context.Context) error {
		reply, err := r.Sentinel.ask(ctx, "SENTINEL", "REPLICAS", masterSet)
		if err != nil {
			return err
		}
		if replicas, err := reply.ToArray(); len(replicas) == 0 {
			return errors.Join(err, errors.New("the sentinel knows no replica"))
		}
		return nil
	})
}

// startSentinel starts a sentinel that fails over when it is told to, and not
// because a loaded machine kept a server waiting.
func (r *ReplicatedRedis) startSentinel(ctx context.Context) (err error) {
	if r.Sentinel, err = newRedis(); err != nil {
		return err
	}
	config := r.Sentinel.scratch.path("sentinel.conf")
	text := fmt.Sprintf("sentinel monitor %s %s %d 1\nsentinel down-after-milliseconds %[1]s 3600000\n", masterSet, loopback, r.Primary.port.number)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return err
	}
	r.Sentinel.args = []string{config, "--sentinel"}
	if err := r.Sentinel.Start(ctx); err != nil {
		return err
	}
	// A sentinel that was kept waiting for two seconds does nothing for thirty.
	_, err = r.Sentinel.ask(ctx, "SENTINEL", "DEBUG", "TILT-TRIGGER", "3600000")
	return err
}

// Reach is what a user would configure: the sentinel, which knows the primary.
func (r *ReplicatedRedis) Reach() rueidis.ClientOption {
	return rueidis.ClientOption{
		InitAddress: []string{r.Sentinel.Addr()}, Sentinel: rueidis.SentinelOption{MasterSet: masterSet},
	}
}

// replicaFollows is nil when the replica has all that the primary has executed.
func (r *ReplicatedRedis) replicaFollows(ctx context.Context) error {
	primary, err := r.Primary.replication(ctx)
	if err != nil {
		return err
	}
	replica, err := r.Replica.replication(ctx)
	if err != nil {
		return err
	}
	want, have := primary["master_repl_offset"], replica["slave_repl_offset"]
	if replica["master_link_status"] != "up" || have != want {
		return fmt.Errorf("the replica's link is %q, at %s of %s", replica["master_link_status"], have, want)
	}
	return nil
}

// replication is what INFO says about it.
func (r *Redis) replication(ctx context.Context) (map[string]string, error) {
	reply, err := r.ask(ctx, "INFO", "replication")
	if err != nil {
		return nil, err
	}
	text, err := reply.ToString()
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, err
}

// Cut lets the replica catch up and then parts it from the primary: what is
// written from now on is lost by FailOver. To stop the replica instead would
// lose nothing: it would read the rest from its socket when it goes on.
func (r *ReplicatedRedis) Cut(ctx context.Context) error {
	if err := r.Replica.await(ctx, r.replicaFollows); err != nil {
		return err
	}
	// The primary has no password and refuses one.
	if _, err := r.Replica.ask(ctx, "CONFIG", "SET", "masterauth", "none"); err != nil {
		return fmt.Errorf("cut the replication: %w", err)
	}
	if _, err := r.Replica.ask(ctx, "CLIENT", "KILL", "TYPE", "master"); err != nil {
		return fmt.Errorf("cut the replication: %w", err)
	}
	return nil
}

// FailOver kills the primary, if it runs, and returns when the replica is
// promoted and the sentinel says so. The old primary stays down.
func (r *ReplicatedRedis) FailOver(ctx context.Context) error {
	if err := r.Primary.Stop(); err != nil {
		return err
	}
	return r.Sentinel.await(ctx, func(ctx context.Context) error {
		reply, err := r.Sentinel.ask(ctx, "SENTINEL", "GET-MASTER-ADDR-BY-NAME", masterSet)
		if err != nil {
			return err
		}
		if addr, err := reply.AsStrSlice(); err != nil || net.JoinHostPort(addr[0], addr[1]) == r.Replica.Addr() {
			return err
		}
		// Refused until the sentinel has looked at the replica, and while it is at it.
		_, err = r.Sentinel.ask(ctx, "SENTINEL", "FAILOVER", masterSet)
		return errors.Join(err, errors.New("the replica is not promoted yet"))
	})
}

// Close kills the three servers and removes all that they left.
func (r *ReplicatedRedis) Close() error {
	var err error
	for _, server := range []*Redis{r.Sentinel, r.Replica, r.Primary} {
		if server != nil {
			err = errors.Join(err, server.Close())
		}
	}
	return err
}
