// Package enthook counts what mutations of the generated client change. The
// hooks are registered at run time, by ent/entdb only: a client built without
// it would lose them in silence.
//
// A mutation of a version changes counters, so it must run in a transaction of
// internal/entpgx, which emits the tally after its COMMIT.
package enthook

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"entgo.io/ent/dialect/sql"
	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/entpgx"
	"github.com/stowage-dev/stowage/internal/versions"
)

// Errors of a counted mutation; ent/entdb exports them.
var (
	ErrUncounted       = errors.New("counted mutation outside a counted transaction: run it in the function given to entdb's WithTx, through the client that the function is given")
	ErrRepository      = errors.New("there is no such repository")
	ErrVirtual         = errors.New("the repository is virtual: it is a view and stores nothing; publish into a hosted or remote repository")
	ErrDeleting        = errors.New("the repository, or its namespace, is being deleted, which cannot be taken back: use another one")
	ErrFormat          = errors.New("the repository is of another format")
	ErrSoftDeleted     = errors.New("the repository, or its namespace, is soft-deleted: restore it first")
	ErrReferenced      = versions.ErrReferenced
	ErrNamespace       = errors.New("namespace_id is not the repository's namespace")
	ErrHookSetSize     = errors.New("a hook set size_bytes behind the counting hooks, so the change cannot be counted: the transaction is refused; set the size on the mutation itself")
	ErrNoCountingPath  = errors.New("versions of the format would not be counted: give it a table in internal/versions and a hook in internal/enthook")
	ErrChangedMeantime = errors.New("rows changed while the mutation ran, so what it did cannot be counted: the transaction is refused; run it again")
)

// Register adds the counting hooks to a client. The error names formats whose
// versions nothing would count.
func Register(client *ent.Client) error {
	client.Namespace.Use(createStatistics, forgetRepositories)
	client.Repository.Use(forgetRepositories)
	return register(schematype.Formats(), map[schematype.Format]path{
		schematype.FormatContainer: {client.ContainerManifest.Use, countingHook[*ent.ContainerManifestMutation]},
		schematype.FormatMaven:     {client.MavenVersion.Use, countingHook[*ent.MavenVersionMutation]},
		schematype.FormatNPM:       {client.NPMVersion.Use, countingHook[*ent.NPMVersionMutation]},
	})
}

// path is how a format's versions come to be counted.
type path struct {
	use  func(...ent.Hook)
	hook func(versions.Table) ent.Hook
}

func register(formats []schematype.Format, paths map[schematype.Format]path) error {
	var errs []error
	for _, format := range formats {
		table, hasTable := versions.Of(format)
		p, hasPath := paths[format]
		if !hasTable || !hasPath {
			errs = append(errs, fmt.Errorf("%s: %w", format, ErrNoCountingPath))
			continue
		}
		p.use(p.hook(table))
	}
	return errors.Join(errs...)
}

// forgetRepositories keeps what a transaction has read of repositories true
// when it changes them itself.
func forgetRepositories(next ent.Mutator) ent.Mutator {
	return ent.MutateFunc(func(ctx context.Context, m ent.Mutation) (ent.Value, error) {
		value, err := next.Mutate(ctx, m)
		if tx, ok := entpgx.Of(m.(interface{ Client() *ent.Client }).Client().Driver()); ok {
			tx.ForgetRepositories()
		}
		return value, err
	})
}

// createStatistics stands in for the insert trigger where that is disabled; the
// two together still make one row. It counts nothing, so it needs no counted
// transaction: a namespace whose row is missing gets one from its first
// reconciliation.
func createStatistics(next ent.Mutator) ent.Mutator {
	return ent.MutateFunc(func(ctx context.Context, m ent.Mutation) (ent.Value, error) {
		created, err := next.Mutate(ctx, m)
		if err != nil || !m.Op().Is(ent.OpCreate) {
			return created, err
		}
		namespace := m.(*ent.NamespaceMutation)
		id, _ := namespace.ID()
		const insert = `INSERT INTO namespace_statistics (namespace_id) VALUES ($1) ON CONFLICT DO NOTHING`
		if err := namespace.Client().Driver().Exec(ctx, insert, []any{id}, nil); err != nil {
			return nil, fmt.Errorf("statistics row of the new namespace: %w", err)
		}
		return created, nil
	})
}

