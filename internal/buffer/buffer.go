// Package buffer keeps the deltas that are committed in Postgres but not yet
// in the counters there. It is the only code that knows the Redis keys.
// README.md beside this file says what they hold, what a crash leaves, and
// what is not guaranteed.
package buffer

import (
	"context"
	"errors"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// Config holds the two lifetimes of the buffer.
type Config struct {
	// TTL is how long a scope's buffer lives after its last emission. A buffer
	// that expires undrained is noticed by Claim.
	TTL time.Duration
	// LeaseTTL is how long a bucket belongs to the holder of its last claim.
	LeaseTTL time.Duration
}

// Buffer reads and writes the buffer. It owns no goroutine and may be used by
// several at once.
type Buffer struct {
	client rueidis.Client
	cfg    Config
}

// New makes a Buffer. The client stays the caller's to close.
func New(client rueidis.Client, cfg Config) *Buffer {
	return &Buffer{client: client, cfg: cfg}
}

// Size is how many scopes a bucket's sets hold.
type Size struct {
	Namespaces   int64
	Repositories int64
	InFlight     int64
}

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
	// reported by every claim that meets them until Quarantine: request a
	// reconciliation of their namespaces first, then Quarantine them.
	Corrupt []accounting.Scope
	// Foreign counts members of the sets that name no scope. They were moved
	// into the quarantine set; there is no namespace to reconcile.
	Foreign int
}

// MarkedCounters is what a buffer holds for one marker.
type MarkedCounters struct {
	Marker accounting.Marker
	accounting.Counters
	Emissions int64
}

// Pending is what a scope's row in Postgres lacks.
type Pending struct {
	// Buffered is sorted by marker.
	Buffered []MarkedCounters
	// Flush is nil when none is outstanding. It may have been applied already:
	// it is deleted after the commit.
	Flush *accounting.Flush
}

// Identity is what tells a bucket that lost data or went back in time.
type Identity struct {
	// ID is uuid.Nil when the bucket has no (readable) identity.
	ID uuid.UUID
	// RunID is the run id of the node that serves the bucket.
	RunID string
}

var errTodo = errors.New("buffer: not written yet")

// Emit adds the deltas of one committed transaction to the buffers of one
// namespace and its repositories, all under the marker the transaction saw. It
// is one call of one script, and never retried: after an error that is not
// Redis's own answer the deltas may or may not have been added. The scopes in
// failed were not added, the others were. Either way the caller requests a
// reconciliation of the namespace.
func (b *Buffer) Emit(ctx context.Context, namespace uuid.UUID, marker accounting.Marker, deltas []accounting.Delta) (failed []accounting.Scope, err error) {
	return nil, errTodo
}

// Sizes counts the members of every bucket's sets.
func (b *Buffer) Sizes(ctx context.Context) ([accounting.Buckets]Size, error) {
	return [accounting.Buckets]Size{}, errTodo
}

// Claim takes or renews the bucket's lease for the holder and returns up to
// limit flushes. The batch must be a UUIDv7 that was never used before, also
// not for a claim that failed.
func (b *Buffer) Claim(ctx context.Context, bucket int, holder string, batch uuid.UUID, limit int) (Claim, error) {
	return Claim{}, errTodo
}

// Finish deletes the flushes that still have the batch id given, and only
// those. Call it after the flushes' outcome is committed.
func (b *Buffer) Finish(ctx context.Context, bucket int, flushes []accounting.Flush) error {
	return errTodo
}

// Forget takes scopes that a claim reported as expired out of the sets, if
// they still lack what the set promises.
func (b *Buffer) Forget(ctx context.Context, bucket int, scopes []accounting.Scope) error {
	return errTodo
}

// Release gives the lease up if it is the holder's.
func (b *Buffer) Release(ctx context.Context, bucket int, holder string) error { return errTodo }

// Quarantine sets a scope aside: its keys are kept, no claim returns it, and
// Emit returns it as failed, so that its namespace is reconciled instead.
func (b *Buffer) Quarantine(ctx context.Context, bucket int, scope accounting.Scope) error {
	return errTodo
}

// Pending reads what the rows of the scopes lack, consistently for each scope.
// A scope whose keys cannot be read (see Claim.Corrupt) is missing from the
// map; every other one is in it.
func (b *Buffer) Pending(ctx context.Context, scopes []accounting.Scope) (map[accounting.Scope]Pending, error) {
	return nil, errTodo
}

// Sweep puts buffers and flushes that stand in no set back into their sets and
// counts them.
func (b *Buffer) Sweep(ctx context.Context) (found int, err error) { return 0, errTodo }

// Identities reads the identity of every bucket in one pipeline.
func (b *Buffer) Identities(ctx context.Context) ([accounting.Buckets]Identity, error) {
	return [accounting.Buckets]Identity{}, errTodo
}

// SetIdentity writes the identity of a bucket.
func (b *Buffer) SetIdentity(ctx context.Context, bucket int, id uuid.UUID) error { return errTodo }

// Check is nil when every node that serves a bucket answers and never evicts
// keys (maxmemory-policy noeviction).
func (b *Buffer) Check(ctx context.Context) error { return errTodo }
