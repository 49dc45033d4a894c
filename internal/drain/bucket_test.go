package drain

import (
	"math"
	"testing"
	"time"

	"github.com/coder/quartz"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
)

func TestDrainBucket(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	t.Run("AC1 AC2 moves increments into the rows and leaves nothing in Redis", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.emit(b.repository, 10)
		b.emit(b.repository, 5)
		b.emit(b.namespace, 7)
		require.NoError(t, b.drain())
		require.Equal(t, counters(15, 2), b.row(b.repository))
		require.Equal(t, counters(7, 1), b.row(b.namespace))
		require.EqualValues(t, 2, b.flushes("applied"))
		require.Empty(t, b.keys(), "no buffer, no flush, no set and no lease")
	})
	t.Run("in several chunks", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.cfg.ChunkSize = 3
		scopes := []accounting.Scope{b.namespace, b.repository}
		for range 8 {
			scopes = append(scopes, b.newRepository(b.namespace))
		}
		for _, s := range scopes {
			b.emit(s, 3)
		}
		require.NoError(t, b.drain())
		for _, s := range scopes {
			require.Equal(t, counters(3, 1), b.row(s))
		}
		require.EqualValues(t, len(scopes), b.flushes("applied"))
	})
	t.Run("handles at most as many scopes as the tick saw", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.cfg.ChunkSize = 1
		for range 3 {
			b.emit(b.newRepository(b.namespace), 1)
		}
		require.NoError(t, b.worker().Work(t.Context(), bucketJob(BucketArgs{Bucket: b.bucket, Scopes: 2}, time.Now())))
		require.EqualValues(t, 2, b.flushes("applied"))
		require.EqualValues(t, 1, b.size().Repositories)
	})
	t.Run("a second drain of the bucket is turned away by the lease", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.emit(b.repository, 10)
		first := b.worker().newRun(b.bucket)
		claim, err := first.claim(t.Context(), 10)
		require.NoError(t, err)
		require.NoError(t, b.drain())
		require.Zero(t, b.row(b.repository), "the first drain's")
		settled, err := first.apply(t.Context(), claim)
		require.NoError(t, err)
		require.NoError(t, first.finish(t.Context(), settled))
		require.NoError(t, b.drain())
		require.NotEmpty(t, b.keys(), "the lease is still the first one's")
		first.release(t.Context())
		require.Empty(t, b.keys())
	})
	t.Run("a bucket is free again when the lease of a killed drain expires", func(t *testing.T) {
		t.Parallel()
		b := w.bundle(t, quartz.NewReal(), 20*time.Millisecond)
		b.emit(b.repository, 10)
		_, err := b.worker().newRun(b.bucket).claim(t.Context(), 10)
		require.NoError(t, err)
		eventually(t, func() bool {
			require.NoError(t, b.drain())
			return b.row(b.repository) == counters(10, 1)
		}, "the bucket is never free")
	})
}

// Drain A pauses somewhere; meanwhile 5 more arrive and drain B runs to its end.
func TestAC4E9TwoDrainsInEveryOrder(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	type drainA struct {
		run     *run
		claimed buffer.Claim
		settled settled
	}
	claim := func(t *testing.T, a *drainA) {
		t.Helper()
		var err error
		a.claimed, err = a.run.claim(t.Context(), 10)
		require.NoError(t, err)
	}
	apply := func(t *testing.T, a *drainA) {
		t.Helper()
		var err error
		a.settled, err = a.run.apply(t.Context(), a.claimed)
		require.NoError(t, err)
	}
	finish := func(t *testing.T, a *drainA) {
		t.Helper()
		require.NoError(t, a.run.finish(t.Context(), a.settled))
	}
	steps := []func(*testing.T, *drainA){claim, apply, finish}

	for pause, name := range []string{"before the claim", "between claim and apply", "between apply and finish", "after finish"} {
		t.Run("AC4 A pauses "+name, func(t *testing.T) {
			t.Parallel()
			b := w.setup(t)
			b.emit(b.repository, 10)
			a := &drainA{run: b.worker().newRun(b.bucket)}
			for _, step := range steps[:pause] {
				step(t, a)
			}
			b.emit(b.repository, 5)
			b.expireLease()
			require.NoError(t, b.drain())
			require.Equal(t, counters(15, 2), b.row(b.repository), "B drained all")
			for _, step := range steps[pause:] {
				step(t, a)
			}
			require.Equal(t, counters(15, 2), b.row(b.repository), "what A does late changes nothing")
			require.Zero(t, b.size())
		})
	}
	t.Run("AC4 E9 A that finishes late does not delete a newer flush of B", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.emit(b.repository, 10)
		a := &drainA{run: b.worker().newRun(b.bucket)}
		claim(t, a)
		apply(t, a)
		b.expireLease()
		require.NoError(t, b.drain())
		b.emit(b.repository, 5)
		other := &drainA{run: b.worker().newRun(b.bucket)}
		claim(t, other)
		finish(t, a)
		require.EqualValues(t, 1, b.size().InFlight)
		apply(t, other)
		finish(t, other)
		require.Equal(t, counters(15, 2), b.row(b.repository))
	})
}

