package exactness

import (
	"context"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/requests"
)

// heal is what makes the rows right after a crash.
type heal int

const (
	// byDrain: nothing is lost, and no pass is needed.
	byDrain heal = iota
	// byRequest: a delta is lost or may be, and a pass is asked for.
	byRequest
	// byPass: a delta is lost and nobody can know: the next scheduled pass.
	byPass
)

// crash is a point that an actor meets, and what heals what comes of it.
type crash struct {
	// criteria are those that the cases prove.
	criteria string
	who      actor
	at       failpoint.Point

	// afterError: the point fails. afterKill: the process is killed there.
	// afterPause: it stops there until another process has published, drained
	// and reconciled, or waits for what the first one holds.
	afterError, afterKill, afterPause heal
}

// crashes are all of them but for the ticks, which concern every bucket.
var crashes = []crash{
	{"AC25 E14", writer, failpoint.WriterWrote, byDrain, byDrain, byDrain},
	{"AC25", writer, failpoint.WriterCommitted, byRequest, byPass, byDrain},
	{"AC25 AC7", writer, failpoint.WriterEmits, byRequest, byPass, byDrain},
	{"AC8 AC30", writer, failpoint.WriterEmitted, byRequest, byDrain, byDrain},
	{"AC7", unheard, failpoint.RequestWaits, byRequest, byPass, byRequest},
	// The other process answers the request.
	{"AC7", unheard, failpoint.RequestWritten, byRequest, byRequest, byDrain},

	{"AC6 E8", drainer, failpoint.DrainClaims, byDrain, byDrain, byDrain},
	{"AC4 AC36 E8", drainer, failpoint.DrainClaimed, byDrain, byDrain, byDrain},
	{"E3 E8", drainer, failpoint.DrainLocked, byDrain, byDrain, byDrain},
	{"E3 E8", drainer, failpoint.DrainEntered, byDrain, byDrain, byDrain},
	{"E4 E8 E9", drainer, failpoint.DrainCommitted, byDrain, byDrain, byDrain},
	{"E4 AC36", drainer, failpoint.DrainFinishes, byDrain, byDrain, byDrain},
	{"E4 AC36", drainer, failpoint.DrainFinished, byDrain, byDrain, byDrain},

	{"E15 AC24", passer, failpoint.PassSlot, byRequest, byRequest, byDrain},
	{"E15 E16", passer, failpoint.PassAdvanced, byRequest, byRequest, byDrain},
	{"E15 E16", passer, failpoint.PassLocked, byRequest, byRequest, byDrain},
	{"E15 E16", passer, failpoint.PassSnapshot, byRequest, byRequest, byDrain},
	{"E15 E16 AC8", passer, failpoint.PassMarked, byRequest, byRequest, byDrain},
	{"E15 E17 AC8", passer, failpoint.PassScans, byRequest, byRequest, byDrain},
	{"E15 E17 AC8", passer, failpoint.PassWrites, byRequest, byRequest, byDrain},
	{"E15 E17", passer, failpoint.PassRowsLocked, byRequest, byRequest, byDrain},
	{"E15 E17", passer, failpoint.PassRowsWritten, byRequest, byRequest, byDrain},
	{"E15 E20 AC26", passer, failpoint.PassChunk, byRequest, byRequest, byDrain},
	{"E15 E20 AC26", passer, failpoint.PassScanned, byRequest, byRequest, byDrain},
	{"E15 E20", passer, failpoint.PassClosed, byRequest, byRequest, byDrain},
	{"E15", passer, failpoint.PassStamped, byDrain, byDrain, byDrain},
}

func TestCrashes(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	for _, c := range crashes {
		t.Run(c.criteria+" "+string(c.who)+" at "+string(c.at), func(t *testing.T) {
			t.Parallel()
			t.Run("error", func(t *testing.T) {
				t.Parallel()
				c.fail(t, s.stage(t)).healed(c.afterError)
			})
			t.Run("killed", func(t *testing.T) {
				t.Parallel()
				c.kill(t, s.stage(t)).healed(c.afterKill)
			})
			t.Run("pause", func(t *testing.T) {
				t.Parallel()
				c.pause(t, s.stage(t)).healed(c.afterPause)
			})
		})
	}
}

// The table names every point, so that a new one cannot be forgotten.
func TestEveryPointIsInATable(t *testing.T) {
	t.Parallel()
	var met []failpoint.Point
	for _, c := range crashes {
		met = append(met, c.at)
	}
	for _, c := range tickCrashes {
		met = append(met, c.at)
	}
	require.ElementsMatch(t, failpoint.Points(), met)
}

