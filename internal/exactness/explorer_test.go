package exactness

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/failpoint"
)

// scheduleVariable holds the choices of one schedule, as a failure prints them:
// only that schedule runs.
const scheduleVariable = "STOWAGE_SCHEDULE"

// script is what one actor does, act after act.
type script struct {
	name string
	acts []act
}

// act is one step of a script: an entry point of the product.
type act func(ctx context.Context, a *player) error

// set is some scripts whose interleavings are explored.
type set struct {
	name string
	// delays is how often a schedule may depart from the plain one, in which
	// each actor goes on as long as it can and then the next one in the list
	// does. To pass over an actor that could go on costs one.
	delays  int
	scripts []script
}

// explorer runs a set's schedules one after the other: all of them share the
// processes and the bucket, each has a namespace of its own.
type explorer struct {
	*servers
	t         *testing.T
	set       set
	processes []*process
	bucket    int
}

func newExplorer(t *testing.T, s *servers, set set) *explorer {
	t.Helper()
	e := &explorer{servers: s, t: t, set: set, bucket: accounting.Bucket(s.namespaceID())}
	for range set.scripts {
		e.processes = append(e.processes, s.process(t))
	}
	return e
}

// choice is one step of a schedule: who could take it, beginning with who took
// the step before and then in the order of the list, and who took it.
type choice struct {
	enabled []int
	chosen  int
	// at is where the chosen one stood.
	at failpoint.Point
}

// explore runs every schedule within the set's delays, those with the fewest
// first, and returns how many. A schedule is known by its first choices, its
// prefix, and goes on without a delay; to choose otherwise at any step behind
// the prefix makes another one.
func (e *explorer) explore() int {
	if replay, ok := os.LookupEnv(scheduleVariable); ok {
		e.play(parseSchedule(e.t, replay))
		return 1
	}
	ran := 0
	todo := make([][][]int, e.set.delays+1)
	todo[0] = [][]int{nil}
	for delays := range todo {
		for len(todo[delays]) > 0 {
			prefix := todo[delays][0]
			todo[delays] = todo[delays][1:]
			trace := e.play(prefix)
			ran++
			for more, prefixes := range departures(trace, len(prefix), e.set.delays-delays) {
				todo[delays+more] = append(todo[delays+more], prefixes...)
			}
		}
	}
	return ran
}

// departures are the prefixes that leave a trace behind its own prefix, by how
// many delays that costs.
func departures(trace []choice, fixed, delays int) map[int][][]int {
	prefixes := map[int][][]int{}
	var path []int
	for i, c := range trace {
		for cost := 1; i >= fixed && cost < len(c.enabled) && cost <= delays; cost++ {
			prefixes[cost] = append(prefixes[cost], append(slices.Clone(path), c.enabled[cost]))
		}
		path = append(path, c.chosen)
	}
	return prefixes
}

// play runs one schedule in a namespace of its own and checks where it ends.
func (e *explorer) play(prefix []int) []choice {
	e.t.Helper()
	st := e.scene()
	r := newRun(e, st)
	defer r.stop()
	r.follow(prefix)
	r.check()
	return r.trace
}

// scene is a namespace with one repository and one version, of 100 bytes, whose
// deltas are buffered. It is what a publish leaves, in fewer steps.
func (e *explorer) scene() *stage {
	e.t.Helper()
	st := &stage{servers: e.servers, process: e.processes[0], t: e.t, bucket: e.bucket, namespace: idInBucket(e.bucket)}
	repository := uuid.Must(uuid.NewV7())
	st.repositories = []uuid.UUID{repository}
	st.exec(sceneSQL, st.namespace, repository, digestOf("0"))
	one := accounting.Counters{Bytes: 100, Components: 1}
	failed, err := st.buffer.Emit(context.Background(), st.namespace, 0, []accounting.Delta{
		{Scope: accounting.NamespaceScope(st.namespace), Counters: one},
		{Scope: accounting.RepositoryScope(st.namespace, repository), Counters: one},
	})
	require.NoError(e.t, err)
	require.Empty(e.t, failed)
	return st
}

const sceneSQL = `
WITH n AS (INSERT INTO namespaces (id, slug) VALUES ($1::uuid, $1::uuid::text)),
r AS (INSERT INTO repositories (id, namespace_id, name, format, kind) VALUES ($2::uuid, $1, 'r', 3, 1)),
v AS (INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes) VALUES ($2, $1, $2, 'package', '0', 100)),
b AS (INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) VALUES ($1, $3, 100))
INSERT INTO blob_storage_attachments (namespace_id, repository_id, version_table, version_id, sha256) VALUES ($1, $2, 3, $2, $3)`

