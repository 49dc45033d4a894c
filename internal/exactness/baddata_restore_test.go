package exactness

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/recovery"
	"github.com/stowage-dev/stowage/internal/requests"
)

// PostgreSQL is restored from yesterday's backup while Redis goes on. Without
// `stowage recover` the rows hold changes that PostgreSQL has forgotten, and
// nothing asks for a pass: that is asserted first.
func TestRestoredFromBackup(t *testing.T) {
	t.Parallel()

	t.Run("AC8 AC36 recover makes every row right, and no drift is left", func(t *testing.T) {
		t.Parallel()
		w := newRestored(t)
		require.NotEqual(t, w.drained.truth(t, w.drained.namespace), w.drained.rows(t, w.drained.namespace), "forgotten changes were applied")
		for _, s := range w.stages() {
			require.False(t, s.requested(), "nobody notices")
		}
		// Two drains have claimed, and sleep. Redis had the markers of both.
		before, after := w.ahead, w.inFlight
		claimedBefore, claimedAfter := before.claimed(), after.claimed()

		result := w.recovers()
		require.Equal(t, int64(len(w.stages())), result.Namespaces)
		require.Positive(t, result.Scopes)

		require.Equal(t, ledger.Applied, before.applies(claimedBefore))
		require.NotEqual(t, before.recount(before.scope()), before.row(before.scope()), "until the pass, whose sum leaves it out [R6]")
		w.requireHealed()
		require.Equal(t, ledger.Counted, after.applies(claimedAfter), "[R4]")
		after.requireTruth()
	})

	t.Run("AC36 E11 killed at each step and run again", func(t *testing.T) {
		t.Parallel()
		w := newRestored(t)
		for _, step := range []func(){
			w.killedWhileItSetsAside, w.killedBeforeTheRequests, w.killedBetweenRequests, w.besideATickThatHadCompared,
		} {
			for _, s := range w.stages() {
				s.publishes(s.neighbour(), uuid.NewString(), 10)
			}
			step()
		}
		w.recovers()
		w.requireHealed()
	})

	t.Run("AC36 E11 killed before it has requested anything, and the workers go on alone", func(t *testing.T) {
		t.Parallel()
		w := newRestored(t)
		w.killedBeforeTheRequests()
		for _, s := range w.stages() {
			require.False(t, s.requested())
		}
		w.requireHealed()
	})

	t.Run("AC8 AC36 writers, drains, ticks and passes go on while it runs", func(t *testing.T) {
		t.Parallel()
		w := newRestored(t)
		stop := w.goOn(t)
		for range 3 {
			w.recovers()
		}
		stop()
		w.requireHealed()
	})
}

// claimed is a drain up to its claim. It returns the flush of a forgotten change.
func (s *stage) claimed() accounting.Flush {
	s.t.Helper()
	s.expireLease()
	claim, err := s.buffer.Claim(context.Background(), s.bucket, "asleep", uuid.Must(uuid.NewV7()), 100)
	require.NoError(s.t, err)
	i := slices.IndexFunc(claim.Flushes, func(f accounting.Flush) bool { return f.Scope == s.scope() })
	require.GreaterOrEqual(s.t, i, 0)
	return claim.Flushes[i]
}

// applies is the rest of that drain.
func (s *stage) applies(flush accounting.Flush) ledger.Verdict {
	s.t.Helper()
	results, err := ledger.Apply(context.Background(), s.servers.pool, []accounting.Flush{flush})
	require.NoError(s.t, err)
	require.NoError(s.t, s.buffer.Finish(context.Background(), s.bucket, []accounting.Flush{flush}))
	return results[0].Verdict
}

// restored is a database as of its backup, and a Redis that has seen more.
type restored struct {
	*servers
	t testing.TB
	// drained had its forgotten changes applied, in the lost and in the restored
	// database. inFlight has some in flight, quarantined in quarantine, ahead
	// under a marker that is ahead of the restored server's clock, untouched none.
	drained, inFlight, quarantined, ahead, untouched *stage
}