func TestDrainBucketInterrupted(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	t.Run("E8 killed between claim and apply, the next run applies once", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.emit(b.repository, 10)
		_, err := b.worker().newRun(b.bucket).claim(t.Context(), 10)
		require.NoError(t, err)
		b.expireLease()
		require.NoError(t, b.drain())
		require.Equal(t, counters(10, 1), b.row(b.repository))
		require.EqualValues(t, 1, b.flushes("applied"))
	})
	t.Run("E4 E8 killed between apply and finish, the replay changes nothing", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.emit(b.repository, 10)
		killed := b.worker().newRun(b.bucket)
		claim, err := killed.claim(t.Context(), 10)
		require.NoError(t, err)
		_, err = killed.apply(t.Context(), claim)
		require.NoError(t, err)
		b.expireLease()
		require.NoError(t, b.drain())
		require.Equal(t, counters(10, 1), b.row(b.repository))
		require.EqualValues(t, 1, b.flushes("replayed"))
		require.Zero(t, b.size())
	})
	t.Run("E3 a transaction that fails leaves the flush frozen, and it is applied once later", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(b.repository, 10)
		b.exec(`ALTER TABLE repositories ADD CONSTRAINT ck_small CHECK (size_bytes < 10)`)
		require.ErrorContains(t, b.drain(), "drain bucket")
		b.emit(b.repository, 5)
		require.Error(t, b.drain(), "the same flush again")
		require.Equal(t, buffer.Size{Repositories: 1, InFlight: 1}, b.size())
		b.exec(`ALTER TABLE repositories DROP CONSTRAINT ck_small`)
		require.NoError(t, b.drain())
		require.Equal(t, counters(15, 2), b.row(b.repository))
		require.EqualValues(t, 2, b.flushes("applied"))
	})
	t.Run("a failed drain gives the lease back", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(b.repository, 10)
		b.exec(`ALTER TABLE storage_ledger RENAME TO broken`)
		require.Error(t, b.drain())
		require.NotContains(t, b.keys(), b.key("lease"))
	})
}

func TestAC36RedisFailsAtAnyPointOfADrain(t *testing.T) {
	t.Parallel()
	for point, name := range []string{"before the claim", "E6 after the claim", "after apply", "after finish"} {
		t.Run("AC36 "+name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.emit(b.repository, 10)
			r := b.worker().newRun(b.bucket)
			stopIf := func(here int) {
				if here == point {
					b.redis.Stop()
				}
			}
			stopIf(0)
			claim, err := r.claim(t.Context(), 10)
			require.Equal(t, point == 0, err != nil)
			stopIf(1)
			settled, err := r.apply(t.Context(), claim)
			require.NoError(t, err, "apply needs no Redis")
			stopIf(2)
			err = r.finish(t.Context(), settled)
			require.Equal(t, point == 1 || point == 2, err != nil)
			stopIf(3)
			r.release(t.Context())

			b.restart()
			b.expireLease()
			b.emit(b.repository, 5)
			require.NoError(t, b.drain())
			require.Equal(t, counters(15, 2), b.row(b.repository))
			require.Zero(t, b.size())
		})
	}
	t.Run("AC36 a claim whose answer is lost is met again by the next", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(b.namespace, 1)
		require.NoError(t, b.drain(), "so that Redis knows the script")
		b.cfg.ClaimTimeout = time.Second
		b.emit(b.repository, 10)
		r := b.worker().newRun(b.bucket)
		b.redis.Pause()
		_, err := r.claim(t.Context(), 10)
		require.Error(t, err)
		b.redis.Resume()
		eventually(t, func() bool { return b.size().InFlight == 1 }, "Redis has executed the claim after all")
		b.expireLease()
		require.NoError(t, b.drain())
		require.Equal(t, counters(10, 1), b.row(b.repository))
	})
}

