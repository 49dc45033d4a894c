// Package inspect looks at counters for people: what they say, why, whether it is
// true, and what is on its way to them. It reads only, but for requests for
// reconciliations, and nobody waits for it. README.md beside this file says how it
// tells what is wrong from what is only late.
package inspect

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/pgdb"
)

const (
	// readTimeout bounds what reads some rows.
	readTimeout = 30 * time.Second
	// recountTimeout bounds a statement of a recount, which reads a whole namespace.
	recountTimeout = 15 * time.Minute
	// redisTimeout bounds one question to Redis.
	redisTimeout = 5 * time.Second
)

// ErrNotFound says that there is no such namespace or repository.
var ErrNotFound = errors.New("not found")

// Inspector looks at counters.
type Inspector struct {
	Pool *pgxpool.Pool
	// Buffer is nil while Redis cannot be reached: as if it did not answer.
	Buffer *buffer.Buffer
}

// Namespace is a namespace by its names.
type Namespace struct {
	ID            uuid.UUID  `json:"id"`
	Slug          string     `json:"slug"`
	Bucket        int        `json:"bucket"`
	CreatedAt     time.Time  `json:"created_at"`
	SoftDeletedAt *time.Time `json:"soft_deleted_at"`
}

// Repository is a repository by its names.
type Repository struct {
	ID            uuid.UUID         `json:"id"`
	Name          string            `json:"name"`
	Format        schematype.Format `json:"-"`
	Kind          schematype.Kind   `json:"-"`
	CreatedAt     time.Time         `json:"created_at"`
	SoftDeletedAt *time.Time        `json:"soft_deleted_at"`
}

// Namespace finds one by its id or its slug. Error: ErrNotFound.
func (i *Inspector) Namespace(ctx context.Context, name string) (Namespace, error) {
	var n Namespace
	err := i.read(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT id, slug, created_at, soft_deleted_at FROM namespaces
			WHERE id = $1 OR slug = $2 ORDER BY id = $1 DESC NULLS LAST LIMIT 1`, idOrNil(name), name).
			Scan(&n.ID, &n.Slug, &n.CreatedAt, &n.SoftDeletedAt)
	})
	if err != nil {
		return Namespace{}, fmt.Errorf("namespace %q: %w", name, found(err))
	}
	n.Bucket = accounting.Bucket(n.ID)
	return n, nil
}

// Repository finds one of a namespace by its id or its name. Error: ErrNotFound.
func (i *Inspector) Repository(ctx context.Context, namespace uuid.UUID, name string) (Repository, error) {
	var r Repository
	err := i.read(ctx, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, `
			SELECT id, name, format, kind, created_at, soft_deleted_at FROM repositories
			WHERE namespace_id = $3 AND (id = $1 OR name = $2) ORDER BY id = $1 DESC NULLS LAST LIMIT 1`, idOrNil(name), name, namespace).
			Scan(&r.ID, &r.Name, &r.Format, &r.Kind, &r.CreatedAt, &r.SoftDeletedAt)
	})
	if err != nil {
		return Repository{}, fmt.Errorf("repository %q: %w", name, found(err))
	}
	return r, nil
}

func found(err error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return ErrNotFound
	}
	return err
}

func idOrNil(name string) *uuid.UUID {
	if id, err := uuid.Parse(name); err == nil {
		return &id
	}
	return nil
}

// read runs fn in a short transaction that cannot write.
func (i *Inspector) read(ctx context.Context, fn func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, i.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		if err := setTimeout(ctx, tx, readTimeout); err != nil {
			return err
		}
		return fn(tx)
	})
}

// setTimeout has the server end statements that take too long, also when this
// process is gone. It takes no snapshot.
func setTimeout(ctx context.Context, tx pgx.Tx, timeout time.Duration) error {
	_, err := tx.Exec(ctx, fmt.Sprintf(`SET LOCAL statement_timeout = %d; SET LOCAL idle_in_transaction_session_timeout = %d`,
		timeout.Milliseconds(), readTimeout.Milliseconds()))
	return err
}

// pending fails when Redis does not answer.
func (i *Inspector) pending(ctx context.Context, scopes []accounting.Scope) (map[accounting.Scope]buffer.Pending, error) {
	if i.Buffer == nil {
		return nil, ErrRedis
	}
	ctx, cancel := context.WithTimeout(ctx, redisTimeout)
	defer cancel()
	return i.Buffer.Pending(ctx, scopes)
}

// scopes are the namespace and its repositories.
func scopes(ctx context.Context, db pgdb.DB, namespace uuid.UUID) ([]accounting.Scope, error) {
	rows, err := db.Query(ctx, `SELECT id FROM repositories WHERE namespace_id = $1`, namespace)
	if err != nil {
		return nil, fmt.Errorf("list repositories: %w", err)
	}
	all, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (accounting.Scope, error) {
		var id uuid.UUID
		err := row.Scan(&id)
		return accounting.RepositoryScope(namespace, id), err
	})
	if err != nil {
		return nil, fmt.Errorf("list repositories: %w", err)
	}
	return append(all, accounting.NamespaceScope(namespace)), nil
}
