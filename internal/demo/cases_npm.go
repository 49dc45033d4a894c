package demo

import (
	"context"
	"errors"
	"fmt"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/publishes"
)

// distTags moves latest along as versions come, and deprecates the first for a
// while: neither counts.
func distTags(lines []publishes.Publish) (scenario, error) {
	versions, err := versionsOfOnePackage(lines, 3)
	if err != nil {
		return scenario{}, err
	}
	first := versions[0]
	return scenario{
		name: "dist-tags", format: schematype.FormatNPM, kind: schematype.KindHosted,
		what: fmt.Sprintf("latest of %s moves over %d versions, %s is deprecated for a while", first.Name, len(versions), first.Version),
		do: func(ctx context.Context, s site) error {
			if err := s.publishes(ctx, versions...); err != nil {
				return err
			}
			return s.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
				return errors.Join(s.moveTags(ctx, tx, versions), s.deprecateForAWhile(ctx, tx, first))
			})
		},
		want: holding(versions...),
	}, nil
}

func (s site) moveTags(ctx context.Context, tx *entdb.Tx, versions []publishes.Publish) error {
	for _, v := range versions {
		if err := entpublish.Tag(ctx, tx, s.ref(v), "latest", "next"); err != nil {
			return err
		}
	}
	return entpublish.Untag(ctx, tx, s.repository, versions[0].Name, "next")
}

func (s site) deprecateForAWhile(ctx context.Context, tx *entdb.Tx, p publishes.Publish) error {
	for _, message := range []string{"use the next one", ""} {
		if err := entpublish.Deprecate(ctx, tx, s.repository, p.Name, map[string]string{p.Version: message}); err != nil {
			return err
		}
	}
	return nil
}

// unpublished unpublishes one version, then all, then publishes one again.
func unpublished(lines []publishes.Publish) (scenario, error) {
	versions, err := versionsOfOnePackage(lines, 3)
	if err != nil {
		return scenario{}, err
	}
	first := versions[0]
	return scenario{
		name: "unpublished", format: schematype.FormatNPM, kind: schematype.KindHosted,
		what: fmt.Sprintf("%s is unpublished, one of %d versions, then all, and %s is published again", first.Name, len(versions), first.Version),
		do: func(ctx context.Context, s site) error {
			if err := s.publishes(ctx, versions...); err != nil {
				return err
			}
			err := s.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
				if err := entpublish.Purge(ctx, tx, s.ref(first)); err != nil {
					return err
				}
				_, err := entpublish.PurgeName(ctx, tx, s.repository, first.Name)
				return err
			})
			if err != nil {
				return err
			}
			return errors.Join(s.publishes(ctx, first), s.collect(ctx, s.namespace))
		},
		want: holding(first),
	}, nil
}

// versionsOfOnePackage are the first n of a package that has as many.
func versionsOfOnePackage(lines []publishes.Publish, n int) ([]publishes.Publish, error) {
	byName := make(map[string][]publishes.Publish)
	for _, p := range ofFormat(lines, schematype.FormatNPM) {
		byName[p.Name] = append(byName[p.Name], p)
		if len(byName[p.Name]) == n {
			return byName[p.Name], nil
		}
	}
	return nil, fmt.Errorf("the data has no npm package with %d versions", n)
}
