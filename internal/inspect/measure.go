package inspect

import (
	"context"
	"fmt"
	"reflect"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/reconcile"
	"github.com/stowage-dev/stowage/internal/usage"
)

const (
	// stillTries is how often a moment is looked for at which Redis stands still,
	// and stillFor how long after it nothing may change either: what was committed
	// just before the moment is emitted by then, as a rule.
	stillTries = 10
	stillFor   = 5 * time.Millisecond
	// A scope that seems to be wrong is measured at least minAttempts times, with
	// pauses between that double from firstPause to lastPause: together they are
	// longer than an emission may take, half a second unless the registry says
	// otherwise. It is measured up to maxAttempts times while that does not tell.
	minAttempts = 5
	maxAttempts = 8
	firstPause  = 100 * time.Millisecond
	lastPause   = 800 * time.Millisecond
	// enough is how many measurements must agree that a scope is wrong.
	enough = 3
)

// question is what to measure.
type question struct {
	namespace uuid.UUID
	scopes    []accounting.Scope
	// entries is how many ledger rows of each scope to list; 0 leaves out the ledger.
	entries int
}

// measured is a scope at the moment of one snapshot.
type measured struct {
	name      string
	createdAt time.Time
	row       accounting.Counters
	// since is the marker of the pass whose result the row holds.
	since   accounting.Marker
	pending buffer.Pending
	// known is false when the scope's keys in Redis are damaged, or Redis did not
	// answer. pending is empty then.
	known bool
	// still says that pending was the same before and after the snapshot was taken,
	// and so at that moment.
	still bool
	// entered says that the ledger has the flush already.
	entered bool
	recount accounting.Counters
	// ledger is nil unless asked for.
	ledger *Ledger
}

// with is m with what its row says.
func (m measured) with(row measured) measured {
	m.name, m.createdAt, m.row, m.since = row.name, row.createdAt, row.row, row.since
	return m
}

// tells reports whether the difference means something. Damaged keys are applied
// by nobody.
func (m measured) tells(answered bool) bool { return m.still || !m.known && answered }

// outstanding is what is on its way to the row.
func (m measured) outstanding() accounting.Counters {
	return usage.Outstanding(m.pending, m.since, m.entered)
}

// difference is what a pass would find missing: a recount less the row and what is
// on its way to it.
func (m measured) difference() accounting.Counters {
	return m.recount.Minus(m.row).Minus(m.outstanding())
}

// snapshot is scopes of one namespace at one moment. Scopes that have no row are
// missing.
type snapshot struct {
	asOf time.Time
	// answered is whether Redis did.
	answered    bool
	requestedAt time.Time
	held        []reconcile.Held
	scopes      map[accounting.Scope]measured
}

// measure reads scopes of a namespace, their rows and a recount of them in one
// snapshot, and Redis around the moment at which that was taken. Error: ErrNotFound.
func (i *Inspector) measure(ctx context.Context, q question) (*snapshot, error) {
	for try := 1; ; try++ {
		tx, err := i.Pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly})
		if err != nil {
			return nil, fmt.Errorf("begin: %w", err)
		}
		snap, moving, err := i.freeze(ctx, tx, q.scopes)
		done := err != nil || moving == 0 || try == stillTries
		if err == nil && done {
			err = snap.fill(ctx, tx, q)
		}
		_ = tx.Rollback(ctx)
		if err != nil {
			return nil, err
		}
		if done {
			return snap, nil
		}
	}
}

// freeze takes the snapshot of tx between two readings of Redis, and returns how
// many scopes changed there meanwhile. When Redis does not answer, nothing of it is
// known.
func (i *Inspector) freeze(ctx context.Context, tx pgx.Tx, scopes []accounting.Scope) (snap *snapshot, moving int, err error) {
	if err := setTimeout(ctx, tx, recountTimeout); err != nil {
		return nil, 0, fmt.Errorf("set timeouts: %w", err)
	}
	snap = &snapshot{scopes: make(map[accounting.Scope]measured, len(scopes))}
	before, errBefore := i.pending(ctx, scopes)
	if err := tx.QueryRow(ctx, `SELECT clock_timestamp()`).Scan(&snap.asOf); err != nil {
		return nil, 0, fmt.Errorf("take snapshot: %w", err)
	}
	snap.asOf = snap.asOf.UTC()
	if errBefore != nil {
		for _, s := range scopes {
			snap.scopes[s] = measured{}
		}
		return snap, 0, ctx.Err()
	}
	if err := sleep(ctx, stillFor); err != nil {
		return nil, 0, err
	}
	after, errAfter := i.pending(ctx, scopes)
	snap.answered = errAfter == nil
	for _, s := range scopes {
		p, known := before[s]
		q, knownAfter := after[s]
		m := measured{pending: p, known: known && knownAfter}
		m.still = m.known && reflect.DeepEqual(p, q)
		if m.known && !m.still {
			moving++
		}
		snap.scopes[s] = m
	}
	return snap, moving, ctx.Err()
}

