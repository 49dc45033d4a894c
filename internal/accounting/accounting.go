// Package accounting holds the terms of the accounting protocol as plain
// values: scopes, counters, markers, deltas, flushes and outcomes. It does no
// I/O. README.md beside this file is the design record.
package accounting

import (
	"crypto/sha256"
	"fmt"
	"time"

	"github.com/google/uuid"
)

// Buckets is how many groups the namespaces are divided into. It is a
// constant, not a setting: it is part of every Redis key, and the rows of
// counter_buckets are numbered by it.
const Buckets = 256

// Bucket is the bucket of a namespace: the first byte of the SHA-256 of the
// id's 16 bytes. The SQL function stowage_bucket computes the same.
func Bucket(namespace uuid.UUID) int {
	sum := sha256.Sum256(namespace[:])
	return int(sum[0])
}

// ScopeKind says what a scope is. Its numbers are stored in storage_ledger.
type ScopeKind int16

// The kinds of scope.
const (
	KindNamespace  ScopeKind = 1
	KindRepository ScopeKind = 2
)

// String is the kind's name as metrics and logs show it.
func (k ScopeKind) String() string {
	switch k {
	case KindNamespace:
		return "namespace"
	case KindRepository:
		return "repository"
	default:
		return fmt.Sprintf("scope_kind(%d)", int16(k))
	}
}

// Scope is what owns counters: one namespace, or one repository of it. For a
// namespace, ID equals Namespace. Build it with the functions below.
type Scope struct {
	Kind      ScopeKind
	ID        uuid.UUID
	Namespace uuid.UUID
}

// NamespaceScope is the scope of a namespace.
func NamespaceScope(namespace uuid.UUID) Scope {
	return Scope{Kind: KindNamespace, ID: namespace, Namespace: namespace}
}

// RepositoryScope is the scope of a repository of a namespace.
func RepositoryScope(namespace, repository uuid.UUID) Scope {
	return Scope{Kind: KindRepository, ID: repository, Namespace: namespace}
}

// Counters are the two counters of a scope, or a signed change of them.
// Bytes is size_bytes of a repository (logical) and deduplicated_size_bytes of
// a namespace; Components is artifacts_count and components_count.
type Counters struct {
	Bytes      int64 `json:"bytes"`
	Components int64 `json:"components"`
}

// Plus is the sum, counter by counter.
func (c Counters) Plus(d Counters) Counters {
	return Counters{Bytes: c.Bytes + d.Bytes, Components: c.Components + d.Components}
}

// Minus is the difference, counter by counter.
func (c Counters) Minus(d Counters) Counters {
	return Counters{Bytes: c.Bytes - d.Bytes, Components: c.Components - d.Components}
}

// IsZero reports whether both counters are zero.
func (c Counters) IsZero() bool { return c == Counters{} }

// Marker is the start of a reconciliation as int64 microseconds since 1970:
// outside Postgres never a time.Time, because pgx encodes a zero time.Time as
// year 1 without an error and the guard would then drop the delta in silence.
type Marker int64

// MarkerOf is the marker of an instant, cut to the microsecond.
func MarkerOf(t time.Time) Marker { return Marker(t.UnixMicro()) }

// Time is the marker as an instant in UTC, for people to read.
func (m Marker) Time() time.Time { return time.UnixMicro(int64(m)).UTC() }

// Delta is the signed change of one scope's counters by one committed
// transaction.
type Delta struct {
	Scope Scope
	Counters
}

// Flush is a frozen part of a scope's buffer: deltas of exactly one marker
// under one batch id, immutable until it is deleted.
type Flush struct {
	Scope   Scope
	BatchID uuid.UUID
	Marker  Marker
	Counters
	// Emissions is how many emissions the sum holds.
	Emissions int64
}

// Outcome is what became of a flush, as storage_ledger records it.
type Outcome int16

// The outcomes of a ledger row. A correction is what a reconciliation wrote;
// it never takes part in the sum of applied deltas.
const (
	OutcomeApplied    Outcome = 1
	OutcomeCounted    Outcome = 2
	OutcomeGone       Outcome = 3
	OutcomeCorrection Outcome = 4
)

// String is the outcome's name as metrics and logs show it.
func (o Outcome) String() string {
	switch o {
	case OutcomeApplied:
		return "applied"
	case OutcomeCounted:
		return "counted"
	case OutcomeGone:
		return "gone"
	case OutcomeCorrection:
		return "correction"
	default:
		return fmt.Sprintf("outcome(%d)", int16(o))
	}
}
