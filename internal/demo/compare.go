package demo

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/publishes"
)

// result is one scope: what its row holds, what the source tables give, and
// what the input says that it must be.
type result struct {
	namespace string
	// repository is empty for the namespace itself.
	repository                 string
	counter, recount, expected accounting.Counters
}

// name of the scope.
func (r result) name() string { return strings.TrimSuffix(r.namespace+"/"+r.repository, "/") }

func (r result) exact() bool {
	return r.counter.Minus(r.recount).IsZero() && r.counter.Minus(r.expected).IsZero()
}

func differences(results []result) []result {
	return slices.DeleteFunc(slices.Clone(results), result.exact)
}

// compareData compares every namespace of the data with the lines that it must
// hold, and their totals.
func (d *demo) compareData(ctx context.Context, published []publishes.Publish, totals publishes.Totals) ([]result, error) {
	repositories := expectedRepositories(published)
	return d.compare(ctx, d.namespaces, func(r result) accounting.Counters {
		if r.repository == "" {
			return accounting.Counters{Bytes: totals.DeduplicatedBytes, Components: totals.Versions}
		}
		return repositories[r.repository]
	})
}

// compare looks at every scope of the namespaces. Rows and recount are of the
// same snapshot.
func (d *demo) compare(ctx context.Context, namespaces []namespace, expected func(result) accounting.Counters) ([]result, error) {
	var results []result
	err := pgx.BeginTxFunc(ctx, d.Pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		for _, ns := range namespaces {
			some, err := compareNamespace(ctx, tx, ns)
			if err != nil {
				return fmt.Errorf("compare %s: %w", ns.slug, err)
			}
			results = append(results, some...)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range results {
		results[i].expected = expected(results[i])
	}
	return results, nil
}

func expectedRepositories(published []publishes.Publish) map[string]accounting.Counters {
	lines := make(map[string][]publishes.Publish)
	for _, p := range published {
		lines[p.Repository] = append(lines[p.Repository], p)
	}
	expected := make(map[string]accounting.Counters, len(lines))
	for repository, some := range lines {
		totals := publishes.Sum(some)
		expected[repository] = accounting.Counters{Bytes: totals.LogicalBytes, Components: totals.Versions}
	}
	return expected
}

// compareSQL recounts from blobs and attachments alone: neither the sizes that
// versions keep nor the shadow table, which reconciliation reads, take part.
// The namespace comes first, with a NULL repository.
const compareSQL = `
WITH versions AS (
	SELECT repository_id FROM container_manifests WHERE namespace_id = $1
	UNION ALL SELECT repository_id FROM maven_versions WHERE namespace_id = $1
	UNION ALL SELECT repository_id FROM npm_versions WHERE namespace_id = $1
), attached AS (
	SELECT a.repository_id, b.size_bytes
	FROM blob_storage_attachments a JOIN blob_storage_blobs b USING (namespace_id, sha256)
	WHERE a.namespace_id = $1
)
SELECT NULL::uuid, s.deduplicated_size_bytes, s.components_count,
	(SELECT coalesce(sum(size_bytes), 0)::bigint FROM blob_storage_blobs WHERE namespace_id = $1),
	(SELECT count(*) FROM versions)
FROM namespace_statistics s WHERE s.namespace_id = $1
UNION ALL
SELECT r.id, r.size_bytes, r.artifacts_count,
	(SELECT coalesce(sum(a.size_bytes), 0)::bigint FROM attached a WHERE a.repository_id = r.id),
	(SELECT count(*) FROM versions v WHERE v.repository_id = r.id)
FROM repositories r WHERE r.namespace_id = $1`

func compareNamespace(ctx context.Context, tx pgx.Tx, ns namespace) ([]result, error) {
	names := make(map[uuid.UUID]string, len(ns.repositories))
	for name, id := range ns.repositories {
		names[id] = name
	}
	rows, err := tx.Query(ctx, compareSQL, ns.id)
	if err != nil {
		return nil, err
	}
	results, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (result, error) {
		r := result{namespace: ns.slug}
		var repository *uuid.UUID
		err := row.Scan(&repository, &r.counter.Bytes, &r.counter.Components, &r.recount.Bytes, &r.recount.Components)
		if repository != nil {
			r.repository = names[*repository]
		}
		return r, err
	})
	if err != nil {
		return nil, err
	}
	if want := len(ns.repositories) + 1; len(results) != want {
		return nil, fmt.Errorf("%d rows of counters, want %d", len(results), want)
	}
	slices.SortFunc(results, func(a, b result) int { return cmp.Compare(a.repository, b.repository) })
	return results, nil
}

const (
	tableHead = "%-34s %44s   %26s\n"
	tableRow  = "%-34s %14s %14s %14s   %8s %8s %8s\n"
)

func printTable(out io.Writer, results []result) {
	fmt.Fprintf(out, tableHead, "", "bytes"+strings.Repeat(" ", 20), "components"+strings.Repeat(" ", 8))
	fmt.Fprintf(out, tableRow, "scope", "counter", "recount", "expected", "counter", "recount", "expected")
	for _, r := range results {
		fmt.Fprintf(out, "%-34s %14d %14d %14d   %8d %8d %8d\n", r.name(),
			r.counter.Bytes, r.recount.Bytes, r.expected.Bytes,
			r.counter.Components, r.recount.Components, r.expected.Components)
	}
}
