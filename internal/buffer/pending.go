package buffer

import (
	"context"
	"fmt"
	"slices"

	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// pendingChunk bounds how long one call of pending.lua blocks Redis: well
// under a millisecond.
const pendingChunk = 100

// MarkedCounters is what a buffer holds for one marker.
type MarkedCounters struct {
	Marker accounting.Marker
	accounting.Counters
	Emissions int64
}

// Pending is what the row of a scope lacks.
type Pending struct {
	// Buffered is sorted by marker.
	Buffered []MarkedCounters
	// Flush is nil when none is outstanding. The row may have it already: it is
	// deleted only after the commit.
	Flush *accounting.Flush
	// Quarantined says that nothing of this is applied and nothing is added.
	Quarantined bool
}

// Pending reads buffers and flushes in one pipeline, both of a scope at one
// instant. A scope whose keys cannot be read (see Claim.Corrupt) is missing
// from the map; every other one is in it.
func (b *Buffer) Pending(ctx context.Context, scopes []accounting.Scope) (map[accounting.Scope]Pending, error) {
	chunks := chunkByBucket(scopes)
	calls := make([]call, len(chunks))
	for i, chunk := range chunks {
		bucket := accounting.Bucket(chunk[0].Namespace)
		calls[i].keys = []string{bucketPrefix(bucket) + quarantineName}
		for _, s := range chunk {
			m := member(s)
			calls[i].keys = append(calls[i].keys, flushKey(bucket, m), bufferKey(bucket, m))
			calls[i].args = append(calls[i].args, m)
		}
	}
	pending := make(map[accounting.Scope]Pending, len(scopes))
	for i, result := range pendingScript.run(ctx, b.client, calls...) {
		replies, err := result.ToArray()
		if err != nil {
			return nil, fmt.Errorf("buffer: pending: %w", err)
		}
		for j, reply := range replies {
			if p, ok := parsePending(chunks[i][j], reply); ok {
				pending[chunks[i][j]] = p
			}
		}
	}
	return pending, nil
}

func chunkByBucket(scopes []accounting.Scope) [][]accounting.Scope {
	byBucket := make(map[int][]accounting.Scope)
	for _, s := range scopes {
		bucket := accounting.Bucket(s.Namespace)
		byBucket[bucket] = append(byBucket[bucket], s)
	}
	var chunks [][]accounting.Scope
	for _, group := range byBucket {
		chunks = slices.AppendSeq(chunks, slices.Chunk(group, pendingChunk))
	}
	return chunks
}

func parsePending(scope accounting.Scope, reply rueidis.RedisMessage) (p Pending, ok bool) {
	parts, err := reply.ToArray()
	if err != nil || len(parts) != 3 {
		return Pending{}, false
	}
	flushFields, errFlush := parts[0].AsStrMap()
	bufferFields, errBuffer := parts[1].AsStrMap()
	quarantined, errQuarantine := parts[2].AsInt64()
	if errFlush != nil || errBuffer != nil || errQuarantine != nil {
		return Pending{}, false
	}
	p.Quarantined = quarantined == 1
	if len(flushFields) > 0 {
		flush, err := parseFlush(scope, flushFields)
		if err != nil {
			return Pending{}, false
		}
		p.Flush = &flush
	}
	p.Buffered, err = parseBuffer(bufferFields)
	return p, err == nil
}
