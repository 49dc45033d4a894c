package exactness

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
)

// stopsSQL makes triggers that obey the table: where they stop, and how. The
// first runs inside COMMIT, after the marker was read; the second between the
// row of the ledger and the addition; the third between the addition and the
// COMMIT of a drain or a write-back.
const stopsSQL = `
CREATE TABLE stops (namespace_id uuid, place text, action text, PRIMARY KEY (namespace_id, place));
CREATE FUNCTION stop() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE todo text;
BEGIN
	SELECT action INTO todo FROM stops WHERE namespace_id = NEW.namespace_id AND place = TG_ARGV[0];
	CASE todo
		WHEN 'error' THEN RAISE 'injected';
		WHEN 'kill' THEN PERFORM pg_terminate_backend(pg_backend_pid());
		WHEN 'pause' THEN PERFORM pg_advisory_xact_lock_shared(uuid_hash_extended(NEW.namespace_id, 42));
		ELSE NULL;
	END CASE;
	RETURN NEW;
END $$;
CREATE CONSTRAINT TRIGGER stop AFTER INSERT ON npm_versions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION stop('commit');
CREATE TRIGGER stop BEFORE UPDATE OF size_bytes ON repositories FOR EACH ROW EXECUTE FUNCTION stop('row');
CREATE CONSTRAINT TRIGGER stop_commit AFTER UPDATE ON repositories DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION stop('row committed')`

// TestServerStops is TestCrashes for the places where only PostgreSQL can stop.
func TestServerStops(t *testing.T) {
	t.Parallel()
	s := newServers(t)
	_, err := s.pool.Exec(t.Context(), stopsSQL)
	require.NoError(t, err)
	for _, c := range []struct {
		criteria, place                   string
		who                               actor
		afterError, afterKill, afterPause heal
	}{
		{"AC25 R1 between marker and COMMIT", "commit", writer, byDrain, byRequest, byDrain},
		{"E3 R3 between ledger and row", "row", drainer, byDrain, byDrain, byDrain},
		{"E3 R3 between row and COMMIT", "row committed", drainer, byDrain, byDrain, byDrain},
		{"E15 before the row", "row", passer, byRequest, byRequest, byDrain},
		{"E15 between row and COMMIT", "row committed", passer, byRequest, byRequest, byDrain},
	} {
		t.Run(c.criteria+" of a "+string(c.who), func(t *testing.T) {
			t.Parallel()
			for action, by := range map[string]heal{"error": c.afterError, "kill": c.afterKill, "pause": c.afterPause} {
				t.Run(action, func(t *testing.T) {
					t.Parallel()
					st := s.stage(t)
					crash{who: c.who}.arrange(st)
					st.exec(`INSERT INTO stops VALUES ($1, $2, $3)`, st.namespace, c.place, action)
					if action == "pause" {
						st.pausedByServer(t, c.who)
					} else {
						require.Error(t, st.act(t.Context(), c.who, st.namespace, st.repository()))
					}
					st.exec(`DELETE FROM stops WHERE namespace_id = $1`, st.namespace)
					st.healed(by)
				})
			}
		})
	}
}

// pausedByServer lets the actor wait inside its statement while another process
// gets as far as it can.
func (s *stage) pausedByServer(t *testing.T, who actor) {
	t.Helper()
	gate, err := s.servers.pool.BeginTx(t.Context(), pgx.TxOptions{})
	require.NoError(t, err)
	defer func() { _ = gate.Rollback(context.Background()) }()
	_, err = gate.Exec(t.Context(), `SELECT pg_advisory_xact_lock(uuid_hash_extended($1, 42))`, s.namespace)
	require.NoError(t, err)

	ended := make(chan error, 1)
	go func() { ended <- s.act(context.Background(), who, s.namespace, s.repository()) }()
	require.Eventually(t, func() bool { return s.waits(t) }, patience, often, "the actor met no such place")
	// What the other process does shall wait for the first one only.
	s.exec(`DELETE FROM stops WHERE namespace_id = $1`, s.namespace)
	other := s.other(t)
	require.Eventually(t, func() bool {
		return other.ended() || s.blocked(t, other.process, s.process)
	}, patience, often)
	require.NoError(t, gate.Rollback(t.Context()))
	require.NoError(t, <-ended)
	awaitClosed(t, other.done, "the other process does not end")
	require.NoError(t, other.err)
}

// waits reports whether the stage's process waits for an advisory lock.
func (s *stage) waits(t testing.TB) (is bool) {
	t.Helper()
	require.NoError(t, s.servers.pool.QueryRow(context.Background(), `
		SELECT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = $1 AND wait_event = 'advisory')`, s.process.pool.name).Scan(&is))
	return is
}
