package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/publishes"
)

// twinLayer publishes the manifests that list a layer twice.
func twinLayer(lines []publishes.Publish) (scenario, error) {
	var twins []publishes.Publish
	var layer publishes.Blob
	for _, p := range ofFormat(lines, schematype.FormatContainer) {
		if twin, ok := listedTwice(p); ok {
			twins, layer = append(twins, p), twin
		}
	}
	if len(twins) == 0 {
		return scenario{}, errors.New("the data has no manifest that lists a layer twice")
	}
	return scenario{
		name: "twin-layer", format: schematype.FormatContainer, kind: schematype.KindHosted,
		what: fmt.Sprintf("%d manifests of %s list layer %.15s... of %d bytes twice, which counts once in each",
			len(twins), twins[0].Name, layer.SHA256, layer.Size),
		do:   func(ctx context.Context, s site) error { return s.publishes(ctx, twins...) },
		want: holding(twins...),
	}, nil
}

func listedTwice(p publishes.Publish) (publishes.Blob, bool) {
	for i, b := range p.Blobs {
		if slices.Contains(p.Blobs[:i], b) {
			return b, true
		}
	}
	return publishes.Blob{}, false
}

// imageIndex pushes the platforms of the tag that has the most, and their index,
// in the order of a client, and twice.
func imageIndex(lines []publishes.Publish) (scenario, error) {
	platforms := mostPlatforms(lines)
	if len(platforms) < 2 {
		return scenario{}, errors.New("the data has no tag that several platforms share")
	}
	want := holding(platforms...)
	want.repository.Components++
	want.namespace.Components++
	return scenario{
		name: "image-index", format: schematype.FormatContainer, kind: schematype.KindHosted,
		what: fmt.Sprintf("blobs, then %d platforms of %s:%s, then their index, all pushed twice, and the tag moves",
			len(platforms), platforms[0].Name, platforms[0].Reference),
		do: func(ctx context.Context, s site) error {
			return errors.Join(s.pushIndex(ctx, platforms), s.pushIndex(ctx, platforms))
		},
		want: want,
	}, nil
}

func mostPlatforms(lines []publishes.Publish) []publishes.Publish {
	type tag struct{ repository, name, reference string }
	var most []publishes.Publish
	byTag := make(map[tag][]publishes.Publish)
	for _, p := range ofFormat(lines, schematype.FormatContainer) {
		of := tag{p.Repository, p.Name, p.Reference}
		byTag[of] = append(byTag[of], p)
		if len(byTag[of]) > len(most) {
			most = byTag[of]
		}
	}
	return most
}

func (s site) pushIndex(ctx context.Context, platforms []publishes.Publish) error {
	first := platforms[0]
	index := entpublish.Version{Ref: entpublish.Ref{
		RepositoryID: s.repository, Name: first.Name, Digest: sha256.Sum256([]byte("index of " + first.Reference)),
	}}
	var blobs []entpublish.Blob
	for _, p := range platforms {
		index.Children = append(index.Children, p.Digest)
		blobs = append(blobs, s.version(p).Blobs...)
	}
	err := s.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		return entpublish.PutBlobs(ctx, tx, s.namespace, blobs)
	})
	if err != nil {
		return err
	}
	if err := s.publishes(ctx, platforms...); err != nil {
		return err
	}
	return s.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
		if err := entpublish.Tag(ctx, tx, s.ref(first), first.Reference); err != nil {
			return err
		}
		if _, err := entpublish.Publish(ctx, tx, index); err != nil {
			return err
		}
		return entpublish.Tag(ctx, tx, index.Ref, first.Reference)
	})
}

// mountedBlobs takes an image's blobs from the first namespace of the data.
func mountedBlobs(lines []publishes.Publish) (scenario, error) {
	some := ofFormat(lines, schematype.FormatContainer)
	if len(some) == 0 {
		return scenario{}, errors.New("the data has no manifest")
	}
	image := some[0]
	return scenario{
		name: "mounted-blobs", format: schematype.FormatContainer, kind: schematype.KindHosted,
		what: fmt.Sprintf("the blobs of %s:%s are mounted from another namespace, then its manifest is pushed", image.Name, image.Reference),
		do: func(ctx context.Context, s site) error {
			err := s.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
				for _, b := range image.Blobs {
					if _, err := entpublish.MountBlob(ctx, tx, s.namespaces[0].id, s.namespace, b.SHA256); err != nil {
						return err
					}
				}
				return nil
			})
			if err != nil {
				return err
			}
			return s.publishes(ctx, image)
		},
		want: holding(image),
	}, nil
}

// sharedBlob purges a manifest that shares blobs with one that stays.
func sharedBlob(lines []publishes.Publish) (scenario, error) {
	images := ofFormat(lines, schematype.FormatContainer)
	for _, kept := range publishes.Kept(images) {
		for _, deleted := range publishes.Deleted(images) {
			if saved := shared(kept, deleted); saved > 0 {
				return keptBlob(kept, deleted, saved), nil
			}
		}
	}
	return scenario{}, errors.New("the data has no blob that a deleted and a kept manifest share")
}

func keptBlob(kept, deleted publishes.Publish, saved int64) scenario {
	return scenario{
		name: "shared-blob", format: schematype.FormatContainer, kind: schematype.KindHosted,
		what: fmt.Sprintf("%s:%s is deleted and collected, but not the %d bytes that it shares with %s:%s",
			deleted.Name, deleted.Reference, saved, kept.Name, kept.Reference),
		do: func(ctx context.Context, s site) error {
			if err := s.publishes(ctx, kept, deleted); err != nil {
				return err
			}
			err := s.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
				if err := entpublish.SoftDelete(ctx, tx, s.ref(deleted)); err != nil {
					return err
				}
				return entpublish.Purge(ctx, tx, s.ref(deleted))
			})
			if err != nil {
				return err
			}
			return s.collect(ctx, s.namespace)
		},
		want: holding(kept),
	}
}

// shared are the bytes that two versions have in common.
func shared(a, b publishes.Publish) int64 {
	both := publishes.Sum([]publishes.Publish{a, b})
	return both.LogicalBytes - both.DeduplicatedBytes
}
