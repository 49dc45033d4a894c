package buffer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/redis/rueidis"
)

// scanCount is how many keys of Redis one SCAN looks at: a fraction of a
// millisecond.
const scanCount = 1000

// Sweep looks for buffers and flushes whose scope is missing in the set it
// belongs to, puts it back, and counts them. Scripts keep keys and sets
// together, so it finds only what people made or Redis lost. It reads every
// key of every primary. A bucket that refuses does not stop the others; what
// was done before an error stays done.
func (b *Buffer) Sweep(ctx context.Context) (found int, err error) {
	err = b.scan(ctx, func(keys []string) error {
		n, err := b.restore(ctx, keys)
		found += n
		return err
	})
	if err != nil {
		return found, fmt.Errorf("buffer: sweep: %w", err)
	}
	return found, nil
}

// scan hands the keys of every primary to each, page by page. An error of each
// does not stop it.
func (b *Buffer) scan(ctx context.Context, each func(keys []string) error) (err error) {
	for addr, client := range b.client.Nodes() {
		if e := scanNode(ctx, client, each); e != nil {
			err = errors.Join(err, fmt.Errorf("node %s: %w", addr, e))
		}
	}
	return err
}

func scanNode(ctx context.Context, client rueidis.Client, each func(keys []string) error) error {
	primary, err := isPrimary(ctx, client)
	if err != nil || !primary {
		return err
	}
	var refused error
	for cursor := uint64(0); ; {
		page, err := client.Do(ctx, client.B().Scan().Cursor(cursor).Match(keyRoot+"*").Count(scanCount).Build()).AsScanEntry()
		if err != nil {
			return err
		}
		if err := each(page.Elements); err != nil {
			refused = err
		}
		if cursor = page.Cursor; cursor == 0 {
			return refused
		}
	}
}

// isPrimary keeps replicas out: they hold the same keys, only older.
func isPrimary(ctx context.Context, client rueidis.Client) (bool, error) {
	info, err := client.Do(ctx, client.B().Info().Section("replication").Build()).ToString()
	return strings.Contains(info, "role:master"), err
}

// restore hands the scanned keys to the scripts of their buckets, which look
// again: a scan is a view of no single instant. The error is one of those met.
func (b *Buffer) restore(ctx context.Context, keys []string) (found int, err error) {
	byBucket := make(map[int]call)
	for _, key := range keys {
		k, ok := parseScopeKey(key)
		if !ok {
			continue
		}
		c := byBucket[k.bucket]
		if c.keys == nil {
			c.keys = setKeys(k.bucket)
		}
		c.keys = append(c.keys, key)
		c.args = append(c.args, k.name, k.member)
		byBucket[k.bucket] = c
	}
	calls := slices.Collect(maps.Values(byBucket))
	for _, result := range restoreScript.run(ctx, b.client, calls...) {
		n, e := result.AsInt64()
		found += int(n)
		if e != nil {
			err = e
		}
	}
	return found, err
}