// fill reads what the database holds in the snapshot.
func (s *snapshot) fill(ctx context.Context, tx pgx.Tx, q question) error {
	rows := make(map[accounting.Scope]measured, len(s.scopes))
	if err := s.readNamespace(ctx, tx, q.namespace, rows); err != nil {
		return err
	}
	if err := s.readRepositories(ctx, tx, q.namespace, rows); err != nil {
		return err
	}
	s.scopes = rows
	if err := shortly(ctx, tx, func(tx pgx.Tx) error { return s.readLedger(ctx, tx, q) }); err != nil {
		return err
	}
	count := func(scope accounting.Scope, counters accounting.Counters) {
		if m, asked := rows[scope]; asked {
			m.recount = counters
			rows[scope] = m
		}
	}
	total, err := reconcile.Recount(ctx, tx, q.namespace, func(repository uuid.UUID, counters accounting.Counters) error {
		count(accounting.RepositoryScope(q.namespace, repository), counters)
		return nil
	})
	count(accounting.NamespaceScope(q.namespace), total)
	return err
}

// shortly gives the locks of fn back before the transaction ends: the lock that a
// SELECT takes on the ledger keeps the job waiting that drops old partitions, and
// writers of the ledger would wait behind that.
func shortly(ctx context.Context, tx pgx.Tx, fn func(tx pgx.Tx) error) error {
	savepoint, err := tx.Begin(ctx)
	if err != nil {
		return err
	}
	err = fn(savepoint)
	if e := savepoint.Rollback(ctx); err == nil {
		err = e
	}
	return err
}

func (s *snapshot) readLedger(ctx context.Context, tx pgx.Tx, q question) (err error) {
	if err := s.enterFlushes(ctx, tx); err != nil {
		return err
	}
	if s.held, err = reconcile.HeldOf(ctx, tx, q.namespace); err != nil || q.entries == 0 {
		return err
	}
	for scope, m := range s.scopes {
		if m.ledger, err = readLedger(ctx, tx, scope.ID, m, q.entries); err != nil {
			return err
		}
		s.scopes[scope] = m
	}
	return nil
}

// enterFlushes asks the ledger for the flushes: those that it has are deleted from
// Redis only afterwards.
func (s *snapshot) enterFlushes(ctx context.Context, tx pgx.Tx) error {
	var batches, ids []uuid.UUID
	byID := make(map[uuid.UUID]accounting.Scope)
	for scope, m := range s.scopes {
		if m.pending.Flush != nil {
			batches, ids = append(batches, m.pending.Flush.BatchID), append(ids, scope.ID)
			byID[scope.ID] = scope
		}
	}
	rows, err := tx.Query(ctx, `
		SELECT scope_id FROM storage_ledger
		JOIN unnest($1::uuid[], $2::uuid[]) AS f (batch_id, scope_id) USING (batch_id, scope_id)`, batches, ids)
	if err != nil {
		return fmt.Errorf("look for applied flushes: %w", err)
	}
	var id uuid.UUID
	_, err = pgx.ForEachRow(rows, []any{&id}, func() error {
		m := s.scopes[byID[id]]
		m.entered = true
		s.scopes[byID[id]] = m
		return nil
	})
	if err != nil {
		return fmt.Errorf("look for applied flushes: %w", err)
	}
	return nil
}

