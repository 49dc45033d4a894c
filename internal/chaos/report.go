package chaos

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// afterglow is how long after its cause a drift may still come into being: when a
// writer is killed, PostgreSQL works off what it had sent.
const afterglow = 2 * time.Second

// shownMistakes is how many are printed.
const shownMistakes = 20

// findings are the three comparisons.
type findings struct {
	// requested are the namespaces that had an open request before.
	requested           map[uuid.UUID]bool
	before, after, last []state
}

// causes are what may have lost deltas, and when it last did. A later pass over
// the namespace has found them.
type causes struct {
	// doubts are killed writers; nothing can notice those. What was unsent, and
	// what Redis lost, must be requested.
	doubts, unsent map[uuid.UUID]time.Time
	lost           time.Time
}

// noticeable says that deltas of the scope may have been lost since its last
// pass, and that the system must know.
func (c causes) noticeable(s state) bool {
	since := s.reconciled.Add(-afterglow)
	return c.unsent[s.scope.Namespace].After(since) || c.lost.After(since)
}

// doubtful says that a writer was killed since.
func (c causes) doubtful(s state) bool {
	return c.doubts[s.scope.Namespace].After(s.reconciled.Add(-afterglow))
}

// drift is what one comparison found.
type drift struct {
	scopes, differ int
	// off is the sum of the absolute differences.
	off accounting.Counters
	// requested and doubtful are the namespaces that differ and that the system
	// knows of, or that a killed writer explains.
	requested, doubtful map[uuid.UUID]bool
	mistakes            []string
}

// judge explains each difference, or calls it a mistake. Whatever else happened,
// a row is the sum of what the ledger says was done to it.
func judge(when string, states []state, requested map[uuid.UUID]bool, c causes) drift {
	d := drift{scopes: len(states), requested: make(map[uuid.UUID]bool), doubtful: make(map[uuid.UUID]bool)}
	for _, s := range states {
		if s.row != s.ledger {
			d.mistakes = append(d.mistakes, fmt.Sprintf("%s: the row is not the sum of its ledger: %s", when, s))
		}
		if s.drift().IsZero() {
			continue
		}
		d.differ++
		d.off = d.off.Plus(accounting.Counters{Bytes: abs(s.drift().Bytes), Components: abs(s.drift().Components)})
		namespace := s.scope.Namespace
		switch {
		case c.noticeable(s) && requested[namespace]:
			d.requested[namespace] = true
		case c.doubtful(s):
			d.doubtful[namespace] = true
		case c.noticeable(s):
			d.mistakes = append(d.mistakes, fmt.Sprintf("%s: drift %+v that is not requested: %s", when, s.drift(), s))
		default:
			d.mistakes = append(d.mistakes, fmt.Sprintf("%s: drift %+v that nothing explains: %s", when, s.drift(), s))
		}
	}
	return d
}

func abs(n int64) int64 { return max(n, -n) }

func (s *storm) report(ctx context.Context, f findings) error {
	s.reportInjected()
	s.reportOperations()
	if err := s.reportWork(ctx); err != nil {
		return err
	}
	c := causes{doubts: s.witness.doubts, unsent: s.witness.unsent, lost: s.lost}
	before := judge("before", f.before, f.requested, c)
	after := judge("after the requested passes", f.after, nil, c)
	last := judge("after one pass over all", f.last, nil, causes{})
	fmt.Fprintf(s.Out, "drift before              %s (%d namespaces requested, %d in doubt by killed writers)\n", before, len(f.requested), len(c.doubts))
	fmt.Fprintf(s.Out, "drift after requests      %s\n", after)
	fmt.Fprintf(s.Out, "drift after all           %s\n", last)

	deadlocks, err := s.deadlocks()
	if err != nil {
		return err
	}
	s.reportStall(deadlocks)
	mistakes := slices.Concat(s.witness.wrong, before.mistakes, after.mistakes, last.mistakes)
	if deadlocks > 0 {
		mistakes = append(mistakes, fmt.Sprintf("%d deadlocks in PostgreSQL's log", deadlocks))
	}
	return s.conclude(mistakes, last.scopes)
}

