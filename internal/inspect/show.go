package inspect

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/blobs"
	"github.com/stowage-dev/stowage/internal/usage"
)

// RepositoryUsage is a repository and what it stores.
type RepositoryUsage struct {
	Repository
	FormatName string       `json:"format"`
	KindName   string       `json:"kind"`
	Usage      *usage.Usage `json:"usage"`
}

// Overview is a namespace, what it stores, and a page of its repositories.
type Overview struct {
	Namespace Namespace `json:"namespace"`
	// Usage is nil when the namespace has no statistics row.
	Usage        *usage.Usage      `json:"usage"`
	Repositories []RepositoryUsage `json:"repositories"`
	// Unreferenced is nil unless it was asked for.
	Unreferenced *Unreferenced `json:"unreferenced,omitempty"`
	// Next is the name of the last repository when there are more.
	Next string `json:"next,omitempty"`
}

// Figures are a number of blobs and their sizes in bytes.
type Figures struct {
	Blobs int64 `json:"blobs"`
	Bytes int64 `json:"bytes"`
}

// Unreferenced is what a namespace has that no version needs, as
// entpublish.Unreferenced: blobs that were not collected yet, which count, and content
// of collected ones that was not deleted yet, which does not.
type Unreferenced struct {
	Unattached Figures `json:"unattached"`
	Content    Figures `json:"content"`
}

// Unreferenced reads what no version of a namespace needs. It reads the keys of all its
// blobs: a second for a million.
func (i *Inspector) Unreferenced(ctx context.Context, n Namespace) (*Unreferenced, error) {
	var u Unreferenced
	err := i.read(ctx, func(tx pgx.Tx) error {
		if err := setTimeout(ctx, tx, recountTimeout); err != nil {
			return err
		}
		found, err := blobs.FindUnreferenced(ctx, tx, n.ID)
		u = Unreferenced{Figures(found.Unattached), Figures(found.Content)}
		return err
	})
	if err != nil {
		return nil, err
	}
	return &u, nil
}

// Show reads a namespace and up to limit of its repositories in the order of their
// names, from the one that follows after.
func (i *Inspector) Show(ctx context.Context, n Namespace, after string, limit int) (*Overview, error) {
	o := &Overview{Namespace: n, Repositories: []RepositoryUsage{}}
	page, err := i.repositories(ctx, n.ID, after, limit+1)
	if err != nil {
		return nil, err
	}
	if len(page) > limit {
		page = page[:limit]
		o.Next = page[limit-1].Name
	}
	own := accounting.NamespaceScope(n.ID)
	scopes := []accounting.Scope{own}
	for _, r := range page {
		scopes = append(scopes, accounting.RepositoryScope(n.ID, r.ID))
	}
	usages, err := i.usages(ctx, scopes)
	if err != nil {
		return nil, err
	}
	o.Usage = usages[n.ID]
	for _, r := range page {
		if u := usages[r.ID]; u != nil { // else deleted meanwhile
			o.Repositories = append(o.Repositories, RepositoryUsage{Repository: r, FormatName: r.Format.String(), KindName: r.Kind.String(), Usage: u})
		}
	}
	return o, nil
}

func (i *Inspector) repositories(ctx context.Context, namespace uuid.UUID, after string, limit int) ([]Repository, error) {
	var page []Repository
	err := i.read(ctx, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `
			SELECT id, name, format, kind, created_at, soft_deleted_at FROM repositories
			WHERE namespace_id = $1 AND name > $2 ORDER BY name LIMIT $3`, namespace, after, limit)
		if err != nil {
			return err
		}
		page, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (r Repository, err error) {
			err = row.Scan(&r.ID, &r.Name, &r.Format, &r.Kind, &r.CreatedAt, &r.SoftDeletedAt)
			return r, err
		})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list repositories: %w", err)
	}
	return page, nil
}

// usages reads a namespace, the first of scopes, and repositories of it. When Redis
// does not answer, their precision says so.
func (i *Inspector) usages(ctx context.Context, scopes []accounting.Scope) (map[uuid.UUID]*usage.Usage, error) {
	pending, err := i.pending(ctx, scopes)
	if err != nil && ctx.Err() != nil {
		return nil, ctx.Err()
	}
	all := make(map[uuid.UUID]*usage.Usage, len(scopes))
	err = i.read(ctx, func(tx pgx.Tx) error {
		for kind, some := range map[accounting.ScopeKind][]accounting.Scope{
			accounting.KindNamespace: scopes[:1], accounting.KindRepository: scopes[1:],
		} {
			found, err := usage.Read(ctx, tx, kind, some, pending)
			if err != nil {
				return err
			}
			for id, u := range found {
				all[id] = &u
			}
		}
		return nil
	})
	return all, err
}