// readNamespace puts the namespace's own row into rows, if it was asked for.
func (s *snapshot) readNamespace(ctx context.Context, tx pgx.Tx, namespace uuid.UUID, rows map[accounting.Scope]measured) error {
	var (
		m                 measured
		bytes, components *int64
		since             *accounting.Marker
		requestedAt       *time.Time
	)
	err := tx.QueryRow(ctx, `
		SELECT n.slug, n.created_at, s.deduplicated_size_bytes, s.components_count, stowage_marker_micros(s.last_reconciled_at), q.marker
		FROM namespaces n
		LEFT JOIN namespace_statistics s ON s.namespace_id = n.id
		LEFT JOIN reconciliation_requests q ON q.namespace_id = n.id
		WHERE n.id = $1`, namespace).Scan(&m.name, &m.createdAt, &bytes, &components, &since, &requestedAt)
	if err != nil {
		return fmt.Errorf("read namespace: %w", found(err))
	}
	if requestedAt != nil {
		s.requestedAt = requestedAt.UTC()
	}
	scope := accounting.NamespaceScope(namespace)
	if _, asked := s.scopes[scope]; !asked || bytes == nil || components == nil || since == nil {
		return nil
	}
	m.row, m.since = accounting.Counters{Bytes: *bytes, Components: *components}, *since
	rows[scope] = s.scopes[scope].with(m)
	return nil
}

// readRepositories puts the rows of the repositories that were asked for into rows.
func (s *snapshot) readRepositories(ctx context.Context, tx pgx.Tx, namespace uuid.UUID, rows map[accounting.Scope]measured) error {
	var ids []uuid.UUID
	for scope := range s.scopes {
		if scope.Kind == accounting.KindRepository {
			ids = append(ids, scope.ID)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	found, err := tx.Query(ctx, `
		SELECT id, name, created_at, size_bytes, artifacts_count, stowage_marker_micros(last_reconciled_at)
		FROM repositories WHERE namespace_id = $1 AND id = ANY ($2)`, namespace, ids)
	if err != nil {
		return fmt.Errorf("read repositories: %w", err)
	}
	var (
		id  uuid.UUID
		row measured
	)
	_, err = pgx.ForEachRow(found, []any{&id, &row.name, &row.createdAt, &row.row.Bytes, &row.row.Components, &row.since}, func() error {
		scope := accounting.RepositoryScope(namespace, id)
		rows[scope] = s.scopes[scope].with(row)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read repositories: %w", err)
	}
	return nil
}

// finding is the last measurement of a scope that told something, and what all of
// them tell.
type finding struct {
	measured
	asOf time.Time
	// told is how many told something; steady, that the last two said the same.
	told   int
	steady bool
}

// agrees: the row, with what is on its way to it, is what a recount says.
func (f finding) agrees() bool { return f.told > 0 && f.difference().IsZero() }

// differs: the same is missing, or too much, whenever that can be told.
func (f finding) differs() bool { return f.told >= enough && f.steady && !f.agrees() }

// examine measures scopes until it is clear of each whether it is wrong. A delta
// that is committed and not emitted yet is missing too; but it is not missing for
// long, nor always the same. last is the last snapshot. Scopes that have no row are
// missing from the findings.
func (i *Inspector) examine(ctx context.Context, q question) (findings map[accounting.Scope]finding, last *snapshot, err error) {
	findings = make(map[accounting.Scope]finding, len(q.scopes))
	pause := firstPause
	for attempt := 1; ; attempt++ {
		if last, err = i.measure(ctx, q); err != nil {
			return nil, nil, err
		}
		var unclear int
		q.scopes, unclear = last.judge(findings, q.scopes)
		if len(q.scopes) == 0 || !last.answered || attempt == maxAttempts || attempt >= minAttempts && unclear == 0 {
			return findings, last, nil
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, nil, err
		}
		pause = min(2*pause, lastPause)
	}
}

// judge enters what the snapshot tells into the findings, and returns the scopes
// that do not agree, and how many of them may be right or wrong.
func (s *snapshot) judge(findings map[accounting.Scope]finding, scopes []accounting.Scope) (open []accounting.Scope, unclear int) {
	for _, scope := range scopes {
		m, there := s.scopes[scope]
		if !there {
			delete(findings, scope)
			continue
		}
		f, again := findings[scope]
		switch {
		case m.tells(s.answered):
			f = finding{measured: m, asOf: s.asOf, told: f.told + 1, steady: f.told > 0 && f.difference() == m.difference()}
		case !again:
			f = finding{measured: m, asOf: s.asOf}
		}
		findings[scope] = f
		if f.agrees() {
			continue
		}
		open = append(open, scope)
		if !f.differs() {
			unclear++
		}
	}
	return open, unclear
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
