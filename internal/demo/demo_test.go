package demo

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/publishes"
	"github.com/stowage-dev/stowage/internal/redistest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// published is a demo after its first stage's work, on a database without a
// worker: no counter has moved.
func published(t *testing.T) *demo {
	t.Helper()
	d := &demo{Config: Config{
		Pool: dbtest.New(t), Data: os.DirFS("../../testdata/publishes"), Repeat: 1, Writers: 4,
		Out: &bytes.Buffer{}, Progress: NewLines(&bytes.Buffer{}),
	}}
	require.NoError(t, d.load())
	db, err := entdb.New(entdb.Config{
		Pool: d.Pool, Emitter: &entdb.Recorder{}, Registerer: prometheus.NewRegistry(),
		Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close(context.Background())) })
	d.db = db
	require.NoError(t, d.createNamespaces(t.Context(), "a", "b"))
	require.NoError(t, d.publish(t.Context(), d.lines))
	return d
}

func (d *demo) exec(t *testing.T, sql string) {
	t.Helper()
	_, err := d.Pool.Exec(t.Context(), sql)
	require.NoError(t, err)
}

// count sets every counter to what the source tables give.
func (d *demo) count(t *testing.T) {
	t.Helper()
	d.exec(t, `UPDATE repositories r SET (artifacts_count, size_bytes) = (SELECT count(*), coalesce(sum(size_bytes), 0) FROM (
		SELECT repository_id, size_bytes FROM container_manifests
		UNION ALL SELECT repository_id, size_bytes FROM maven_versions
		UNION ALL SELECT repository_id, size_bytes FROM npm_versions) v WHERE v.repository_id = r.id)`)
	d.exec(t, `UPDATE namespace_statistics s SET
		deduplicated_size_bytes = (SELECT coalesce(sum(size_bytes), 0) FROM blob_storage_blobs b WHERE b.namespace_id = s.namespace_id),
		components_count = (SELECT sum(artifacts_count) FROM repositories r WHERE r.namespace_id = s.namespace_id)`)
}

func (d *demo) results(t *testing.T) []result {
	t.Helper()
	results, err := d.compareData(t.Context(), d.lines, d.all)
	require.NoError(t, err)
	return results
}

func TestCompareSeesEveryDifference(t *testing.T) {
	t.Parallel()
	d := published(t)
	results := d.results(t)
	require.Len(t, results, 2*(22+1))
	require.Len(t, differences(results), len(results), "no counter has moved yet")
	for _, r := range results {
		require.Equal(t, r.expected, r.recount, "%s/%s", r.namespace, r.repository)
		require.Zero(t, r.counter)
	}
	d.count(t)
	require.Empty(t, differences(d.results(t)))

	for _, step := range []struct {
		name, change, undo string
		wrong              []result
	}{
		{
			name:   "bytes of a repository",
			change: `UPDATE repositories SET size_bytes = size_bytes + 1 WHERE id = (SELECT id FROM repositories WHERE name = 'npm-internal' ORDER BY namespace_id LIMIT 1)`,
			undo:   `UPDATE repositories SET size_bytes = 2831223 WHERE name = 'npm-internal'`,
			wrong: []result{{
				namespace: "a", repository: "npm-internal",
				counter: counters(2831224, 144), recount: counters(2831223, 144), expected: counters(2831223, 144),
			}},
		},
		{
			name:   "components of a namespace",
			change: `UPDATE namespace_statistics SET components_count = 358 WHERE namespace_id = (SELECT id FROM namespaces WHERE slug = 'b')`,
			undo:   `UPDATE namespace_statistics SET components_count = 359`,
			wrong: []result{{
				namespace: "b",
				counter:   counters(6830660696, 358), recount: counters(6830660696, 359), expected: counters(6830660696, 359),
			}},
		},
		{
			name:   "content that was not published",
			change: `INSERT INTO blob_storage_blobs (namespace_id, sha256, size_bytes) SELECT id, sha256('x'), 7 FROM namespaces WHERE slug = 'a'`,
			undo:   `DELETE FROM blob_storage_blobs WHERE sha256 = sha256('x')`,
			wrong: []result{{
				namespace: "a",
				counter:   counters(6830660696, 359), recount: counters(6830660703, 359), expected: counters(6830660696, 359),
			}},
		},
	} {
		t.Run(step.name, func(t *testing.T) {
			d.exec(t, step.change)
			require.Equal(t, step.wrong, differences(d.results(t)))
			d.exec(t, step.undo)
			require.Empty(t, differences(d.results(t)))
		})
	}
	t.Run("a scope without counters", func(t *testing.T) {
		d.exec(t, `DELETE FROM namespace_statistics`)
		_, err := d.compareData(t.Context(), d.lines, d.all)
		require.ErrorContains(t, err, "22 rows of counters, want 23")
	})
}