func (d drift) String() string {
	if d.differ == 0 {
		return fmt.Sprintf("0 of %d scopes", d.scopes)
	}
	return fmt.Sprintf("%d of %d scopes, %d bytes, %d components; namespaces: %d requested, %d by a killed writer",
		d.differ, d.scopes, d.off.Bytes, d.off.Components, len(d.requested), len(d.doubtful))
}

func (s *storm) conclude(mistakes []string, scopes int) error {
	if len(mistakes) == 0 {
		fmt.Fprintf(s.Out, "exact after %d injections with seed %d: %d scopes, drift 0, deadlocks 0\n", len(s.plan), s.Seed, scopes)
		return nil
	}
	for _, mistake := range mistakes[:min(len(mistakes), shownMistakes)] {
		fmt.Fprintf(s.Out, "MISTAKE: %s\n", mistake)
	}
	fmt.Fprintf(s.Out, "not exact: %d mistakes with seed %d\n", len(mistakes), s.Seed)
	return ErrFailed
}

func (s *storm) reportInjected() {
	notes := map[kind]string{
		killWriter:  fmt.Sprintf("%d inside an operation", s.witness.inside),
		cutPostgres: fmt.Sprintf("%d connections", s.cutInPostgres),
		cutRedis:    fmt.Sprintf("%d connections", s.cutInRedis),
	}
	fmt.Fprintln(s.Out, "injected")
	for _, i := range injections() {
		fmt.Fprintf(s.Out, "  %-40s %4d  %s\n", i.name, s.injected[i.kind], notes[i.kind])
	}
}

func (s *storm) reportOperations() {
	outcomes := []outcome{outcomeDone, outcomeRefused, outcomeBroken, outcomeUnknown, outcomeDeadlock, outcomeWrong}
	fmt.Fprintf(s.Out, "%-28s", "operations")
	for _, o := range outcomes {
		fmt.Fprintf(s.Out, " %10s", o)
	}
	fmt.Fprintf(s.Out, " %12s\n", "longest")
	for _, name := range slices.Sorted(maps.Keys(s.witness.operations)) {
		t := s.witness.operations[name]
		fmt.Fprintf(s.Out, "  %-26s", name)
		for _, o := range outcomes {
			fmt.Fprintf(s.Out, " %10d", t.outcomes[o])
		}
		fmt.Fprintf(s.Out, " %7.2f s at %.1f s\n", t.longest.Seconds(), t.at.Seconds())
	}
}

// reportWork says what the workers did, from the beginning to the end.
func (s *storm) reportWork(ctx context.Context) error {
	var drains, passes, applied, counted, gone, corrections int64
	err := s.pool.QueryRow(ctx, `
		SELECT (SELECT count(*) FROM river.river_job WHERE kind = 'drain_bucket' AND state = 'completed'),
			(SELECT count(*) FROM river.river_job WHERE kind = 'reconcile_namespace' AND state = 'completed'),
			count(*) FILTER (WHERE outcome = 1), count(*) FILTER (WHERE outcome = 2),
			count(*) FILTER (WHERE outcome = 3), count(*) FILTER (WHERE outcome = 4)
		FROM storage_ledger`).Scan(&drains, &passes, &applied, &counted, &gone, &corrections)
	if err != nil {
		return fmt.Errorf("read what the workers did: %w", err)
	}
	fmt.Fprintf(s.Out, "workers: %d drains, %d passes; flushes: %d applied, %d counted by a pass before, %d of scopes that were gone; corrections: %d\n",
		drains, passes, applied, counted, gone, corrections)
	return nil
}

// reportStall names the operation that took longest, outages included.
func (s *storm) reportStall(deadlocks int) {
	var longest tally
	var name string
	for operation, t := range s.witness.operations {
		if t.longest > longest.longest {
			longest, name = *t, operation
		}
	}
	fmt.Fprintf(s.Out, "writers' longest stall: %.2f s (%s at %.1f s); deadlocks: %d\n", longest.longest.Seconds(), name, longest.at.Seconds(), deadlocks)
}

func countDeadlocks(log []byte) int { return bytes.Count(log, []byte("deadlock detected")) }