func newRestored(t *testing.T) *restored {
	t.Helper()
	lost := newServers(t)
	var before [5]*stage
	for i := range before {
		before[i] = lost.stage(t)
		if i%2 == 0 {
			before[i].pass()
		}
	}
	require.NoError(t, before[0].tick(t.Context()))
	backup := lost.backup(t, before[:]...)
	forget(before[0], before[1], before[2], before[3])

	now := &servers{databaseURL: backup, redisAddress: lost.redisAddress, redis: lost.redis, taken: lost.taken, pool: dbtest.Open(t, backup)}
	t.Cleanup(now.closeIdle)
	var after [5]*stage
	for i, s := range before {
		after[i] = &stage{servers: now, process: now.process(t), t: t, namespace: s.namespace, repositories: s.repositories, bucket: s.bucket}
	}
	w := &restored{servers: now, t: t, drained: after[0], inFlight: after[1], quarantined: after[2], ahead: after[3], untouched: after[4]}
	// The registry and the workers are up before anybody thinks of recovering.
	w.drained.publishes(w.drained.scope(), "new", 10)
	w.drained.drainAll()
	for _, s := range w.stages() {
		s.publishes(s.neighbour(), "new", 10)
	}
	return w
}

// forget does what the backup does not contain.
func forget(drained, inFlight, quarantined, ahead *stage) {
	for _, s := range []*stage{drained, inFlight, quarantined, ahead} {
		s.publishes(s.scope(), "forgotten", 10)
		s.drainAll()
		s.pass()
		s.publishes(s.scope(), "forgotten too", 10)
	}
	inFlight.claimAndDie()
	quarantined.redisDo(quarantined.t, "HSET", keyOf("buf", quarantined.scope()), "text", "1")
	quarantined.drainAll()
	quarantined.pass()

	ahead.exec(`UPDATE namespace_statistics SET reconciliation_marker = reconciliation_marker + interval '1 hour' WHERE namespace_id = $1`, ahead.namespace)
	ahead.drainAll()
	ahead.publishes(ahead.scope(), "forgotten and ahead", 10)

	// A namespace of which the backup knows nothing.
	unknown := ahead.stage(ahead.t)
	unknown.publishes(unknown.scope(), "1", 10)
}

// backup copies the database and returns the copy's URL.
func (s *servers) backup(t *testing.T, stages ...*stage) string {
	t.Helper()
	live, err := url.Parse(s.databaseURL)
	require.NoError(t, err)
	server, err := pgx.Connect(context.Background(), dbtest.ServerURL(t))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close(context.Background())) })
	// Nobody may be connected to what is copied.
	s.pool.Reset()
	for _, stage := range stages {
		stage.process.pool.Reset()
	}
	name := "backup_" + strings.ReplaceAll(uuid.NewString(), "-", "")
	copying := fmt.Sprintf(`CREATE DATABASE %s TEMPLATE %s`, name, pgx.Identifier{strings.TrimPrefix(live.Path, "/")}.Sanitize())
	require.Eventually(t, func() bool {
		_, err := server.Exec(context.Background(), copying)
		return err == nil
	}, patience, often, "somebody stays connected to the database")
	t.Cleanup(func() {
		_, err := server.Exec(context.Background(), `DROP DATABASE `+name+` WITH (FORCE)`)
		require.NoError(t, err)
	})
	live.Path = "/" + name
	return live.String()
}

func (w *restored) stages() []*stage {
	return []*stage{w.drained, w.inFlight, w.quarantined, w.ahead, w.untouched}
}

func (w *restored) exec(sql string) {
	w.t.Helper()
	_, err := w.pool.Exec(context.Background(), sql)
	require.NoError(w.t, err)
}

func (w *restored) deps() recovery.Deps {
	return recovery.Deps{Pool: w.pool, Buffer: w.drained.buffer, Log: slog.New(slog.DiscardHandler)}
}

func (w *restored) recovers() recovery.Result {
	w.t.Helper()
	result, err := recovery.Run(context.Background(), w.deps())
	require.NoError(w.t, err)
	return result
}

