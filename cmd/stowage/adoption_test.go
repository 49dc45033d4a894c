package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/stretchr/testify/require"
	"golang.org/x/sync/errgroup"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/entpublish"
	"github.com/stowage-dev/stowage/ent/repository"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/usage"
)

// legacyVersions is how many versions each repository had before.
const legacyVersions = 200

// legacySQL is the registry's own table: a row for each content of a version, whose
// size is its number.
const legacySQL = `
	CREATE SCHEMA legacy;
	CREATE TABLE legacy.contents AS
	SELECT r.namespace_id, r.id AS repository_id, r.format, n, 'file' || k AS path, sha256(('blob ' || k)::bytea) AS sha256, k AS size
	FROM repositories r, generate_series(1, 200) AS n, -- legacyVersions
		unnest(CASE r.format WHEN 3 THEN ARRAY[n % 50 + 1] ELSE ARRAY[n % 50 + 1, (n + 7) % 50 + 1] END) AS k`

// legacyCopies bring a namespace's contents into Stowage's tables. What a client has
// published meanwhile stays.
var legacyCopies = []string{
	`INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes)
	SELECT DISTINCT namespace_id, sha256, size FROM legacy.contents WHERE namespace_id = $1 ORDER BY sha256 ON CONFLICT DO NOTHING`,
	`WITH made AS (
		INSERT INTO container_manifests (id, namespace_id, repository_id, name, digest, size_bytes)
		SELECT gen_random_uuid(), namespace_id, repository_id, 'group:artifact', sha256(n::text::bytea), sum(size) FROM legacy.contents
		WHERE namespace_id = $1 AND format = 1 GROUP BY namespace_id, repository_id, n ON CONFLICT DO NOTHING RETURNING id, repository_id, digest)
	INSERT INTO blob_storage_attachments (namespace_id, sha256, repository_id, version_table, version_id)
	SELECT c.namespace_id, c.sha256, c.repository_id, 1, m.id
	FROM made m JOIN legacy.contents c ON c.repository_id = m.repository_id AND sha256(c.n::text::bytea) = m.digest`,
	`WITH made AS (
		INSERT INTO maven_versions (id, namespace_id, repository_id, name, version, size_bytes)
		SELECT gen_random_uuid(), namespace_id, repository_id, 'group:artifact', n::text, sum(size) FROM legacy.contents
		WHERE namespace_id = $1 AND format = 2 GROUP BY namespace_id, repository_id, n ON CONFLICT DO NOTHING RETURNING id, repository_id, version),
	filed AS (
		INSERT INTO maven_files (id, version_id, path, sha256, size_bytes)
		SELECT gen_random_uuid(), m.id, c.path, c.sha256, c.size
		FROM made m JOIN legacy.contents c ON c.repository_id = m.repository_id AND c.n::text = m.version)
	INSERT INTO blob_storage_attachments (namespace_id, sha256, repository_id, version_table, version_id)
	SELECT c.namespace_id, c.sha256, c.repository_id, 2, m.id
	FROM made m JOIN legacy.contents c ON c.repository_id = m.repository_id AND c.n::text = m.version`,
	`WITH made AS (
		INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes)
		SELECT gen_random_uuid(), namespace_id, repository_id, 'group:artifact', n::text, sum(size) FROM legacy.contents
		WHERE namespace_id = $1 AND format = 3 GROUP BY namespace_id, repository_id, n ON CONFLICT DO NOTHING RETURNING id, repository_id, version)
	INSERT INTO blob_storage_attachments (namespace_id, sha256, repository_id, version_table, version_id)
	SELECT c.namespace_id, c.sha256, c.repository_id, 3, m.id
	FROM made m JOIN legacy.contents c ON c.repository_id = m.repository_id AND c.n::text = m.version`,
}

