package demo

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/publishes"
)

// scenario is a case that a registry meets. It has a namespace with one
// repository of its own, so one drain is enough for all of them.
type scenario struct {
	// name is the namespace's slug, and what a difference is told by.
	name, what string
	format     schematype.Format
	kind       schematype.Kind
	do         func(context.Context, site) error
	// want is what is there in the end.
	want outcome
	// home is set when the scenario begins.
	home namespace
}

// outcome is what a scenario's two scopes must hold.
type outcome struct{ repository, namespace accounting.Counters }

// holding is the outcome when the lines, and nothing else, are there.
func holding(lines ...publishes.Publish) outcome {
	totals := publishes.Sum(lines)
	return outcome{
		repository: accounting.Counters{Bytes: totals.LogicalBytes, Components: totals.Versions},
		namespace:  accounting.Counters{Bytes: totals.DeduplicatedBytes, Components: totals.Versions},
	}
}

// scenarios builds every case from the lines of the data.
func scenarios(lines []publishes.Publish) ([]scenario, error) {
	var all []scenario
	for _, build := range []func([]publishes.Publish) (scenario, error){
		twinLayer, imageIndex, mountedBlobs, sharedBlob,
		replacedSnapshot, oneJarTwice,
		distTags, unpublished,
	} {
		s, err := build(lines)
		if err != nil {
			return nil, fmt.Errorf("cases: %w", err)
		}
		all = append(all, s)
	}
	for _, format := range schematype.Formats() {
		some := ofFormat(lines, format)
		if len(some) < 3 {
			return nil, fmt.Errorf("cases: the data has %d lines of %s, want 3 or more", len(some), format)
		}
		all = append(all, evicted(format, some[:3]), refused(format, some[0]))
	}
	return all, nil
}

func ofFormat(lines []publishes.Publish, format schematype.Format) []publishes.Publish {
	return slices.DeleteFunc(slices.Clone(lines), func(p publishes.Publish) bool { return p.Format != format })
}

// site is where a scenario does its work.
type site struct {
	*demo
	namespace, repository uuid.UUID
}

func (s site) version(p publishes.Publish) entpublish.Version { return versionOf(p, s.repository) }

func (s site) ref(p publishes.Publish) entpublish.Ref { return s.version(p).Ref }

// publishes stores the lines, each in a transaction of its own.
func (s site) publishes(ctx context.Context, lines ...publishes.Publish) error {
	for _, line := range lines {
		err := s.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
			_, err := entpublish.Publish(ctx, tx, s.version(line))
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func (d *demo) runScenarios(ctx context.Context) error {
	for i := range d.scenarios {
		s := &d.scenarios[i]
		fmt.Fprintf(d.Out, "  %s: %s\n", s.name, s.what)
		if err := d.runScenario(ctx, s); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return nil
}

func (d *demo) runScenario(ctx context.Context, s *scenario) error {
	ns, err := d.db.Namespace.Create().SetSlug(s.name).Save(ctx)
	if err != nil {
		return err
	}
	name := s.kind.String()
	repository, err := d.db.Repository.Create().SetNamespaceID(ns.ID).SetName(name).SetFormat(s.format).SetKind(s.kind).Save(ctx)
	if err != nil {
		return err
	}
	s.home = namespace{id: ns.ID, slug: s.name, repositories: map[string]uuid.UUID{name: repository.ID}}
	return s.do(ctx, site{demo: d, namespace: ns.ID, repository: repository.ID})
}

func (d *demo) compareScenarios(ctx context.Context) ([]result, error) {
	want := make(map[string]outcome)
	var homes []namespace
	for _, s := range d.scenarios {
		want[s.name] = s.want
		homes = append(homes, s.home)
	}
	return d.compare(ctx, homes, func(r result) accounting.Counters {
		if r.repository == "" {
			return want[r.namespace].namespace
		}
		return want[r.namespace].repository
	})
}
