package history

import (
	"context"
	"math/big"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
)

// event is a change of a namespace, as a model without hours or steps keeps it.
type event struct {
	at time.Time
	accounting.Counters
	kind Kind // zero is ordinary traffic
}

// model is what must come out.
type model struct {
	*bundle
	now    time.Time
	alive  []uuid.UUID
	events map[uuid.UUID][]event
	// closed is what was read of hours that are closed: nothing may change it.
	closed map[uuid.UUID][]Hour
}

func TestTheSumOverHoursIsTheIntegralOverTheLedger(t *testing.T) {
	t.Parallel()
	b := setup(t, Config{})
	b.worker.size = 2
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(b)
		rt.Repeat(map[string]func(*rapid.T){
			"create":   m.create,
			"apply":    m.apply,
			"apply2":   m.apply,
			"correct":  m.correct,
			"delete":   m.delete,
			"roll up":  m.roll,
			"fail":     m.fail,
			"wait":     m.wait,
			"wait2":    m.wait,
			"long gap": m.gap,
		})
		m.advance(2 * time.Hour)
		b.rollUp(m.now)
		m.check(rt)
		m.checkLedger(rt)
	})
}

func newModel(b *bundle) *model {
	b.exec(`DELETE FROM namespaces`)
	b.exec(`TRUNCATE storage_ledger, usage_progress, usage_hours, usage_adjustments, usage_closings`)
	b.setClock(b.since.Add(-time.Minute))
	require.NoError(b.t, b.worker.Run(context.Background()))
	return &model{bundle: b, now: b.since, events: map[uuid.UUID][]event{}, closed: map[uuid.UUID][]Hour{}}
}

func (m *model) advance(d time.Duration) { m.now = m.now.Add(d).Truncate(time.Microsecond) }

// skipLate keeps the time below that of the database.
func (m *model) skipLate(rt *rapid.T) {
	if m.now.After(m.at(60 * time.Hour)) {
		rt.Skip("late enough")
	}
}

func (m *model) wait(rt *rapid.T) {
	m.skipLate(rt)
	m.advance(time.Duration(rapid.Int64Range(1, int64(50*time.Minute)).Draw(rt, "for")))
}

func (m *model) gap(rt *rapid.T) {
	m.skipLate(rt)
	m.advance(time.Duration(rapid.IntRange(1, 9).Draw(rt, "hours")) * time.Hour)
}

func (m *model) create(rt *rapid.T) {
	if len(m.events) == 5 {
		rt.Skip("enough namespaces")
	}
	id := m.namespace()
	m.alive = append(m.alive, id)
	m.events[id] = nil
}

func (m *model) one(rt *rapid.T) uuid.UUID {
	if len(m.alive) == 0 {
		rt.Skip("no namespace")
	}
	return m.alive[rapid.IntRange(0, len(m.alive)-1).Draw(rt, "namespace")]
}

func (m *model) sum(id uuid.UUID) (sum accounting.Counters) {
	for _, e := range m.events[id] {
		sum = sum.Plus(e.Counters)
	}
	return sum
}

func (m *model) change(rt *rapid.T) accounting.Counters {
	return counters(rapid.Int64Range(-1<<40, 1<<50).Draw(rt, "bytes"), rapid.Int64Range(-3, 10).Draw(rt, "components"))
}

func (m *model) apply(rt *rapid.T) {
	id, c := m.one(rt), m.change(rt)
	frozen := m.now.Add(-rapid.SampledFrom([]time.Duration{0, time.Second, late, time.Hour, 5 * time.Hour}).Draw(rt, "frozen before"))
	e := event{at: m.now, Counters: c}
	// A batch id knows milliseconds.
	if ms := frozen.Truncate(time.Millisecond); ms.Before(m.now.Truncate(time.Hour)) && m.now.Sub(ms) > late {
		e.kind = Late
	}
	m.applied(id, frozen, m.now, c.Bytes, c.Components)
	m.events[id] = append(m.events[id], e)
	m.advance(time.Microsecond)
}

func (m *model) correct(rt *rapid.T) {
	id, c := m.one(rt), m.change(rt)
	old := m.sum(id)
	m.corrected(id, m.now, c.Bytes, c.Components)
	if c != old {
		m.events[id] = append(m.events[id], event{at: m.now, kind: Correction, Counters: c.Minus(old)})
	}
	m.advance(time.Microsecond)
}