// arrange leaves the actor something to do.
func (c crash) arrange(s *stage) {
	s.t.Helper()
	switch c.who {
	case drainer:
		for _, repository := range s.repositories {
			require.NoError(s.t, s.publish(context.Background(), repository, "buffered", 1000))
		}
	case passer:
		for _, repository := range s.repositories {
			s.uncounted(repository)
		}
		require.NoError(s.t, requests.Raise(context.Background(), s.servers.pool, []requests.Request{{Namespace: s.namespace}}))
	}
}

// uncounted stores a version of 7 bytes past the client.
func (s *stage) uncounted(repository uuid.UUID) {
	s.t.Helper()
	s.exec(`INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes) VALUES ($1, $2, $3, 'past the client', '1', 7)`,
		uuid.Must(uuid.NewV7()), s.namespace, repository)
	digest := digestOf(repository.String() + "past the client")
	s.exec(`INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) VALUES ($1, $2, 7)`, s.namespace, digest[:])
}

// fail lets the actor fail at the point, once.
func (c crash) fail(t *testing.T, s *stage) *stage {
	t.Helper()
	c.arrange(s)
	if c.who == unheard {
		cmd := s.child(t, c.who, c.at, "error")
		require.NoError(t, cmd.Run())
		return s
	}
	met := false
	_ = s.act(failpoint.With(t.Context(), func(_ context.Context, at failpoint.Point) error {
		if at != c.at || met {
			return nil
		}
		met = true
		return errInjected
	}), c.who, s.namespace, s.repository())
	require.True(t, met, "the actor met no such point")
	return s
}

// kill lets the actor's process die at the point.
func (c crash) kill(t *testing.T, s *stage) *stage {
	t.Helper()
	c.arrange(s)
	cmd := s.child(t, c.who, c.at, "kill")
	require.NoError(t, cmd.Start())
	requireKilled(t, cmd)
	return s
}

// pause stops the actor at the point while another process gets as far as it
// can.
func (c crash) pause(t *testing.T, s *stage) *stage {
	t.Helper()
	c.arrange(s)
	if c.who == unheard {
		return c.pauseChild(t, s)
	}
	goOn := s.pausedAt(t, c.who, c.at)
	other := s.other(t)
	require.Eventually(t, func() bool {
		return other.ended() || s.blocked(t, other.process, s.process)
	}, patience, often)
	// What an error of the actor means to its caller is the concern of others.
	_ = goOn()
	awaitClosed(t, other.done, "the other process does not end")
	require.NoError(t, other.err)
	return s
}

// pauseChild is pause for what no context reaches.
func (c crash) pauseChild(t *testing.T, s *stage) *stage {
	t.Helper()
	cmd := s.child(t, c.who, c.at, "stop")
	require.NoError(t, cmd.Start())
	awaitStopped(t, cmd)
	other := s.other(t)
	awaitClosed(t, other.done, "the other process does not end")
	require.NoError(t, other.err)
	goOn(t, cmd)
	require.NoError(t, cmd.Wait())
	return s
}

// otherProcess publishes, drains and reconciles.
type otherProcess struct {
	*process
	done chan struct{}
	err  error
}

func (s *stage) other(t *testing.T) *otherProcess {
	t.Helper()
	// The first process sleeps longer than its lease.
	s.expireLease()
	o := &otherProcess{process: s.servers.process(t), done: make(chan struct{})}
	go func() {
		defer close(o.done)
		o.err = o.publishDrainReconcile(context.Background(), s)
	}()
	return o
}

func (o *otherProcess) publishDrainReconcile(ctx context.Context, s *stage) error {
	if err := o.publish(ctx, s.repository(), "meanwhile", 10_000); err != nil {
		return err
	}
	if err := o.drain(ctx, s.bucket); err != nil {
		return err
	}
	return o.reconcile(ctx, s.namespace)
}

func (o *otherProcess) ended() bool {
	select {
	case <-o.done:
		return true
	default:
		return false
	}
}

// healed checks that the crash needed no more, and no less, than it says.
func (s *stage) healed(by heal) {
	s.t.Helper()
	s.drainAll()
	switch by {
	case byDrain:
		require.False(s.t, s.requested(), "a request for nothing")
	case byRequest:
		require.Eventually(s.t, s.requested, patience, often, "no request")
		s.pass()
		require.False(s.t, s.requested(), "the request stays open")
	case byPass:
		require.False(s.t, s.requested(), "a request that nobody can have made")
		require.NotEqual(s.t, s.truth(s.t, s.namespace), s.rows(s.t, s.namespace), "nothing was lost")
		s.pass()
	}
	s.requireExact()
	s.requireNoKeys()
}

func awaitClosed(t testing.TB, c <-chan struct{}, otherwise string) {
	t.Helper()
	require.Eventually(t, func() bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}, patience, often, otherwise)
}
