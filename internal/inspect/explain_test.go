package inspect

import (
	"context"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/usage"
)

func itoa(n int) string { return strconv.Itoa(n) }

func TestExplain(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	run := func(name string, test func(t *testing.T, h *home)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, w.in(t).home())
		})
	}

	run("exact, with each entry of the ledger since the last reconciliation", func(t *testing.T, h *home) {
		h.publish(100)
		h.drain()
		h.reconcile()
		h.publish(10)
		h.publish(5)
		h.drain()
		h.publish(1)
		h.drain()
		e := h.explain(nil)
		require.Equal(t, Counter{
			Reconciled: 100, Applied: 16, Row: 116, Value: 116, Recount: 116, Verdict: VerdictExact, Text: "exact",
		}, e.Bytes)
		require.EqualValues(t, 4, e.Components.Row)
		require.Equal(t, VerdictExact, e.Components.Verdict)
		require.Equal(t, usage.Exact, e.Precision)
		require.EqualValues(t, 2, e.Ledger.Rows)
		require.True(t, e.Ledger.Complete)
		newest := e.Ledger.Entries[0]
		require.Equal(t, "applied", newest.Outcome)
		require.Equal(t, accounting.Counters{Bytes: 1, Components: 1}, newest.Counters)
		require.EqualValues(t, 2, e.Ledger.Entries[1].Emissions)
		require.Equal(t, *e.LastReconciledAt, newest.Marker)
		require.Empty(t, e.Notes)

		one, err := h.inspector().Explain(t.Context(), h.Namespace, &h.repository, 1)
		require.NoError(t, err)
		require.EqualValues(t, 116, one.Bytes.Row, "a repository is explained alike")
		require.Len(t, one.Ledger.Entries, 1, "as many as asked for")
		require.EqualValues(t, 2, one.Ledger.Rows)
	})

	run("behind by what is buffered, by marker", func(t *testing.T, h *home) {
		h.reconcile()
		h.publish(10)
		e := h.explain(&h.repository)
		require.Equal(t, Counter{
			Buffered: 10, Value: 10, Recount: 10, Verdict: VerdictBehind, Text: "behind by what is buffered: +10 is on its way to the row",
		}, e.Bytes)
		require.Equal(t, usage.Buffered, e.Precision)
		require.Equal(t, []Delta{{Marker: *e.LastReconciledAt, Counters: accounting.Counters{Bytes: 10, Components: 1}, Emissions: 1, Counts: true}}, e.Buffered)
	})

	run("behind by a frozen flush, until the ledger has it", func(t *testing.T, h *home) {
		h.reconcile()
		h.publish(10)
		flushes, err := h.claim(t.Context())
		require.NoError(t, err)
		e := h.explain(nil)
		require.Equal(t, VerdictBehind, e.Bytes.Verdict)
		require.EqualValues(t, 10, e.Bytes.InFlight)
		require.False(t, e.InFlight.InLedger)
		require.WithinDuration(t, time.Now(), e.InFlight.FrozenAt, time.Minute)

		_, err = ledger.Apply(t.Context(), h.pool, flushes)
		require.NoError(t, err)
		e = h.explain(nil)
		require.Equal(t, VerdictExact, e.Bytes.Verdict)
		require.True(t, e.InFlight.InLedger, "it is only not deleted yet")
		require.False(t, e.InFlight.Counts)
	})

	run("exact: what the last reconciliation counted is not added again", func(t *testing.T, h *home) {
		h.publish(10)
		h.reconcile()
		e := h.explain(nil)
		require.Equal(t, VerdictExact, e.Bytes.Verdict)
		require.Len(t, e.Buffered, 1)
		require.False(t, e.Buffered[0].Counts)
		require.Equal(t, "correction", e.Ledger.Entries[0].Outcome, "the pass ran ahead of the buffer")
		require.EqualValues(t, 10, e.Bytes.Reconciled)

		h.drain()
		e = h.explain(nil)
		require.Equal(t, VerdictExact, e.Bytes.Verdict)
		require.Equal(t, "counted", e.Ledger.Entries[0].Outcome)
		require.Contains(t, e.Notes[0], "had counted +10 bytes and +1 components")
	})

	run("wrong after a buffer was lost, until it is reconciled", func(t *testing.T, h *home) {
		h.reconcile()
		h.publish(10)
		h.redis("DEL", h.key("buf:r:*"))
		e := h.explain(&h.repository)
		require.Equal(t, VerdictWrong, e.Bytes.Verdict)
		require.Equal(t, "wrong by -10: run stowage namespace reconcile "+h.Slug, e.Bytes.Text)
		require.Equal(t, "wrong by -1: run stowage namespace reconcile "+h.Slug, e.Components.Text)
		require.Equal(t, VerdictBehind, h.explain(nil).Bytes.Verdict, "the namespace's own is there")

		_, err := h.inspector().Request(t.Context(), h.ID)
		require.NoError(t, err)
		e = h.explain(&h.repository)
		require.Equal(t, "wrong by -10: a reconciliation is requested and will correct it", e.Bytes.Text)
		require.Equal(t, usage.Unknown, e.Precision)
		h.reconcile()
		require.Equal(t, VerdictExact, h.explain(&h.repository).Bytes.Verdict)
	})

	run("wrong after a row was changed by hand, in one counter only", func(t *testing.T, h *home) {
		h.reconcile()
		h.publish(10)
		h.drain()
		h.exec(`UPDATE namespace_statistics SET deduplicated_size_bytes = 17 WHERE namespace_id = $1`, h.ID)
		e := h.explain(nil)
		require.Equal(t, "wrong by +7: run stowage namespace reconcile "+h.Slug, e.Bytes.Text)
		require.EqualValues(t, -7, e.Bytes.Difference)
		require.EqualValues(t, 7, e.Bytes.Reconciled, "that value is derived from the row")
		require.Equal(t, VerdictExact, e.Components.Verdict)
	})

	run("a row that was changed before the first reconciliation is noted", func(t *testing.T, h *home) {
		h.publish(10)
		h.drain()
		require.Empty(t, h.explain(nil).Notes)
		h.exec(`UPDATE namespace_statistics SET deduplicated_size_bytes = 17 WHERE namespace_id = $1`, h.ID)
		e := h.explain(nil)
		require.Nil(t, e.LastReconciledAt)
		require.Contains(t, e.Notes[0], "no entry of the ledger explains the rest")
	})

	run("wrong and held after the shadow of the blobs was emptied", func(t *testing.T, h *home) {
		h.publish(3 << 30)
		h.drain()
		h.reconcile()
		h.exec(`DELETE FROM blob_storage_blobs_by_namespace WHERE namespace_id = $1`, h.ID)
		h.reconcile()
		e := h.explain(nil)
		require.Equal(t, VerdictWrong, e.Bytes.Verdict)
		require.Contains(t, e.Bytes.Text, "the correction is held because it lowers the counter by much, until")
		require.Equal(t, accounting.Counters{Bytes: -3 << 30}, e.Held.Correction)
		require.Equal(t, VerdictExact, e.Components.Verdict)
		h.exec(`UPDATE held_corrections SET approved_at = now(), approved_by = 'me' WHERE namespace_id = $1`, h.ID)
		require.Contains(t, h.explain(nil).Bytes.Text, "it is approved, and the next pass writes it")
	})

	run("a namespace waits for a repository that is held", func(t *testing.T, h *home) {
		h.publish(3 << 30)
		h.drain()
		h.reconcile()
		h.exec(`DELETE FROM npm_versions WHERE repository_id = $1`, h.repository.ID)
		h.reconcile()
		e := h.explain(nil)
		require.Nil(t, e.Held)
		require.Equal(t, VerdictWrong, e.Components.Verdict)
		require.Contains(t, e.Components.Text, "after its repositories, of which some are held")
		require.Contains(t, e.Notes[0], "(1): until they are written")
		e = h.explain(&h.repository)
		require.NotNil(t, e.Held)
		require.Empty(t, e.Notes)
	})

	run("in quarantine: what is kept counts until it is reconciled", func(t *testing.T, h *home) {
		h.reconcile()
		h.publish(10)
		require.NoError(t, h.buffer.Quarantine(t.Context(), h.Bucket, []accounting.Scope{h.scope()}))
		e := h.explain(&h.repository)
		require.True(t, e.Quarantined)
		require.Equal(t, usage.Unknown, e.Precision)
		require.Equal(t, VerdictBehind, e.Bytes.Verdict)
		require.Contains(t, e.Notes[0], "in quarantine")

		h.publish(5) // refused, and requested
		require.Contains(t, h.explain(&h.repository).Bytes.Text, "wrong by -5: a reconciliation is requested")
		h.reconcile()
		require.Equal(t, VerdictExact, h.explain(&h.repository).Bytes.Verdict)
	})

	run("wrong by what damaged keys hold", func(t *testing.T, h *home) {
		h.reconcile()
		h.publish(10)
		h.redis("HSET", h.key("buf:r:*"), "foreign", "1")
		e := h.explain(&h.repository)
		require.Equal(t, redisDamaged, e.Redis)
		require.Equal(t, VerdictWrong, e.Bytes.Verdict)
		require.Contains(t, e.Notes[0], "stowage:1:{"+itoa(h.Bucket)+"}:*")
	})

	run("entries that retention dropped are told of", func(t *testing.T, h *home) {
		h.reconcile()
		h.exec(`UPDATE repositories SET last_reconciled_at = now() - interval '3 days' WHERE id = $1`, h.repository.ID)
		h.exec(`UPDATE repositories SET created_at = now() - interval '9 days' WHERE id = $1`, h.repository.ID)
		h.publish(10)
		h.drain()
		e := h.explain(&h.repository)
		require.False(t, e.Ledger.Complete)
		require.Contains(t, e.Notes[0], "entries since then were dropped by retention")

		h.exec(`UPDATE repositories SET last_reconciled_at = 'epoch' WHERE id = $1`, h.repository.ID)
		require.Contains(t, h.explain(&h.repository).Notes[0], "what was applied before is not kept")
	})

	run("a namespace without a row, and what is not there", func(t *testing.T, h *home) {
		h.exec(`DELETE FROM namespace_statistics WHERE namespace_id = $1`, h.ID)
		_, err := h.inspector().Explain(t.Context(), h.Namespace, nil, 1)
		require.ErrorIs(t, err, ErrNoRow)
		_, err = h.inspector().Namespace(t.Context(), "nobody")
		require.ErrorIs(t, err, ErrNotFound)
		_, err = h.inspector().Repository(t.Context(), h.ID, "nothing")
		require.ErrorIs(t, err, ErrNotFound)
		found, err := h.inspector().Namespace(t.Context(), h.ID.String())
		require.NoError(t, err)
		require.Equal(t, h.Slug, found.Slug)
	})
}

func TestExplainWithoutRedis(t *testing.T) {
	t.Parallel()
	h := newWorld(t).home()
	h.reconcile()
	h.server.Stop()
	e := h.explain(nil)
	require.Equal(t, redisSilent, e.Redis)
	require.Equal(t, usage.Unknown, e.Precision)
	require.Contains(t, e.Bytes.Text, "unknown: the row is what a recount says")
	_, err := h.commit(context.Background(), 10)
	require.NoError(t, err)
	e = h.explain(nil)
	require.Equal(t, VerdictUnknown, e.Bytes.Verdict)
	require.Contains(t, e.Bytes.Text, "a recount says +10, and Redis did not answer")
	_, err = h.inspector().Verify(t.Context(), h.ID)
	require.ErrorIs(t, err, ErrRedis)
}
