package entdb_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/ent"
	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/dbtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errWanted = errors.New("as the test wants")

// bundle is a client with one namespace, in a database that may hold others.
type bundle struct {
	db        *entdb.Client
	pool      *pgxpool.Pool
	recorder  *entdb.Recorder
	registry  *prometheus.Registry
	namespace *ent.Namespace
}

// setup makes a client whose emissions are recorded; configure may change that.
func setup(t *testing.T, configure ...func(*entdb.Config)) *bundle {
	t.Helper()
	return setupIn(t, dbtest.New(t), configure...)
}

// setupIn makes a bundle in a database that parallel tests share.
func setupIn(t *testing.T, pool *pgxpool.Pool, configure ...func(*entdb.Config)) *bundle {
	t.Helper()
	b := &bundle{pool: pool, recorder: &entdb.Recorder{}, registry: prometheus.NewRegistry()}
	cfg := entdb.Config{Pool: b.pool, Emitter: b.recorder, Logger: slog.New(slog.NewTextHandler(t.Output(), nil)), Registerer: b.registry}
	for _, c := range configure {
		c(&cfg)
	}
	db, err := entdb.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		require.NoError(t, db.Close(ctx))
	})
	b.db = db
	b.namespace = db.Namespace.Create().SetSlug(uuid.NewString()).SaveX(t.Context())
	return b
}

func (b *bundle) repository(t *testing.T, format schematype.Format, kind schematype.Kind) *ent.Repository {
	t.Helper()
	return b.db.Repository.Create().SetNamespaceID(b.namespace.ID).
		SetName(uuid.NewString()).SetFormat(format).SetKind(kind).SaveX(t.Context())
}

func (b *bundle) npm(t *testing.T) *ent.Repository {
	t.Helper()
	return b.repository(t, schematype.FormatNPM, schematype.KindHosted)
}

// publish creates versions of the given sizes in one counted transaction.
func (b *bundle) publish(t *testing.T, r *ent.Repository, sizes ...int64) []*ent.NPMVersion {
	t.Helper()
	var made []*ent.NPMVersion
	err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) (err error) {
		made, err = tx.NPMVersion.CreateBulk(builders(tx, r, sizes...)...).Save(ctx)
		return err
	})
	require.NoError(t, err)
	return made
}

func builders(tx *entdb.Tx, r *ent.Repository, sizes ...int64) []*ent.NPMVersionCreate {
	creates := make([]*ent.NPMVersionCreate, 0, len(sizes))
	for _, size := range sizes {
		creates = append(creates, newVersion(tx, r, size))
	}
	return creates
}

func newVersion(tx *entdb.Tx, r *ent.Repository, size int64) *ent.NPMVersionCreate {
	return tx.NPMVersion.Create().SetNamespaceID(r.NamespaceID).SetRepositoryID(r.ID).
		SetName("left-pad").SetVersion(uuid.NewString()).SetSizeBytes(size)
}

// requireExact compares what was emitted for a repository of npm with what the
// database holds.
func (b *bundle) requireExact(t *testing.T, r *ent.Repository) {
	t.Helper()
	var want entdb.Counters
	err := b.pool.QueryRow(context.Background(),
		`SELECT coalesce(sum(size_bytes), 0)::bigint, count(*) FROM npm_versions WHERE repository_id = $1`, r.ID).
		Scan(&want.Bytes, &want.Components)
	require.NoError(t, err)
	require.Equal(t, want, b.recorder.Repository(r.ID), "repository")
	require.Equal(t, entdb.Counters{Components: want.Components}, b.recorder.Namespace(r.NamespaceID), "namespace")
}

func (b *bundle) requests(t *testing.T) int {
	t.Helper()
	var n int
	require.NoError(t, b.pool.QueryRow(context.Background(), `SELECT count(*) FROM reconciliation_requests`).Scan(&n))
	return n
}

func (b *bundle) requireRequested(t *testing.T, namespace uuid.UUID) {
	t.Helper()
	require.Eventually(t, func() bool {
		var n int
		err := b.pool.QueryRow(context.Background(), `SELECT count(*) FROM reconciliation_requests WHERE namespace_id = $1`, namespace).Scan(&n)
		return err == nil && n == 1
	}, time.Minute, 20*time.Millisecond)
}
