package migrate

import (
	"context"
	"errors"
	"io/fs"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/jackc/pgx/v5/pgxpool"
)

// ApplyDir is Apply with a directory of the test's own.
func ApplyDir(ctx context.Context, pool *pgxpool.Pool, dir atlas.Dir, opts Options) error {
	return apply(ctx, pool, dir, opts)
}

// DownDir is Down with a directory of the test's own, and its down files.
func DownDir(ctx context.Context, pool *pgxpool.Pool, dir atlas.Dir, downs fs.FS, opts DownOptions) error {
	return down(ctx, pool, dir, downs, opts)
}

// StatusDir is Status with a directory of the test's own.
func StatusDir(ctx context.Context, pool *pgxpool.Pool, dir atlas.Dir) (State, error) {
	return status(ctx, pool, dir)
}

// VerifyRecordDir is that part of Verify that compares the record with a
// directory, of the test's own.
func VerifyRecordDir(ctx context.Context, pool *pgxpool.Pool, dir atlas.Dir) error {
	revs, err := readRevisions(ctx, pool)
	if err != nil {
		return err
	}
	problems, err := verifyRevisions(dir, revs)
	return errors.Join(err, errors.Join(problems...))
}

// Load reads a directory as the embedded one is read.
var Load = load
