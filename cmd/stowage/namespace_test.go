package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/ledger"
	"github.com/stowage-dev/stowage/internal/metrics"
	"github.com/stowage-dev/stowage/internal/reconcile"
)

// runExit runs the command as main does.
func runExit(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, log bytes.Buffer
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(&out)
	root.SetErr(&log)
	if err := execute(t.Context(), root); err != nil {
		fmt.Fprintln(&log, "stowage:", err)
		code = exitCode(err)
	}
	return code, out.String(), log.String()
}

// Fixed ids give fixed buckets.
var (
	acme = uuid.MustParse("01890000-0000-7000-8000-00000000acce")
	libs = uuid.MustParse("01890000-0000-7000-8000-000000000001")
	old  = uuid.MustParse("01890000-0000-7000-8000-000000000002")
)

// acmeServices has the namespace acme with two repositories, of which one has
// content.
func acmeServices(t *testing.T) *services {
	t.Helper()
	s := newServices(t)
	s.buf = buffer.New(s.redis.Client(t), buffer.Config{TTL: time.Hour, LeaseTTL: time.Hour}) // however slow the machine is
	s.exec(`INSERT INTO namespaces (id, slug) VALUES ($1, 'acme')`, acme)
	s.exec(`INSERT INTO repositories (id, namespace_id, name, format, kind) VALUES ($1, $2, 'libs', 3, 1)`, libs, acme)
	s.exec(`INSERT INTO repositories (id, namespace_id, name, format, kind, soft_deleted_at) VALUES ($1, $2, 'old', 2, 1, now())`, old, acme)
	return s
}

// store publishes a version with one blob of that size, as a registry does.
func (s *services) store(size int64) {
	s.t.Helper()
	ctx := context.Background()
	var marker accounting.Marker
	require.NoError(s.t, pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes)
			VALUES (gen_random_uuid(), $1, $2, 'x', gen_random_uuid()::text, $3)`, acme, libs, size)
		require.NoError(s.t, err)
		_, err = tx.Exec(ctx, `INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) VALUES ($1, sha256(uuid_send(gen_random_uuid())), $2)`, acme, size)
		require.NoError(s.t, err)
		return tx.QueryRow(ctx, `SELECT marker FROM stowage_lock_markers(ARRAY[$1::uuid])`, acme).Scan(&marker)
	}))
	change := accounting.Counters{Bytes: size, Components: 1}
	failed, err := s.buf.Emit(ctx, acme, marker, []accounting.Delta{
		{Scope: accounting.NamespaceScope(acme), Counters: change}, {Scope: accounting.RepositoryScope(acme, libs), Counters: change},
	})
	require.NoError(s.t, err)
	require.Empty(s.t, failed)
}

func (s *services) claim() []accounting.Flush {
	s.t.Helper()
	claim, err := s.buf.Claim(context.Background(), accounting.Bucket(acme), "worker", uuid.Must(uuid.NewV7()), 100)
	require.NoError(s.t, err)
	return claim.Flushes
}

func (s *services) drain() {
	s.t.Helper()
	flushes := s.claim()
	_, err := ledger.Apply(context.Background(), s.pool, flushes)
	require.NoError(s.t, err)
	require.NoError(s.t, s.buf.Finish(context.Background(), accounting.Bucket(acme), flushes))
}

func (s *services) pass() {
	s.t.Helper()
	worker := reconcile.NewNamespace(reconcile.Deps{
		Pool: s.pool, Buffer: s.buf, Metrics: metrics.New(prometheus.NewRegistry()), Log: slog.New(slog.DiscardHandler),
	}, reconcile.Config{MaxInFlight: 1, ChunkSize: 10, Staleness: time.Hour, Timeout: time.Minute, TriggerInterval: time.Second, Guard: reconcile.DefaultGuard()})
	done, err := worker.Reconcile(context.Background(), acme)
	require.NoError(s.t, err)
	require.Equal(s.t, metrics.PassDone, done.Result)
}

// changing is what differs from run to run: moments, batches and ages.
var changing = []struct {
	pattern *regexp.Regexp
	shown   string
}{
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`), "TIME"},
	{regexp.MustCompile(`"begins": "TIME"`), `"begins": "DAY"`},
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}`), "BATCH"},
	{regexp.MustCompile(`(seconds[a-z_]*": )[0-9.]+(e-\d+)?`), "${1}SECONDS"},
	{regexp.MustCompile(`\b(\d+h)?(\d+m)?\d+(\.\d+)?m?s\b`), "AGE"},
}

