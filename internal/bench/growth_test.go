package main

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGrowthMeasuresTheSizesInTurn(t *testing.T) {
	t.Parallel()
	var asked []int
	costs := map[int][]float64{10: {9, 1, 2, 4}, 100: {9, 3, 3, 3}, 1000: {9, 2, 3, 4}}
	g := growing{Name: "g", Size: "things", Bound: 1.5, base: 1000, prepare: func(_ context.Context, _ *lab, size int) (cost, error) {
		return func(context.Context) (float64, error) {
			asked = append(asked, size)
			v := costs[size][0]
			costs[size] = costs[size][1:]
			return v, nil
		}, nil
	}}
	got, err := g.take(t.Context(), &lab{scale: 0.01}, 3)
	require.NoError(t, err)
	require.Equal(t, []int{1000, 100, 10, 10, 100, 1000, 1000, 100, 10, 10, 100, 1000}, asked)
	require.Equal(t, []point{{10, spread{2, 1, 4}}, {100, spread{3, 3, 3}}, {1000, spread{3, 2, 4}}}, got.Points, "the first round is not counted")
	require.Equal(t, spread{1.5, 1, 2}, got.Factor, "of each round's own")
	require.True(t, got.Met)
}

func TestGrowthClosesWhatWasOpenedAndNamesWhatFailed(t *testing.T) {
	t.Parallel()
	broken := errors.New("broken")
	for says, failing := range map[string]struct{ prepare, measure error }{
		"g: prepare 5 things: broken":    {prepare: broken},
		"g: round 0, 500 things: broken": {measure: broken},
		"":                               {},
	} {
		t.Run(says, func(t *testing.T) {
			t.Parallel()
			closed := 0
			g := growing{Name: "g", Size: "things", Bound: 1, base: 5, prepare: func(_ context.Context, l *lab, _ int) (cost, error) {
				l.onClose(func() error { closed++; return nil })
				return func(context.Context) (float64, error) { return 1, failing.measure }, failing.prepare
			}}
			_, err := g.take(t.Context(), &lab{scale: 1}, 1)
			require.Positive(t, closed)
			if says == "" {
				require.NoError(t, err)
				require.Equal(t, 3, closed)
				return
			}
			require.ErrorIs(t, err, broken)
			require.EqualError(t, err, says)
		})
	}
}

func TestDrawing(t *testing.T) {
	t.Parallel()
	for _, g := range sample().Growth {
		first := render(t, func(out *bytes.Buffer) error { return g.svg(out) })
		require.Equal(t, first, render(t, func(out *bytes.Buffer) error { return g.svg(out) }), "the same numbers give the same bytes")
		for _, text := range []string{"<svg", "Cost of " + g.What, ">" + g.Size + "<", ">" + g.Unit + "<", ">" + grouped(g.Points[2].Size) + "<", "1.50 times the first", "median"} {
			require.Contains(t, first, text)
		}
	}
}

// At a tiny scale all costs may be 0, or all sizes next to each other.
func TestDrawingOfNothing(t *testing.T) {
	t.Parallel()
	g := growing{Name: "none", What: "nothing", Bound: 1.5}.of([]int{1, 10, 100}, [][]float64{{0}, {0}, {0}})
	require.False(t, g.Met, "0 of 0 is no growth")
	require.NotEmpty(t, render(t, func(out *bytes.Buffer) error { return g.svg(out) }))
}

func TestGrouped(t *testing.T) {
	t.Parallel()
	require.Equal(t, "7", grouped(7))
	require.Equal(t, "1,000", grouped(1000))
	require.Equal(t, "1,234,567", grouped(1_234_567))
}
