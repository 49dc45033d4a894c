package entdb

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/schematype"
)

// Check finds out, when a registry starts, whether the database knows exactly the
// formats that this build counts: one more in the database would be published by
// a newer build, one fewer cannot be stored. New has found already that each
// format of this build has its counting path. Error: ErrFormats.
func (c *Client) Check(ctx context.Context) error {
	return errors.Join(
		c.checkFormats(ctx, "repositories", "ck_repositories_format", "format"),
		c.checkFormats(ctx, "blob_storage_attachments", "ck_blob_storage_attachments_version_table", "version_table"),
	)
}

// checkFormats asks a CHECK constraint which numbers it allows.
func (c *Client) checkFormats(ctx context.Context, table, constraint, column string) error {
	var condition string
	err := c.pool.QueryRow(ctx,
		`SELECT pg_get_expr(conbin, conrelid) FROM pg_constraint WHERE conrelid = to_regclass($1) AND conname = $2`, table, constraint).Scan(&condition)
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: constraint %s is not there", ErrFormats, constraint)
	}
	if err != nil {
		return fmt.Errorf("check formats: %w", err)
	}
	rows, err := c.pool.Query(ctx, `
		SELECT `+column+` FROM (SELECT n::smallint AS `+column+` FROM generate_series(-32768, 32767) AS n) AS numbers
		WHERE `+condition+` ORDER BY 1`)
	if err != nil {
		return fmt.Errorf("check formats: %w", err)
	}
	allowed, err := pgx.CollectRows(rows, pgx.RowTo[int16])
	if err != nil {
		return fmt.Errorf("check formats: %w", err)
	}
	var counted []int16
	for _, format := range schematype.Formats() {
		counted = append(counted, int16(format))
	}
	if !slices.Equal(allowed, counted) {
		return fmt.Errorf("%w: constraint %s allows %v, this build counts %v", ErrFormats, constraint, allowed, counted)
	}
	return nil
}
