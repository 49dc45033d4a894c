package buffer

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// Claim is what one call of Buffer.Claim took.
type Claim struct {
	// Busy says that the lease is another holder's: nothing was claimed.
	Busy bool
	// Flushes are frozen and stay so until Finish: a later claim returns them
	// again, unchanged, with their first batch id.
	Flushes []accounting.Flush
	// Expired are scopes whose set promises deltas that are no longer there.
	// They are reported by every claim that meets them until Forget: request a
	// reconciliation of their namespaces first, then Forget them.
	Expired []accounting.Scope
	// Corrupt are scopes whose keys hold what Stowage did not write. They are
	// reported by every claim that meets them, and so are those in quarantine,
	// until Forget: Quarantine them, then request a reconciliation of their
	// namespaces, then Forget them.
	Corrupt []accounting.Scope
	// Foreign counts members of the sets that name no scope of the bucket. They
	// are in the quarantine set now; no namespace needs a reconciliation.
	Foreign int
}

// Claim takes or renews the bucket's lease for the holder and returns up to limit
// flushes: those that stand in the in-flight set already, then new ones of the
// dirty sets. The two share what room there is in halves, and members are
// picked at random, so that none waits for ever.
//
// The batch must be a UUIDv7 that was never used before, also not for a claim
// that failed: it may have been executed, and the ledger takes a batch of a
// scope once.
func (b *Buffer) Claim(ctx context.Context, bucket int, holder string, batch uuid.UUID, limit int) (Claim, error) {
	ttl, err := b.validateClaim(bucket, holder, batch, limit)
	if err != nil {
		return Claim{}, err
	}
	prefix := bucketPrefix(bucket)
	reply, err := claimScript.one(ctx, b.client, append(setKeys(bucket), prefix+leaseName),
		[]string{prefix, holder, ttl, batch.String(), strconv.Itoa(limit)}).ToArray()
	if err != nil {
		return Claim{}, fmt.Errorf("buffer: claim of bucket %d: %w", bucket, err)
	}
	if len(reply) == 1 {
		return Claim{Busy: true}, nil
	}
	claim, foreign, err := parseClaim(bucket, reply)
	if err == nil && len(foreign) > 0 {
		if err = b.quarantine(ctx, bucket, foreign); err == nil {
			err = b.forget(ctx, bucket, foreign)
		}
	}
	if err != nil {
		return Claim{}, fmt.Errorf("buffer: claim of bucket %d: %w", bucket, err)
	}
	return claim, nil
}

func (b *Buffer) validateClaim(bucket int, holder string, batch uuid.UUID, limit int) (ttl string, err error) {
	if err := checkBucket(bucket); err != nil {
		return "", err
	}
	switch {
	case holder == "":
		return "", fmt.Errorf("buffer: claim of bucket %d: the holder has no name", bucket)
	case batch.Version() != 7:
		return "", fmt.Errorf("buffer: claim of bucket %d: batch %s is no UUIDv7, by which the ledger is partitioned", bucket, batch)
	case limit < 1:
		return "", fmt.Errorf("buffer: claim of bucket %d: limit %d: must be at least 1", bucket, limit)
	}
	return millis("the lease's TTL", b.cfg.LeaseTTL)
}

// parseClaim reads the reply of claim.lua.
func parseClaim(bucket int, reply []rueidis.RedisMessage) (claim Claim, foreign []string, err error) {
	if len(reply) != 4 {
		return Claim{}, nil, fmt.Errorf("reply has %d parts instead of 4", len(reply))
	}
	collect := func(name string, scopes *[]accounting.Scope) {
		if scope, err := parseMember(bucket, name); err != nil {
			foreign = append(foreign, name)
		} else {
			*scopes = append(*scopes, scope)
		}
	}
	flushes, errFlushes := reply[1].ToArray()
	expired, errExpired := reply[2].AsStrSlice()
	corrupt, errCorrupt := reply[3].AsStrSlice()
	if err := errors.Join(errFlushes, errExpired, errCorrupt); err != nil {
		return Claim{}, nil, err
	}
	for _, m := range flushes {
		name, flush, err := parseClaimedFlush(bucket, m)
		switch {
		case err == nil:
			claim.Flushes = append(claim.Flushes, flush)
		case name == "":
			return Claim{}, nil, err
		default:
			collect(name, &claim.Corrupt)
		}
	}
	for _, name := range expired {
		collect(name, &claim.Expired)
	}
	for _, name := range corrupt {
		collect(name, &claim.Corrupt)
	}
	claim.Foreign = len(foreign)
	return claim, foreign, nil
}

// parseClaimedFlush reads {member, {field, value, ...}}. The name is returned
// with an error too, unless it could not be read.
func parseClaimedFlush(bucket int, m rueidis.RedisMessage) (name string, flush accounting.Flush, err error) {
	pair, err := m.ToArray()
	if err != nil || len(pair) != 2 {
		return "", accounting.Flush{}, errors.Join(errors.New("a flush is no pair of member and fields"), err)
	}
	if name, err = pair[0].ToString(); err != nil {
		return "", accounting.Flush{}, err
	}
	scope, err := parseMember(bucket, name)
	if err != nil {
		return name, accounting.Flush{}, err
	}
	fields, err := pair[1].AsStrMap()
	if err != nil {
		return name, accounting.Flush{}, err
	}
	flush, err = parseFlush(scope, fields)
	return name, flush, err
}
