package accounting_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestModel explores every interleaving of writers, drains and
// reconciliations of one scope, with a crash at any step, an emission that is
// lost and reported, and a Redis that brings a deleted flush back or goes back
// to an earlier state. With all rules no quiet state is wrong; without any one
// of them some are. README.md says what each rule is.
//
// The counts are pinned: they equal those of an independent implementation of
// the same model, so a change of the model that loses a step shows here.
func TestModel(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name                      string
		model                     model
		states, quiet, violations int
	}{
		{"all rules hold for one of each", model{writers: 1, drains: 1, passes: 1}, 1_323, 72, 0},
		{"all rules hold for two drains", model{writers: 2, drains: 2, passes: 1}, 258_604, 1_066, 0},
		{"all rules hold for two passes", model{writers: 2, drains: 1, passes: 2}, 369_431, 3_402, 0},
		{"R1 R5 without the lock over marker and commit, and over mark and snapshot", model{2, 1, 1, noLock}, 55_568, 939, 331},
		{"R2 a claim that adds to an outstanding flush", model{2, 1, 1, mergingClaim}, 26_897, 584, 12},
		{"R3 without the ledger's memory of batches", model{2, 1, 1, noLedger}, 41_671, 880, 120},
		{"R4 without the guard on the row's own marker", model{2, 1, 1, noGuard}, 30_233, 608, 240},
		{"R6 a write-back that forgets what was applied since the mark", model{2, 1, 1, noSum}, 35_401, 758, 178},
		{"R7 an older pass that overwrites a newer one", model{1, 1, 2, noFence}, 11_195, 339, 25},
		{"R8 a pass that closes a request made while it ran", model{2, 1, 1, eagerClose}, 33_357, 982, 263},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			got := explore(tc.model.start(), tc.model.next, tc.model.judge)
			require.Equal(t, tc.states, got.states, "%s", got)
			require.Equal(t, tc.quiet, got.quiet, "%s", got)
			require.Equal(t, tc.violations, got.violations, "%s", got)
		})
	}
}

// Room for the largest model explored. A batch is frozen once for each write,
// and once more when the buffer goes back to an earlier state.
const (
	maxWriters = 2
	maxDrains  = 2
	maxPasses  = 2
	maxMarkers = maxPasses + 1
	maxBatches = 2 * maxWriters
)

// model is the protocol with so many actors, and without one of its rules.
type model struct {
	writers, drains, passes int
	without                 rule
}

type rule int

const (
	noRuleMissing rule = iota
	noLock
	mergingClaim
	noLedger
	noGuard
	noSum
	noFence
	eagerClose
)

// state is the whole world between two steps: PostgreSQL, Redis, and what each
// actor holds in its memory. Markers are numbered from 0 ('epoch') and every
// write is worth 1.
type state struct {
	row     int8  // the counter
	since   uint8 // the row's last_reconciled_at: L
	marker  uint8
	request int8 // noRequest, or the marker of the open request
	ledger  [maxBatches]entry

	redis redis
	saved redis // what Redis may go back to
	back  history

	writers [maxWriters]writer
	drains  [maxDrains]drain
	passes  [maxPasses]pass

	batches                   uint8 // how many batch ids were given out
	crashes, revivals, losses uint8 // how many may still happen
}

const noRequest = -1

// entry is what the ledger holds of a batch. A missing ledger lets one batch
// be applied and counted, hence two flags.
type entry struct {
	marker, delta    uint8
	applied, counted bool
}

type redis struct {
	buffer          [maxMarkers]uint8 // the sum of the deltas by marker
	flush           flush             // the zero flush is none
	dirty, inflight bool
}

type flush struct{ batch, marker, delta uint8 }

// history says whether Redis has gone back to an earlier state.
type history uint8

const (
	straight history = iota
	remembered
	wentBack
	noticed
)

type writer struct {
	step writerStep
	saw  uint8 // the marker its transaction read
}

type writerStep uint8

const (
	writerIdle writerStep = iota
	writerLocked
	writerCommitted
	writerDone // emitted, or lost and reported
)

type drain struct {
	step  drainStep
	flush flush
}

type drainStep uint8

const (
	drainIdle drainStep = iota
	drainClaimed
	drainApplied
)

type pass struct {
	step   passStep
	marker uint8 // R
	value  uint8 // V
}

type passStep uint8

const (
	passIdle passStep = iota
	passScanned
	passOver
)

func (m model) start() state {
	return state{request: noRequest, crashes: 1, revivals: 1, losses: 1}
}

// judge demands that the row equals the committed writes whenever nothing is
// buffered or under way, no loss is unnoticed and no request is open.
func (m model) judge(s state) verdict {
	if s.redis.buffer != [maxMarkers]uint8{} || s.redis.flush != (flush{}) ||
		s.back == wentBack || s.request != noRequest {
		return busy
	}
	written := int8(0)
	for _, w := range s.writers {
		switch w.step {
		case writerLocked, writerCommitted:
			return busy
		case writerDone:
			written++
		}
	}
	for _, d := range s.drains {
		if d.step != drainIdle {
			return busy
		}
	}
	for _, p := range s.passes {
		if p.step == passScanned {
			return busy
		}
	}
	if s.row != written {
		return wrong
	}
	return exact
}

