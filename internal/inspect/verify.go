package inspect

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/reconcile"
	"github.com/stowage-dev/stowage/internal/usage"
)

// ErrRedis says that nothing can be verified, because what is buffered is not known.
var ErrRedis = errors.New("no answer from Redis: what is wrong cannot be told from what is only buffered")

// Off is a scope that is wrong, or that may be.
type Off struct {
	Kind        string              `json:"kind"`
	ID          uuid.UUID           `json:"id"`
	NamespaceID uuid.UUID           `json:"namespace_id"`
	Name        string              `json:"name"`
	Value       accounting.Counters `json:"value"`
	Recount     accounting.Counters `json:"recount"`
	// Difference is Recount less Value: what a reconciliation adds.
	Difference  accounting.Counters `json:"difference"`
	RequestedAt *time.Time          `json:"requested_at"`
	// Why is "drift"; "no row" for a namespace without a statistics row; or
	// "undecided" when writes went on all the time, and it may be right.
	Why string `json:"why"`
}

// What Off.Why says.
const (
	WhyDrift     = "drift"
	WhyNoRow     = "no row"
	WhyUndecided = "undecided"
)

// Verification is what became of verifying a namespace.
type Verification struct {
	// Scopes is how many there were.
	Scopes int
	// Off is empty when all of them are right.
	Off []Off
}

// Verify recounts a namespace and its repositories and compares them with their
// counters and what is on its way to these. It writes nothing. Errors: ErrNotFound,
// ErrRedis, reconcile.ErrOverflow.
func (i *Inspector) Verify(ctx context.Context, namespace uuid.UUID) (Verification, error) {
	var all []accounting.Scope
	err := i.read(ctx, func(tx pgx.Tx) (err error) {
		all, err = scopes(ctx, tx, namespace)
		return err
	})
	if err != nil {
		return Verification{}, err
	}
	findings, last, err := i.examine(ctx, question{namespace: namespace, scopes: all})
	switch {
	case err != nil:
		return Verification{}, err
	case !last.answered:
		return Verification{}, ErrRedis
	}
	v := Verification{Scopes: len(all)}
	for scope, f := range findings {
		if !f.agrees() {
			v.Off = append(v.Off, off(scope, f, last))
		}
	}
	if _, has := findings[accounting.NamespaceScope(namespace)]; !has {
		v.Off = append(v.Off, Off{
			Kind: accounting.KindNamespace.String(), ID: namespace, NamespaceID: namespace, RequestedAt: usage.At(last.requestedAt), Why: WhyNoRow,
		})
	}
	slices.SortFunc(v.Off, func(a, b Off) int {
		return cmp.Or(strings.Compare(a.Kind, b.Kind), strings.Compare(a.Name, b.Name))
	})
	return v, nil
}

func off(scope accounting.Scope, f finding, last *snapshot) Off {
	o := Off{
		Kind: scope.Kind.String(), ID: scope.ID, NamespaceID: scope.Namespace, Name: f.name,
		Value: f.row.Plus(f.outstanding()), Recount: f.recount, Difference: f.difference(),
		RequestedAt: usage.At(last.requestedAt), Why: WhyUndecided,
	}
	if f.differs() {
		o.Why = WhyDrift
	}
	return o
}

// Totals is what became of verifying many namespaces.
type Totals struct {
	// Namespaces is how many there were when it began, Done how many are verified.
	Namespaces int64 `json:"namespaces"`
	Done       int64 `json:"verified"`
	Scopes     int64 `json:"scopes"`
	Off        []Off `json:"off"`
	// Failed are the namespaces that cannot be recounted, by id, and why.
	Failed map[uuid.UUID]string `json:"failed"`
}

// Wrong is how many scopes are off for the given reason.
func (t *Totals) Wrong(why string) (n int) {
	for _, o := range t.Off {
		if o.Why == why {
			n++
		}
	}
	return n
}

// OK reports whether everything was found right.
func (t *Totals) OK() bool { return len(t.Off) == 0 && len(t.Failed) == 0 }

// Add enters what became of one namespace. An error that says nothing about others
// is entered too, and any other is returned.
func (t *Totals) Add(namespace uuid.UUID, v Verification, err error) error {
	switch {
	case errors.Is(err, ErrNotFound): // deleted meanwhile
		return nil
	case errors.Is(err, reconcile.ErrOverflow):
		t.Failed[namespace] = err.Error()
		return nil
	case err != nil:
		return fmt.Errorf("namespace %s: %w", namespace, err)
	}
	t.Done++
	t.Scopes += int64(v.Scopes)
	t.Off = append(t.Off, v.Off...)
	return nil
}

// NewTotals has verified nothing yet.
func NewTotals() *Totals { return &Totals{Off: []Off{}, Failed: map[uuid.UUID]string{}} }

// VerifyAll verifies every namespace, in pages by keyset. It tells progress after
// each. After an error the totals are those until then.
func (i *Inspector) VerifyAll(ctx context.Context, progress func(*Totals)) (*Totals, error) {
	totals := NewTotals()
	if err := i.Pool.QueryRow(ctx, `SELECT count(*) FROM namespaces`).Scan(&totals.Namespaces); err != nil {
		return totals, fmt.Errorf("count namespaces: %w", err)
	}
	err := i.eachNamespace(ctx, func(namespace uuid.UUID) error {
		v, err := i.Verify(ctx, namespace)
		if err := totals.Add(namespace, v, err); err != nil {
			return err
		}
		progress(totals)
		return nil
	})
	return totals, err
}

// namespacesPage is how many namespaces one query lists.
const namespacesPage = 1000

// eachNamespace goes through all namespaces in the order of their ids. An error of
// each ends it.
func (i *Inspector) eachNamespace(ctx context.Context, each func(uuid.UUID) error) error {
	for after := uuid.Nil; ; {
		rows, err := i.Pool.Query(ctx, `SELECT id FROM namespaces WHERE id > $1 ORDER BY id LIMIT $2`, after, namespacesPage)
		if err != nil {
			return fmt.Errorf("list namespaces: %w", err)
		}
		page, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
		if err != nil {
			return fmt.Errorf("list namespaces: %w", err)
		}
		for _, namespace := range page {
			if err := each(namespace); err != nil {
				return err
			}
		}
		if len(page) < namespacesPage {
			return nil
		}
		after = page[len(page)-1]
	}
}
