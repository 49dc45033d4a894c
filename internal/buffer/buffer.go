// Package buffer keeps the deltas that are committed in Postgres but not yet
// in the counters there. It is the only code that knows the Redis keys.
// README.md beside this file says what they hold, what a crash leaves, and
// what is not guaranteed.
package buffer

import (
	"fmt"
	"strconv"
	"time"

	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// Config holds the two lifetimes of the buffer. Redis counts in milliseconds,
// and refuses or forgets at once what is shorter: both must be at least one.
type Config struct {
	// TTL is how long a scope's buffer lives after its last emission. A buffer
	// that expires undrained is noticed by Claim.
	TTL time.Duration
	// LeaseTTL is how long a bucket belongs to the holder of its last claim.
	LeaseTTL time.Duration
}

// Buffer reads and writes the buffer. It owns no goroutine and may be used by
// several at once. No script is ever repeated, not even one that only reads:
// a method fails as soon as Redis does, or when its context ends.
type Buffer struct {
	client rueidis.Client
	cfg    Config
}

// New makes a Buffer. The client stays the caller's to close. It must have no
// ConnLifetime: rueidis repeats what was under way on a connection that ends
// its life, increments included (see package redisconn).
func New(client rueidis.Client, cfg Config) *Buffer {
	return &Buffer{client: client, cfg: cfg}
}

// millis is a lifetime as Redis takes it.
func millis(name string, d time.Duration) (string, error) {
	if d < time.Millisecond {
		return "", fmt.Errorf("buffer: %s is %s: must be at least 1ms", name, d)
	}
	return strconv.FormatInt(d.Milliseconds(), 10), nil
}

func checkBucket(bucket int) error {
	if bucket < 0 || bucket >= accounting.Buckets {
		return fmt.Errorf("buffer: bucket %d: there are buckets 0 to %d", bucket, accounting.Buckets-1)
	}
	return nil
}

// members are the scopes as the bucket's sets hold them. A scope of another
// bucket would make a script touch two slots.
func members(bucket int, scopes []accounting.Scope) ([]string, error) {
	if err := checkBucket(bucket); err != nil {
		return nil, err
	}
	names := make([]string, len(scopes))
	for i, s := range scopes {
		if own := accounting.Bucket(s.Namespace); own != bucket {
			return nil, fmt.Errorf("buffer: %s %s is of bucket %d, not %d", s.Kind, s.ID, own, bucket)
		}
		names[i] = member(s)
	}
	return names, nil
}