// The identities are gone and everything is set aside, but nobody knows that.
func (w *restored) killedWhileItSetsAside() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	_, _ = w.drained.buffer.SetAside(ctx, uuid.Must(uuid.NewV7()), func(int) { cancel() })
}

func (w *restored) killedBeforeTheRequests() {
	w.t.Helper()
	w.exec(`ALTER TABLE reconciliation_requests RENAME TO broken`)
	_, err := recovery.Run(context.Background(), w.deps())
	require.Error(w.t, err)
	w.exec(`ALTER TABLE broken RENAME TO reconciliation_requests`)
}

func (w *restored) killedBetweenRequests() {
	w.t.Helper()
	w.exec(fmt.Sprintf(`ALTER TABLE reconciliation_requests ADD CONSTRAINT ck_broken CHECK (namespace_id <> '%s')`, w.untouched.namespace))
	_, err := recovery.Run(context.Background(), w.deps())
	require.Error(w.t, err)
	w.exec(`ALTER TABLE reconciliation_requests DROP CONSTRAINT ck_broken`)
}

// A tick had compared before, and gives a new identity after.
func (w *restored) besideATickThatHadCompared() {
	w.t.Helper()
	s := w.drained
	s.redisDo(w.t, "DEL", bucketKey(s.bucket, "identity"))
	require.NoError(w.t, s.tick(atPoint(w.t, failpoint.TickRequested, func() {
		s.pass() // which answers the tick's request
		s.publishes(s.scope(), uuid.NewString(), 10)
		w.recovers() // and that is set aside
	})))
	require.True(w.t, s.requested())
}

// requireHealed lets registries and workers go on until every request is worked
// off. Then every row is right, and stays so.
func (w *restored) requireHealed() {
	w.t.Helper()
	ctx := context.Background()
	for _, s := range w.stages() {
		s.publishes(s.scope(), "after", 10)
	}
	require.NoError(w.t, w.drained.tick(ctx))
	w.workOffRequests()
	for _, s := range w.stages() {
		s.drainAll()
		s.requireTruth()
		require.Empty(w.t, s.quarantined())
	}
	// Nothing is left over that a later drain, tick or pass could stumble upon.
	require.NoError(w.t, w.drained.tick(ctx))
	_, err := w.drained.buffer.Sweep(ctx)
	require.NoError(w.t, err)
	for _, s := range w.stages() {
		s.publishes(s.scope(), "at last", 10)
		s.drainAll()
		s.requireTruth()
		corrections := s.entered(accounting.OutcomeCorrection)
		s.pass()
		require.Equal(w.t, corrections, s.entered(accounting.OutcomeCorrection), "drift")
	}
	require.Empty(w.t, w.openRequests(), "as no request is")
}

func (w *restored) openRequests() []requests.Request {
	w.t.Helper()
	open, err := requests.Open(context.Background(), w.pool, requests.Request{}, 10_000)
	require.NoError(w.t, err)
	return open
}

func (w *restored) workOffRequests() {
	w.t.Helper()
	for _, r := range w.openRequests() {
		require.NoError(w.t, w.drained.reconcile(context.Background(), r.Namespace))
	}
}

// goOn runs a registry and workers until stop is called.
func (w *restored) goOn(t *testing.T) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	var mu sync.Mutex
	var failed []error
	forever := func(work func(n int) error) {
		group.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if err := work(n); err != nil {
					mu.Lock()
					failed = append(failed, err)
					mu.Unlock()
					return
				}
			}
		})
	}
	background := context.Background()
	for _, s := range w.stages() {
		forever(func(n int) error { return s.publish(background, s.repository(), fmt.Sprint("meanwhile ", n), 10) })
		forever(func(int) error { return s.drain(background, s.bucket) })
	}
	forever(func(int) error { return w.drained.reconcile(background, w.drained.namespace) })
	forever(func(int) error { return w.untouched.tick(background) })
	return func() {
		cancel()
		group.Wait()
		require.Empty(t, failed)
	}
}