// asBefore is a version of the legacy table, as a client publishes it.
func asBefore(into uuid.UUID, format schematype.Format, n int) entpublish.Version {
	blob := func(k int) entpublish.Blob {
		return entpublish.Blob{Digest: sha256.Sum256([]byte("blob " + strconv.Itoa(k))), Size: int64(k)}
	}
	v := entpublish.Version{Ref: entpublish.Ref{RepositoryID: into, Name: "group:artifact", Version: strconv.Itoa(n)}}
	blobs := []entpublish.Blob{blob(n%50 + 1), blob((n+7)%50 + 1)}
	switch format {
	case schematype.FormatContainer:
		v.Digest, v.Version, v.Blobs = sha256.Sum256([]byte(v.Version)), "", blobs
	case schematype.FormatMaven:
		for _, b := range blobs {
			v.Files = append(v.Files, entpublish.File{Path: "file" + strconv.Itoa(int(b.Size)), Blob: b})
		}
	case schematype.FormatNPM:
		v.Blobs = blobs[:1]
	}
	return v
}

// clients publish into all repositories of the namespaces, what the registry had and
// what is new, and purge some, until they are told to stop.
func (s *services) clients(db *entdb.Client, namespaces []uuid.UUID) (published *atomic.Int64, stop func()) {
	s.t.Helper()
	repositories := db.Repository.Query().Where(repository.NamespaceIDIn(namespaces...)).AllX(s.t.Context())
	ctx, cancel := context.WithCancel(s.t.Context())
	s.t.Cleanup(cancel)
	var group errgroup.Group
	published = &atomic.Int64{}
	for client := range 3 {
		group.Go(func() error {
			pause := time.NewTicker(often) // others work on this machine too
			defer pause.Stop()
			for n := client; ctx.Err() == nil; n++ {
				<-pause.C
				into := repositories[n%len(repositories)]
				v := asBefore(into.ID, into.Format, n%(2*legacyVersions)+1)
				err := db.WithTx(context.WithoutCancel(ctx), func(ctx context.Context, tx *entdb.Tx) error {
					if n%5 == 4 {
						_, err := entpublish.PurgeMany(ctx, tx, []entpublish.Ref{v.Ref})
						return err
					}
					_, err := entpublish.Publish(ctx, tx, v)
					return err
				})
				if err != nil {
					return err
				}
				published.Add(1)
			}
			return nil
		})
	}
	return published, func() {
		cancel()
		require.NoError(s.t, group.Wait())
	}
}

// ownRows are namespaces of a registry, each with a repository of each format. The last
// two were restored without triggers, and have no statistics.
func (s *services) ownRows(namespaces int) []uuid.UUID {
	s.t.Helper()
	s.exec(`INSERT INTO namespaces (id, slug) SELECT gen_random_uuid(), 'old-' || n FROM generate_series(1, $1) AS n`, namespaces-2)
	require.NoError(s.t, pgx.BeginFunc(s.t.Context(), s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(s.t.Context(), `SET LOCAL session_replication_role = replica`)
		require.NoError(s.t, err)
		_, err = tx.Exec(s.t.Context(), `INSERT INTO namespaces (id, slug) SELECT gen_random_uuid(), 'old-' || n FROM generate_series($1::int - 1, $1) AS n`, namespaces)
		return err
	}))
	s.exec(`INSERT INTO repositories (id, namespace_id, name, format, kind)
		SELECT gen_random_uuid(), n.id, format::text, format, 1 FROM namespaces n, generate_series(1, 3) AS format`)
	s.exec(legacySQL)
	rows, err := s.pool.Query(s.t.Context(), `SELECT id FROM namespaces ORDER BY slug`)
	require.NoError(s.t, err)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[uuid.UUID])
	require.NoError(s.t, err)
	return ids
}

// command runs one on the services' stores, which must exit with 0.
func (s *services) command(line string, flags ...string) (stdout string) {
	s.t.Helper()
	code, stdout, stderr := runExit(s.t, append(append(strings.Fields(line), "--database-url", s.url), flags...)...)
	require.Zero(s.t, code, "%s: %s%s", line, stdout, stderr)
	return stdout
}

// shown is what namespace show says of a namespace.
type shown struct {
	Value     accounting.Counters
	Precision usage.Precision
}

func (s *services) shown(slug string) shown {
	s.t.Helper()
	var overview struct{ Usage shown }
	require.NoError(s.t, json.Unmarshal([]byte(s.command("namespace show --json "+slug, "--redis-addresses", s.redis.Addr)), &overview))
	return overview.Usage
}