func TestAC5DrainBailsOut(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	t.Run("AC5 E7 that starts too late", func(t *testing.T) {
		t.Parallel()
		clock := quartz.NewMock(t)
		b := w.bundle(t, clock, time.Minute)
		b.emit(b.repository, 10)
		args := BucketArgs{Bucket: b.bucket, Scopes: 1}
		require.NoError(t, b.worker().Work(t.Context(), bucketJob(args, clock.Now().Add(-b.cfg.StaleTimeout-time.Nanosecond))))
		require.EqualValues(t, 1, b.flushes("stale"))
		require.Equal(t, buffer.Size{Repositories: 1}, b.size(), "still dirty")

		require.NoError(t, b.worker().Work(t.Context(), bucketJob(args, clock.Now().Add(-b.cfg.StaleTimeout))))
		require.EqualValues(t, 1, b.flushes("stale"), "just in time")
		require.Zero(t, b.size())
	})
	t.Run("AC5 that runs too long", func(t *testing.T) {
		t.Parallel()
		clock := quartz.NewMock(t)
		b := w.bundle(t, clock, time.Minute)
		b.cfg.ChunkSize = 1
		for range 3 {
			b.emit(b.newRepository(b.namespace), 1)
		}
		trap := clock.Trap().Now("drain", "chunk")
		defer trap.Close()
		done := make(chan error, 1)
		go func() { done <- b.drain() }()
		trap.MustWait(t.Context()).MustRelease(t.Context())
		second := trap.MustWait(t.Context())
		clock.Advance(b.cfg.StaleTimeout + time.Nanosecond).MustWait(t.Context())
		second.MustRelease(t.Context())
		require.NoError(t, <-done)
		require.EqualValues(t, 1, b.flushes("applied"))
		require.EqualValues(t, 1, b.flushes("stale"))
		require.Equal(t, buffer.Size{Repositories: 2}, b.size())
		require.NotContains(t, b.keys(), b.key("lease"))
	})
}

func TestDrainBucketGone(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	t.Run("AC35 E12 a flush whose repository is gone is dropped once, and its keys are removed", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.emit(b.repository, 10)
		b.exec(`DELETE FROM repositories WHERE id = $1`, b.repository.ID)
		require.NoError(t, b.drain())
		require.NoError(t, b.drain())
		require.EqualValues(t, 1, b.flushes("gone"))
		require.Empty(t, b.keys())
	})
	t.Run("E13 a namespace without a statistics row is gone", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.emit(b.namespace, 10)
		b.exec(`DELETE FROM namespace_statistics WHERE namespace_id = $1`, b.namespace.ID)
		require.NoError(t, b.drain())
		require.EqualValues(t, 1, b.flushes("gone"))
		require.Empty(t, b.keys())
	})
	t.Run("AC30 what a reconciliation has counted is not added", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.emit(b.repository, 10)
		b.exec(`UPDATE repositories SET size_bytes = 10, artifacts_count = 1, last_reconciled_at = now() WHERE id = $1`, b.repository.ID)
		require.NoError(t, b.drain())
		require.Equal(t, counters(10, 1), b.row(b.repository))
		require.EqualValues(t, 1, b.flushes("counted"))
	})
}

