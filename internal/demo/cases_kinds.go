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

// evicted is a remote repository that caches all lines and keeps the first.
func evicted(format schematype.Format, lines []publishes.Publish) scenario {
	return scenario{
		name: "evicted-" + format.String(), format: format, kind: schematype.KindRemote,
		what: fmt.Sprintf("a remote repository caches %d versions and evicts %d", len(lines), len(lines)-1),
		do: func(ctx context.Context, s site) error {
			if err := s.publishes(ctx, lines...); err != nil {
				return err
			}
			var refs []entpublish.Ref
			for _, line := range lines[1:] {
				refs = append(refs, s.ref(line))
			}
			err := s.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
				_, err := entpublish.PurgeMany(ctx, tx, refs)
				return err
			})
			if err != nil {
				return err
			}
			return s.collect(ctx, s.namespace)
		},
		want: holding(lines[0]),
	}
}

// refused is a virtual repository, which stores nothing.
func refused(format schematype.Format, line publishes.Publish) scenario {
	return scenario{
		name: "refused-" + format.String(), format: format, kind: schematype.KindVirtual,
		what: "a virtual repository refuses a version",
		do: func(ctx context.Context, s site) error {
			err := s.publishes(ctx, line)
			switch {
			case errors.Is(err, entdb.ErrVirtual):
				return nil
			case err == nil:
				return fmt.Errorf("it stored the version: %w", ErrInexact)
			default:
				return err
			}
		},
	}
}
