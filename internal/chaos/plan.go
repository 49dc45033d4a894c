package chaos

import (
	"cmp"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// kind is something that is done to the running system.
type kind int

const (
	killWriter kind = iota
	killWorker
	crashPostgres
	cutPostgres
	restartRedis
	emptyRedis
	keepRedis
	rewindRedis
	freezeRedis
	cutRedis
)

// injection says what a kind is called, and how many there are in a minute; a
// shorter storm has at least one of each.
type injection struct {
	kind      kind
	name      string
	perMinute float64
	// until is the part of the storm after which there is none any more.
	until float64
}

// injections restarts Redis in the first two thirds only: that requests every
// namespace, so other mistakes are seen only when those passes are done.
func injections() []injection {
	return []injection{
		{killWriter, "writer killed", 16, 0.95},
		{killWorker, "worker killed", 5, 0.95},
		{crashPostgres, "PostgreSQL restarted in immediate mode", 3, 0.95},
		{cutPostgres, "connections to PostgreSQL cut", 6, 0.95},
		{restartRedis, "Redis restarted, appendonly", 2, 0.65},
		{emptyRedis, "Redis restarted, empty", 2, 0.65},
		// keepRedis is part of each of these.
		{rewindRedis, "Redis restarted, from an older snapshot", 2, 0.65},
		{freezeRedis, "Redis frozen", 3, 0.95},
		{cutRedis, "connections to Redis cut", 6, 0.95},
	}
}

const (
	// longestDown is how long a server stays down at most.
	longestDown = time.Second
	// longestBack is how far Redis goes back at most.
	longestBack = 5 * time.Second
)

// step is one thing that is done.
type step struct {
	at   time.Duration
	kind kind
	// pick chooses the victim of a kill, and down is how long a server stays
	// away.
	pick int
	down time.Duration
}

// makePlan spreads each kind evenly over its time, which begins with the second
// twentieth, at a random moment of each share. It is the same for the same seed
// and duration.
func makePlan(seed uint64, duration time.Duration) []step {
	rng := rand.New(rand.NewPCG(seed, uint64(duration)))
	var plan []step
	for _, i := range injections() {
		n := max(1, int(i.perMinute*duration.Minutes()+0.5))
		begin := duration / 20
		share := (time.Duration(i.until*float64(duration)) - begin) / time.Duration(n)
		for k := range n {
			at := begin + time.Duration(k)*share + rand64(rng, share)
			plan = append(plan, step{at: at, kind: i.kind, pick: rng.IntN(1 << 30), down: rand64(rng, longestDown)})
			if i.kind == rewindRedis {
				plan = append(plan, step{at: at - rand64(rng, min(longestBack, at)), kind: keepRedis})
			}
		}
	}
	slices.SortStableFunc(plan, func(a, b step) int { return cmp.Compare(a.at, b.at) })
	return plan
}

func rand64(rng *rand.Rand, below time.Duration) time.Duration {
	return time.Duration(rng.Int64N(int64(below)))
}

// printPlan writes a line for each kind, with the seconds.
func printPlan(out io.Writer, plan []step) {
	for _, i := range injections() {
		var at []string
		for _, s := range plan {
			if s.kind == i.kind {
				at = append(at, fmt.Sprintf("%.1f", s.at.Seconds()))
			}
		}
		fmt.Fprintf(out, "  %-40s at %s s\n", i.name, strings.Join(at, " "))
	}
}
