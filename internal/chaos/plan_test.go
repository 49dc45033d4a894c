package chaos

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPlan(t *testing.T) {
	t.Parallel()
	plan := makePlan(7, time.Minute)
	require.Equal(t, plan, makePlan(7, time.Minute), "the same seed is the same storm")
	require.NotEqual(t, plan, makePlan(8, time.Minute))

	for _, duration := range []time.Duration{5 * time.Second, time.Minute} {
		counts := map[kind]int{}
		kept := false
		var last time.Duration
		for _, s := range makePlan(7, duration) {
			require.GreaterOrEqual(t, s.at, last)
			require.LessOrEqual(t, s.at, duration)
			last = s.at
			counts[s.kind]++
			kept = kept || s.kind == keepRedis
			require.True(t, kept || s.kind != rewindRedis, "nothing to go back to")
		}
		for _, i := range injections() {
			require.Equal(t, max(1, int(i.perMinute*duration.Minutes()+0.5)), counts[i.kind], i.name)
		}
		require.Equal(t, counts[rewindRedis], counts[keepRedis])
	}

	var out bytes.Buffer
	printPlan(&out, []step{{at: 1500 * time.Millisecond, kind: killWorker}, {at: 3 * time.Second, kind: killWorker}})
	require.Regexp(t, `worker killed +at 1\.5 3\.0 s\n`, out.String())
}
