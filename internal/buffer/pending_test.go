package buffer

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
)

func TestPending(t *testing.T) {
	t.Parallel()

	t.Run("tells buffer and flush of many scopes apart", everywhere(func(t *testing.T, b *bundle) {
		scopes := manyScopes(700)
		crowd := scopes[0].Namespace // more repositories than one call reads
		for range 250 {
			scopes = append(scopes, accounting.RepositoryScope(crowd, b.newRepository().ID))
		}
		for i, s := range scopes {
			if i%2 == 0 {
				_, err := b.Emit(t.Context(), s.Namespace, accounting.Marker(i), []accounting.Delta{delta(s, int64(i), -1)})
				require.NoError(t, err)
			}
		}
		all, err := b.Pending(t.Context(), scopes)
		require.NoError(t, err)
		require.Len(t, all, len(scopes))
		for i, s := range scopes {
			if i%2 == 0 {
				require.Equal(t, Pending{Buffered: []MarkedCounters{marked(accounting.Marker(i), int64(i), -1, 1)}}, all[s])
			} else {
				require.Empty(t, all[s])
			}
		}
	}))

	t.Run("sees what a claim moved exactly once", everywhere(func(t *testing.T, b *bundle) {
		b.emit(t, 10, delta(b.namespace, 1, 1))
		b.emit(t, 9, delta(b.namespace, 5, 1))
		claim := b.claim(t)
		require.Equal(t, Pending{Buffered: []MarkedCounters{marked(10, 1, 1, 1)}, Flush: &claim.Flushes[0]}, b.pending(t, b.namespace))
		b.finish(t, claim.Flushes)
		require.Equal(t, Pending{Buffered: []MarkedCounters{marked(10, 1, 1, 1)}}, b.pending(t, b.namespace))
	}))

	t.Run("of nothing is nothing, and Redis that is down is an error", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.server.Stop()
		all, err := b.Pending(t.Context(), nil)
		require.NoError(t, err)
		require.Empty(t, all)
		_, err = b.Pending(t.Context(), []accounting.Scope{b.namespace})
		require.ErrorContains(t, err, "buffer: pending")
	})
}
