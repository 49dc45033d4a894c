// Package blobs finds the blobs that no version has attached, and takes them out of
// a namespace beside publishes of the same blobs.
package blobs

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
)

// Key names a blob. Keys are in the order of namespace and digest.
type Key struct {
	Namespace uuid.UUID
	Digest    schematype.Digest
}

// Page is some blobs in the order of their keys.
type Page struct {
	// Unattached are those that no version had when they were looked at.
	Unattached []Key
	// Seen is how many there are in all, attached ones too.
	Seen int
	// Last is the key of the last of them.
	Last Key
}

// pageSQL reads keys from the shadow, where those of one namespace are together.
func pageSQL(where string) string {
	return `
		WITH page AS MATERIALIZED (
			SELECT namespace_id, sha256 FROM blob_storage_blobs_by_namespace
			WHERE ` + where + `
			ORDER BY namespace_id, sha256 LIMIT $1)
		SELECT namespace_id, sha256, NOT EXISTS (
			SELECT FROM blob_storage_attachments a WHERE a.namespace_id = page.namespace_id AND a.sha256 = page.sha256)
		FROM page ORDER BY namespace_id, sha256`
}

var (
	ofSQL     = pageSQL(`namespace_id = $2 AND sha256 > $3`)
	beyondSQL = pageSQL(`namespace_id > $2`)
)

// After reads the blobs after a key, of all namespaces, at most limit of them.
//
// It asks for those of the key's namespace and for those beyond it apart: of a
// comparison of both columns PostgreSQL estimates the first alone, believes that
// nothing follows in the last namespace, and reads all of it for each page.
func After(ctx context.Context, tx pgx.Tx, after Key, limit int) (Page, error) {
	own, err := Of(ctx, tx, after, limit)
	if err != nil || own.Seen == limit {
		return own, err
	}
	beyond, err := page(ctx, tx, own.Last, beyondSQL, limit-own.Seen, after.Namespace)
	if err != nil {
		return Page{}, err
	}
	return Page{Unattached: append(own.Unattached, beyond.Unattached...), Seen: own.Seen + beyond.Seen, Last: beyond.Last}, nil
}

// Of is After within the key's namespace. The digest of zeros, which is that of no
// content, begins.
func Of(ctx context.Context, tx pgx.Tx, after Key, limit int) (Page, error) {
	return page(ctx, tx, after, ofSQL, limit, after.Namespace, after.Digest[:])
}

func page(ctx context.Context, tx pgx.Tx, after Key, sql string, args ...any) (Page, error) {
	rows, err := tx.Query(ctx, sql, args...)
	if err != nil {
		return Page{}, fmt.Errorf("find unattached blobs: %w", err)
	}
	p := Page{Last: after}
	var unattached bool
	_, err = pgx.ForEachRow(rows, []any{&p.Last.Namespace, &p.Last.Digest, &unattached}, func() error {
		p.Seen++
		if unattached {
			p.Unattached = append(p.Unattached, p.Last)
		}
		return nil
	})
	if err != nil {
		return Page{}, fmt.Errorf("find unattached blobs: %w", err)
	}
	return p, nil
}

// Blob is a piece of content. Size is in bytes.
type Blob struct {
	Digest schematype.Digest
	Size   int64
}

// Grace is how long things are left alone.
type Grace struct {
	// Row is the least age of a blob that is taken out.
	Row time.Duration
	// Content is how long the content of such a blob stays, for whoever stores the
	// blob again.
	Content time.Duration
}

// Collected is what was taken out of a namespace.
type Collected struct {
	Namespace uuid.UUID
	Blobs     []Blob
}