func counters(bytes, components int64) accounting.Counters {
	return accounting.Counters{Bytes: bytes, Components: components}
}

// The worker here takes everything out of the buffer and counts nothing. It closes
// requests too: on a busy machine an emission fails now and then, and makes one.
func TestRunEndsAtTheFirstDifference(t *testing.T) {
	t.Parallel()
	redis, pool := redistest.Start(t).Client(t), dbtest.New(t)
	ctx, stop := context.WithCancel(t.Context())
	var worker sync.WaitGroup
	worker.Go(func() {
		for ctx.Err() == nil {
			_ = redis.Do(ctx, redis.B().Flushall().Build()).Error()
			_, _ = pool.Exec(ctx, `DELETE FROM reconciliation_requests`)
		}
	})
	defer worker.Wait()
	defer stop()

	var out bytes.Buffer
	err := Run(t.Context(), Config{
		Pool: pool, Redis: redis, Data: os.DirFS("../../testdata/publishes"), Repeat: 1, Writers: 4,
		Out: &out, Progress: NewLines(&out), Logger: slog.New(slog.DiscardHandler),
	})
	require.ErrorIs(t, err, ErrInexact)
	require.Contains(t, out.String(), "\n46 of 46 scopes differ:\n")
	require.NotContains(t, out.String(), "stage 2")
	require.NotContains(t, out.String(), "exact:")
}

func TestDeletionEndsAtTheStatedTotals(t *testing.T) {
	t.Parallel()
	d := published(t)
	s := d.stages()[1]
	require.NoError(t, s.work(t.Context()))
	results, err := s.compare(t.Context())
	require.NoError(t, err)
	for _, r := range results {
		require.Equal(t, r.expected, r.recount, "%s/%s", r.namespace, r.repository)
	}
	require.Equal(t, counters(4101729691, 180), results[0].recount)
}

// The counters are set to what the source tables hold, for no worker runs.
func TestCasesEndAsExpected(t *testing.T) {
	t.Parallel()
	d := published(t)
	stage := d.stages()[3]
	require.NoError(t, stage.work(t.Context()))
	d.count(t)
	results, err := stage.compare(t.Context())
	require.NoError(t, err)
	require.Len(t, results, 2*(8+3*2))
	require.Empty(t, differences(results))
	require.Empty(t, differences(d.results(t)), "the data's own namespaces are as they were")

	for i, s := range d.scenarios {
		t.Run("a wrong expectation of "+s.name, func(t *testing.T) {
			d.scenarios[i].want.namespace.Bytes++
			d.scenarios[i].want.repository.Components--
			results, err := stage.compare(t.Context())
			require.NoError(t, err)
			var out bytes.Buffer
			d.Out = &out
			err = d.judge(results)
			require.ErrorIs(t, err, ErrInexact)
			require.ErrorContains(t, err, s.name)
			require.Contains(t, out.String(), "2 of 28 scopes differ")
			d.scenarios[i].want = s.want
		})
	}
}

