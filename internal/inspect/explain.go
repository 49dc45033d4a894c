package inspect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/reconcile"
	"github.com/stowage-dev/stowage/internal/usage"
)

// Verdict says in one word whether a counter is right.
type Verdict string

// The verdicts.
const (
	// VerdictExact: the row is what a recount says.
	VerdictExact Verdict = "exact"
	// VerdictBehind: it is, with what is on its way to it.
	VerdictBehind Verdict = "behind"
	// VerdictWrong: it is not.
	VerdictWrong Verdict = "wrong"
	// VerdictUnknown: it could not be told.
	VerdictUnknown Verdict = "unknown"
)

// Counter is where one counter's value comes from. Reconciled + Applied = Row;
// Row + Buffered + InFlight = Value; Value + Difference = Recount.
type Counter struct {
	Reconciled int64   `json:"at_last_reconciliation"`
	Applied    int64   `json:"applied_since"`
	Row        int64   `json:"row"`
	Buffered   int64   `json:"buffered"`
	InFlight   int64   `json:"in_flight"`
	Value      int64   `json:"value"`
	Recount    int64   `json:"recount"`
	Difference int64   `json:"difference"`
	Verdict    Verdict `json:"verdict"`
	// Text is the verdict in words, with what to do.
	Text string `json:"text"`
}

// Delta is a sum of deltas in Redis. Counts is false for what the row has already,
// or will not take.
type Delta struct {
	Marker time.Time `json:"marker"`
	accounting.Counters
	Emissions int64 `json:"emissions"`
	Counts    bool  `json:"counts"`
}

// Flush is what a drain froze. InLedger says that it is applied or dropped, and
// only still to be deleted from Redis.
type Flush struct {
	Delta
	BatchID  uuid.UUID `json:"batch_id"`
	FrozenAt time.Time `json:"frozen_at"`
	InLedger bool      `json:"in_ledger"`
}

// Held is a correction that waits, because it would lower a counter by much.
type Held struct {
	Since      time.Time           `json:"since"`
	Correction accounting.Counters `json:"correction"`
	ApprovedAt *time.Time          `json:"approved_at"`
	ApprovedBy string              `json:"approved_by,omitempty"`
}

// Explanation is why the counters of a scope are what they are.
type Explanation struct {
	Namespace Namespace `json:"namespace"`
	// Repository is nil when the namespace's own counters are explained.
	Repository *Repository `json:"repository"`
	AsOf       time.Time   `json:"as_of"`
	// Precision is what a read of the usage says at this moment: it knows of a loss
	// only when that is requested.
	Precision        usage.Precision `json:"precision"`
	LastReconciledAt *time.Time      `json:"last_reconciled_at"`
	RequestedAt      *time.Time      `json:"requested_at"`
	Quarantined      bool            `json:"quarantined"`
	// Redis is "ok", or "no answer", or "damaged keys": then Buffered and InFlight
	// are not known.
	Redis      string  `json:"redis"`
	Bytes      Counter `json:"bytes"`
	Components Counter `json:"components"`
	Buffered   []Delta `json:"buffered"`
	InFlight   *Flush  `json:"in_flight"`
	Ledger     *Ledger `json:"ledger"`
	Held       *Held   `json:"held"`
	// Notes are further sentences for people.
	Notes []string `json:"notes"`

	// heldRepositories is how many repositories have a correction that waits. The
	// namespace is written after them, so its own waits too.
	heldRepositories int
}

// What Explanation.Redis says.
const (
	redisOK      = "ok"
	redisSilent  = "no answer"
	redisDamaged = "damaged keys"
)

// ErrNoRow says that a namespace has no statistics row.
var ErrNoRow = errors.New("the namespace has no statistics row: its next reconciliation makes one (run stowage namespace reconcile)")

