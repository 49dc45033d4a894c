package buffer

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// How many members a look at a bucket examines: some tenths of a millisecond. Each tick
// of the drain looks at all buckets, and Redis does nothing else meanwhile.
const (
	// sampledBuffers of each dirty set: a buffer is read whole.
	sampledBuffers = 20
	// sampledFlushes of what is in flight, and of what became dirty first.
	sampledFlushes = 200
)

// State is what a bucket holds, for people.
type State struct {
	Size
	Quarantined int64
	// Holder has the lease for LeaseLeft; empty when nobody has.
	Holder    string
	LeaseLeft time.Duration
	// OldestFlush is the batch id of the flush that was frozen first, or uuid.Nil
	// without one. QuietFor is the longest time that a buffer had no emission: what
	// it holds is at least as old. They are of a random sample when there are more
	// than 200 flushes, or than 20 dirty scopes of a kind.
	OldestFlush uuid.UUID
	QuietFor    time.Duration
	// DirtyFor is how long the scope that became dirty first has been so, 0 when
	// none is known to be; Emissions is how many emissions flushes and buffers hold,
	// by the same sample.
	DirtyFor  time.Duration
	Emissions int64
}

// States reads every bucket in one pipeline. With an error, which names the first
// of the buckets that could not be read, these are zero and the others are right.
func (b *Buffer) States(ctx context.Context) ([accounting.Buckets]State, error) {
	var states [accounting.Buckets]State
	calls := func(bucket int) call {
		prefix := bucketPrefix(bucket)
		return call{keys: append(setKeys(bucket), prefix+leaseName), args: []string{prefix, strconv.Itoa(sampledBuffers), strconv.Itoa(sampledFlushes)}}
	}
	err := b.everyBucket(ctx, bucketScript, calls, func(bucket int, reply []rueidis.RedisMessage) (err error) {
		states[bucket], err = b.parseState(reply)
		return err
	})
	if err != nil {
		return states, fmt.Errorf("buffer: states: %w", err)
	}
	return states, nil
}

func (b *Buffer) parseState(reply []rueidis.RedisMessage) (State, error) {
	if len(reply) != 10 {
		return State{}, fmt.Errorf("reply has %d parts instead of 10", len(reply))
	}
	var s State
	var leaseLeft, least, waited int64
	for i, n := range map[int]*int64{0: &s.Quarantined, 1: &s.InFlight, 2: &s.Namespaces, 3: &s.Repositories, 5: &leaseLeft, 7: &least, 8: &s.Emissions, 9: &waited} {
		var err error
		if *n, err = reply[i].AsInt64(); err != nil {
			return State{}, err
		}
	}
	holder, err := reply[4].ToString()
	if err != nil {
		return State{}, err
	}
	if holder != "" {
		s.Holder, s.LeaseLeft = holder, time.Duration(leaseLeft)*time.Millisecond
	}
	batch, err := reply[6].ToString()
	if err != nil {
		return State{}, err
	}
	if id, err := parseBatch(batch); err == nil {
		s.OldestFlush = id
	}
	s.QuietFor = b.quietFor(least)
	s.DirtyFor = max(0, time.Duration(waited)*time.Millisecond)
	return s, nil
}

// quietFor is how long ago a buffer that has so many milliseconds to live had its
// last emission, which set them to the TTL. Zero when there is no such buffer.
func (b *Buffer) quietFor(left int64) time.Duration {
	if left < 0 {
		return 0
	}
	return max(0, b.cfg.TTL-time.Duration(left)*time.Millisecond)
}

// Member is a member of a bucket's sets.
type Member struct {
	// Scope is the zero Scope for a member that names none of the bucket; Name is
	// the member as it stands there.
	Scope accounting.Scope
	Name  string
	// The sets that it is in.
	Dirty, InFlight, Quarantined bool
	// QuietFor is how long its buffer had no emission; 0 without a buffer.
	QuietFor time.Duration
}

// Members lists the members of a bucket's sets, each once, in no order, and not
// many more than limit; more says that there are others.
func (b *Buffer) Members(ctx context.Context, bucket, limit int) (members []Member, more bool, err error) {
	if err := checkBucket(bucket); err != nil {
		return nil, false, err
	}
	byName := make(map[string]*Member)
	for i, key := range setKeys(bucket) {
		rest, err := b.scanSet(ctx, key, limit, func(name string) {
			m := byName[name]
			if m == nil {
				m = &Member{Name: name}
				m.Scope, _ = parseMember(bucket, name)
				byName[name] = m
			}
			*[]*bool{&m.Quarantined, &m.InFlight, &m.Dirty, &m.Dirty}[i] = true
		})
		if err != nil {
			return nil, false, fmt.Errorf("buffer: members of bucket %d: %s: %w", bucket, key, err)
		}
		more = more || rest
	}
	for _, m := range byName {
		members = append(members, *m)
	}
	return members, more, b.addQuiet(ctx, bucket, members)
}

// scanSet hands members to each, page by page, until it has handed out limit. A
// member may come twice.
func (b *Buffer) scanSet(ctx context.Context, key string, limit int, each func(name string)) (more bool, err error) {
	handed := 0
	for cursor := uint64(0); ; {
		page, err := b.client.Do(ctx, b.client.B().Sscan().Key(key).Cursor(cursor).Count(scanCount).Build()).AsScanEntry()
		if err != nil {
			return false, err
		}
		for i, name := range page.Elements {
			if handed == limit {
				return i < len(page.Elements), nil
			}
			each(name)
			handed++
		}
		if cursor = page.Cursor; cursor == 0 {
			return false, nil
		}
	}
}

func (b *Buffer) addQuiet(ctx context.Context, bucket int, members []Member) error {
	commands := make(rueidis.Commands, len(members))
	for i, m := range members {
		commands[i] = b.client.B().Pttl().Key(bufferKey(bucket, m.Name)).Build()
	}
	for i, result := range b.client.DoMulti(ctx, commands...) {
		left, err := result.AsInt64()
		if err != nil {
			return fmt.Errorf("buffer: members of bucket %d: %w", bucket, err)
		}
		members[i].QuietFor = b.quietFor(left)
	}
	return nil
}
