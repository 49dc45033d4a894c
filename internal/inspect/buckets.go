package inspect

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/ledger"
)

// batchTime is when a flush was frozen, by the clock of the worker that froze it.
func batchTime(batch uuid.UUID) time.Time { return ledger.BatchTime(batch) }

// Bucket is what Redis holds of one.
type Bucket struct {
	Bucket int `json:"bucket"`
	// DirtyNamespaces and DirtyRepositories have deltas that no drain has claimed,
	// InFlight those that one has.
	DirtyNamespaces   int64 `json:"dirty_namespaces"`
	DirtyRepositories int64 `json:"dirty_repositories"`
	InFlight          int64 `json:"in_flight"`
	Quarantined       int64 `json:"quarantined"`
	// OldestSeconds is the least age of the oldest delta: how long ago the first of
	// its flushes was frozen, or for how long a buffer had no emission. When its
	// first emission was, nobody knows.
	OldestSeconds float64 `json:"oldest_seconds_at_least"`
	// LeaseHolder drains it, or did so LeaseSeconds before its lease ends.
	LeaseHolder  string  `json:"lease_holder,omitempty"`
	LeaseSeconds float64 `json:"lease_seconds_left,omitempty"`
	// Identity is "ok"; "new" before the first tick has given one; "lost" when Redis
	// has none, or another, and "restarted" when another run of Redis has it: deltas
	// may be missing, and the next tick requests the bucket's namespaces; "unread"
	// when Redis did not say.
	Identity string `json:"identity"`
}

// Quiet reports whether there is nothing to say about the bucket.
func (b Bucket) Quiet() bool {
	b.Bucket, b.LeaseHolder, b.LeaseSeconds = 0, "", 0
	return b == Bucket{Identity: IdentityOK} || b == Bucket{Identity: IdentityNew}
}

// What Bucket.Identity says.
const (
	IdentityOK        = "ok"
	IdentityNew       = "new"
	IdentityLost      = "lost"
	IdentityRestarted = "restarted"
	IdentityUnread    = "unread"
)

// Buckets reads all buckets. With an error that names one, those that could not be
// read are zero, and the others are right.
func (i *Inspector) Buckets(ctx context.Context) ([]Bucket, error) {
	known, err := i.identities(ctx)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	states, errStates := i.Buffer.States(ctx)
	ids, errIDs := i.Buffer.Identities(ctx)
	buckets := make([]Bucket, accounting.Buckets)
	for n, s := range states {
		buckets[n] = Bucket{
			Bucket: n, DirtyNamespaces: s.Namespaces, DirtyRepositories: s.Repositories, InFlight: s.InFlight, Quarantined: s.Quarantined,
			OldestSeconds: oldest(s).Seconds(), LeaseHolder: s.Holder, LeaseSeconds: s.LeaseLeft.Seconds(),
			Identity: compare(known[n], ids[n]),
		}
	}
	return buckets, cmp.Or(errStates, errIDs)
}

func oldest(s buffer.State) time.Duration {
	age := s.QuietFor
	if s.OldestFlush != uuid.Nil {
		age = max(age, time.Since(batchTime(s.OldestFlush)))
	}
	return age.Round(time.Millisecond)
}

// compare is as the tick compares: internal/drain/identity.go.
func compare(known *buffer.Identity, now buffer.Identity) string {
	switch {
	case now.RunID == "":
		return IdentityUnread
	case known == nil && now.ID == uuid.Nil:
		return IdentityNew
	case known == nil || known.ID != now.ID:
		return IdentityLost
	case known.RunID != now.RunID:
		return IdentityRestarted
	default:
		return IdentityOK
	}
}

// identities are those that the database knows, by bucket.
func (i *Inspector) identities(ctx context.Context) (known [accounting.Buckets]*buffer.Identity, err error) {
	err = i.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT bucket, identity, run_id FROM counter_buckets`)
		if err != nil {
			return err
		}
		var (
			bucket int16
			id     buffer.Identity
		)
		_, err = pgx.ForEachRow(rows, []any{&bucket, &id.ID, &id.RunID}, func() error {
			copied := id
			known[bucket] = &copied
			return nil
		})
		return err
	})
	if err != nil {
		return known, fmt.Errorf("read the identities of the buckets: %w", err)
	}
	return known, nil
}

// Member is a scope that a bucket's sets hold.
type Member struct {
	// Name is the member as it stands in Redis; the ids are null when it names no
	// scope of the bucket.
	Name         string     `json:"member"`
	NamespaceID  *uuid.UUID `json:"namespace_id"`
	RepositoryID *uuid.UUID `json:"repository_id"`
	Dirty        bool       `json:"dirty"`
	InFlight     bool       `json:"in_flight"`
	Quarantined  bool       `json:"quarantined"`
	// Pending is everything in its buffer and its flush, Emissions from how many
	// emissions; null when its keys are damaged.
	Pending   *accounting.Counters `json:"pending"`
	Emissions int64                `json:"emissions"`
	// FrozenAt is when its flush was.
	FrozenAt *time.Time `json:"frozen_at"`
	// QuietSeconds is for how long its buffer had no emission.
	QuietSeconds float64 `json:"quiet_seconds"`
}

// Members lists the members of a bucket, about limit of each set, in the order of
// their names; more says that there are others.
func (i *Inspector) Members(ctx context.Context, bucket, limit int) (members []Member, more bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	found, more, err := i.Buffer.Members(ctx, bucket, limit)
	if err != nil {
		return nil, false, err
	}
	var scopes []accounting.Scope
	for _, m := range found {
		if m.Scope != (accounting.Scope{}) {
			scopes = append(scopes, m.Scope)
		}
	}
	pending, err := i.pending(ctx, scopes)
	if err != nil {
		return nil, false, err
	}
	members = make([]Member, len(found))
	for n, m := range found {
		members[n] = memberOf(m, pending)
	}
	slices.SortFunc(members, func(a, b Member) int { return strings.Compare(a.Name, b.Name) })
	return members, more, nil
}

func memberOf(m buffer.Member, pending map[accounting.Scope]buffer.Pending) Member {
	shown := Member{Name: m.Name, Dirty: m.Dirty, InFlight: m.InFlight, Quarantined: m.Quarantined, QuietSeconds: m.QuietFor.Seconds()}
	if m.Scope == (accounting.Scope{}) {
		return shown
	}
	shown.NamespaceID = &m.Scope.Namespace
	if m.Scope.Kind == accounting.KindRepository {
		shown.RepositoryID = &m.Scope.ID
	}
	p, known := pending[m.Scope]
	if !known {
		return shown
	}
	var sum accounting.Counters
	for _, b := range p.Buffered {
		sum, shown.Emissions = sum.Plus(b.Counters), shown.Emissions+b.Emissions
	}
	if p.Flush != nil {
		frozen := batchTime(p.Flush.BatchID)
		sum, shown.Emissions, shown.FrozenAt = sum.Plus(p.Flush.Counters), shown.Emissions+p.Flush.Emissions, &frozen
	}
	shown.Pending = &sum
	return shown
}