// Explain explains the counters of a namespace, or of a repository of it, with up to
// entries rows of the ledger, at least one. Errors: ErrNotFound, ErrNoRow.
func (i *Inspector) Explain(ctx context.Context, n Namespace, repository *Repository, entries int) (*Explanation, error) {
	scope := accounting.NamespaceScope(n.ID)
	if repository != nil {
		scope = accounting.RepositoryScope(n.ID, repository.ID)
	}
	findings, last, err := i.examine(ctx, question{namespace: n.ID, scopes: []accounting.Scope{scope}, entries: entries})
	if err != nil {
		return nil, fmt.Errorf("explain: %w", err)
	}
	f, there := findings[scope]
	switch {
	case !there && repository == nil:
		return nil, ErrNoRow
	case !there:
		return nil, fmt.Errorf("repository %q: %w", repository.Name, ErrNotFound)
	}
	e := &Explanation{
		Namespace: n, Repository: repository, AsOf: f.asOf,
		LastReconciledAt: usage.At(f.since.Time()), RequestedAt: usage.At(last.requestedAt),
		Quarantined: f.pending.Quarantined, Ledger: f.ledger, Held: heldOf(scope, last.held),
		Redis: redisState(f, last), Buffered: []Delta{}, Notes: []string{},
	}
	if repository == nil {
		e.heldRepositories = heldRepositories(last.held)
	}
	e.Precision, _ = usage.Usage{
		Pending: f.outstanding(), PendingKnown: f.known, LastReconciledAt: f.since.Time(),
		RequestedAt: last.requestedAt, Quarantined: f.pending.Quarantined,
	}.Precision()
	e.addPending(f)
	e.addCounters(f)
	e.addNotes(f)
	return e, nil
}

func redisState(f finding, last *snapshot) string {
	switch {
	case !last.answered:
		return redisSilent
	case !f.known:
		return redisDamaged
	default:
		return redisOK
	}
}

func heldOf(scope accounting.Scope, all []reconcile.Held) *Held {
	for _, h := range all {
		if h.Scope == scope {
			return &Held{Since: h.Seen.Time(), Correction: h.Counted.Minus(h.Expected), ApprovedAt: h.ApprovedAt, ApprovedBy: h.ApprovedBy}
		}
	}
	return nil
}

func heldRepositories(all []reconcile.Held) (n int) {
	for _, h := range all {
		if h.Scope.Kind == accounting.KindRepository {
			n++
		}
	}
	return n
}

func (e *Explanation) addPending(f finding) {
	for _, b := range f.pending.Buffered {
		e.Buffered = append(e.Buffered, Delta{Marker: b.Marker.Time(), Counters: b.Counters, Emissions: b.Emissions, Counts: b.Marker >= f.since})
	}
	if p := f.pending.Flush; p != nil {
		e.InFlight = &Flush{
			Delta:   Delta{Marker: p.Marker.Time(), Counters: p.Counters, Emissions: p.Emissions, Counts: p.Marker >= f.since && !f.entered},
			BatchID: p.BatchID, FrozenAt: batchTime(p.BatchID), InLedger: f.entered,
		}
	}
}

func (e *Explanation) addCounters(f finding) {
	var buffered, inFlight accounting.Counters
	for _, d := range e.Buffered {
		if d.Counts {
			buffered = buffered.Plus(d.Counters)
		}
	}
	if e.InFlight != nil && e.InFlight.Counts {
		inFlight = e.InFlight.Counters
	}
	missing := f.difference()
	e.Bytes = Counter{
		Applied: f.ledger.Applied.Bytes, Row: f.row.Bytes, Buffered: buffered.Bytes, InFlight: inFlight.Bytes,
		Recount: f.recount.Bytes, Difference: missing.Bytes,
	}
	e.Components = Counter{
		Applied: f.ledger.Applied.Components, Row: f.row.Components, Buffered: buffered.Components, InFlight: inFlight.Components,
		Recount: f.recount.Components, Difference: missing.Components,
	}
	for _, c := range []*Counter{&e.Bytes, &e.Components} {
		c.Reconciled = c.Row - c.Applied
		c.Value = c.Row + c.Buffered + c.InFlight
		c.Verdict, c.Text = e.judge(c, f.differs())
	}
}

