package buffer

import (
	"context"
	"maps"
	"slices"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// TestModel compares the buffer with a model of it in memory: random calls, and
// random damage by hand in between.
func TestModel(t *testing.T) {
	t.Parallel()
	everywhere(func(t *testing.T, b *bundle) {
		rapid.Check(t, func(rt *rapid.T) {
			b.onEveryNode(t, "FLUSHALL")
			m := newModel(t.Context(), b)
			rt.Repeat(map[string]func(*rapid.T){
				"emit":          m.emit,
				"claim":         m.claim,
				"finish":        m.finish,
				"forget":        m.forget,
				"quarantine":    m.quarantine,
				"unquarantine":  m.unquarantine,
				"release":       m.release,
				"sweep":         m.sweep,
				"damage buffer": m.damageBuffer,
				"damage flush":  m.damageFlush,
				"lose buffer":   m.loseBuffer,
				"lose flush":    m.loseFlush,
				"":              m.check,
			})
		})
	})(t)
}

type model struct {
	*bundle
	ctx    context.Context
	scopes []accounting.Scope
	state  map[accounting.Scope]*scopeState
	holder string
	past   [][]accounting.Flush
}

type scopeState struct {
	buffer                       map[accounting.Marker]MarkedCounters // empty: the key is missing
	flush                        *accounting.Flush
	bufferBad, flushBad          bool // the key is of a wrong type
	dirty, inFlight, quarantined bool
}

func newModel(ctx context.Context, b *bundle) *model {
	m := &model{bundle: b, ctx: ctx, state: make(map[accounting.Scope]*scopeState)}
	m.scopes = []accounting.Scope{b.namespace, b.repository, b.newRepository(), b.newRepository()}
	for _, s := range m.scopes {
		m.state[s] = &scopeState{buffer: make(map[accounting.Marker]MarkedCounters)}
	}
	return m
}

func (m *model) some(t *rapid.T) []accounting.Scope {
	return rapid.SliceOfNDistinct(rapid.SampledFrom(m.scopes), 1, -1, rapid.ID[accounting.Scope]).Draw(t, "scopes")
}

func (m *model) one(t *rapid.T) (accounting.Scope, *scopeState) {
	s := rapid.SampledFrom(m.scopes).Draw(t, "scope")
	return s, m.state[s]
}

func (m *model) hand(t *rapid.T, command, key string, args ...string) {
	require.NoError(t, m.client.Do(m.ctx, m.client.B().Arbitrary(command).Keys(key).Args(args...).Build()).Error())
}

func (m *model) emit(t *rapid.T) {
	marker := rapid.SampledFrom([]accounting.Marker{0, 7, 10, 900_719_925_474_099_301, 900_719_925_474_099_302}).Draw(t, "marker")
	// Ten of the largest do not fit into 64 bits.
	number := rapid.OneOf(rapid.Int64Range(1-ceiling, ceiling-1), rapid.Just(int64(ceiling-1)))
	var deltas []accounting.Delta
	var expected []accounting.Scope
	for _, s := range m.some(t) {
		d := delta(s, number.Draw(t, "bytes"), number.Draw(t, "components"))
		deltas = append(deltas, d)
		state := m.state[s]
		if state.quarantined || state.bufferBad || !state.add(marker, d.Counters) {
			expected = append(expected, s)
			continue
		}
		state.dirty = true
	}
	failed, err := m.Emit(m.ctx, m.namespace.ID, marker, deltas)
	require.NoError(t, err)
	require.Equal(t, expected, failed)
}

// add is false when a sum does not fit into 64 bits. What was added before it stays.
func (s *scopeState) add(marker accounting.Marker, by accounting.Counters) bool {
	c := s.buffer[marker]
	if !fits(c.Bytes, by.Bytes) {
		return false
	}
	c.Marker, c.Bytes = marker, c.Bytes+by.Bytes
	took := fits(c.Components, by.Components)
	if took {
		c.Components, c.Emissions = c.Components+by.Components, c.Emissions+1
	}
	s.buffer[marker] = c
	return took
}

func fits(a, b int64) bool {
	sum := a + b
	return (a < 0) != (b < 0) || (sum < 0) == (a < 0)
}

func (m *model) claim(t *rapid.T) {
	holder := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "holder")
	limit := rapid.IntRange(1, 2*len(m.scopes)).Draw(t, "limit")
	batch := uuid.Must(uuid.NewV7())
	claim, err := m.Claim(m.ctx, m.bucket, holder, batch, limit)
	require.NoError(t, err)
	if m.holder != "" && m.holder != holder {
		require.Equal(t, Claim{Busy: true}, claim)
		return
	}
	m.holder = holder
	var inFlight, dirty int
	for _, state := range m.state {
		inFlight += count(state.inFlight)
		dirty += count(state.dirty)
	}

	visited := make(map[accounting.Scope]bool)
	visit := func(s accounting.Scope) *scopeState {
		require.False(t, visited[s], "each scope once")
		visited[s] = true
		return m.state[s]
	}
	for _, f := range claim.Flushes {
		state := visit(f.Scope)
		if state.flush == nil {
			state.freeze(f.Scope, batch)
		}
		require.False(t, state.flushBad || state.quarantined)
		require.Equal(t, *state.flush, f)
		state.inFlight = true
	}
	for _, s := range claim.Expired {
		state := visit(s)
		require.True(t, state.flush == nil && !state.flushBad && !state.quarantined)
		require.True(t, state.inFlight || len(state.buffer) == 0 && !state.bufferBad)
	}
	for _, s := range claim.Corrupt {
		state := visit(s)
		require.True(t, state.quarantined || state.flushBad || !state.inFlight && state.flush == nil && state.bufferBad)
	}
	for s := range visited {
		require.True(t, m.state[s].inFlight || m.state[s].dirty)
	}
	require.LessOrEqual(t, len(visited), limit)
	require.GreaterOrEqual(t, len(visited), min(limit, inFlight))
	if limit >= inFlight+dirty {
		for s, state := range m.state {
			require.Equal(t, state.inFlight || state.dirty, visited[s])
		}
	}
	m.past = append(m.past, claim.Flushes)
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// freeze moves the smallest marker's counters into a flush.
func (s *scopeState) freeze(scope accounting.Scope, batch uuid.UUID) {
	marker := slices.Min(slices.Collect(maps.Keys(s.buffer)))
	c := s.buffer[marker]
	s.flush = &accounting.Flush{Scope: scope, BatchID: batch, Marker: marker, Counters: c.Counters, Emissions: c.Emissions}
	delete(s.buffer, marker)
	s.dirty = len(s.buffer) > 0
}

func (m *model) finish(t *rapid.T) {
	if len(m.past) == 0 {
		return
	}
	flushes := rapid.SampledFrom(m.past).Draw(t, "flushes")
	require.NoError(t, m.Finish(m.ctx, m.bucket, flushes))
	for _, f := range flushes {
		if state := m.state[f.Scope]; state.flush != nil && state.flush.BatchID == f.BatchID {
			state.flush, state.inFlight = nil, false
		}
	}
}

func (m *model) forget(t *rapid.T) {
	scopes := m.some(t)
	require.NoError(t, m.Forget(m.ctx, m.bucket, scopes))
	for _, s := range scopes {
		state := m.state[s]
		state.inFlight = state.inFlight && !state.quarantined && (state.flush != nil || state.flushBad)
		state.dirty = state.dirty && !state.quarantined && (len(state.buffer) > 0 || state.bufferBad)
	}
}

func (m *model) quarantine(t *rapid.T) {
	s, state := m.one(t)
	require.NoError(t, m.Quarantine(m.ctx, m.bucket, []accounting.Scope{s}))
	state.quarantined = true
}

func (m *model) unquarantine(t *rapid.T) {
	s, state := m.one(t)
	m.hand(t, "SREM", m.set(quarantineName), member(s))
	state.quarantined = false
}

func (m *model) release(t *rapid.T) {
	holder := rapid.SampledFrom([]string{"a", "b"}).Draw(t, "holder")
	require.NoError(t, m.Release(m.ctx, m.bucket, holder))
	if m.holder == holder {
		m.holder = ""
	}
}

func (m *model) sweep(t *rapid.T) {
	found, err := m.Sweep(m.ctx)
	require.NoError(t, err)
	expected := 0
	for _, state := range m.state {
		if state.quarantined {
			continue
		}
		if !state.dirty && (len(state.buffer) > 0 || state.bufferBad) {
			state.dirty = true
			expected++
		}
		if !state.inFlight && (state.flush != nil || state.flushBad) {
			state.inFlight = true
			expected++
		}
	}
	require.Equal(t, expected, found)
}

func (m *model) damageBuffer(t *rapid.T) {
	s, state := m.one(t)
	m.hand(t, "SET", bufferKey(m.bucket, member(s)), "text")
	clear(state.buffer)
	state.bufferBad = true
}

func (m *model) damageFlush(t *rapid.T) {
	s, state := m.one(t)
	m.hand(t, "SET", flushKey(m.bucket, member(s)), "text")
	state.flush, state.flushBad = nil, true
}

func (m *model) loseBuffer(t *rapid.T) {
	s, state := m.one(t)
	m.hand(t, "DEL", bufferKey(m.bucket, member(s)))
	clear(state.buffer)
	state.bufferBad = false
}

func (m *model) loseFlush(t *rapid.T) {
	s, state := m.one(t)
	m.hand(t, "DEL", flushKey(m.bucket, member(s)))
	state.flush, state.flushBad = nil, false
}

// check compares all that Redis holds with the model.
func (m *model) check(t *rapid.T) {
	pending, err := m.Pending(m.ctx, m.scopes)
	require.NoError(t, err)
	sets := make(map[string][]string)
	for _, s := range m.scopes {
		state := m.state[s]
		for name, in := range map[string]bool{
			dirtyNamespaceName:  state.dirty && s.Kind == accounting.KindNamespace,
			dirtyRepositoryName: state.dirty && s.Kind == accounting.KindRepository,
			inFlightName:        state.inFlight, quarantineName: state.quarantined,
		} {
			if in {
				sets[name] = append(sets[name], member(s))
			}
		}
		p, readable := pending[s]
		require.Equal(t, !state.bufferBad && !state.flushBad, readable)
		if readable {
			require.Equal(t, state.flush, p.Flush)
			require.Len(t, p.Buffered, len(state.buffer))
			for _, c := range p.Buffered {
				require.Equal(t, state.buffer[c.Marker], c)
			}
		}
	}
	for _, name := range []string{dirtyNamespaceName, dirtyRepositoryName, inFlightName, quarantineName} {
		members, err := m.client.Do(m.ctx, m.client.B().Smembers().Key(m.set(name)).Build()).AsStrSlice()
		require.NoError(t, err)
		require.ElementsMatch(t, sets[name], members, name)
	}
}