func (m model) next(s state, to func(state)) {
	for i := range m.writers {
		m.write(s, i, to)
	}
	for i := range m.drains {
		m.drain(s, i, to)
	}
	for i := range m.passes {
		m.reconcile(s, i, to)
	}
	m.failOver(s, to)
}

func (m model) write(s state, i int, to func(state)) {
	w := &s.writers[i]
	switch w.step {
	case writerIdle:
		w.step, w.saw = writerLocked, s.marker
		to(s)
	case writerLocked:
		w.step = writerCommitted
		to(s)
	case writerCommitted:
		w.step = writerDone
		if s.losses > 0 {
			lost := s
			lost.losses--
			lost.request = max(s.request, int8(s.marker))
			to(lost)
		}
		s.redis.buffer[w.saw]++
		s.redis.dirty = true
		to(s)
	}
}

func (m model) drain(s state, i int, to func(state)) {
	d := &s.drains[i]
	if d.step != drainIdle && s.crashes > 0 {
		crashed := s
		crashed.drains[i] = drain{}
		crashed.crashes--
		to(crashed)
	}
	switch d.step {
	case drainIdle:
		if s.redis.dirty || s.redis.inflight {
			to(m.claim(s, i))
		}
	case drainClaimed:
		d.step = drainApplied
		to(m.apply(s, d.flush))
	case drainApplied:
		f := d.flush
		*d = drain{}
		if s.revivals > 0 && s.redis.flush == (flush{}) {
			revived := s
			revived.revivals--
			revived.redis.flush, revived.redis.inflight = f, true
			to(revived)
		}
		if s.redis.flush.batch == f.batch {
			s.redis.flush, s.redis.inflight = flush{}, false
		}
		to(s)
	}
}

func (m model) claim(s state, i int) state {
	r := &s.redis
	oldest := uint8(0)
	for oldest < maxMarkers-1 && r.buffer[oldest] == 0 {
		oldest++
	}
	buffered := r.buffer[oldest]
	switch {
	case r.flush != (flush{}):
		if m.without != mergingClaim || buffered == 0 || oldest != r.flush.marker {
			break
		}
		r.flush.delta += buffered
		r.buffer[oldest] = 0
		r.dirty = r.buffer != [maxMarkers]uint8{}
	case buffered > 0:
		s.batches++
		r.flush = flush{batch: s.batches, marker: oldest, delta: buffered}
		r.buffer[oldest] = 0
		r.dirty = r.buffer != [maxMarkers]uint8{}
	default:
		r.dirty, r.inflight = false, false
		return s
	}
	r.inflight = true
	s.drains[i] = drain{step: drainClaimed, flush: r.flush}
	return s
}

func (m model) apply(s state, f flush) state {
	e := &s.ledger[f.batch-1]
	if (e.applied || e.counted) && m.without != noLedger {
		return s
	}
	e.marker, e.delta = f.marker, f.delta
	if f.marker < s.since && m.without != noGuard {
		e.counted = true
		return s
	}
	e.applied = true
	s.row += int8(f.delta)
	return s
}

func (m model) reconcile(s state, i int, to func(state)) {
	p := &s.passes[i]
	switch p.step {
	case passIdle:
		if s.hasLockedWriter() && m.without != noLock {
			return
		}
		s.marker++
		*p = pass{step: passScanned, marker: s.marker, value: s.committed()}
		to(s)
	case passScanned:
		mark, value := p.marker, p.value
		*p = pass{step: passOver}
		if s.crashes > 0 {
			crashed := s
			crashed.crashes--
			to(crashed)
		}
		if s.since < mark || m.without == noFence {
			s = m.writeBack(s, mark, value)
		}
		to(s)
	}
}

func (m model) writeBack(s state, mark, value uint8) state {
	s.row, s.since = int8(value), mark
	for _, e := range s.ledger {
		if e.applied && e.marker >= mark && m.without != noSum {
			s.row += int8(e.delta)
		}
	}
	if s.request < int8(mark) || m.without == eagerClose {
		s.request = noRequest
	}
	return s
}

func (s state) hasLockedWriter() bool {
	for _, w := range s.writers {
		if w.step == writerLocked {
			return true
		}
	}
	return false
}

func (s state) committed() (n uint8) {
	for _, w := range s.writers {
		if w.step >= writerCommitted {
			n++
		}
	}
	return n
}

// failOver lets Redis return, once, to the state of an earlier moment; the tick
// notices it by the run id and requests a reconciliation.
func (m model) failOver(s state, to func(state)) {
	switch s.back {
	case straight:
		s.saved, s.back = s.redis, remembered
		to(s)
	case remembered:
		if s.saved != s.redis {
			s.redis, s.saved, s.back = s.saved, redis{}, wentBack
			to(s)
		}
	case wentBack:
		s.request, s.back = max(s.request, int8(s.marker)), noticed
		to(s)
	}
}