func (m *model) delete(rt *rapid.T) {
	id := m.one(rt)
	if old := m.sum(id); !old.IsZero() {
		m.events[id] = append(m.events[id], event{at: m.now, kind: Closed, Counters: accounting.Counters{}.Minus(old)})
	}
	m.deleted(id, m.now)
	m.alive = slices.DeleteFunc(m.alive, func(other uuid.UUID) bool { return other == id })
	m.advance(time.Microsecond)
}

// roll runs once, whatever it closes.
func (m *model) roll(rt *rapid.T) {
	m.setClock(m.now)
	require.NoError(rt, m.worker.Run(context.Background()))
	m.check(rt)
}

func (m *model) fail(rt *rapid.T) {
	m.setClock(m.now)
	point := rapid.SampledFrom(failpoint.HistoryPoints()).Draw(rt, "point")
	_ = m.worker.Run(kill(context.Background(), point, rapid.IntRange(1, 4).Draw(rt, "step")))
	m.check(rt)
}

// check compares all closed hours with the model, and with what was read before.
func (m *model) check(rt *rapid.T) {
	for id, events := range m.events {
		h, err := Read(context.Background(), m.db, id, m.since, m.now.Add(24*time.Hour).Truncate(time.Hour))
		if len(events) == 0 && !slices.Contains(m.alive, id) {
			require.ErrorIs(rt, err, ErrNotFound, "gone, and never had anything")
			continue
		}
		require.NoError(rt, err)
		require.Len(rt, h.Hours, int(h.Until.Sub(m.since)/time.Hour))
		want := m.hours(events, h.Until)
		for i, got := range h.Hours {
			require.Zero(rt, want[i].ByteSeconds.Cmp(got.ByteSeconds), "%s: %s, want %s", got.Start, got.ByteSeconds, want[i].ByteSeconds)
			for j := range got.Adjustments {
				got.Adjustments[j].BatchID = uuid.Nil
			}
			got.ByteSeconds = want[i].ByteSeconds
			require.Equal(rt, want[i], got)
		}
		for i, before := range m.closed[id] {
			require.Equal(rt, before, want[i], "a closed hour is restated")
		}
		m.closed[id] = want
	}
}

// hours walks through the events, which are in order, one after the other.
func (m *model) hours(events []event, until time.Time) []Hour {
	var hours []Hour
	var level accounting.Counters
	for start := m.since; start.Before(until); start = start.Add(time.Hour) {
		h := Hour{Start: start, PeakBytes: level.Bytes}
		micros, at := new(big.Int), start
		stay := func(to time.Time) {
			micros.Add(micros, new(big.Int).Mul(big.NewInt(level.Bytes), big.NewInt(to.Sub(at).Microseconds())))
			at = to
		}
		for ; len(events) > 0 && events[0].at.Before(start.Add(time.Hour)); events = events[1:] {
			e := events[0]
			stay(e.at)
			level = level.Plus(e.Counters)
			h.PeakBytes = max(h.PeakBytes, level.Bytes)
			if e.kind != 0 {
				h.Adjustments = append(h.Adjustments, Adjustment{AppliedAt: e.at, Kind: e.kind, Counters: e.Counters})
			}
		}
		stay(start.Add(time.Hour))
		h.End, h.ByteSeconds = level, new(big.Rat).SetFrac(micros, big.NewInt(1_000_000))
		hours = append(hours, h)
	}
	return hours
}

// checkLedger compares the sum with the integral that the ledger itself gives, and
// the end with the row.
func (m *model) checkLedger(rt *rapid.T) {
	until := m.closedUntil()
	for _, id := range m.alive {
		var integral string
		require.NoError(rt, m.db.QueryRow(context.Background(), `
			SELECT coalesce(sum(bytes * extract(epoch FROM $1 - applied_at)), 0)::text FROM storage_ledger
			WHERE scope_id = $2 AND outcome IN (1, 4)`, until, id).Scan(&integral))
		sum := new(big.Rat)
		hours := m.read(id)
		for _, h := range hours {
			sum.Add(sum, h.ByteSeconds)
		}
		require.Zero(rt, sum.Cmp(rat(integral)), "%s and %s", sum, integral)
		require.Equal(rt, m.count(`SELECT deduplicated_size_bytes FROM namespace_statistics WHERE namespace_id = $1`, id), hours[len(hours)-1].End.Bytes)
	}
}