func idInBucket(bucket int) uuid.UUID {
	for {
		if id := uuid.Must(uuid.NewV7()); accounting.Bucket(id) == bucket {
			return id
		}
	}
}

// condition is what an actor is doing.
type condition int

const (
	running condition = iota
	parked            // at a failpoint, or before its first act
	blocked           // in the database, by an actor that stands still
	ended
)

// player is one script under way.
type player struct {
	script
	process   *process
	stage     *stage
	run       *run
	condition condition
	at        failpoint.Point
	err       error
	resume    chan struct{}
}

// event is an actor that stands still now.
type event struct {
	actor *player
	ended bool
	at    failpoint.Point
	err   error
}

// run is one schedule.
type run struct {
	*explorer
	stage  *stage
	actors []*player
	trace  []choice
	events chan event
	over   chan struct{}
}

func newRun(e *explorer, st *stage) *run {
	r := &run{explorer: e, stage: st, events: make(chan event), over: make(chan struct{})}
	for i, s := range e.set.scripts {
		a := &player{script: s, process: e.processes[i], stage: st, run: r, condition: parked, at: "its start", resume: make(chan struct{})}
		r.actors = append(r.actors, a)
		go a.play()
	}
	return r
}

// stop ends the actors of a schedule that failed: their next point is an error.
func (r *run) stop() {
	close(r.over)
	for _, a := range r.actors {
		for a.condition != ended {
			r.note(<-r.events)
		}
	}
}

func (a *player) play() {
	ctx := failpoint.With(context.Background(), a.hit)
	err := a.wait()
	for i, act := range a.acts {
		if err == nil && i > 0 {
			err = a.stop("its next act")
		}
		if err == nil {
			err = act(ctx, a)
		}
	}
	a.run.events <- event{actor: a, ended: true, err: err}
}

// hit parks the actor. A drain that is about to claim finds no lease: whoever
// had it has slept too long.
func (a *player) hit(_ context.Context, at failpoint.Point) error {
	if slices.Contains(stops(), at) {
		if err := a.stop(at); err != nil {
			return err
		}
	}
	if at == failpoint.DrainClaims {
		return dropLease(a.process.redis, a.stage.bucket)
	}
	return nil
}

// armed is for an act that fails at a point, after it was stopped there.
func (a *player) armed(fails failpoint.Point) context.Context {
	return failpoint.With(context.Background(), func(ctx context.Context, at failpoint.Point) error {
		err := a.hit(ctx, at)
		if err == nil && at == fails {
			err = errInjected
		}
		return err
	})
}

// stop parks the actor until it is let go on.
func (a *player) stop(at failpoint.Point) error {
	a.run.events <- event{actor: a, at: at}
	return a.wait()
}

func (a *player) wait() error {
	select {
	case <-a.resume:
		return nil
	case <-a.run.over:
		return context.Canceled
	}
}

func (r *run) note(e event) {
	a := e.actor
	a.condition, a.at, a.err = parked, e.at, e.err
	if e.ended {
		a.condition = ended
	}
}

// follow makes the choices of prefix, and the plain ones after them.
func (r *run) follow(prefix []int) {
	r.t.Helper()
	current := 0
	for r.count(ended) < len(r.actors) {
		enabled := r.enabled(current)
		if len(enabled) == 0 {
			r.await()
			continue
		}
		current = enabled[0]
		if i := len(r.trace); i < len(prefix) && slices.Contains(enabled, prefix[i]) {
			current = prefix[i]
		}
		a := r.actors[current]
		r.trace = append(r.trace, choice{enabled: enabled, chosen: current, at: a.at})
		a.condition = running
		a.resume <- struct{}{}
		r.settle()
	}
}

// enabled are the actors that can go on, in their order beginning with first.
func (r *run) enabled(first int) []int {
	var enabled []int
	for i := range r.actors {
		if n := (first + i) % len(r.actors); r.actors[n].condition == parked {
			enabled = append(enabled, n)
		}
	}
	return enabled
}

func (r *run) count(c condition) int {
	n := 0
	for _, a := range r.actors {
		if a.condition == c {
			n++
		}
	}
	return n
}

// await waits for actors that block each other: the database ends one of them.
func (r *run) await() {
	r.t.Helper()
	select {
	case e := <-r.events:
		r.note(e)
		r.settle()
	case <-time.After(patience):
		r.fail("the actors wait for each other")
	}
}

// firstPoll is after how long the database is asked who waits, at first: later
// polls take twice as long each. Nothing depends on it but the time that a run
// takes.
const firstPoll = 2 * time.Millisecond