// miscounted is how many counters differ from a recount of their own rows.
func (s *services) miscounted() int64 {
	s.t.Helper()
	return s.count(`
		WITH versions AS (
			SELECT id, namespace_id, repository_id FROM container_manifests
			UNION ALL SELECT id, namespace_id, repository_id FROM maven_versions
			UNION ALL SELECT id, namespace_id, repository_id FROM npm_versions),
		logical AS (
			SELECT a.repository_id, sum(b.size_bytes) AS bytes FROM blob_storage_attachments a JOIN blob_storage_blobs b USING (namespace_id, sha256)
			GROUP BY a.repository_id)
		SELECT (SELECT count(*) FROM namespaces n LEFT JOIN namespace_statistics s ON s.namespace_id = n.id
				WHERE (s.deduplicated_size_bytes, s.components_count) IS DISTINCT FROM (
					(SELECT sum(size_bytes)::bigint FROM blob_storage_blobs b WHERE b.namespace_id = n.id),
					(SELECT count(*) FROM versions v WHERE v.namespace_id = n.id)))
			+ (SELECT count(*) FROM repositories r LEFT JOIN logical l ON l.repository_id = r.id
				WHERE (r.size_bytes, r.artifacts_count) IS DISTINCT FROM (
					l.bytes::bigint, (SELECT count(*) FROM versions v WHERE v.repository_id = r.id)))`)
}

// It walks the path of ent/entpublish/README.md, "With rows of its own", while
// clients write.
func TestAC16AC23AdoptionOfARegistryWithRowsOfItsOwn(t *testing.T) {
	t.Parallel()
	s := newServices(t)
	const namespaces = 6
	ids := s.ownRows(namespaces)
	db, _ := s.registry(nil)
	require.EqualValues(t, namespaces-2, s.count(`SELECT count(*) FROM namespace_statistics`))
	s.command("backfill start namespace_statistics")
	w := s.start()
	published, stop := s.clients(db, ids[:namespaces-1]) // one without statistics among them
	finished := regexp.MustCompile(`(?m)^namespace_statistics +finished`)
	require.Eventually(t, func() bool {
		return finished.MatchString(s.command("backfill list")) &&
			s.count(`SELECT count(*) FROM namespace_statistics WHERE last_reconciled_at > 'epoch'`) == namespaces
	}, patience, often, "the first passes, of what clients have published")
	for _, id := range ids {
		for _, sql := range legacyCopies {
			s.exec(sql, id)
		}
	}
	require.Equal(t, shown{accounting.Counters{}, usage.Exact}, s.shown("old-6"), "nobody has told of the copy")

	before := published.Load()
	require.Equal(t, "reconciled 6 namespaces\n", s.command("namespace reconcile --all --wait"))
	require.Greater(t, published.Load(), before, "clients go on")
	stop()
	require.Contains(t, s.command("namespace verify --all", "--redis-addresses", s.redis.Addr), "verified 6 namespaces with 24 scopes: 0 wrong, 0 undecided, 0 without a row")
	require.Eventually(t, func() bool { return s.miscounted() == 0 }, patience, often, "what is buffered is drained")
	const quietBytes, quietVersions = 50 * 51 / 2, 3 * legacyVersions
	require.Equal(t, shown{accounting.Counters{Bytes: quietBytes, Components: quietVersions}, usage.Exact}, s.shown("old-6"))

	require.NoError(t, w.cmd.Process.Signal(syscall.SIGTERM))
	require.Zero(t, w.exit())
	require.NoError(t, db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		npm := db.Repository.Query().Where(repository.NamespaceID(ids[namespaces-1]), repository.FormatEQ(schematype.FormatNPM)).OnlyIDX(ctx)
		_, err := entpublish.Publish(ctx, tx, entpublish.Version{
			Ref:   entpublish.Ref{RepositoryID: npm, Name: "new", Version: "1.0.0"},
			Blobs: []entpublish.Blob{{Digest: sha256.Sum256([]byte("new")), Size: 7}},
		})
		return err
	}))
	require.Equal(t, shown{accounting.Counters{Bytes: quietBytes + 7, Components: quietVersions + 1}, usage.Buffered}, s.shown("old-6"))
}
