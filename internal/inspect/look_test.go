package inspect

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/usage"
)

func TestShow(t *testing.T) {
	t.Parallel()
	h := newWorld(t).home()
	gone := h.addRepository(h.ID, "b-soft")
	h.addRepository(h.ID, "a")
	h.exec(`UPDATE repositories SET soft_deleted_at = now() WHERE id = $1`, gone)
	h.reconcile()
	h.publish(10)
	require.NoError(t, h.buffer.Quarantine(t.Context(), h.Bucket, []accounting.Scope{accounting.RepositoryScope(h.ID, gone)}))

	o, err := h.inspector().Show(t.Context(), h.Namespace, "", 2)
	require.NoError(t, err)
	require.Equal(t, accounting.Counters{Bytes: 10, Components: 1}, o.Usage.Value())
	requirePrecision(t, usage.Buffered, o.Usage)
	require.Len(t, o.Repositories, 2)
	require.Equal(t, "a", o.Repositories[0].Name)
	requirePrecision(t, usage.Exact, o.Repositories[0].Usage)
	require.NotNil(t, o.Repositories[1].SoftDeletedAt)
	requirePrecision(t, usage.Unknown, o.Repositories[1].Usage)
	require.Equal(t, "b-soft", o.Next)

	o, err = h.inspector().Show(t.Context(), h.Namespace, o.Next, 2)
	require.NoError(t, err)
	require.Len(t, o.Repositories, 1)
	require.Empty(t, o.Next)
	requirePrecision(t, usage.Buffered, o.Repositories[0].Usage)

	h.server.Stop()
	o, err = h.inspector().Show(t.Context(), h.Namespace, "", 2)
	require.NoError(t, err)
	requirePrecision(t, usage.Unknown, o.Usage)
	h.exec(`DELETE FROM namespace_statistics`)
	o, err = h.inspector().Show(t.Context(), h.Namespace, "", 2)
	require.NoError(t, err)
	require.Nil(t, o.Usage)
}

func requirePrecision(t *testing.T, want usage.Precision, u *usage.Usage) {
	t.Helper()
	got, _ := u.Precision()
	require.Equal(t, want, got)
}

func TestBuckets(t *testing.T) {
	t.Parallel()
	h := newWorld(t).home()
	h.publish(10)
	_, err := h.claim(t.Context())
	require.NoError(t, err)
	h.publish(5)
	require.NoError(t, h.buffer.Quarantine(t.Context(), h.Bucket, []accounting.Scope{h.scope()}))

	all, err := h.inspector().Buckets(t.Context())
	require.NoError(t, err)
	got := all[h.Bucket]
	require.Equal(t, Bucket{
		Bucket: h.Bucket, DirtyNamespaces: 1, DirtyRepositories: 1, InFlight: 2, Quarantined: 1,
		OldestSeconds: got.OldestSeconds, LeaseHolder: "test", LeaseSeconds: got.LeaseSeconds, Identity: IdentityNew,
	}, got)
	require.Less(t, got.OldestSeconds, 60.0)
	require.False(t, got.Quiet())
	for _, b := range all {
		require.True(t, b.Bucket == h.Bucket || b.Quiet())
	}

	members, more, err := h.inspector().Members(t.Context(), h.Bucket, 10)
	require.NoError(t, err)
	require.False(t, more)
	require.Len(t, members, 2)
	require.Equal(t, h.ID, *members[0].NamespaceID)
	require.Nil(t, members[0].RepositoryID)
	require.Equal(t, &accounting.Counters{Bytes: 15, Components: 2}, members[1].Pending)
	require.EqualValues(t, 2, members[1].Emissions)
	require.Equal(t, h.repository.ID, *members[1].RepositoryID)
	require.True(t, members[1].Quarantined)
	require.WithinDuration(t, time.Now(), *members[1].FrozenAt, time.Minute)

	t.Run("says when Redis lost or restarted a bucket", func(t *testing.T) {
		known := func(id uuid.UUID, run string) {
			h.exec(`INSERT INTO counter_buckets (bucket, identity, run_id) VALUES ($1, $2, $3)
				ON CONFLICT (bucket) DO UPDATE SET identity = $2, run_id = $3`, h.Bucket, id, run)
		}
		identity := func() string {
			all, err := h.inspector().Buckets(t.Context())
			require.NoError(t, err)
			return all[h.Bucket].Identity
		}
		ids, err := h.buffer.Identities(t.Context())
		require.NoError(t, err)
		id := uuid.New()
		require.NoError(t, h.buffer.SetIdentity(t.Context(), h.Bucket, id))
		require.Equal(t, IdentityLost, identity(), "one that the database does not know")
		known(id, ids[0].RunID)
		require.Equal(t, IdentityOK, identity())
		known(id, "another")
		require.Equal(t, IdentityRestarted, identity())
		known(uuid.New(), ids[0].RunID)
		require.Equal(t, IdentityLost, identity())
		require.Equal(t, IdentityUnread, compare(&buffer.Identity{}, buffer.Identity{}))
	})
}

