package chaos

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
)

const (
	one = "00000000-0000-7000-8000-000000000001"
	two = "00000000-0000-7000-8000-000000000002"

	begins    = `{"kind":"begin","operation":"publish","namespaces":["` + one + `","` + two + `"]}` + "\n"
	ends      = `{"kind":"end","micros":1500000,"outcome":"done"}` + "\n"
	unsent    = `{"kind":"unsent","namespaces":["` + two + `"]}` + "\n"
	requested = `{"kind":"requested"}` + "\n"
	closed    = `{"kind":"closed"}` + "\n"
)

func hear(t *testing.T, told string) (*witness, *testimony) {
	t.Helper()
	w := newWitness()
	testimony := w.hear(io.NopCloser(strings.NewReader(told)))
	<-testimony.done
	return w, testimony
}

func TestKilledWriterLeavesDoubts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		told   string
		doubts []string
		inside int
	}{
		"before its first operation":    {"", nil, 0},
		"inside an operation":           {begins, []string{one, two}, 1},
		"between two":                   {begins + ends, nil, 0},
		"with a request in memory":      {begins + unsent + ends, []string{two}, 0},
		"when its request is written":   {begins + unsent + ends + requested, nil, 0},
		"and another is in memory then": {begins + unsent + ends + requested + begins + unsent + ends, []string{two}, 0},
		"with both":                     {begins + unsent + ends + begins, []string{one, two}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, testimony := hear(t, c.told)
			w.killed(testimony)
			var doubts []string
			for id := range w.doubts {
				doubts = append(doubts, id.String())
				require.WithinDuration(t, time.Now(), w.doubts[id], time.Minute)
			}
			require.ElementsMatch(t, c.doubts, doubts)
			require.Equal(t, c.inside, w.inside)
			require.Empty(t, w.wrong)
		})
	}
}

func TestWitnessComplains(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ told, want string }{
		"of a result that cannot be": {begins + `{"kind":"end","outcome":"wrong","text":"nonsense"}` + "\n" + closed, "publish: nonsense"},
		"of a deadlock":              {begins + `{"kind":"end","outcome":"deadlock","text":"40P01"}` + "\n" + closed, "publish: 40P01"},
		"of what is no event":        {"panic: \n" + closed, `a writer wrote "panic: "`},
		"of one that did not close":  {begins + unsent + ends, "did not say that it wrote its last requests"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, testimony := hear(t, c.told)
			w.ended(testimony)
			require.Len(t, w.wrong, 1)
			require.Len(t, w.unsent, strings.Count(c.told, unsent))
			require.Contains(t, w.wrong[0], c.want)
		})
	}
}

func TestWriterThatJustStartsMayEnd(t *testing.T) {
	t.Parallel()
	w, testimony := hear(t, "")
	w.ended(testimony)
	require.Empty(t, w.wrong)
}

func TestWitnessCounts(t *testing.T) {
	t.Parallel()
	w, testimony := hear(t, begins+ends+begins+`{"kind":"end","micros":7,"outcome":"refused"}`+"\n"+closed)
	w.ended(testimony)
	require.Empty(t, w.wrong)
	require.Equal(t, map[outcome]int{outcomeDone: 1, outcomeRefused: 1}, w.operations["publish"].outcomes)
	require.Equal(t, 1500*time.Millisecond, w.operations["publish"].longest)
}

func TestJudge(t *testing.T) {
	t.Parallel()
	namespace := uuid.MustParse(one)
	now := time.Now()
	// off is one scope with a drift, last reconciled then, beside an exact one.
	off := func(reconciled time.Time) []state {
		s := state{reconciled: reconciled}
		s.scope.Namespace, s.row.Bytes, s.ledger.Bytes, s.recounted.Components = namespace, 5, 5, 2
		return []state{s, {}}
	}
	stale, fresh := off(now.Add(-time.Minute)), off(now.Add(afterglow))
	unledgered := state{row: stale[0].row, recounted: stale[0].row}
	ids := map[uuid.UUID]time.Time{namespace: now}
	others := map[uuid.UUID]time.Time{uuid.MustParse(two): now}
	killed, unsent, lost := causes{doubts: ids}, causes{unsent: ids}, causes{lost: now}
	for name, c := range map[string]struct {
		states              []state
		requested           bool
		causes              causes
		requests, of, wrong int
	}{
		"exact":                                {[]state{{}, {}}, true, lost, 0, 0, 0},
		"Redis' loss, requested":               {stale, true, lost, 1, 0, 0},
		"Redis' loss, not requested":           {stale, false, lost, 0, 0, 1},
		"Redis' loss, but reconciled since":    {fresh, true, lost, 0, 0, 1},
		"not sent, requested":                  {stale, true, unsent, 1, 0, 0},
		"not sent, not requested":              {stale, false, unsent, 0, 0, 1},
		"a killed writer's":                    {stale, false, killed, 0, 1, 0},
		"a killed writer's, reconciled since":  {fresh, false, killed, 0, 0, 1},
		"of another namespace":                 {stale, true, causes{doubts: others, unsent: others}, 0, 0, 1},
		"nobody's, requested nonetheless":      {stale, true, causes{}, 0, 0, 1},
		"a row whose ledger does not know why": {[]state{unledgered}, true, lost, 0, 0, 1},
		"a killed writer's and Redis' loss":    {stale, false, causes{doubts: ids, lost: now}, 0, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := judge("then", c.states, map[uuid.UUID]bool{namespace: c.requested}, c.causes)
			require.Len(t, d.mistakes, c.wrong)
			require.Len(t, d.requested, c.requests)
			require.Len(t, d.doubtful, c.of)
		})
	}
	d := judge("then", stale, map[uuid.UUID]bool{namespace: true}, lost)
	require.Equal(t, "1 of 2 scopes, 5 bytes, 2 components; namespaces: 1 requested, 0 by a killed writer", d.String())
}

func TestConclude(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	s := &storm{Config: Config{Out: &out, Seed: 3}}
	require.NoError(t, s.conclude(nil, 4))
	require.Equal(t, "exact after 0 injections with seed 3: 4 scopes, drift 0, deadlocks 0\n", out.String())
	require.ErrorIs(t, s.conclude([]string{"this"}, 4), ErrFailed)
	require.Contains(t, out.String(), "MISTAKE: this\nnot exact: 1 mistakes with seed 3\n")
	require.Equal(t, 2, countDeadlocks([]byte("ERROR:  deadlock detected\nDETAIL\nERROR:  deadlock detected\n")))
}