// Collect takes those of the blobs out of their namespaces that are still unattached
// and old enough, notes that their content is due for deletion, and counts their
// bytes. The keys are in their order, which is the order of locks of all who store
// blobs.
func Collect(ctx context.Context, tx *entdb.Tx, unattached []Key, grace Grace) ([]Collected, error) {
	var all []Collected
	for len(unattached) > 0 {
		c := Collected{Namespace: unattached[0].Namespace}
		var digests [][]byte
		for len(unattached) > 0 && unattached[0].Namespace == c.Namespace {
			digests = append(digests, unattached[0].Digest[:])
			unattached = unattached[1:]
		}
		var err error
		if c.Blobs, err = collect(ctx, tx.Pgx(), c.Namespace, digests, grace); err != nil {
			return nil, err
		}
		if err := tx.Report(entdb.Change{NamespaceID: c.Namespace, Counters: entdb.Counters{Bytes: -c.Bytes()}}); err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// Bytes is the sum of the blobs' sizes.
func (c Collected) Bytes() int64 {
	var sum int64
	for _, blob := range c.Blobs {
		sum += blob.Size
	}
	return sum
}

// Total is how many blobs were taken out, and the sum of their sizes.
func Total(all []Collected) (blobs, bytes int64) {
	for _, c := range all {
		blobs += int64(len(c.Blobs))
		bytes += c.Bytes()
	}
	return blobs, bytes
}

// collect looks at the attachments after it has the locks, in a new statement: a
// publish that held a blob while its lock was waited for may have attached it.
func collect(ctx context.Context, tx pgx.Tx, namespace uuid.UUID, digests [][]byte, grace Grace) ([]Blob, error) {
	rows, err := tx.Query(ctx, `
		SELECT sha256 FROM blob_storage_blobs
		WHERE namespace_id = $1 AND sha256 = ANY ($2) AND created_at <= now() - $3::interval
		ORDER BY sha256
		FOR UPDATE`, namespace, digests, grace.Row)
	if err != nil {
		return nil, fmt.Errorf("lock unattached blobs: %w", err)
	}
	locked, err := pgx.CollectRows(rows, pgx.RowTo[[]byte])
	if err != nil {
		return nil, fmt.Errorf("lock unattached blobs: %w", err)
	}
	if len(locked) == 0 {
		return nil, nil
	}
	return remove(ctx, tx, namespace, locked, grace.Content)
}

func remove(ctx context.Context, tx pgx.Tx, namespace uuid.UUID, locked [][]byte, keep time.Duration) ([]Blob, error) {
	rows, err := tx.Query(ctx, `
		WITH removed AS (
			DELETE FROM blob_storage_blobs b
			WHERE b.namespace_id = $1 AND b.sha256 = ANY ($2) AND NOT EXISTS (
				SELECT FROM blob_storage_attachments a WHERE a.namespace_id = b.namespace_id AND a.sha256 = b.sha256)
			RETURNING b.sha256, b.size_bytes),
		noted AS (
			INSERT INTO blob_storage_deletions (namespace_id, sha256, size_bytes, due_at)
			SELECT $1, sha256, size_bytes, now() + $3::interval FROM removed
			ON CONFLICT (namespace_id, sha256) DO UPDATE SET due_at = excluded.due_at, failures = 0)
		SELECT sha256, size_bytes FROM removed`, namespace, locked, keep)
	if err != nil {
		return nil, fmt.Errorf("delete unattached blobs: %w", err)
	}
	removed, err := pgx.CollectRows(rows, pgx.RowToStructByPos[Blob])
	if err != nil {
		return nil, fmt.Errorf("delete unattached blobs: %w", err)
	}
	return removed, nil
}

// Figures are a number of blobs and their sizes in bytes.
type Figures struct{ Blobs, Bytes int64 }

// Unreferenced is what a namespace has that no version needs.
type Unreferenced struct {
	// Unattached blobs count as stored.
	Unattached Figures
	// Content is that of collected blobs, and counts no more.
	Content Figures
}

// FindUnreferenced is that of entpublish, also for those who only read.
func FindUnreferenced(ctx context.Context, tx pgx.Tx, namespace uuid.UUID) (Unreferenced, error) {
	var u Unreferenced
	err := tx.QueryRow(ctx, `
		SELECT count(*), coalesce(sum(size_bytes), 0)::bigint,
			(SELECT count(*) FROM blob_storage_deletions d WHERE d.namespace_id = $1),
			(SELECT coalesce(sum(size_bytes), 0)::bigint FROM blob_storage_deletions d WHERE d.namespace_id = $1)
		FROM blob_storage_blobs_by_namespace b
		WHERE namespace_id = $1 AND NOT EXISTS (
			SELECT FROM blob_storage_attachments a WHERE a.namespace_id = b.namespace_id AND a.sha256 = b.sha256)`, namespace).
		Scan(&u.Unattached.Blobs, &u.Unattached.Bytes, &u.Content.Blobs, &u.Content.Bytes)
	if err != nil {
		return Unreferenced{}, fmt.Errorf("unreferenced blobs: %w", err)
	}
	return u, nil
}
