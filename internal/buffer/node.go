package buffer

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// Size is how many scopes the sets of a bucket hold.
type Size struct {
	Namespaces   int64 // dirty
	Repositories int64 // dirty
	InFlight     int64 // of both kinds
}

// Identity tells whether a bucket is the one it was.
type Identity struct {
	// ID is uuid.Nil when the bucket has none, or one that is no UUID.
	ID uuid.UUID
	// RunID is the run id of the node that serves the bucket. It is empty only
	// for a bucket that could not be read: its ID says nothing then.
	RunID string
}

// Sizes counts the members of every bucket's sets in one pipeline. With an
// error, the sizes of the buckets that could not be read are zero and the
// others are right: one bad bucket need not stop the rest.
func (b *Buffer) Sizes(ctx context.Context) ([accounting.Buckets]Size, error) {
	var sizes [accounting.Buckets]Size
	calls := func(bucket int) call { return call{keys: setKeys(bucket)} }
	err := b.everyBucket(ctx, sizesScript, calls, func(bucket int, reply []rueidis.RedisMessage) error {
		if len(reply) != 3 {
			return fmt.Errorf("reply has %d parts instead of 3", len(reply))
		}
		for i, n := range []*int64{&sizes[bucket].InFlight, &sizes[bucket].Namespaces, &sizes[bucket].Repositories} {
			var err error
			if *n, err = reply[i].AsInt64(); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return sizes, fmt.Errorf("buffer: sizes: %w", err)
	}
	return sizes, nil
}

// Identities reads the identity of every bucket, and of the node that serves
// it, in one pipeline. With an error, the buckets that could not be read have
// no RunID and the others are right.
func (b *Buffer) Identities(ctx context.Context) ([accounting.Buckets]Identity, error) {
	var ids [accounting.Buckets]Identity
	err := b.everyNode(ctx, func(bucket int, n node) error {
		if n.runID == "" {
			return errors.New("INFO server has no run_id")
		}
		ids[bucket].RunID = n.runID
		if id, err := uuid.Parse(n.identity); err == nil {
			ids[bucket].ID = id
		}
		return nil
	})
	if err != nil {
		return ids, fmt.Errorf("buffer: identities: %w", err)
	}
	return ids, nil
}

// SetIdentity writes the identity of a bucket. Request a reconciliation of
// every namespace of the bucket first: the new identity ends the alarm.
func (b *Buffer) SetIdentity(ctx context.Context, bucket int, id uuid.UUID) error {
	if err := checkBucket(bucket); err != nil {
		return err
	}
	key := bucketPrefix(bucket) + identityName
	if err := b.client.Do(ctx, b.client.B().Set().Key(key).Value(id.String()).Build()).Error(); err != nil {
		return fmt.Errorf("buffer: identity of bucket %d: %w", bucket, err)
	}
	return nil
}

// Check is nil when every node that serves a bucket answers and never evicts a
// key to make room: an evicted buffer is a loss that nothing announces.
func (b *Buffer) Check(ctx context.Context) error {
	err := b.everyNode(ctx, func(_ int, n node) error {
		if n.policy != "noeviction" {
			return fmt.Errorf("maxmemory-policy is %q: set it to noeviction (CONFIG SET maxmemory-policy noeviction, and in redis.conf)", n.policy)
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("buffer: redis is not fit for use: %w", err)
	}
	return nil
}

// node is the reply of node.lua.
type node struct{ identity, runID, policy string }

func (b *Buffer) everyNode(ctx context.Context, read func(bucket int, n node) error) error {
	calls := func(bucket int) call { return call{keys: []string{bucketPrefix(bucket) + identityName}} }
	return b.everyBucket(ctx, nodeScript, calls, func(bucket int, reply []rueidis.RedisMessage) error {
		if len(reply) != 3 {
			return fmt.Errorf("reply has %d parts instead of 3", len(reply))
		}
		var n node
		for i, text := range []*string{&n.identity, &n.runID, &n.policy} {
			var err error
			if *text, err = reply[i].ToString(); err != nil {
				return err
			}
		}
		return read(bucket, n)
	})
}

// everyBucket runs a script for all buckets in one pipeline. It reads every
// reply that there is; the error is the first one, and says how many there are.
func (b *Buffer) everyBucket(ctx context.Context, s script, callOf func(bucket int) call, read func(bucket int, reply []rueidis.RedisMessage) error) error {
	calls := make([]call, accounting.Buckets)
	for bucket := range calls {
		calls[bucket] = callOf(bucket)
	}
	var first error
	failed := 0
	for bucket, result := range s.run(ctx, b.client, calls...) {
		reply, err := result.ToArray()
		if err == nil {
			err = read(bucket, reply)
		}
		if err == nil {
			continue
		}
		if failed++; first == nil {
			first = fmt.Errorf("bucket %d: %w", bucket, err)
		}
	}
	if failed > 1 {
		return fmt.Errorf("%w (and %d more)", first, failed-1)
	}
	return first
}