// versionMutation is what the generated mutations of the version tables share.
type versionMutation interface {
	ent.Mutation
	Client() *ent.Client
	IDs(ctx context.Context) ([]uuid.UUID, error)
	SetOp(op ent.Op)
	WhereP(...func(*sql.Selector))
	NamespaceID() (uuid.UUID, bool)
	RepositoryID() (uuid.UUID, bool)
	SizeBytes() (int64, bool)
	AddedSizeBytes() (int64, bool)
}

// versionHook counts the mutations of one version table.
type versionHook[M versionMutation] struct {
	table versions.Table
}

func countingHook[M versionMutation](table versions.Table) ent.Hook {
	return versionHook[M]{table: table}.hook
}

func (h versionHook[M]) hook(next ent.Mutator) ent.Mutator {
	return ent.MutateFunc(func(ctx context.Context, mutation ent.Mutation) (ent.Value, error) {
		m := mutation.(M)
		if !counts(m) {
			return uncounted(ctx, m, next)
		}
		tx, ok := entpgx.Of(m.Client().Driver())
		if !ok {
			return nil, fmt.Errorf("%s of %s: %w", m.Op(), m.Type(), ErrUncounted)
		}
		if m.Op().Is(ent.OpCreate) {
			return h.create(ctx, tx, m, next)
		}
		return h.change(ctx, tx, m, next)
	})
}

// uncounted runs a mutation that changes no counter, and finds out if a hook of
// the registry's own has made it change one behind this one's back.
func uncounted(ctx context.Context, m versionMutation, next ent.Mutator) (ent.Value, error) {
	value, err := next.Mutate(ctx, m)
	if err != nil || !counts(m) {
		return value, err
	}
	if tx, ok := entpgx.Of(m.Client().Driver()); ok {
		tx.Refuse(ErrHookSetSize)
	}
	return nil, fmt.Errorf("%s of %s: %w", m.Op(), m.Type(), ErrHookSetSize)
}

// counts reports whether the mutation can change a counter: soft deletion and
// restoring, for instance, do not.
func counts(m versionMutation) bool {
	if !m.Op().Is(ent.OpUpdate | ent.OpUpdateOne) {
		return true
	}
	_, set := m.SizeBytes()
	_, added := m.AddedSizeBytes()
	return set || added
}

func (h versionHook[M]) create(ctx context.Context, tx *entpgx.Tx, m M, next ent.Mutator) (ent.Value, error) {
	repository, _ := m.RepositoryID()
	facts, err := tx.Repository(ctx, repository)
	if errors.Is(err, pgx.ErrNoRows) {
		err = ErrRepository
	}
	if err == nil {
		err = h.check(facts, m)
	}
	if err != nil {
		return nil, fmt.Errorf("create %s: %w", m.Type(), err)
	}
	created, err := mutate(ctx, tx, m, next)
	if err != nil {
		return nil, err
	}
	size, _ := m.SizeBytes()
	v := versions.Version{Namespace: facts.Namespace, Repository: repository, Size: size}
	count(tx, v, accounting.Counters{Bytes: size, Components: 1})
	return created, nil
}

func (h versionHook[M]) check(facts entpgx.Repository, m M) error {
	switch namespace, _ := m.NamespaceID(); {
	case schematype.Kind(facts.Kind) == schematype.KindVirtual:
		return ErrVirtual
	case facts.Deleting:
		return ErrDeleting
	case schematype.Format(facts.Format) != h.table.Format:
		return fmt.Errorf("%w: it is %s, the version is %s", ErrFormat, schematype.Format(facts.Format), h.table.Format)
	case facts.SoftDeleted:
		return ErrSoftDeleted
	case facts.Namespace != namespace:
		return ErrNamespace
	default:
		return nil
	}
}

