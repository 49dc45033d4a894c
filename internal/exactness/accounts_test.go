package exactness

import (
	"context"
	"fmt"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
)

// account is what is known of one scope, at one instant.
type account struct {
	// row holds the counters, entered is the sum of all that the ledger applied
	// and corrected, and recounted is what the content is.
	row, entered, recounted accounting.Counters
}

func (a account) exact() bool { return a.row == a.recounted && a.entered == a.recounted }

func (a account) String() string {
	return fmt.Sprintf("the content is %v, the row says %v, the ledger %v", a.recounted, a.row, a.entered)
}

// accountsSQL recounts in words of its own.
const accountsSQL = `
WITH repository AS (
	SELECT r.id, r.size_bytes, r.artifacts_count, v.bytes, v.components
	FROM repositories r CROSS JOIN LATERAL (
		SELECT coalesce(sum(size_bytes), 0)::bigint AS bytes, count(*) AS components FROM (
			SELECT size_bytes FROM container_manifests WHERE repository_id = r.id
			UNION ALL SELECT size_bytes FROM maven_versions WHERE repository_id = r.id
			UNION ALL SELECT size_bytes FROM npm_versions WHERE repository_id = r.id) AS version
	) AS v WHERE r.namespace_id = $1
), scope AS (
	SELECT 2 AS kind, * FROM repository
	UNION ALL
	SELECT 1, namespace_id, deduplicated_size_bytes, components_count,
	       (SELECT coalesce(sum(size_bytes), 0)::bigint FROM blob_storage_blobs_by_namespace WHERE namespace_id = $1),
	       (SELECT coalesce(sum(components), 0)::bigint FROM repository)
	FROM namespace_statistics WHERE namespace_id = $1
), entered AS (
	SELECT scope_id AS id, sum(bytes)::bigint AS bytes, sum(components)::bigint AS components
	FROM storage_ledger WHERE namespace_id = $1 AND outcome IN (1, 4) GROUP BY scope_id
)
SELECT kind, id, size_bytes, artifacts_count, coalesce(e.bytes, 0), coalesce(e.components, 0), s.bytes, s.components
FROM scope s LEFT JOIN entered e USING (id)`

// accounts are those of every scope of a namespace that exists.
func (s *servers) accounts(ctx context.Context, namespace uuid.UUID) (map[accounting.Scope]account, error) {
	rows, err := s.pool.Query(ctx, accountsSQL, namespace)
	if err != nil {
		return nil, err
	}
	accounts := map[accounting.Scope]account{}
	scope := accounting.Scope{Namespace: namespace}
	var a account
	_, err = pgx.ForEachRow(rows, []any{
		&scope.Kind, &scope.ID, &a.row.Bytes, &a.row.Components, &a.entered.Bytes, &a.entered.Components, &a.recounted.Bytes, &a.recounted.Components,
	}, func() error {
		accounts[scope] = a
		return nil
	})
	return accounts, err
}
