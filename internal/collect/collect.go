// Package collect is the walk over all blobs that takes out those to which nothing
// refers: a backfill that begins again by itself. README.md in internal/backfill
// says how it runs, that of ent/entpublish what becomes of the content.
package collect

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/backfill"
	"github.com/stowage-dev/stowage/internal/blobs"
	"github.com/stowage-dev/stowage/internal/metrics"
)

// Config of the collection.
type Config struct {
	// Grace is how long a blob is left alone after it was stored, and its content
	// after the blob was collected.
	Grace time.Duration
	// Interval is the time between the end of a walk and the next.
	Interval time.Duration
	// BatchSize is how many blobs a transaction looks at.
	BatchSize int
}

// Validate returns every mistake, each with the name of its field.
func (c Config) Validate() error {
	var errs []error
	if c.Grace < 0 {
		errs = append(errs, fmt.Errorf("grace: %s must not be negative", c.Grace))
	}
	if c.Interval < 1 {
		errs = append(errs, fmt.Errorf("interval: %s must be positive", c.Interval))
	}
	if c.BatchSize < 1 {
		errs = append(errs, fmt.Errorf("batch_size: %d must be positive", c.BatchSize))
	}
	return errors.Join(errs...)
}

// Name is that of the backfill.
const Name = "unreferenced_blobs"

// Backfill is the walk.
func Backfill(cfg Config, m *metrics.Upkeep) backfill.Backfill {
	return backfill.Backfill{
		Name:  Name,
		About: "removal of blobs that no version has, by itself every collect.interval",
		Table: "blob_storage_blobs_by_namespace",
		Every: cfg.Interval,
		Limit: cfg.BatchSize,
		Batch: func(ctx context.Context, tx *entdb.Tx, after string, limit int) (backfill.Page, error) {
			return batch(ctx, tx, after, limit, cfg.Grace, m)
		},
	}
}

func batch(ctx context.Context, tx *entdb.Tx, after string, limit int, grace time.Duration, m *metrics.Upkeep) (backfill.Page, error) {
	key, err := parseKey(after)
	if err != nil {
		return backfill.Page{}, err
	}
	found, err := blobs.After(ctx, tx.Pgx(), key, limit)
	if err != nil {
		return backfill.Page{}, err
	}
	collected, err := blobs.Collect(ctx, tx, found.Unattached, blobs.Grace{Row: grace, Content: grace})
	if err != nil {
		return backfill.Page{}, err
	}
	changed, committed := counting(collected, m)
	return backfill.Page{Last: formatKey(found.Last), Seen: int64(found.Seen), Changed: changed, Done: found.Seen < limit, Committed: committed}, nil
}

func counting(collected []blobs.Collected, m *metrics.Upkeep) (changed int64, committed func()) {
	changed, bytes := blobs.Total(collected)
	return changed, func() {
		m.CollectedBlobs.Add(float64(changed))
		m.CollectedBytes.Add(float64(bytes))
	}
}

func formatKey(k blobs.Key) string { return k.Namespace.String() + " " + k.Digest.String() }

func parseKey(text string) (k blobs.Key, err error) {
	if text == "" {
		return blobs.Key{}, nil
	}
	namespace, digest, _ := strings.Cut(text, " ")
	if k.Namespace, err = uuid.Parse(namespace); err == nil {
		k.Digest, err = schematype.ParseDigest(digest)
	}
	if err != nil {
		return blobs.Key{}, fmt.Errorf("key %q of the walk: %w", text, err)
	}
	return k, nil
}
