package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// growing is a cost that has to stay flat while what it works on, or beside, grows
// a hundredfold.
type growing struct {
	// Name is that of the drawing's file, without the ending.
	Name string `json:"name"`
	// What is measured, in Unit, against how many there are of Size.
	What string `json:"what"`
	Unit string `json:"unit"`
	Size string `json:"size"`
	// Bound is the most that the cost at 100x may be, as a multiple of that at 1x.
	Bound float64 `json:"bound"`
	// base is the size at 1x, before it is scaled.
	base int
	// prepare makes the data of one size. What it opens, it gives to l to close.
	prepare func(ctx context.Context, l *lab, size int) (cost, error)
}

// cost measures once: what one unit of the work costs, in the unit of its growing.
type cost func(ctx context.Context) (float64, error)

// growth is a measured growing.
type growth struct {
	growing
	Rounds int     `json:"rounds"`
	Points []point `json:"points"`
	// Factor is the spread of the rounds' own ratios of the cost at 100x to that at 1x.
	Factor spread `json:"factor"`
	Met    bool   `json:"met"`
}

// point is the cost at a size.
type point struct {
	Size int `json:"size"`
	spread
}

func (g growing) want() string { return atMost(g.Bound).String() + "x" }

// sizes are 1x, 10x and 100x.
func (g growing) sizes(l *lab) []int {
	base := l.size(g.base)
	return []int{base, 10 * base, 100 * base}
}

// take measures all sizes in each round, in turn upwards and downwards. The first
// round is not counted.
func (g growing) take(ctx context.Context, l *lab, rounds int) (_ growth, err error) {
	defer func() { err = errors.Join(err, l.closeAll()) }()
	sizes := g.sizes(l)
	costs := make([]cost, len(sizes))
	for i, size := range sizes {
		if costs[i], err = g.prepare(ctx, l, size); err != nil {
			return growth{}, fmt.Errorf("%s: prepare %d %s: %w", g.Name, size, g.Size, err)
		}
	}
	perSize := make([][]float64, len(sizes))
	for round := -1; round < rounds; round++ {
		for _, i := range turns(len(sizes), round%2 == 0) {
			v, err := costs[i](ctx)
			if err != nil {
				return growth{}, fmt.Errorf("%s: round %d, %d %s: %w", g.Name, round+1, sizes[i], g.Size, err)
			}
			if round >= 0 {
				perSize[i] = append(perSize[i], v)
			}
		}
	}
	return g.of(sizes, perSize), nil
}

// turns are the numbers below n, upwards or downwards.
func turns(n int, up bool) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	if !up {
		slices.Reverse(all)
	}
	return all
}

// of puts together what the rounds gave, for each size in the order of the rounds.
func (g growing) of(sizes []int, perSize [][]float64) growth {
	result := growth{growing: g, Rounds: len(perSize[0])}
	for i, size := range sizes {
		result.Points = append(result.Points, point{size, spreadOf(perSize[i])})
	}
	first, last := perSize[0], perSize[len(perSize)-1]
	factors := make([]float64, len(first))
	for i := range factors {
		factors[i] = last[i] / first[i]
	}
	result.Factor = spreadOf(factors)
	result.Met = result.Factor.Median <= g.Bound
	return result
}

// measureGrowth takes all series.
func measureGrowth(ctx context.Context, l *lab, rounds int) ([]growth, error) {
	var all []growth
	for _, g := range series() {
		began := time.Now()
		grown, err := g.take(ctx, l, rounds)
		if err != nil {
			return nil, err
		}
		all = append(all, grown)
		l.progress.InfoContext(ctx, "measured growth", "series", g.Name, "factor", number(grown.Factor.Median), "wanted", g.want(),
			"took", time.Since(began).Round(time.Second))
	}
	return all, nil
}

// cells are the row of the report's second table, under growthHead.
func (g growth) cells() []string {
	cells := []string{g.What, g.Unit, g.Size + ": " + grouped(g.Points[0].Size)}
	for _, p := range g.Points {
		cells = append(cells, number(p.Median))
	}
	return append(cells, number(g.Factor.Median), number(g.Factor.Min), number(g.Factor.Max), g.want(), verdict(g.Met))
}

func growthHead() []string {
	return []string{"cost of", "unit", "1x", "at 1x", "at 10x", "at 100x", "growth", "min", "max", "wanted", ""}
}
