package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

// The worker is a process that dies by SIGKILL in the middle of the third batch, which
// waits for a version.
func TestAC21DeletionGoesOnAfterItsWorkerWasKilled(t *testing.T) {
	t.Parallel()
	const versions, deletedBefore = 2500, 2000
	s := newServices(t)
	namespace, repository := s.namespace()
	s.exec(`INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes)
		SELECT gen_random_uuid(), $1, $2, 'x', to_char(n, 'FM0000'), 1 FROM generate_series(1, $3::int) AS n`, namespace, repository, versions)
	s.exec(`UPDATE repositories SET artifacts_count = $2, size_bytes = $2 WHERE id = $1`, repository, versions)
	s.exec(`UPDATE namespace_statistics SET components_count = $2 WHERE namespace_id = $1`, namespace, versions)
	s.exec(`UPDATE repositories SET soft_deleted_at = now() WHERE id = $1`, repository)
	s.exec(`INSERT INTO deletion_requests (scope_id, scope_kind) VALUES ($1, 2)`, repository)
	lock, err := s.pool.Begin(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { _ = lock.Rollback(context.Background()) })
	var holder int
	require.NoError(t, lock.QueryRow(t.Context(), `SELECT pg_backend_pid() FROM npm_versions WHERE version = '2400' FOR UPDATE`).Scan(&holder))

	doomed := s.start()
	require.Eventually(t, func() bool {
		return s.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND $1 = ANY(pg_blocking_pids(pid))`, holder) > 0 &&
			s.count(`SELECT versions_deleted FROM deletion_requests`) == deletedBefore
	}, patience, often, "the third batch does not wait")
	require.NoError(t, doomed.cmd.Process.Kill())
	require.Equal(t, -1, doomed.exit(), "killed")
	require.EqualValues(t, deletedBefore, s.count(`SELECT versions_deleted FROM deletion_requests`))
	require.EqualValues(t, versions-deletedBefore, s.count(`SELECT count(*) FROM npm_versions`), "the batch under way is undone, those before it are not")
	require.NoError(t, lock.Rollback(t.Context()))

	s.start()
	require.Eventually(t, func() bool {
		return s.count(`SELECT count(*) FROM repositories`)+s.count(`SELECT count(*) FROM deletion_requests`)+s.count(`SELECT count(*) FROM npm_versions`) == 0 &&
			s.count(`SELECT components_count FROM namespace_statistics WHERE namespace_id = $1`, namespace) == 0
	}, patience, often)
}
