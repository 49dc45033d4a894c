package drain

import (
	"testing"

	"github.com/riverqueue/river"
	"github.com/stretchr/testify/require"
)

func TestAC12SweepFindsWhatStandsInNoSet(t *testing.T) {
	t.Parallel()
	b := setup(t)
	sweep := func() {
		require.NoError(t, NewSweepWorker(b.deps).Work(t.Context(), &river.Job[SweepArgs]{}))
	}
	b.emit(b.repository, 10)
	b.command("DEL", b.key("dirty:repository"))
	b.emit(b.namespace, 7)
	_, err := b.worker().newRun(b.bucket).claim(t.Context(), 1)
	require.NoError(t, err)
	b.command("DEL", b.key("inflight"))
	b.expireLease()
	require.Zero(t, b.size(), "a buffer and a flush in no set")
	b.tickAndDrain()
	require.Zero(t, b.row(b.repository))

	sweep()
	b.tickAndDrain()
	require.Equal(t, counters(10, 1), b.row(b.repository))
	require.Equal(t, counters(7, 1), b.row(b.namespace))
	sweep()
	require.Zero(t, b.size())
	b.redis.Stop()
	require.ErrorContains(t, NewSweepWorker(b.deps).Work(t.Context(), &river.Job[SweepArgs]{}), "sweep the buffer")
}
