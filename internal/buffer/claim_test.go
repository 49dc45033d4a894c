package buffer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
)

func TestClaim(t *testing.T) {
	t.Parallel()

	t.Run("AC4 what arrives while a flush is under way goes into the next", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.emit(t, 0, delta(b.namespace, 10, 1), delta(b.repository, 10, 1))
		first := b.claim(t)
		require.Len(t, first.Flushes, 2)

		b.emit(t, 0, delta(b.namespace, 5, 1), delta(b.repository, -7, 0))
		require.ElementsMatch(t, first.Flushes, b.claim(t).Flushes, "frozen")
		require.NoError(t, b.Finish(t.Context(), b.bucket, first.Flushes))

		second := b.claim(t)
		require.Len(t, second.Flushes, 2)
		for _, f := range second.Flushes {
			require.NotEqual(t, first.Flushes[0].BatchID, f.BatchID)
			require.EqualValues(t, 1, f.Emissions)
			want := accounting.Counters{Bytes: 5, Components: 1}
			if f.Scope == b.repository {
				want = accounting.Counters{Bytes: -7}
			}
			require.Equal(t, want, f.Counters)
		}
		require.NoError(t, b.Finish(t.Context(), b.bucket, second.Flushes))
		require.Empty(t, b.claim(t).Flushes)
		require.NoError(t, b.Release(t.Context(), b.bucket, "holder"))
		require.Empty(t, b.dump(t), "nothing is left over")
	})
}
