package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/publishes"
)

// contentLimit is how many contents one transaction deletes.
const contentLimit = 500

// errLeft says that a deletion left something behind, or lost it.
var errLeft = errors.New("the deletion is not complete")

// deleteLast has the worker delete the last namespace of the data, deletes its
// content, and looks for what is left.
func (d *demo) deleteLast(ctx context.Context) error {
	last := len(d.namespaces) - 1
	doomed := d.namespaces[last]
	err := d.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.ScheduleNamespaceDeletion(ctx, tx, doomed.id)
	})
	if err != nil {
		return err
	}
	err = poll(ctx, "wait for the deletion of "+doomed.slug, func(ctx context.Context) (gone bool, err error) {
		err = d.Pool.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM deletion_requests WHERE scope_id = $1)`, doomed.id).Scan(&gone)
		return gone, err
	})
	if err != nil {
		return err
	}
	content := make(map[schematype.Digest]bool)
	err = poll(ctx, "delete the content of "+doomed.slug, func(ctx context.Context) (bool, error) {
		return d.deleteContent(ctx, doomed, content)
	})
	if err != nil {
		return err
	}
	d.namespaces = d.namespaces[:last]
	return errors.Join(checkContent(d.lines, content), d.nothingLeft(ctx, doomed), d.nothingBuffered(ctx, doomed))
}

// deleteContent notes what it is told to delete of a namespace, and reports
// whether that is all.
func (d *demo) deleteContent(ctx context.Context, ns namespace, told map[schematype.Digest]bool) (done bool, err error) {
	err = d.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		_, err := entpublish.DeleteContent(ctx, tx, contentLimit, func(_ context.Context, c entpublish.Content) error {
			if c.NamespaceID == ns.id {
				told[c.Digest] = true
			}
			return nil
		})
		if err != nil {
			return err
		}
		left, err := entpublish.FindUnreferenced(ctx, tx, ns.id)
		done = left.Content.Blobs == 0
		return err
	})
	return done, err
}

// checkContent compares what was to be deleted with the blobs of the lines.
func checkContent(lines []publishes.Publish, told map[schematype.Digest]bool) error {
	stored := make(map[schematype.Digest]bool)
	for _, p := range lines {
		for _, b := range p.Blobs {
			stored[b.SHA256] = true
			if !told[b.SHA256] {
				return fmt.Errorf("%w: storage was never told to delete blob %s", errLeft, b.SHA256)
			}
		}
	}
	if len(told) != len(stored) {
		return fmt.Errorf("%w: storage was told to delete %d blobs, but %d were stored", errLeft, len(told), len(stored))
	}
	return nil
}

// nothingLeft looks for rows of a namespace in every table that could have some.
// The ledger and the history of usage outlive it.
func (d *demo) nothingLeft(ctx context.Context, ns namespace) error {
	rows, err := d.Pool.Query(ctx, `
		SELECT format('SELECT %1$L WHERE EXISTS (SELECT FROM %1$I WHERE %2$I = $1)', table_name, column_name)
		FROM information_schema.columns
		WHERE table_schema = 'public' AND (table_name = 'namespaces' AND column_name = 'id' OR column_name IN ('namespace_id', 'scope_id'))
			AND table_name <> ALL ($1) AND table_name NOT LIKE 'usage\_%'`, []string{"storage_ledger", "reconciliation_requests"})
	if err != nil {
		return err
	}
	queries, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	for _, query := range queries {
		var table string
		switch err := d.Pool.QueryRow(ctx, query, ns.id).Scan(&table); {
		case errors.Is(err, pgx.ErrNoRows):
		case err != nil:
			return err
		default:
			return fmt.Errorf("%w: %s has rows of %s", errLeft, table, ns.slug)
		}
	}
	fmt.Fprintf(d.Out, "%s is gone: no row in %d tables\n", ns.slug, len(queries))
	return nil
}

// nothingBuffered waits until Redis holds nothing of a namespace.
func (d *demo) nothingBuffered(ctx context.Context, ns namespace) error {
	return poll(ctx, "wait until nothing of "+ns.slug+" is buffered", func(ctx context.Context) (bool, error) {
		return d.drained(ctx, []namespace{ns})
	})
}
