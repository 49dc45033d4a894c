package buffer

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// Aside is what SetAside moved.
type Aside struct {
	// Scopes is how many had a buffer or a flush.
	Scopes int
	// Markers holds, of each of their namespaces, the newest marker found.
	Markers map[uuid.UUID]accounting.Marker
}

// SetAside moves every buffer and every flush to keys that nothing reads, where
// they expire after Config.TTL, and takes their scopes out of all sets. Those
// keys are `aside:<id>:` and the old names, under the prefix of the bucket. It
// is for deltas of changes that Postgres may have forgotten.
//
// Every bucket loses its identity before anything is moved, and again with each
// move. What is emitted meanwhile may be moved as well: request every namespace
// after SetAside has returned, not before. After an error, which names one key
// or bucket that refused, something may have been moved; call it again, with a
// new id. It counts up through progress, which must not block.
func (b *Buffer) SetAside(ctx context.Context, id uuid.UUID, progress func(scopes int)) (Aside, error) {
	aside := Aside{Markers: make(map[uuid.UUID]accounting.Marker)}
	ttl, err := millis("the buffer's TTL", b.cfg.TTL)
	if err != nil {
		return aside, err
	}
	run := asideRun{Buffer: b, id: id, ttl: ttl, done: &aside}
	every := make(map[int][]string, accounting.Buckets)
	for bucket := range accounting.Buckets {
		every[bucket] = nil
	}
	err = run.move(ctx, every)
	if err == nil {
		err = b.scan(ctx, func(keys []string) error {
			defer func() { progress(aside.Scopes) }()
			return run.move(ctx, membersByBucket(keys))
		})
	}
	if err != nil {
		return aside, fmt.Errorf("buffer: set aside: %w", err)
	}
	return aside, nil
}

// membersByBucket are the members that buffers and flushes name, each once.
func membersByBucket(keys []string) map[int][]string {
	seen := make(map[string]bool)
	byBucket := make(map[int][]string)
	for _, key := range keys {
		if k, ok := parseScopeKey(key); ok && !seen[k.member] {
			seen[k.member] = true
			byBucket[k.bucket] = append(byBucket[k.bucket], k.member)
		}
	}
	return byBucket
}

// asideRun is one call of SetAside.
type asideRun struct {
	*Buffer
	id   uuid.UUID
	ttl  string
	done *Aside
}

// move runs the script once for each bucket. The error is one of those met.
func (r asideRun) move(ctx context.Context, byBucket map[int][]string) (err error) {
	buckets := slices.Collect(maps.Keys(byBucket))
	calls := make([]call, len(buckets))
	for i, bucket := range buckets {
		calls[i] = r.call(bucket, byBucket[bucket])
	}
	for i, result := range asideScript.run(ctx, r.client, calls...) {
		replies, e := result.ToArray()
		if e != nil {
			err = fmt.Errorf("bucket %d: %w", buckets[i], e)
			continue
		}
		for j, reply := range replies {
			r.record(buckets[i], byBucket[buckets[i]][j], reply)
		}
	}
	return err
}

func (r asideRun) call(bucket int, members []string) call {
	prefix := bucketPrefix(bucket)
	aside := prefix + asideName + r.id.String() + ":"
	c := call{keys: append(setKeys(bucket), prefix+identityName), args: append([]string{r.ttl}, members...)}
	for _, m := range members {
		c.keys = append(c.keys, prefix+flushName+m, prefix+bufferName+m, aside+flushName+m, aside+bufferName+m)
	}
	return c
}

// record takes the markers out of what was moved. What is no marker is damage,
// of which nothing was ever applied.
func (r asideRun) record(bucket int, member string, reply rueidis.RedisMessage) {
	texts, err := reply.AsStrSlice()
	if err != nil {
		return // nil: it was gone by then
	}
	r.done.Scopes++
	scope, err := parseMember(bucket, member)
	if err != nil {
		return
	}
	for _, text := range texts {
		text, _, _ = strings.Cut(text, ":")
		if marker, err := parseMarker(text); err == nil {
			r.done.Markers[scope.Namespace] = max(r.done.Markers[scope.Namespace], marker)
		}
	}
}
