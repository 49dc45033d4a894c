package entdb_test

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
)

// Each step makes another situation of the same repository.
func TestPrecision(t *testing.T) {
	t.Parallel()
	b, server, client := setupRedis(t)
	ctx := t.Context()
	buf := buffer.New(client, buffer.Config{TTL: time.Hour, LeaseTTL: time.Minute})
	r := b.npm(t)
	scope := accounting.RepositoryScope(r.NamespaceID, r.ID)
	bucket := accounting.Bucket(r.NamespaceID)
	b.publish(t, r, 10, 20)
	exec := func(sql string, args ...any) {
		t.Helper()
		_, err := b.pool.Exec(ctx, sql, args...)
		require.NoError(t, err)
	}
	requirePrecision := func(t *testing.T, want entdb.Precision) entdb.Usage {
		t.Helper()
		u, err := b.db.RepositoryUsage(ctx, r.ID)
		require.NoError(t, err)
		require.Equal(t, want, u.Precision())
		n, err := b.db.NamespaceUsage(ctx, b.namespace.ID)
		require.NoError(t, err)
		require.Equal(t, want, n.Precision(), "namespace")
		return u
	}

	t.Run("unknown: never reconciled", func(t *testing.T) {
		require.EqualValues(t, 2, requirePrecision(t, entdb.PrecisionUnknown).Total().Components)
	})
	t.Run("buffered: reconciled, and something is pending", func(t *testing.T) {
		exec(`UPDATE repositories SET last_reconciled_at = 'epoch'::timestamptz + interval '1 microsecond'`)
		exec(`UPDATE namespace_statistics SET last_reconciled_at = 'epoch'::timestamptz + interval '1 microsecond', reconciliation_marker = now()`)
		b.publish(t, r, 5)
		require.Equal(t, entdb.Counters{Bytes: 5, Components: 1}, requirePrecision(t, entdb.PrecisionBuffered).Total())
	})
	t.Run("unknown: a reconciliation is requested", func(t *testing.T) {
		exec(`INSERT INTO reconciliation_requests (namespace_id, marker) VALUES ($1, '2026-01-02 03:04:05Z')`, b.namespace.ID)
		u := requirePrecision(t, entdb.PrecisionUnknown)
		require.Equal(t, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), u.RequestedAt)
		require.Equal(t, int64(1), u.Total().Components, "the value is still the best that is known")

		u.ID, u.AsOf = uuid.Nil, time.Time{}
		text, err := json.Marshal(u)
		require.NoError(t, err)
		require.JSONEq(t, `{"id": "00000000-0000-0000-0000-000000000000", "value": {"bytes": 5, "components": 1},
			"precision": "unknown", "why_unknown": "a reconciliation is requested", "row": {"bytes": 0, "components": 0},
			"pending": {"bytes": 5, "components": 1}, "as_of": "0001-01-01T00:00:00Z", "last_reconciled_at": null,
			"requested_at": "2026-01-02T03:04:05Z", "quarantined": false}`, string(text))
		exec(`DELETE FROM reconciliation_requests`)
		requirePrecision(t, entdb.PrecisionBuffered)
	})
	t.Run("unknown: in quarantine", func(t *testing.T) {
		require.NoError(t, buf.Quarantine(ctx, bucket, []accounting.Scope{scope, accounting.NamespaceScope(b.namespace.ID)}))
		require.True(t, requirePrecision(t, entdb.PrecisionUnknown).Quarantined)
		require.NoError(t, client.Do(ctx, client.B().Del().Key(quarantineKey(bucket)).Build()).Error())
	})
	t.Run("exact: nothing is pending", func(t *testing.T) {
		claim, err := buf.Claim(ctx, bucket, "test", uuid.Must(uuid.NewV7()), 10)
		require.NoError(t, err)
		for len(claim.Flushes) > 0 {
			require.NoError(t, buf.Finish(ctx, bucket, claim.Flushes))
			claim, err = buf.Claim(ctx, bucket, "test", uuid.Must(uuid.NewV7()), 10)
			require.NoError(t, err)
		}
		requirePrecision(t, entdb.PrecisionExact)
	})
	t.Run("unknown: damaged keys", func(t *testing.T) {
		b.publish(t, r, 5)
		keys, err := client.Do(ctx, client.B().Keys().Pattern("*:buf:*").Build()).AsStrSlice()
		require.NoError(t, err)
		require.Len(t, keys, 2)
		for _, key := range keys {
			require.NoError(t, client.Do(ctx, client.B().Set().Key(key).Value("foreign").Build()).Error())
		}
		require.False(t, requirePrecision(t, entdb.PrecisionUnknown).PendingKnown)
	})
	t.Run("unknown: Redis does not answer", func(t *testing.T) {
		server.Stop()
		u := requirePrecision(t, entdb.PrecisionUnknown)
		text, err := json.Marshal(u)
		require.NoError(t, err)
		require.Contains(t, string(text), `"pending":null`)
	})
}

func quarantineKey(bucket int) string {
	return fmt.Sprintf("stowage:1:{%d}:quarantine", bucket)
}