// change runs an update or a delete on rows that it has locked, so that what
// is counted is what the statement changes.
func (h versionHook[M]) change(ctx context.Context, tx *entpgx.Tx, m M, next ent.Mutator) (ent.Value, error) {
	rows, err := h.lock(ctx, tx, m)
	if err == nil && isDelete(m) {
		err = h.table.CheckUnreferenced(ctx, tx.Pgx(), rows)
	}
	if err == nil && isDelete(m) {
		err = h.table.Release(ctx, tx.Pgx(), rows)
	}
	if err != nil {
		return nil, fmt.Errorf("%s of %s: %w", m.Op(), m.Type(), err)
	}
	result, err := mutate(ctx, tx, m, next)
	if err != nil {
		return nil, err
	}
	// A predicate may look at other tables, whose rows are not locked.
	if n, isCount := result.(int); isCount && n != len(rows) {
		tx.Refuse(ErrChangedMeantime)
		return nil, fmt.Errorf("%s of %s: %w", m.Op(), m.Type(), ErrChangedMeantime)
	}
	for _, v := range rows {
		if isDelete(m) {
			count(tx, v, accounting.Counters{Bytes: -v.Size, Components: -1})
		} else {
			count(tx, v, accounting.Counters{Bytes: newSize(m, v) - v.Size})
		}
	}
	return result, nil
}

func isDelete(m ent.Mutation) bool { return m.Op().Is(ent.OpDelete | ent.OpDeleteOne) }

// mutate runs the mutation. An error that does not tell that nothing was
// changed, such as one of a registry's own hook after the statement, refuses
// the transaction: its function may go on and want to commit.
func mutate(ctx context.Context, tx *entpgx.Tx, m ent.Mutation, next ent.Mutator) (ent.Value, error) {
	value, err := next.Mutate(ctx, m)
	if err != nil && !ent.IsNotFound(err) && !ent.IsValidationError(err) {
		tx.Refuse(fmt.Errorf("%s of %s failed, perhaps after it had changed rows: %w", m.Op(), m.Type(), err))
	}
	return value, err
}

// newSize is the size that the mutation gives the row.
func newSize(m versionMutation, v versions.Version) int64 {
	if size, ok := m.SizeBytes(); ok {
		return size
	}
	added, _ := m.AddedSizeBytes()
	return v.Size + added
}

// count adds a change of a version to its repository, and its component to its
// namespace. The namespace's bytes are those of its blobs, not of versions.
func count(tx *entpgx.Tx, v versions.Version, change accounting.Counters) {
	tx.Add(accounting.RepositoryScope(v.Namespace, v.Repository), change)
	tx.Add(accounting.NamespaceScope(v.Namespace), accounting.Counters{Components: change.Components})
}

// lock locks the rows that the mutation is about and narrows it to them. The
// predicates are asked again after the lock: a row may have ceased to match
// while another transaction held it.
func (h versionHook[M]) lock(ctx context.Context, tx *entpgx.Tx, m M) ([]versions.Version, error) {
	ids, err := m.IDs(ctx)
	if err != nil {
		return nil, err
	}
	rows, err := h.table.Lock(ctx, tx.Pgx(), `id = ANY ($1)`, ids)
	if err != nil {
		return nil, err
	}
	locked := make([]any, 0, len(rows))
	for _, v := range rows {
		locked = append(locked, v.ID)
	}
	m.WhereP(func(s *sql.Selector) { s.Where(sql.In(s.C("id"), locked...)) })
	if m.Op().Is(ent.OpUpdateOne) {
		return rows, nil
	}
	matching, err := matchingIDs(ctx, m)
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(rows, func(v versions.Version) bool { return !slices.Contains(matching, v.ID) }), nil
}

// matchingIDs asks the predicates. A delete of one row, which has predicates
// too, would answer with its id unasked.
func matchingIDs(ctx context.Context, m versionMutation) ([]uuid.UUID, error) {
	if op := m.Op(); op.Is(ent.OpDeleteOne) {
		m.SetOp(ent.OpDelete)
		defer m.SetOp(op)
	}
	return m.IDs(ctx)
}
