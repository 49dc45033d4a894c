package accounting_test

import (
	"fmt"
	"slices"
	"strings"
)

// verdict is what a model says of one state.
type verdict int

const (
	// busy: something is still under way or a heal is still due, so nothing
	// can be demanded of the row yet.
	busy verdict = iota
	// exact: everything is quiet, and the row is right.
	exact
	// wrong: everything is quiet, and the row is not right: a violation.
	wrong
)

// exploration is what visiting every reachable state found.
type exploration[S comparable] struct {
	states, quiet, violations int
	// trace is a shortest path from the start to a violation.
	trace []S
}

// node is a visited state and the index of the one it was first reached from.
type node[S comparable] struct {
	state    S
	cameFrom int
}

// explore visits every state that next can reach from start, breadth first.
func explore[S comparable](start S, next func(S, func(S)), judge func(S) verdict) exploration[S] {
	var found exploration[S]
	nodes := []node[S]{{state: start}}
	seen := map[S]struct{}{start: {}}
	for i := 0; i < len(nodes); i++ {
		s := nodes[i].state
		switch judge(s) {
		case exact:
			found.quiet++
		case wrong:
			found.quiet++
			found.violations++
			if found.violations == 1 {
				found.trace = pathTo(nodes, i)
			}
		}
		next(s, func(t S) {
			if _, old := seen[t]; !old {
				seen[t] = struct{}{}
				nodes = append(nodes, node[S]{state: t, cameFrom: i})
			}
		})
	}
	found.states = len(nodes)
	return found
}

func pathTo[S comparable](nodes []node[S], i int) []S {
	path := []S{nodes[i].state}
	for i > 0 {
		i = nodes[i].cameFrom
		path = append(path, nodes[i].state)
	}
	slices.Reverse(path)
	return path
}

func (e exploration[S]) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d states, %d quiet, %d violations", e.states, e.quiet, e.violations)
	for _, s := range e.trace {
		fmt.Fprintf(&b, "\n  %+v", s)
	}
	return b.String()
}
