package main

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

// rawWriters is few: with many, both sides would wait for the server alone.
const rawWriters = 4

// silent emits nothing.
type silent struct{}

func (silent) Emit(context.Context, entdb.Emission) error { return nil }

// listener writes down the statements that a connection sends.
type listener struct{ statements []string }

func (s *listener) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	s.statements = append(s.statements, q.SQL)
	return ctx
}

func (*listener) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

func (*listener) TraceBatchStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchStartData) context.Context {
	return ctx
}

func (s *listener) TraceBatchQuery(_ context.Context, _ *pgx.Conn, q pgx.TraceBatchQueryData) {
	s.statements = append(s.statements, q.SQL)
}

func (*listener) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// statementsOf are those that one transaction of the client sends. A peer that sends
// the very same texts stays fair when the client's change.
func (r *registry) statementsOf(ctx context.Context, l *lab, transaction func(r *registry, ctx context.Context) error, want int) ([]string, error) {
	heard := &listener{}
	pool, err := pgdb.NewPool(ctx, r.pool.Config().ConnString(), func(c *pgxpool.Config) { c.ConnConfig.Tracer = heard })
	if err != nil {
		return nil, err
	}
	defer pool.Close()
	db, err := l.clientOf(entdb.Config{Pool: pool, Emitter: silent{}})
	if err != nil {
		return nil, err
	}
	once := &registry{db: db, namespace: r.namespace, repository: r.repository}
	if err := transaction(once, ctx); err != nil {
		return nil, err
	}
	r.published.Add(once.published.Load())
	if len(heard.statements) != want {
		return nil, fmt.Errorf("the peer knows %d statements of the transaction, the client sends %q", want, heard.statements)
	}
	return heard.statements, nil
}

// raw is a transaction as pgx alone sends it.
type raw struct {
	*registry
	statements []string
}

// transaction is BEGIN, whatever do sends, and the marker function in one round trip
// with COMMIT. Its rows are read as the client reads them.
func (r *raw) transaction(ctx context.Context, do func(ctx context.Context, conn *pgxpool.Conn) error) error {
	conn, err := r.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release() // the pool closes a connection inside a transaction
	if _, err := conn.Exec(ctx, r.statements[0]); err != nil {
		return err
	}
	if err := do(ctx, conn); err != nil {
		return err
	}
	last := r.statements[len(r.statements)-2:]
	batch := &pgx.Batch{}
	var marker int64
	batch.Queue(last[0], []uuid.UUID{r.namespace}).QueryRow(func(row pgx.Row) error {
		var namespace uuid.UUID
		return row.Scan(&namespace, &marker)
	})
	batch.Queue(last[1])
	return conn.SendBatch(ctx, batch).Close()
}

// repositoryFacts reads what the client must know of the repository.
func (r *raw) repositoryFacts(ctx context.Context, conn *pgxpool.Conn) error {
	var namespace uuid.UUID
	var format, kind int16
	var softDeleted, deleting bool
	return conn.QueryRow(ctx, r.statements[1], r.repository).Scan(&namespace, &format, &kind, &softDeleted, &deleting)
}

func (r *raw) publish(ctx context.Context) error {
	v := r.version()
	digests, sizes := [][]byte{v.Blobs[0].Digest[:]}, []int64{v.Blobs[0].Size}
	return r.transaction(ctx, func(ctx context.Context, conn *pgxpool.Conn) error {
		if err := r.repositoryFacts(ctx, conn); err != nil {
			return err
		}
		var size int64
		var created bool
		if err := conn.QueryRow(ctx, r.statements[2], r.namespace, digests, sizes).Scan(&size, &created); err != nil {
			return err
		}
		var id uuid.UUID
		if err := conn.QueryRow(ctx, r.statements[3], r.repository, v.Name, v.Version, uuid.Must(uuid.NewV7()), r.namespace, size).Scan(&id); err != nil {
			return err
		}
		var attached schematype.Digest
		return conn.QueryRow(ctx, r.statements[4], r.namespace, r.repository, int16(schematype.FormatNPM), id, digests, sizes).Scan(&attached, &size)
	})
}

func (r *raw) create(ctx context.Context) error {
	v := r.version()
	return r.transaction(ctx, func(ctx context.Context, conn *pgxpool.Conn) error {
		if err := r.repositoryFacts(ctx, conn); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, r.statements[2], r.namespace, v.Name, v.Version, v.Blobs[0].Size, time.Now(), r.repository, uuid.Must(uuid.NewV7()))
		return err
	})
}

// create is a version made with the generated client. It has no blob.
func (r *registry) create(ctx context.Context) error {
	v := r.version()
	return r.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		return tx.NPMVersion.Create().SetNamespaceID(r.namespace).SetRepositoryID(r.repository).
			SetName(v.Name).SetVersion(v.Version).SetSizeBytes(v.Blobs[0].Size).Exec(ctx)
	})
}

func prepareAgainstRaw(ctx context.Context, l *lab) (sides, error) {
	return l.againstRaw(ctx, (*registry).publish, (*raw).publish, 7)
}

func prepareEntAgainstRaw(ctx context.Context, l *lab) (sides, error) {
	return l.againstRaw(ctx, (*registry).create, (*raw).create, 5)
}

// againstRaw has both sides use one pool, with one cache of prepared statements for
// each connection, and write into the same tables.
func (l *lab) againstRaw(ctx context.Context, ours func(*registry, context.Context) error, peer func(*raw, context.Context) error, count int) (sides, error) {
	r, err := l.registryOf(ctx, entdb.Config{Emitter: silent{}})
	if err != nil {
		return sides{}, err
	}
	other := &raw{registry: r}
	if other.statements, err = r.statementsOf(ctx, l, ours, count); err != nil {
		return sides{}, err
	}
	of := func(do func(ctx context.Context) error) func(ctx context.Context) (float64, error) {
		return func(ctx context.Context) (float64, error) {
			return perSecond(ctx, rawWriters, l.size(3000), func(ctx context.Context, _ int) error { return do(ctx) })
		}
	}
	return sides{
		ours: of(func(ctx context.Context) error { return ours(r, ctx) }),
		peer: of(func(ctx context.Context) error { return peer(other, ctx) }),
	}, nil
}
