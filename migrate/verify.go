package migrate

import (
	"context"
	"errors"
	"fmt"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Verify checks that the database is exactly what this build's migrations
// leave. It writes nothing and costs a few reads of the catalog. It checks that
//
//   - the embedded directory equals its atlas.sum;
//   - every migration of it is applied in full, none is unknown to this build,
//     and each has the content that was applied (by hash);
//   - every object that the migrations leave in the schemas public and river,
//     which are those in schema.sql, stands there with the same definition:
//     tables with their columns, defaults and constraints, indexes, functions,
//     and triggers that are enabled; and that the tables that are partitioned
//     by hash have all their partitions.
//
// It does not look at rows, owners, privileges, the partitions of the ledger,
// or objects beside ours. The error names everything that is wrong, not only
// the first.
func Verify(ctx context.Context, pool *pgxpool.Pool) error {
	dir, err := directory()
	if err != nil {
		return err
	}
	revs, err := readRevisions(ctx, pool)
	if err != nil {
		return err
	}
	problems, err := verifyRevisions(dir, revs)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		// The objects would only repeat it.
		return errors.Join(problems...)
	}
	dump, err := Dump(ctx, pool)
	if err != nil {
		return err
	}
	return compare(schemaSQL, dump)
}

// verifyRevisions compares the directory with what was applied.
func verifyRevisions(dir atlas.Dir, revs []*atlas.Revision) (problems []error, err error) {
	sum, err := dir.Checksum()
	if err != nil {
		return nil, err
	}
	s, err := state(dir, revs)
	if err != nil {
		return nil, err
	}
	for _, m := range s.Pending {
		pending := fmt.Errorf("migration %s (%s) is not applied: run stowage migrate apply", m.Version, m.Description)
		if m.Failed != "" {
			pending = fmt.Errorf("%w; %s", pending, m.Failed)
		}
		problems = append(problems, pending)
	}
	hashes := map[string]string{}
	files, err := dir.Files()
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		hash, err := sum.SumByName(file.Name())
		if err != nil {
			return nil, err
		}
		hashes[file.Version()] = hash
	}
	for _, rev := range revs {
		switch hash, ok := hashes[rev.Version]; {
		case !ok:
			problems = append(problems, fmt.Errorf("migration %s (%s) is applied, but this build does not have it: is the build older than the database?", rev.Version, rev.Description))
		case hash != rev.Hash:
			problems = append(problems, fmt.Errorf("migration %s (%s) was applied with other content (%s, this build has %s): an applied migration must never change", rev.Version, rev.Description, rev.Hash, hash))
		}
	}
	return problems, nil
}
