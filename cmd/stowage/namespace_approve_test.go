package main

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNamespaceApprove(t *testing.T) {
	t.Parallel()
	s := newServices(t)
	worker := s.start("--reconciliation-guard-bytes=2", "--reconciliation-guard-components=2")
	namespace, repository := s.namespace()
	for range 6 {
		s.publish(namespace, repository)
	}
	s.counted(namespace, repository, 6)
	require.Eventually(t, func() bool {
		return s.count(`SELECT count(*) FROM namespace_statistics WHERE last_reconciled_at > 'epoch'`) == 1
	}, patience, often)
	args := func(more ...string) []string {
		return append([]string{"namespace", "approve", namespace.String(), "--database-url", s.url}, more...)
	}
	stdout, _, err := run(t, args()...)
	require.NoError(t, err)
	require.Equal(t, "nothing is held\napproved 0 corrections\n", stdout)

	// A table is emptied, past the client. Both scopes are held; counters go on.
	s.exec(`DELETE FROM npm_versions WHERE repository_id = $1`, repository)
	s.exec(`INSERT INTO reconciliation_requests VALUES ($1, now())`, namespace)
	require.Eventually(t, func() bool { return s.count(`SELECT count(*) FROM held_corrections`) == 2 }, patience, often)
	require.Contains(t, worker.log.String(), "namespace_id="+namespace.String())
	s.publish(namespace, repository)
	s.counted(namespace, repository, 7)

	_, stderr, err := run(t, args()...)
	require.ErrorContains(t, err, "give --yes. Nothing was changed")
	require.Contains(t, stderr, repository.String())
	require.Zero(t, s.count(`SELECT count(*) FROM held_corrections WHERE approved_at IS NOT NULL`))

	stdout, _, err = run(t, args("--yes", "--json", "--by", "alice")...)
	require.NoError(t, err)
	var result approval
	require.NoError(t, json.Unmarshal([]byte(stdout), &result))
	require.Equal(t, 2, result.Approved)
	require.Equal(t, "namespace", result.Held[0].Kind)
	require.Equal(t, repository, result.Held[1].ID)
	require.EqualValues(t, 6, result.Held[1].Expected.Bytes)
	require.Zero(t, result.Held[1].Counted.Bytes)
	s.counted(namespace, repository, 1)
	require.Eventually(t, func() bool { return s.count(`SELECT count(*) FROM held_corrections`) == 0 }, patience, often)
}
