package demo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/publishes"
)

// collectLimit is how many blobs one transaction of a collection removes.
const collectLimit = 200

// namespace is a namespace of the demo with its repositories, by name.
type namespace struct {
	id           uuid.UUID
	slug         string
	repositories map[string]uuid.UUID
}

// stage is a piece of work, and the comparison of what is there after it with
// what must be.
type stage struct {
	title   string
	work    func(context.Context) error
	compare func(context.Context) ([]result, error)
}

func (d *demo) stages() []stage {
	holdsAll := func(ctx context.Context) ([]result, error) { return d.compareData(ctx, d.lines, d.all) }
	return []stage{
		{
			title:   fmt.Sprintf("%d publishes into each of %d namespaces by %d writers", len(d.lines), len(d.namespaces), d.Writers),
			work:    func(ctx context.Context) error { return d.publish(ctx, d.lines) },
			compare: holdsAll,
		},
		{
			title: "every second line is soft-deleted and purged, unreferenced blobs are collected",
			work:  func(ctx context.Context) error { return d.remove(ctx, publishes.Deleted(d.lines)) },
			compare: func(ctx context.Context) ([]result, error) {
				return d.compareData(ctx, publishes.Kept(d.lines), d.kept)
			},
		},
		{
			title:   "those lines are published again while both namespaces are reconciled",
			work:    func(ctx context.Context) error { return d.republish(ctx, publishes.Deleted(d.lines)) },
			compare: holdsAll,
		},
		{
			title:   fmt.Sprintf("%d cases of what a registry does, each in a namespace of its own", len(d.scenarios)),
			work:    d.runScenarios,
			compare: d.compareScenarios,
		},
		{
			title:   "the last namespace is deleted by the worker, and its content from storage",
			work:    d.deleteLast,
			compare: holdsAll,
		},
	}
}

func (d *demo) createNamespaces(ctx context.Context, slugs ...string) error {
	formats := make(map[string]schematype.Format)
	for _, p := range d.lines {
		formats[p.Repository] = p.Format
	}
	for _, slug := range slugs {
		created, err := d.db.Namespace.Create().SetSlug(slug).Save(ctx)
		if err != nil {
			return err
		}
		ns := namespace{id: created.ID, slug: slug, repositories: make(map[string]uuid.UUID)}
		for name, format := range formats {
			repository, err := d.db.Repository.Create().SetNamespaceID(ns.id).SetName(name).
				SetFormat(format).SetKind(schematype.KindHosted).Save(ctx)
			if err != nil {
				return err
			}
			ns.repositories[name] = repository.ID
		}
		d.namespaces = append(d.namespaces, ns)
	}
	return nil
}

// each runs do for every line in every namespace, Writers at once, each in a
// transaction of its own.
func (d *demo) each(ctx context.Context, what string, lines []publishes.Publish, do func(context.Context, *entdb.Tx, entpublish.Version) error) error {
	d.Progress.Begin(what, len(lines)*len(d.namespaces))
	defer d.Progress.End()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(d.Writers)
	for _, line := range lines {
		for _, ns := range d.namespaces {
			group.Go(func() error {
				if err := ctx.Err(); err != nil {
					return context.Cause(ctx)
				}
				defer d.Progress.Step()
				return d.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
					return do(ctx, tx, versionOf(line, ns.repositories[line.Repository]))
				})
			})
		}
	}
	return group.Wait()
}

// versionOf is a line as a version of a repository.
func versionOf(p publishes.Publish, repository uuid.UUID) entpublish.Version {
	v := entpublish.Version{Ref: entpublish.Ref{
		RepositoryID: repository, Name: p.Name, Version: p.Version, Digest: p.Digest,
	}}
	for _, b := range p.Blobs {
		blob := entpublish.Blob{Digest: b.SHA256, Size: b.Size}
		if p.Format == schematype.FormatMaven {
			v.Files = append(v.Files, entpublish.File{Path: b.Name, Blob: blob})
		} else {
			v.Blobs = append(v.Blobs, blob)
		}
	}
	return v
}

func (d *demo) publish(ctx context.Context, lines []publishes.Publish) error {
	return d.each(ctx, "publish", lines, func(ctx context.Context, tx *entdb.Tx, v entpublish.Version) error {
		_, err := entpublish.Publish(ctx, tx, v)
		return err
	})
}

func (d *demo) remove(ctx context.Context, lines []publishes.Publish) error {
	err := d.each(ctx, "soft-delete", lines, func(ctx context.Context, tx *entdb.Tx, v entpublish.Version) error {
		return entpublish.SoftDelete(ctx, tx, v.Ref)
	})
	if err != nil {
		return err
	}
	err = d.each(ctx, "purge", lines, func(ctx context.Context, tx *entdb.Tx, v entpublish.Version) error {
		return entpublish.Purge(ctx, tx, v.Ref)
	})
	if err != nil {
		return err
	}
	for _, ns := range d.namespaces {
		if err := d.collect(ctx, ns.id); err != nil {
			return err
		}
	}
	return nil
}

// collect gives no grace: nobody stores blobs ahead of their version meanwhile.
func (d *demo) collect(ctx context.Context, namespaceID uuid.UUID) error {
	for collected := 1; collected > 0; {
		err := d.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
			blobs, err := entpublish.CollectBlobs(ctx, tx, namespaceID, 0, collectLimit)
			collected = len(blobs)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// republish keeps requests for reconciliation coming from before the first
// publish until after the last.
func (d *demo) republish(ctx context.Context, lines []publishes.Publish) error {
	start, err := d.reconciliations(ctx)
	if err != nil {
		return err
	}
	reconciling, stop := context.WithCancel(ctx)
	defer stop()
	var passes int
	var group errgroup.Group
	group.Go(func() (err error) {
		passes, err = d.keepRequesting(reconciling)
		return err
	})
	err = d.republishDuring(ctx, lines, start)
	stop()
	err = errors.Join(err, group.Wait())
	if err == nil {
		fmt.Fprintf(d.Out, "%d reconciliations ended meanwhile\n", passes)
	}
	return err
}

// republishDuring begins when each namespace has been reconciled once, so that
// the next pass of each meets the writers.
func (d *demo) republishDuring(ctx context.Context, lines []publishes.Publish, start []time.Time) error {
	if err := d.waitForPasses(ctx, start); err != nil {
		return err
	}
	if err := d.publish(ctx, lines); err != nil {
		return err
	}
	during, err := d.reconciliations(ctx)
	if err != nil {
		return err
	}
	return d.waitForPasses(ctx, during)
}
