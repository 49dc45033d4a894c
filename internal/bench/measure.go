package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
)

// measure is a row of the report: one thing, measured in turn with what it is held
// against.
type measure struct {
	// ID is that of the requirement.
	ID string `json:"id"`
	// What and Against say in words what the two sides do.
	What    string `json:"what"`
	Against string `json:"against"`
	// Unit is that of both sides.
	Unit string `json:"unit"`
	// Want is what the two must come to.
	Want want `json:"want"`
	// fresh says that each round starts its processes anew, so that a round before
	// them, which is not counted, would warm nothing.
	fresh bool
	// prepare makes the data of both sides, on servers that hold nothing else. What it
	// opens, it gives to l to close.
	prepare func(ctx context.Context, l *lab) (sides, error)
}

// sides measure once each, and return a figure in the measure's unit. peer is nil
// where Want is a bound.
type sides struct {
	ours, peer func(ctx context.Context) (float64, error)
}

// want is what a measure must come to, in rounds' median.
type want struct {
	How   how     `json:"how"`
	Value float64 `json:"value"`
}

type how string

// The ways to hold a figure against its peer.
const (
	// ratio: ours divided by the peer's, at least.
	ratio how = "ratio"
	// excess: ours minus the peer's, at most.
	excess how = "excess"
	// bound: ours, at most.
	bound how = "bound"
)

func atLeast(v float64) want { return want{ratio, v} }
func atMost(v float64) want  { return want{bound, v} }
func excessOf(v float64) want {
	return want{excess, v}
}

// figure is the comparison of one round.
func (w want) figure(ours, peer float64) float64 {
	switch w.How {
	case ratio:
		return ours / peer
	case excess:
		return ours - peer
	default:
		return ours
	}
}

func (w want) met(figure float64) bool {
	if w.How == ratio {
		return figure >= w.Value
	}
	return figure <= w.Value
}

// spread is what the rounds gave.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spreadOf needs at least one value. The median of an even number is the mean of
// the two in the middle.
func spreadOf(values []float64) spread {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	return spread{Median: (sorted[(n-1)/2] + sorted[n/2]) / 2, Min: sorted[0], Max: sorted[n-1]}
}

// result is a measured measure.
type result struct {
	measure
	Rounds int     `json:"rounds"`
	Ours   spread  `json:"ours"`
	Peer   *spread `json:"peer,omitempty"`
	// Figure is the spread of the rounds' own comparisons: both sides of a round met
	// the machine in about the same mood.
	Figure spread `json:"figure"`
	Met    bool   `json:"met"`
}

// take runs one round that is not counted, which fills caches and connections, unless
// the measure is fresh, and then so many. The sides take turns at being first.
func (m measure) take(ctx context.Context, l *lab, rounds int) (_ result, err error) {
	defer func() { err = errors.Join(err, l.closeAll()) }()
	s, err := m.prepare(ctx, l)
	if err != nil {
		return result{}, fmt.Errorf("%s: prepare: %w", m.ID, err)
	}
	var ours, peers, figures []float64
	first := -1
	if m.fresh {
		first = 0
	}
	for round := first; round < rounds; round++ {
		o, p, err := s.round(ctx, round%2 == 0)
		if err != nil {
			return result{}, fmt.Errorf("%s: round %d: %w", m.ID, round+1, err)
		}
		if round >= 0 {
			ours, peers, figures = append(ours, o), append(peers, p), append(figures, m.Want.figure(o, p))
		}
	}
	r := result{measure: m, Rounds: rounds, Ours: spreadOf(ours), Figure: spreadOf(figures)}
	if s.peer != nil {
		peer := spreadOf(peers)
		r.Peer = &peer
	}
	r.Met = m.Want.met(r.Figure.Median)
	return r, nil
}

func (s sides) round(ctx context.Context, oursFirst bool) (ours, peer float64, err error) {
	if s.peer == nil {
		ours, err = s.ours(ctx)
		return ours, 0, err
	}
	if oursFirst {
		if ours, err = s.ours(ctx); err == nil {
			peer, err = s.peer(ctx)
		}
		return ours, peer, err
	}
	if peer, err = s.peer(ctx); err == nil {
		ours, err = s.ours(ctx)
	}
	return ours, peer, err
}
