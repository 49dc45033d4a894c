package main

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/dbtest"
)

func TestBackfillCommands(t *testing.T) {
	t.Parallel()
	url := dbtest.NewURL(t)
	for _, step := range []struct{ name, verb, backfill, stdout, fails string }{
		{name: "list shows those that were never started", verb: "list", stdout: "namespace_statistics  not started"},
		{name: "pause one that was not started", verb: "pause", backfill: "namespace_statistics", fails: "is not started, so it cannot be paused"},
		{name: "start", verb: "start", backfill: "namespace_statistics", stdout: "backfill namespace_statistics is running: 0 of about"},
		{name: "start twice", verb: "start", backfill: "namespace_statistics", fails: "is running already"},
		{name: "pause", verb: "pause", backfill: "namespace_statistics", stdout: "is paused"},
		{name: "list shows the state", verb: "list", stdout: "namespace_statistics  paused"},
		{name: "resume", verb: "resume", backfill: "namespace_statistics", stdout: "is running"},
		{name: "cancel", verb: "cancel", backfill: "namespace_statistics", stdout: "is cancelled"},
		{name: "resume one that is cancelled", verb: "resume", backfill: "namespace_statistics", fails: "is cancelled, so it cannot be resumed"},
		{name: "an unknown name", verb: "start", backfill: "nonesuch", fails: `there is no backfill "nonesuch": it is one of namespace_statistics, unreferenced_blobs`},
	} {
		t.Run(step.name, func(t *testing.T) {
			args := []string{"backfill", step.verb, "--database-url", url}
			if step.backfill != "" {
				args = append(args, step.backfill)
			}
			stdout, _, err := run(t, args...)
			if step.fails != "" {
				require.ErrorContains(t, err, step.fails)
				return
			}
			require.NoError(t, err)
			require.Contains(t, stdout, step.stdout)
		})
	}
	_, _, err := run(t, "backfill", "start", "--database-url", url)
	require.ErrorContains(t, err, "give the name of one backfill")
	_, _, err = run(t, "backfill", "list", "--database-url", dbtest.NewEmptyURL(t))
	require.ErrorContains(t, err, "run stowage migrate apply")
}