// settle returns when every actor stands still: at a point, at its end, or
// blocked in the database by one that does.
func (r *run) settle() {
	r.t.Helper()
	for _, a := range r.actors {
		if a.condition == blocked {
			a.condition = running
		}
	}
	deadline := time.After(patience)
	pause := firstPoll
	poll := time.NewTimer(pause)
	defer poll.Stop()
	for r.count(running) > 0 {
		select {
		case e := <-r.events:
			r.note(e)
		case <-poll.C:
			r.poll()
			pause *= 2
			poll.Reset(pause)
		case <-deadline:
			r.fail("an actor neither goes on nor waits for another one")
		}
	}
}

const waitsSQL = `
SELECT w.application_name, array_agg(DISTINCT b.application_name)
FROM pg_stat_activity w
CROSS JOIN LATERAL unnest(pg_blocking_pids(w.pid)) AS blocker (pid)
LEFT JOIN pg_stat_activity b ON b.pid = blocker.pid
WHERE w.wait_event_type = 'Lock' AND w.application_name = ANY ($1)
GROUP BY w.application_name`

// poll marks the running actors as blocked if all of them are, by actors that
// stand still.
func (r *run) poll() {
	r.t.Helper()
	var names []string
	still := map[string]bool{}
	for _, a := range r.actors {
		if a.condition == running {
			names = append(names, a.process.pool.name)
		} else {
			still[a.process.pool.name] = true
		}
	}
	waits := r.waits(names)
	for name := range waits {
		still[name] = true
	}
	for _, name := range names {
		for _, blocker := range waits[name] {
			if blocker == nil || !still[*blocker] {
				return
			}
		}
		if !still[name] {
			return
		}
	}
	for _, a := range r.actors {
		if a.condition == running {
			a.condition = blocked
		}
	}
}

// waits are the actors that wait for a lock, and whom they wait for.
func (r *run) waits(names []string) map[string][]*string {
	r.t.Helper()
	rows, err := r.pool.Query(context.Background(), waitsSQL, names)
	require.NoError(r.t, err)
	defer rows.Close()
	waits := map[string][]*string{}
	for rows.Next() {
		var name string
		var blockers []*string
		require.NoError(r.t, rows.Scan(&name, &blockers))
		waits[name] = blockers
	}
	require.NoError(r.t, rows.Err())
	return waits
}

// check: nobody failed, and without a repair the rows are right, or a request
// says that they are not, and its pass makes them so.
func (r *run) check() {
	r.t.Helper()
	for _, a := range r.actors {
		if a.err != nil {
			r.fail(fmt.Sprintf("%s: %v", a.name, a.err))
		}
	}
	r.drainAll()
	if r.stage.requested() {
		r.stage.pass()
	}
	r.stage.requireNoKeys()
	accounts, err := r.accounts(context.Background(), r.stage.namespace)
	require.NoError(r.t, err)
	for scope, account := range accounts {
		if !account.exact() {
			r.fail(fmt.Sprintf("%s: %s", scope.Kind, account))
		}
	}
}

// drainAll drains until the bucket has nothing left.
func (r *run) drainAll() {
	r.t.Helper()
	redis := r.redis
	sets := []string{bucketKey(r.bucket, "inflight"), bucketKey(r.bucket, "dirty:namespace"), bucketKey(r.bucket, "dirty:repository")}
	for {
		left, err := redis.Do(context.Background(), redis.B().Exists().Key(sets...).Build()).AsInt64()
		require.NoError(r.t, err)
		if left == 0 {
			return
		}
		require.NoError(r.t, dropLease(r.redis, r.bucket))
		require.NoError(r.t, workDrain(context.Background(), r.processes[0], r.bucket))
	}
}

// fail says what the schedule was and how it is played again.
func (r *run) fail(problem string) {
	r.t.Helper()
	var steps, choices []string
	for _, c := range r.trace {
		steps = append(steps, fmt.Sprintf("  %d %s from %s", c.chosen, r.actors[c.chosen].name, c.at))
		choices = append(choices, strconv.Itoa(c.chosen))
	}
	require.FailNow(r.t, problem, "the schedule:\n%s\nplay it again:\n  %s=%s go test -tags failpoint ./internal/exactness -run '%s'",
		strings.Join(steps, "\n"), scheduleVariable, strings.Join(choices, ","), "^"+strings.ReplaceAll(r.t.Name(), "/", "$/^")+"$")
}

func parseSchedule(t *testing.T, s string) []int {
	t.Helper()
	var choices []int
	for field := range strings.SplitSeq(s, ",") {
		n, err := strconv.Atoi(field)
		require.NoError(t, err, "%s=%s", scheduleVariable, s)
		choices = append(choices, n)
	}
	return choices
}