// judge is the verdict of a counter. steady says that its difference is always the
// same.
func (e *Explanation) judge(c *Counter, steady bool) (Verdict, string) {
	onItsWay := c.Buffered + c.InFlight
	switch {
	case e.Redis == redisSilent && c.Difference == 0:
		return VerdictUnknown, "unknown: the row is what a recount says, but Redis did not answer, so what is on its way to it is not known"
	case e.Redis == redisSilent:
		return VerdictUnknown, fmt.Sprintf("unknown: a recount says %+d, and Redis did not answer: it may be buffered", c.Difference)
	case c.Difference == 0 && onItsWay == 0:
		return VerdictExact, "exact"
	case c.Difference == 0:
		return VerdictBehind, fmt.Sprintf("behind by what is buffered: %+d is on its way to the row", onItsWay)
	case !steady:
		return VerdictUnknown, fmt.Sprintf("unknown: writes go on, and %+d may be on its way to Redis; run it again", c.Difference)
	default:
		return VerdictWrong, fmt.Sprintf("wrong by %+d: %s", -c.Difference, e.remedy())
	}
}

// remedy is what makes a wrong counter right.
func (e *Explanation) remedy() string {
	switch {
	case e.Held != nil && e.Held.ApprovedAt != nil:
		return "the correction was held because it lowers the counter by much; it is approved, and the next pass writes it"
	case e.Held != nil:
		return "the correction is held because it lowers the counter by much, until a later pass finds it again or somebody approves it"
	case e.heldRepositories > 0:
		return "it is corrected after its repositories, of which some are held"
	case e.RequestedAt != nil:
		return "a reconciliation is requested and will correct it"
	default:
		return "run stowage namespace reconcile " + e.Namespace.Slug
	}
}

func (e *Explanation) addNotes(f finding) {
	note := func(text string) { e.Notes = append(e.Notes, text) }
	never := e.LastReconciledAt == nil
	switch {
	case !e.Ledger.Complete && never:
		note(fmt.Sprintf("The ledger begins on %s, later than these counters: what was applied before is not kept, so the value they began with is derived from what is left.", day(*e.Ledger.Begins)))
	case !e.Ledger.Complete:
		note(fmt.Sprintf("The ledger begins on %s, later than the last reconciliation: entries since then were dropped by retention, so the value at that time is derived from what is left.", day(*e.Ledger.Begins)))
	case never && (e.Bytes.Reconciled != 0 || e.Components.Reconciled != 0):
		note("These counters began with zero, and no entry of the ledger explains the rest: the row was changed by hand, or content was there before it was counted.")
	}
	if !f.ledger.Counted.IsZero() {
		note(fmt.Sprintf("The last reconciliation had counted %+d bytes and %+d components that came by the buffer later: they were not added again.", f.ledger.Counted.Bytes, f.ledger.Counted.Components))
	}
	if e.heldRepositories > 0 {
		note(fmt.Sprintf("Corrections of its repositories are held because they lower counters by much (%d): until they are written or the content is mended, the namespace is not written either and its request stays open. stowage namespace approve %s shows them.", e.heldRepositories, e.Namespace.Slug))
	}
	if e.Quarantined {
		note("It is in quarantine: nothing that is buffered is added to the row, and each write requests a reconciliation instead. internal/buffer/README.md says how to end that.")
	}
	if e.Redis == redisDamaged {
		note(fmt.Sprintf("Its keys in Redis hold what Stowage did not write; look at them with redis-cli --scan --pattern 'stowage:1:{%d}:*'.", e.Namespace.Bucket))
	}
}

func day(t time.Time) string { return t.Format(time.DateOnly) }
