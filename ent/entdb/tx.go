package entdb

import (
	"context"
	"errors"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/entpgx"
	"github.com/stowage-dev/stowage/internal/telemetry"
)

// Tx is a counted transaction: the generated client in it, and the pgx
// transaction under both. It serves one goroutine and ends with the function
// that it was given to.
type Tx struct {
	*ent.Client

	tx *entpgx.Tx
}

// Pgx is the same transaction for SQL of the registry's own, for instance to
// insert River jobs that exist only if the publish does. Savepoints, COMMIT
// and ROLLBACK are refused on it. Changes of counted tables through it are not
// seen: tell them with Report.
func (tx *Tx) Pgx() pgx.Tx { return tx.tx.Pgx() }

// Repository is what writers must know of a repository.
type Repository struct {
	NamespaceID uuid.UUID
	Format      schematype.Format
	Kind        schematype.Kind
	// SoftDeleted is true when the repository or its namespace is.
	SoftDeleted bool
	// Deleting says that its deletion, or that of its namespace, was asked for,
	// which cannot be taken back: nothing may be published into it.
	Deleting bool
}

// FindRepository reads what writers must know of a repository, once a
// transaction, and keeps others from deleting or soft-deleting it until the
// transaction ends. Error: ErrRepository.
func (tx *Tx) FindRepository(ctx context.Context, id uuid.UUID) (Repository, error) {
	r, err := tx.tx.Repository(ctx, id)
	if errors.Is(err, pgx.ErrNoRows) {
		return Repository{}, ErrRepository
	}
	if err != nil {
		return Repository{}, fmt.Errorf("read the repository: %w", err)
	}
	return Repository{
		NamespaceID: r.Namespace, Format: schematype.Format(r.Format), Kind: schematype.Kind(r.Kind),
		SoftDeleted: r.SoftDeleted, Deleting: r.Deleting,
	}, nil
}

// Change is a change that raw SQL made in a counted transaction.
type Change struct {
	NamespaceID uuid.UUID
	// RepositoryID is the repository whose counters changed; the zero UUID
	// means the namespace's own counters.
	RepositoryID uuid.UUID
	Counters
}

// Report counts a change that raw SQL made. Count rows affected, not rows
// asked for: use RETURNING. What the generated client and entpublish do is
// counted already.
func (tx *Tx) Report(change Change) error {
	if change.NamespaceID == uuid.Nil {
		return fmt.Errorf("report a change: namespace: %w", ErrNilID)
	}
	scope := accounting.NamespaceScope(change.NamespaceID)
	if change.RepositoryID != uuid.Nil {
		scope = accounting.RepositoryScope(change.NamespaceID, change.RepositoryID)
	}
	tx.tx.Add(scope, accounting.Counters(change.Counters))
	return nil
}

// WithTx runs fn in a counted transaction and commits. An error or a panic of
// fn rolls back, and nothing is counted. The COMMIT goes on when ctx is
// cancelled; what the transaction changed is emitted after it, and only then.
//
// Errors: that of fn; ErrCommitUnknown; ErrChangedMeantime; otherwise the
// transaction was rolled back. A failed emission is no error: the write has
// succeeded, and a reconciliation is requested.
func (c *Client) WithTx(ctx context.Context, fn func(ctx context.Context, tx *Tx) error) (err error) {
	ctx, span := c.tracer.Start(ctx, "stowage.transaction")
	defer func() { telemetry.End(span, err) }()
	entTx, err := c.Tx(ctx)
	if err != nil {
		return err
	}
	client := entTx.Client()
	counted, ok := entpgx.Of(client.Driver())
	if !ok {
		return errors.Join(errors.New("entdb: the client's driver was replaced, so transactions cannot be counted: make clients with entdb.New only"), entTx.Rollback())
	}
	defer func() {
		// After a COMMIT this does nothing. A panic goes on.
		if rollbackErr := counted.Rollback(); rollbackErr != nil {
			err = errors.Join(err, rollbackErr)
		}
	}()
	if err := fn(ctx, &Tx{Client: client, tx: counted}); err != nil {
		return err
	}
	return entTx.Commit()
}
