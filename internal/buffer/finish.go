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
// these still promise what is not there, and scopes in quarantine. Request the
// reconciliations first: once forgotten, a loss is reported no more.
func (b *Buffer) Forget(ctx context.Context, bucket int, scopes []accounting.Scope) error {
	names, err := members(bucket, scopes)
	if err != nil {
		return err
	}
	return b.forget(ctx, bucket, names)
}

func (b *Buffer) forget(ctx context.Context, bucket int, names []string) error {
	if len(names) == 0 {
		return nil
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

// Quarantine sets scopes aside: their keys are kept for people to look at, and
// Emit returns them as failed, so that their namespaces are reconciled instead.
// Claims go on to report them as corrupt. Request the reconciliations afterwards,
// when nothing can be added any more, and then Forget them.
func (b *Buffer) Quarantine(ctx context.Context, bucket int, scopes []accounting.Scope) error {
	names, err := members(bucket, scopes)
	if err != nil {
		return err
	}
	return b.quarantine(ctx, bucket, names)
}

func (b *Buffer) quarantine(ctx context.Context, bucket int, names []string) error {
	if len(names) == 0 {
		return nil
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