func TestRequestAndWait(t *testing.T) {
	t.Parallel()
	w := newWorld(t)

	t.Run("one: answered by a pass that began afterwards", func(t *testing.T) {
		t.Parallel()
		h := w.in(t).home()
		h.reconcile()
		r, err := h.inspector().Request(t.Context(), h.ID)
		require.NoError(t, err)
		var told []int64
		var once sync.Once
		err = h.inspector().Wait(t.Context(), r, func(left int64, since time.Duration) {
			told = append(told, left)
			require.Less(t, since, patience)
			once.Do(h.reconcile)
		})
		require.NoError(t, err)
		require.Equal(t, []int64{1, 0}, told)

		r, err = h.inspector().Request(t.Context(), h.ID)
		require.NoError(t, err)
		left := func() (n int64) {
			require.NoError(t, h.pool.QueryRow(t.Context(), remainingSQL, r.namespace, r.from, r.to).Scan(&n))
			return n
		}
		_, err = h.inspector().Request(t.Context(), h.ID)
		require.NoError(t, err)
		require.EqualValues(t, 1, left(), "asked again by somebody else, it is not answered")
		h.reconcile()
		_, err = h.inspector().Request(t.Context(), h.ID)
		require.NoError(t, err)
		require.Zero(t, left(), "but after a pass it is, also when somebody asks again")
	})

	t.Run("interrupted, the request stays", func(t *testing.T) {
		t.Parallel()
		h := w.in(t).home()
		r, err := h.inspector().Request(t.Context(), h.ID)
		require.NoError(t, err)
		ctx, interrupt := context.WithCancel(t.Context())
		err = h.inspector().Wait(ctx, r, func(int64, time.Duration) { interrupt() })
		require.ErrorIs(t, err, context.Canceled)
		h.reconcile()
		require.NoError(t, h.inspector().Wait(t.Context(), r, func(int64, time.Duration) {}))
	})

	t.Run("all", func(t *testing.T) {
		t.Parallel()
		alone := newWorld(t)
		homes := []*home{alone.home(), alone.home(), alone.home()}
		var told int64
		r, err := alone.inspector().RequestAll(t.Context(), func(n int64) { told = n })
		require.NoError(t, err)
		require.EqualValues(t, 3, r.Namespaces)
		require.EqualValues(t, 3, told)
		require.NoError(t, alone.inspector().Wait(t.Context(), r, func(left int64, _ time.Duration) {
			if left > 0 {
				homes[left-1].reconcile()
			}
		}))
	})
}

// Each look is stopped in the middle of its transaction, after everything but its
// last statement, and all that others do goes on: a commit, a drain, a pass, the
// dropping of old partitions.
func TestNobodyWaits(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	for name, look := range map[string]struct {
		stopAt string
		run    func(ctx context.Context, i *Inspector, h *home) error
	}{
		"show": {"FROM namespace_statistics s", func(ctx context.Context, i *Inspector, h *home) error {
			_, err := i.Show(ctx, h.Namespace, "", 10)
			return err
		}},
		"explain": {"LATERAL", func(ctx context.Context, i *Inspector, h *home) error {
			_, err := i.Explain(ctx, h.Namespace, nil, 10)
			return err
		}},
		"verify": {"blob_storage_blobs_by_namespace", func(ctx context.Context, i *Inspector, h *home) error {
			_, err := i.Verify(ctx, h.ID)
			return err
		}},
		"buckets": {"counter_buckets", func(ctx context.Context, i *Inspector, _ *home) error {
			_, err := i.Buckets(ctx)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := w.in(t).home()
			h.publish(1)
			stopped, released := make(chan struct{}), make(chan struct{})
			goOn := sync.OnceFunc(func() { close(released) })
			var once sync.Once
			i := h.traced(&hook{before: func(sql string) {
				if strings.Contains(sql, look.stopAt) {
					once.Do(func() {
						close(stopped)
						<-released
					})
				}
			}})
			t.Cleanup(goOn)
			done := make(chan error, 1)
			go func() { done <- look.run(context.Background(), i, h) }()
			select {
			case <-stopped:
			case err := <-done:
				require.FailNow(t, "it was never stopped", err)
			}
			h.publish(10)
			h.drain()
			h.reconcile()
			// This asks for the strongest lock there is, and gives up after a second.
			old := time.Now().Add(-time.Duration(h.Bucket+10) * 24 * time.Hour)
			require.NoError(t, ledger.EnsurePartitions(t.Context(), h.pool, old, old))
			_, err := h.pool.Exec(t.Context(), `SET lock_timeout = '10s'; DROP TABLE partitions.storage_ledger_`+old.UTC().Format("20060102")+`; RESET lock_timeout`)
			require.NoError(t, err)
			goOn()
			require.NoError(t, <-done)
			require.Empty(t, h.verify().Off)
		})
	}
}