// padding of a table depends on what it holds.
var padding = regexp.MustCompile(` {2,}`)

func normalised(text string) string {
	fixed := map[uuid.UUID]string{acme: "ACME", libs: "LIBS", old: "OLD"}
	for id, name := range fixed {
		text = strings.ReplaceAll(text, id.String(), name)
	}
	for _, c := range changing {
		text = c.pattern.ReplaceAllString(text, c.shown)
	}
	return text
}

// golden compares with testdata/name. STOWAGE_TEST_UPDATE_GOLDEN=1 writes the files.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("STOWAGE_TEST_UPDATE_GOLDEN") != "" {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), got, path)
}

// look runs a command of the golden tests, for people and as JSON.
func (s *services) look(name string, code int, args ...string) {
	s.t.Helper()
	stores := []string{"--database-url", s.url, "--redis-addresses", s.redis.Addr, "--buffer-ttl", "1h"}
	got, stdout, stderr := runExit(s.t, append(args, stores...)...)
	require.Equal(s.t, code, got, stderr)
	golden(s.t, name+".txt", padding.ReplaceAllString(normalised(stdout), "  "))
	got, stdout, stderr = runExit(s.t, append(append(args, "--json"), stores...)...)
	require.Equal(s.t, code, got, stderr)
	require.True(s.t, json.Valid([]byte(stdout)))
	golden(s.t, name+".json", normalised(stdout))
}

// Each step makes another situation of the same namespace.
func TestLooking(t *testing.T) {
	t.Parallel()
	s := acmeServices(t)
	bucket := fmt.Sprint(accounting.Bucket(acme))

	s.look("show-never-reconciled", 0, "namespace", "show", "acme")
	s.look("buffer-empty", 0, "buffer", "show")

	s.store(3 << 29)
	s.drain()
	s.pass()
	s.store(1000)
	s.drain()
	s.look("explain-exact", 0, "namespace", "explain", acme.String())

	s.store(70_000)
	s.claim()
	s.store(5)
	s.look("show-buffered", 0, "namespace", "show", "acme", "--limit", "1")
	s.look("explain-behind", 0, "namespace", "explain", "acme", "--repository", "libs")
	s.look("verify-right", 0, "namespace", "verify", "acme")
	s.look("buffer-full", 0, "buffer", "show")
	s.look("buffer-bucket", 0, "buffer", "show", "--bucket", bucket)

	s.exec(`UPDATE repositories SET size_bytes = size_bytes - 2048, artifacts_count = 7 WHERE id = $1`, libs)
	s.look("explain-wrong", 1, "namespace", "explain", "acme", "--repository", libs.String())
	s.look("verify-wrong", 1, "namespace", "verify", "--all")
	code, stdout, stderr := runExit(t, "namespace", "reconcile", "acme", "--json", "--database-url", s.url)
	require.Zero(t, code, stderr)
	require.JSONEq(t, `{"requested": 1, "done": false}`, stdout)
	s.exec(`INSERT INTO blob_storage_deletions (namespace_id, sha256, size_bytes, due_at) VALUES ($1, sha256('gone'), 4096, now())`, acme)
	s.look("show-unreferenced", 0, "namespace", "show", "acme", "--unreferenced", "--limit", "1")
	s.look("show-requested", 0, "namespace", "show", "acme", "--after", "libs")
}

