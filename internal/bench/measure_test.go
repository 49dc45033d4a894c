package main

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSpread(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		values []float64
		want   spread
	}{
		"one":           {[]float64{3}, spread{3, 3, 3}},
		"odd, unsorted": {[]float64{5, 1, 2}, spread{2, 1, 5}},
		"even":          {[]float64{4, 1, 2, 3}, spread{2.5, 1, 4}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			given := append([]float64(nil), tc.values...)
			require.Equal(t, tc.want, spreadOf(tc.values))
			require.Equal(t, given, tc.values, "the rounds keep their order")
		})
	}
}

func TestWant(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		want       want
		ours, peer float64
		figure     float64
		met        bool
	}{
		"a ratio that is just met":   {atLeast(0.5), 10, 20, 0.5, true},
		"a ratio that is missed":     {atLeast(0.5), 9, 20, 0.45, false},
		"an excess that is just met": {excessOf(50), 70, 20, 50, true},
		"an excess that is missed":   {excessOf(50), 71, 20, 51, false},
		"a bound that is just met":   {atMost(25), 25, 0, 25, true},
		"a bound that is missed":     {atMost(25), 26, 0, 26, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tc.figure, tc.want.figure(tc.ours, tc.peer))
			require.Equal(t, tc.met, tc.want.met(tc.figure))
		})
	}
}

// scripted returns one figure after the other, and writes down when it was asked.
func scripted(name string, asked *[]string, figures ...float64) func(context.Context) (float64, error) {
	return func(context.Context) (float64, error) {
		*asked = append(*asked, name)
		v := figures[0]
		figures = figures[1:]
		return v, nil
	}
}

func prepared(s sides) func(context.Context, *lab) (sides, error) {
	return func(context.Context, *lab) (sides, error) { return s, nil }
}

func TestTakeHoldsTheSidesAgainstEachOtherRoundByRound(t *testing.T) {
	t.Parallel()
	var asked []string
	m := measure{ID: "P", Want: atLeast(2.5), prepare: prepared(sides{
		ours: scripted("ours", &asked, 1, 20, 40, 30),
		peer: scripted("peer", &asked, 1000, 10, 10, 20),
	})}
	got, err := m.take(t.Context(), &lab{}, 3)
	require.NoError(t, err)
	require.Equal(t, []string{"peer", "ours", "ours", "peer", "peer", "ours", "ours", "peer"}, asked, "they take turns at being first")
	require.Equal(t, spread{30, 20, 40}, got.Ours, "the first round is not counted")
	require.Equal(t, &spread{10, 10, 20}, got.Peer)
	// 2, 4 and 1.5: the median of the ratios, not the ratio of the medians, which is 3.
	require.Equal(t, spread{2, 1.5, 4}, got.Figure)
	require.False(t, got.Met)
	require.Equal(t, 3, got.Rounds)
}

func TestTakeOfAFreshMeasureCountsEveryRound(t *testing.T) {
	t.Parallel()
	var asked []string
	m := measure{ID: "P", Want: excessOf(64), fresh: true, prepare: prepared(sides{
		ours: scripted("ours", &asked, 30, 50),
		peer: scripted("peer", &asked, 10, 20),
	})}
	got, err := m.take(t.Context(), &lab{}, 2)
	require.NoError(t, err)
	require.Equal(t, []string{"ours", "peer", "peer", "ours"}, asked)
	require.Equal(t, spread{25, 20, 30}, got.Figure)
}

func TestTakeOfABoundHasNoPeer(t *testing.T) {
	t.Parallel()
	var asked []string
	m := measure{ID: "P", Want: atMost(25), prepare: prepared(sides{ours: scripted("ours", &asked, 90, 24, 26, 30)})}
	got, err := m.take(t.Context(), &lab{}, 3)
	require.NoError(t, err)
	require.Nil(t, got.Peer)
	require.Equal(t, spread{26, 24, 30}, got.Figure)
	require.False(t, got.Met)
}

func TestTakeClosesWhatWasOpenedAndNamesWhatFailed(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	fails := func(context.Context) (float64, error) { return 0, broken }
	works := func(context.Context) (float64, error) { return 1, nil }
	for name, tc := range map[string]struct {
		prepareErr, closeErr error
		sides                sides
		says                 string
	}{
		"nothing":  {sides: sides{ours: works, peer: works}},
		"prepare":  {prepareErr: broken, says: "P9: prepare: broken"},
		"ours":     {sides: sides{ours: fails, peer: works}, says: "P9: round 0: broken"},
		"the peer": {sides: sides{ours: works, peer: fails}, says: "P9: round 0: broken"},
		"a bound":  {sides: sides{ours: fails}, says: "P9: round 0: broken"},
		"closing":  {sides: sides{ours: works, peer: works}, closeErr: broken, says: "broken"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var closed []string
			m := measure{ID: "P9", Want: atLeast(1), prepare: func(_ context.Context, l *lab) (sides, error) {
				l.onClose(func() error { closed = append(closed, "first"); return nil })
				l.onClose(func() error { closed = append(closed, "second"); return tc.closeErr })
				return tc.sides, tc.prepareErr
			}}
			l := &lab{}
			_, err := m.take(t.Context(), l, 1)
			require.Equal(t, []string{"second", "first"}, closed)
			require.Empty(t, l.opened)
			if tc.says == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, broken)
			require.EqualError(t, err, tc.says)
		})
	}
}
