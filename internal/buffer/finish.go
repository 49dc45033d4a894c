package buffer

import (
	"context"
	"fmt"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// Finish deletes those of the flushes that still have the batch id given, and
// takes their scopes out of the in-flight set. Call it after the flushes'
// outcome is committed; repeating it does no harm.
func (b *Buffer) Finish(ctx context.Context, bucket int, flushes []accounting.Flush) error {
	if len(flushes) == 0 {
		return nil
	}
	scopes := make([]accounting.Scope, len(flushes))
	for i, f := range flushes {
		scopes[i] = f.Scope
	}
	names, err := members(bucket, scopes)
	if err != nil {
		return err
	}
	keys, args := setKeys(bucket), []string(nil)
	for i, name := range names {
		keys = append(keys, flushKey(bucket, name))
		args = append(args, name, flushes[i].BatchID.String())
	}
	if err := finishScript.one(ctx, b.client, keys, args).Error(); err != nil {
		return fmt.Errorf("buffer: finish in bucket %d: %w", bucket, err)
	}
	return nil
}

// Forget takes scopes that a claim reported as expired out of the sets, if
// these still promise what is not there. Request the reconciliations first:
// once forgotten, a loss is reported no more.
func (b *Buffer) Forget(ctx context.Context, bucket int, scopes []accounting.Scope) error {
	if len(scopes) == 0 {
		return nil
	}
	names, err := members(bucket, scopes)
	if err != nil {
		return err
	}
	keys := setKeys(bucket)
	for _, name := range names {
		keys = append(keys, flushKey(bucket, name), bufferKey(bucket, name))
	}
	if err := forgetScript.one(ctx, b.client, keys, names).Error(); err != nil {
		return fmt.Errorf("buffer: forget in bucket %d: %w", bucket, err)
	}
	return nil
}

// Quarantine sets a scope aside: its keys are kept for people to look at, no
// claim returns it, and Emit returns it as failed, so that its namespace is
// reconciled instead. Request a reconciliation first.
func (b *Buffer) Quarantine(ctx context.Context, bucket int, scope accounting.Scope) error {
	names, err := members(bucket, []accounting.Scope{scope})
	if err != nil {
		return err
	}
	if err := quarantineScript.one(ctx, b.client, setKeys(bucket), names).Error(); err != nil {
		return fmt.Errorf("buffer: quarantine in bucket %d: %w", bucket, err)
	}
	return nil
}

// Release gives the bucket's lease up if it is the holder's.
func (b *Buffer) Release(ctx context.Context, bucket int, holder string) error {
	if err := checkBucket(bucket); err != nil {
		return err
	}
	keys := []string{bucketPrefix(bucket) + leaseName}
	if err := releaseScript.one(ctx, b.client, keys, []string{holder}).Error(); err != nil {
		return fmt.Errorf("buffer: release of bucket %d: %w", bucket, err)
	}
	return nil
}