func TestDrainBucketLost(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	t.Run("AC13 a dirty scope whose buffer has expired requests a reconciliation", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.emit(b.repository, 10)
		b.command("DEL", b.key("buf:r:"+b.namespace.ID.String()+":"+b.repository.ID.String()))
		require.NoError(t, b.drain())
		require.Equal(t, []uuid.UUID{b.namespace.ID}, b.requested())
		require.EqualValues(t, 1, b.loss("expired"))
		require.Empty(t, b.keys())
	})
	t.Run("AC13 killed between the request and the forgetting, it is noticed again", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(b.namespace, 10)
		b.command("DEL", b.key("buf:n:"+b.namespace.ID.String()))
		killed := b.worker().newRun(b.bucket)
		claim, err := killed.claim(t.Context(), 10)
		require.NoError(t, err)
		_, err = killed.apply(t.Context(), claim)
		require.NoError(t, err)
		require.NotEmpty(t, b.requested(), "before the scope is forgotten")
		b.exec(`DELETE FROM reconciliation_requests`)
		b.expireLease()
		require.NoError(t, b.drain())
		require.NotEmpty(t, b.requested())
		require.Empty(t, b.keys())
	})
	t.Run("nothing is forgotten unless the request is written", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(b.namespace, 10)
		b.command("DEL", b.key("buf:n:"+b.namespace.ID.String()))
		b.exec(`ALTER TABLE reconciliation_requests RENAME TO broken`)
		require.Error(t, b.drain())
		require.Equal(t, buffer.Size{Namespaces: 1}, b.size())
		require.Zero(t, b.loss("expired"))
	})
	t.Run("a flush older than half the retention is dropped and requested", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.emit(b.repository, 10)
		b.emit(b.namespace, 3)
		_, err := b.deps.Buffer.Claim(t.Context(), b.bucket, "long ago", batchOf(time.Now().Add(-b.cfg.LedgerRetention/2-time.Second)), 1)
		require.NoError(t, err)
		b.expireLease()
		require.NoError(t, b.drain())
		require.EqualValues(t, 1, b.flushes("too_old"))
		require.EqualValues(t, 1, b.flushes("applied"), "the younger one")
		require.Equal(t, []uuid.UUID{b.namespace.ID}, b.requested())
		require.Empty(t, b.keys())
	})
	t.Run("a flush just younger than half the retention is applied", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.emit(b.repository, 10)
		_, err := b.deps.Buffer.Claim(t.Context(), b.bucket, "long ago", batchOf(time.Now().Add(-b.cfg.LedgerRetention/2+time.Minute)), 1)
		require.NoError(t, err)
		b.expireLease()
		require.NoError(t, b.drain())
		require.Equal(t, counters(10, 1), b.row(b.repository))
		require.Empty(t, b.requested())
	})
}

// batchOf is a UUIDv7 of an instant.
func batchOf(at time.Time) uuid.UUID {
	id := uuid.Must(uuid.NewV7())
	ms := at.UnixMilli()
	for i := 5; i >= 0; i-- {
		id[i] = byte(ms)
		ms >>= 8
	}
	return id
}

func TestDrainBucketQuarantine(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	t.Run("a poisoned scope is set aside and stops nobody", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.exec(`UPDATE repositories SET size_bytes = $1 WHERE id = $2`, int64(math.MaxInt64-5), b.repository.ID)
		b.emit(b.repository, 10)
		healthy := []accounting.Scope{b.namespace, b.newRepository(b.namespace), b.newRepository(b.namespace)}
		for _, s := range healthy {
			b.emit(s, 10)
		}
		require.NoError(t, b.drain())
		for _, s := range healthy {
			require.Equal(t, counters(10, 1), b.row(s))
		}
		require.EqualValues(t, 3, b.flushes("applied"))
		require.EqualValues(t, 1, b.flushes("quarantined"))
		require.Equal(t, []uuid.UUID{b.namespace.ID}, b.requested())
		require.Zero(t, b.size(), "no later drain meets it")
		require.Contains(t, b.keys(), b.key("flush:r:"+b.namespace.ID.String()+":"+b.repository.ID.String()), "the flush is kept")
		require.Error(t, b.tryEmit(t.Context(), b.repository, 1), "the writer makes a request instead")
	})
	t.Run("a buffer that Stowage did not write is set aside", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.emit(b.repository, 10)
		b.command("HSET", b.key("buf:r:"+b.namespace.ID.String()+":"+b.repository.ID.String()), "who", "knows")
		require.NoError(t, b.drain())
		require.EqualValues(t, 1, b.flushes("quarantined"))
		require.Equal(t, []uuid.UUID{b.namespace.ID}, b.requested())
		require.Zero(t, b.size())
	})
	t.Run("a member that names no scope is set aside", func(t *testing.T) {
		t.Parallel()
		b := w.setup(t)
		b.command("SADD", b.key("dirty:namespace"), "who knows")
		b.emit(b.repository, 10)
		require.NoError(t, b.drain())
		require.EqualValues(t, 1, b.flushes("quarantined"))
		require.Equal(t, counters(10, 1), b.row(b.repository))
		require.Empty(t, b.requested())
		require.Zero(t, b.size())
	})
}