// By hand from the files: the jetty lines' sizes add up to 391282681, with a layer
// of 32 bytes four times; the two Maven lines have a jar of 53685 bytes each.
func TestCasesExpectWhatTheDataSays(t *testing.T) {
	t.Parallel()
	d := &demo{Config: Config{Data: os.DirFS("../../testdata/publishes"), Repeat: 1}}
	require.NoError(t, d.load())
	want := make(map[string]outcome)
	for _, s := range d.scenarios {
		want[s.name] = s.want
	}
	require.Equal(t, outcome{repository: counters(391282681-2*32, 2), namespace: counters(391282681-3*32, 2)}, want["twin-layer"])
	require.Equal(t, outcome{repository: counters(111100, 2), namespace: counters(111100-53685, 2)}, want["one-jar-twice"])
	require.Equal(t, int64(4+1), want["image-index"].repository.Components)
	require.Equal(t, outcome{}, want["refused-npm"])
}

func TestCasesNeedTheirLines(t *testing.T) {
	t.Parallel()
	d := &demo{Config: Config{Data: os.DirFS("../../testdata/publishes"), Repeat: 1}}
	require.NoError(t, d.load())
	lines := slices.DeleteFunc(slices.Clone(d.lines), func(p publishes.Publish) bool { return p.Name == "jetty" })
	_, err := scenarios(lines)
	require.ErrorContains(t, err, "cases: the data has no manifest that lists a layer twice")
}

func TestDeletedContentIsCheckedAgainstTheLines(t *testing.T) {
	t.Parallel()
	blob := publishes.Blob{SHA256: schematype.Digest{1}, Size: 1}
	lines := []publishes.Publish{{Blobs: []publishes.Blob{blob, blob}}}
	require.NoError(t, checkContent(lines, map[schematype.Digest]bool{{1}: true}))
	require.ErrorContains(t, checkContent(lines, nil), "never told to delete blob sha256:01")
	require.ErrorContains(t, checkContent(lines, map[schematype.Digest]bool{{1}: true, {2}: true}), "told to delete 2 blobs, but 1 were stored")
}

func TestNothingLeftNamesTheTable(t *testing.T) {
	t.Parallel()
	d := published(t)
	require.ErrorIs(t, d.nothingLeft(t.Context(), d.namespaces[1]), errLeft)
	require.NoError(t, d.nothingLeft(t.Context(), namespace{id: uuid.New(), slug: "never"}))
}

func TestRepeatScalesWhatIsExpected(t *testing.T) {
	t.Parallel()
	d := &demo{Config: Config{Data: os.DirFS("../../testdata/publishes"), Repeat: 3}}
	require.NoError(t, d.load())
	require.Equal(t, publishes.Sum(d.lines), d.all)
	require.Equal(t, publishes.Sum(publishes.Kept(d.lines)), d.kept)
}

func TestLinesTellEachQuarter(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	lines := NewLines(&out)
	lines.Begin("publish", 10)
	for range 10 {
		lines.Step()
	}
	lines.End()
	require.Equal(t, "  publish 3/10\n  publish 5/10\n  publish 8/10\n  publish 10/10\n", out.String())
}

func TestBarEndsWhenTheWorkIsCutShort(t *testing.T) {
	t.Parallel()
	bar := NewBar(&bytes.Buffer{})
	for range 2 {
		bar.Begin("publish", 10)
		bar.Step()
		bar.End() // would wait for ever for the nine others
	}
}

func TestPollTellsWhatItWaitedFor(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	never := func(context.Context) (bool, error) { return false, nil }
	require.ErrorIs(t, poll(ctx, "wait for nothing", never), context.DeadlineExceeded)
	fails := func(context.Context) (bool, error) { return false, os.ErrClosed }
	err := poll(t.Context(), "wait for nothing", fails)
	require.ErrorIs(t, err, os.ErrClosed)
	require.ErrorContains(t, err, "wait for nothing")
}