func TestNamespaceReconcile(t *testing.T) {
	t.Parallel()
	s := acmeServices(t)
	s.exec(`INSERT INTO namespaces (id, slug) VALUES (gen_random_uuid(), 'other')`)
	s.store(1)
	s.start()

	t.Run("waits until a worker has answered", func(t *testing.T) {
		s.exec(`UPDATE repositories SET artifacts_count = 41 WHERE id = $1`, libs)
		code, stdout, stderr := runExit(t, "namespace", "reconcile", "acme", "--wait", "--database-url", s.url)
		require.Zero(t, code, stderr)
		require.Equal(t, "reconciled 1 namespace\n", stdout)
		require.Contains(t, stderr, "1 of 1 namespaces reconciled")
		require.EqualValues(t, 1, s.count(`SELECT artifacts_count FROM repositories WHERE id = $1`, libs))
	})
	t.Run("of all", func(t *testing.T) {
		code, stdout, stderr := runExit(t, "namespace", "reconcile", "--all", "--wait", "--json", "--database-url", s.url)
		require.Zero(t, code, stderr)
		require.JSONEq(t, `{"requested": 2, "done": true}`, stdout)
		require.Zero(t, s.count(`SELECT count(*) FROM reconciliation_requests`))
		require.Contains(t, stderr, "2 of 2 namespaces reconciled")
	})
}

// A signal ends the waiting, and what was requested stays.
func TestNamespaceReconcileInterrupted(t *testing.T) {
	t.Parallel()
	s := acmeServices(t)
	p := s.process("namespace", "reconcile", "--all", "--wait", "--database-url", s.url)
	require.Eventually(t, func() bool { return strings.Contains(p.log.String(), "0 of 1 namespaces reconciled") }, patience, often)
	require.NoError(t, p.cmd.Process.Signal(os.Interrupt))
	require.Equal(t, 1, p.exit())
	require.Contains(t, p.log.String(), "the requests stay")
	require.EqualValues(t, 1, s.count(`SELECT count(*) FROM reconciliation_requests`))
}

func TestLookingRefuses(t *testing.T) {
	t.Parallel()
	s := acmeServices(t)
	stores := []string{"--database-url", s.url, "--redis-addresses", s.redis.Addr}
	for name, c := range map[string]struct {
		args []string
		code int
		says string
	}{
		"no namespace":            {[]string{"namespace", "show"}, 2, "accepts 1 arg"},
		"neither one nor all":     {[]string{"namespace", "verify"}, 2, "or --all"},
		"one and all":             {[]string{"namespace", "verify", "acme", "--all"}, 2, "not both"},
		"a limit of nothing":      {[]string{"namespace", "show", "acme", "--limit", "0"}, 2, "at least 1"},
		"a bucket that is none":   {[]string{"buffer", "show", "--bucket", "256"}, 2, "0 to 255"},
		"an unknown namespace":    {[]string{"namespace", "show", "nobody"}, 1, `namespace "nobody": not found`},
		"an unknown repository":   {[]string{"namespace", "explain", "acme", "--repository", "x"}, 1, `repository "x": not found`},
		"an unknown id to verify": {[]string{"namespace", "verify", uuid.NewString()}, 1, "not found"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			code, _, stderr := runExit(t, append(c.args, stores...)...)
			require.Equal(t, c.code, code, stderr)
			require.Contains(t, stderr, c.says)
		})
	}
}

func TestLookingWithoutRedis(t *testing.T) {
	t.Parallel()
	s := acmeServices(t)
	stores := []string{"--database-url", s.url, "--redis-addresses", "127.0.0.1:1"}
	code, stdout, stderr := runExit(t, append([]string{"namespace", "show", "acme"}, stores...)...)
	require.Zero(t, code)
	require.Contains(t, stdout, "unknown: what is buffered could not be read")
	require.Contains(t, stderr, "going on without what is buffered")
	code, stdout, _ = runExit(t, append([]string{"namespace", "explain", "acme"}, stores...)...)
	require.Zero(t, code)
	require.Contains(t, stdout, "bytes: unknown")
	code, _, stderr = runExit(t, append([]string{"namespace", "verify", "acme"}, stores...)...)
	require.Equal(t, 1, code)
	require.Contains(t, stderr, "127.0.0.1:1")
}
