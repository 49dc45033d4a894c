package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/redistest"
)

func TestRecover(t *testing.T) {
	t.Parallel()
	recoverArgs := func(s *services, more ...string) []string {
		return append([]string{"recover", "--database-url", s.url, "--redis-addresses", s.redis.Addr}, more...)
	}

	t.Run("AC36 sets aside what Redis holds and requests every namespace, beside a worker that heals them", func(t *testing.T) {
		t.Parallel()
		s := newServices(t)
		namespace, repository := s.namespace()
		s.publish(namespace, repository)
		s.namespace()

		stdout, stderr, err := run(t, recoverArgs(s, "--yes")...)
		require.NoError(t, err)
		require.Regexp(t, `^set aside 2 scopes, in the keys stowage:1:\*:aside:[0-9a-f-]{36}:\* for 240h0m0s\nrequested a reconciliation of 2 namespaces\n$`, stdout)
		require.Contains(t, stderr, "namespaces=2 percent=100")
		require.Equal(t, int64(2), s.count(`SELECT count(*) FROM reconciliation_requests`))

		s.start()
		s.counted(namespace, repository, 1)
		require.Eventually(t, func() bool { return s.count(`SELECT count(*) FROM reconciliation_requests`) == 0 }, patience, often)
		_, _, err = run(t, recoverArgs(s, "--yes")...)
		require.NoError(t, err)
		s.publish(namespace, repository)
		s.counted(namespace, repository, 2)
		require.Eventually(t, func() bool { return s.count(`SELECT count(*) FROM reconciliation_requests`) == 0 }, patience, often)
	})

	t.Run("changes nothing unless somebody said yes", func(t *testing.T) {
		t.Parallel()
		s := newServices(t)
		namespace, repository := s.namespace()
		s.publish(namespace, repository)
		_, _, err := run(t, recoverArgs(s)...)
		require.ErrorContains(t, err, "give --yes. Nothing was changed")
		require.Zero(t, s.count(`SELECT count(*) FROM reconciliation_requests`))
		s.start()
		s.counted(namespace, repository, 1)
	})

	t.Run("changes nothing on a database that cannot take requests, and says what to run", func(t *testing.T) {
		t.Parallel()
		s := &services{t: t, url: dbtest.NewEmptyURL(t), redis: redistest.Start(t)}
		_, _, err := run(t, recoverArgs(s, "--yes")...)
		require.ErrorContains(t, err, "nothing was changed")
		require.ErrorContains(t, err, "run stowage migrate apply")
	})

	t.Run("interrupted, it exits with 1 and says to run it again", func(t *testing.T) {
		t.Parallel()
		s := newServices(t)
		s.namespace()
		lock, err := s.pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = lock.Exec(t.Context(), `LOCK TABLE reconciliation_requests IN ACCESS EXCLUSIVE MODE`)
		require.NoError(t, err)
		p := s.process(recoverArgs(s, "--yes")...)
		require.Eventually(t, func() bool {
			return s.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`) > 0
		}, patience, often)
		require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
		require.Equal(t, 1, p.exit())
		require.Contains(t, p.log.String(), "not complete, run it again (0 scopes set aside, 0 namespaces requested)")
		require.NoError(t, lock.Rollback(t.Context()))

		p = s.process(recoverArgs(s, "--yes")...)
		require.Zero(t, p.exit())
		require.Equal(t, int64(1), s.count(`SELECT count(*) FROM reconciliation_requests`))
	})

	t.Run("AC32 all mistakes of the configuration at once", func(t *testing.T) {
		t.Parallel()
		_, _, err := run(t, "recover", "--buffer-ttl", "soon")
		for _, path := range []string{"database.url", "redis.addresses", "buffer.ttl"} {
			require.ErrorContains(t, err, path)
		}
	})
}
