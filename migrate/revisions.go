package migrate

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"

	atlas "ariga.io/atlas/sql/migrate"
	"ariga.io/atlas/sql/schema"
)

// cloudIdentifier is the version of a row that the Atlas CLI may add: it
// identifies the table and is no migration.
const cloudIdentifier = ".atlas_cloud_identifier"

// revisions is the Atlas CLI's table of applied migrations, in the schema where
// the CLI keeps it when its URL is bound to search_path=public.
type revisions struct{ db schema.ExecQuerier }

// createRevisions makes the table with the very columns that the CLI makes.
func createRevisions(ctx context.Context, db schema.ExecQuerier) error {
	_, err := db.ExecContext(ctx, `CREATE TABLE IF NOT EXISTS public.atlas_schema_revisions (
		version varchar NOT NULL,
		description varchar NOT NULL,
		type bigint NOT NULL DEFAULT 2,
		applied bigint NOT NULL DEFAULT 0,
		total bigint NOT NULL DEFAULT 0,
		executed_at timestamptz NOT NULL,
		execution_time bigint NOT NULL,
		error text,
		error_stmt text,
		hash varchar NOT NULL,
		partial_hashes jsonb,
		operator_version varchar NOT NULL,
		PRIMARY KEY (version)
	)`)
	return err
}

func revisionsExist(ctx context.Context, db schema.ExecQuerier) (bool, error) {
	return exists(ctx, db, "SELECT to_regclass('public.atlas_schema_revisions') IS NOT NULL")
}

// exists asks for one boolean.
func exists(ctx context.Context, db schema.ExecQuerier, query string, args ...any) (bool, error) {
	rows, err := db.QueryContext(ctx, query, args...)
	if err != nil {
		return false, err
	}
	defer rows.Close()
	var exist bool
	rows.Next()
	return exist, errors.Join(rows.Scan(&exist), rows.Err(), rows.Close())
}

// Ident names the table.
func (revisions) Ident() *atlas.TableIdent {
	return &atlas.TableIdent{Schema: "public", Name: "atlas_schema_revisions"}
}

// ReadRevisions returns all, oldest first. The collation is the order of bytes,
// in which the library compares versions.
func (r revisions) ReadRevisions(ctx context.Context) ([]*atlas.Revision, error) {
	return r.query(ctx, `WHERE version <> $1 ORDER BY version COLLATE "C"`, cloudIdentifier)
}

// ReadRevision returns one, or atlas.ErrRevisionNotExist.
func (r revisions) ReadRevision(ctx context.Context, version string) (*atlas.Revision, error) {
	found, err := r.query(ctx, "WHERE version = $1", version)
	if err != nil {
		return nil, err
	}
	if len(found) == 0 {
		return nil, atlas.ErrRevisionNotExist
	}
	return found[0], nil
}

func (r revisions) query(ctx context.Context, where string, arg string) ([]*atlas.Revision, error) {
	rows, err := r.db.QueryContext(ctx, `SELECT version, description, type, applied, total, executed_at, execution_time,
		coalesce(error, ''), coalesce(error_stmt, ''), hash, coalesce(partial_hashes, 'null'), operator_version
		FROM public.atlas_schema_revisions `+where, arg)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found []*atlas.Revision
	for rows.Next() {
		rev, err := scanRevision(rows)
		if err != nil {
			return nil, err
		}
		found = append(found, rev)
	}
	return found, rows.Err()
}

func scanRevision(rows *sql.Rows) (*atlas.Revision, error) {
	rev := &atlas.Revision{}
	var partial []byte
	if err := rows.Scan(&rev.Version, &rev.Description, &rev.Type, &rev.Applied, &rev.Total, &rev.ExecutedAt, &rev.ExecutionTime,
		&rev.Error, &rev.ErrorStmt, &rev.Hash, &partial, &rev.OperatorVersion); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(partial, &rev.PartialHashes); err != nil {
		return nil, fmt.Errorf("revision %s: partial_hashes: %w", rev.Version, err)
	}
	return rev, nil
}

// WriteRevision inserts or replaces one.
func (r revisions) WriteRevision(ctx context.Context, rev *atlas.Revision) error {
	partial, err := json.Marshal(rev.PartialHashes)
	if err != nil {
		return err
	}
	_, err = r.db.ExecContext(ctx, `INSERT INTO public.atlas_schema_revisions
		(version, description, type, applied, total, executed_at, execution_time, error, error_stmt, hash, partial_hashes, operator_version)
		VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)
		ON CONFLICT (version) DO UPDATE SET
			(description, type, applied, total, executed_at, execution_time, error, error_stmt, hash, partial_hashes, operator_version)
			= (excluded.description, excluded.type, excluded.applied, excluded.total, excluded.executed_at, excluded.execution_time,
				excluded.error, excluded.error_stmt, excluded.hash, excluded.partial_hashes, excluded.operator_version)`,
		rev.Version, rev.Description, int64(rev.Type), rev.Applied, rev.Total, rev.ExecutedAt, int64(rev.ExecutionTime),
		rev.Error, rev.ErrorStmt, rev.Hash, string(partial), rev.OperatorVersion)
	return err
}

// DeleteRevision removes one.
func (r revisions) DeleteRevision(ctx context.Context, version string) error {
	_, err := r.db.ExecContext(ctx, "DELETE FROM public.atlas_schema_revisions WHERE version = $1", version)
	return err
}
