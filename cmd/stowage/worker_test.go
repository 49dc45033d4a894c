package main

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/ent/entdb"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/buffer"
	"github.com/stowage-dev/stowage/internal/config"
	"github.com/stowage-dev/stowage/internal/dbtest"
	"github.com/stowage-dev/stowage/internal/redistest"
)

// asCommand makes the test binary behave as the command, so that workers are
// real processes, which take signals and can be killed.
const asCommand = "STOWAGE_TEST_AS_COMMAND"

func TestMain(m *testing.M) {
	if os.Getenv(asCommand) != "" {
		main()
		return
	}
	goleak.VerifyTestMain(m)
}

const (
	patience = time.Minute
	often    = 10 * time.Millisecond
)

// services are what workers of a test share.
type services struct {
	t     *testing.T
	url   string
	pool  *pgxpool.Pool
	redis *redistest.Server
	buf   *buffer.Buffer
}

func newServices(t *testing.T) *services {
	t.Helper()
	s := &services{t: t, url: dbtest.NewURL(t), redis: redistest.Start(t)}
	s.pool = dbtest.Open(t, s.url)
	s.buf = buffer.New(s.redis.Client(t), buffer.Config{TTL: time.Hour, LeaseTTL: 5 * time.Second})
	return s
}

// args are those of a fast worker.
func (s *services) args(more ...string) []string {
	return append([]string{
		"worker", "--database-url", s.url, "--redis-addresses", s.redis.Addr, "--admin-listen", "127.0.0.1:0",
		"--drain-interval", "200ms", "--drain-lease", "5s", "--reconciliation-interval", "200ms",
	}, more...)
}

// worker is a process.
type worker struct {
	t     *testing.T
	cmd   *exec.Cmd
	admin string
	log   *lines
	done  chan struct{}
}

// lines is what a process has written so far.
type lines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *lines) add(line string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.WriteString(line + "\n")
}

// start starts a worker and waits until it works.
func (s *services) start(more ...string) *worker {
	s.t.Helper()
	w := s.process(s.args(more...)...)
	started := regexp.MustCompile(`msg="worker started" admin=(\S+)`)
	require.Eventually(s.t, func() bool {
		match := started.FindStringSubmatch(w.log.String())
		if match != nil {
			w.admin = match[1]
		}
		return match != nil
	}, patience, often, "worker did not start")
	return w
}

func (s *services) process(args ...string) *worker {
	s.t.Helper()
	w := &worker{t: s.t, cmd: exec.Command(os.Args[0], args...), log: &lines{}, done: make(chan struct{})}
	w.cmd.Env = []string{asCommand + "=1", "PATH=" + os.Getenv("PATH"), "HOME=" + s.t.TempDir()}
	stderr, err := w.cmd.StderrPipe()
	require.NoError(s.t, err)
	require.NoError(s.t, w.cmd.Start())
	go func() {
		defer close(w.done)
		for scanner := bufio.NewScanner(stderr); scanner.Scan(); {
			w.log.add(scanner.Text())
		}
	}()
	s.t.Cleanup(func() {
		_ = w.cmd.Process.Kill()
		<-w.done
		_ = w.cmd.Wait()
		if s.t.Failed() {
			s.t.Log(w.log.String())
		}
	})
	return w
}

// exit waits for the end of the process and returns its code.
func (w *worker) exit() int {
	w.t.Helper()
	select {
	case <-w.done:
	case <-time.After(patience):
		require.FailNow(w.t, "the worker does not stop")
	}
	_ = w.cmd.Wait()
	return w.cmd.ProcessState.ExitCode()
}

func (w *worker) get(path string) (int, string) {
	w.t.Helper()
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, w.admin+path, nil)
	require.NoError(w.t, err)
	response, err := new(http.Client).Do(request)
	require.NoError(w.t, err)
	body, err := io.ReadAll(response.Body)
	require.NoError(w.t, err)
	require.NoError(w.t, response.Body.Close())
	return response.StatusCode, string(body)
}

func (s *services) exec(sql string, args ...any) {
	s.t.Helper()
	_, err := s.pool.Exec(context.Background(), sql, args...)
	require.NoError(s.t, err)
}

func (s *services) count(sql string, args ...any) (n int64) {
	s.t.Helper()
	require.NoError(s.t, s.pool.QueryRow(context.Background(), sql, args...).Scan(&n))
	return n
}

func (s *services) namespace() (namespace, repository uuid.UUID) {
	s.t.Helper()
	namespace, repository = uuid.Must(uuid.NewV7()), uuid.Must(uuid.NewV7())
	s.exec(`INSERT INTO namespaces (id, slug) VALUES ($1, $2)`, namespace, namespace.String())
	s.exec(`INSERT INTO repositories (id, namespace_id, name, format, kind) VALUES ($1, $2, 'r', 3, 1)`, repository, namespace)
	return namespace, repository
}

// publish commits one version of one byte, as a registry does, and emits it.
func (s *services) publish(namespace, repository uuid.UUID) {
	s.t.Helper()
	ctx := context.Background()
	tx, err := s.pool.Begin(ctx)
	require.NoError(s.t, err)
	defer func() { _ = tx.Rollback(ctx) }()
	_, err = tx.Exec(ctx, `INSERT INTO npm_versions (id, namespace_id, repository_id, name, version, size_bytes)
		VALUES (gen_random_uuid(), $1, $2, 'x', gen_random_uuid()::text, 1)`, namespace, repository)
	require.NoError(s.t, err)
	var marker accounting.Marker
	require.NoError(s.t, tx.QueryRow(ctx, `SELECT marker FROM stowage_lock_markers(ARRAY[$1::uuid])`, namespace).Scan(&marker))
	require.NoError(s.t, tx.Commit(ctx))
	failed, err := s.buf.Emit(ctx, namespace, marker, []accounting.Delta{
		{Scope: accounting.RepositoryScope(namespace, repository), Counters: accounting.Counters{Bytes: 1, Components: 1}},
		{Scope: accounting.NamespaceScope(namespace), Counters: accounting.Counters{Components: 1}},
	})
	require.NoError(s.t, err)
	require.Empty(s.t, failed)
}

// counted waits until the counters say that there are n versions.
func (s *services) counted(namespace, repository uuid.UUID, n int64) {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		return s.count(`SELECT artifacts_count FROM repositories WHERE id = $1`, repository) == n &&
			s.count(`SELECT components_count FROM namespace_statistics WHERE namespace_id = $1`, namespace) == n
	}, patience, often)
}

func TestWorker(t *testing.T) {
	t.Parallel()

	t.Run("AC1 AC2 increments are in their rows after the next tick, and SIGTERM ends the worker in order", func(t *testing.T) {
		t.Parallel()
		s := newServices(t)
		namespace, repository := s.namespace()
		s.publish(namespace, repository)
		w := s.start()
		s.counted(namespace, repository, 1)
		s.publish(namespace, repository)
		s.counted(namespace, repository, 2)

		code, body := w.get("/readyz")
		require.Equal(t, http.StatusOK, code, body)
		require.Eventually(t, func() bool {
			_, metrics := w.get("/metrics")
			return strings.Contains(metrics, `stowage_counter_dirty_set_size{scope="namespace"}`) &&
				strings.Contains(metrics, `stowage_drain_flushes_total{outcome="applied"}`) &&
				strings.Contains(metrics, `stowage_reconciliation_passes_total{result="done"} 1`)
		}, patience, often)

		require.NoError(t, w.cmd.Process.Signal(syscall.SIGTERM))
		require.Zero(t, w.exit())
		require.Contains(t, w.log.String(), `msg="worker stopped"`)
		require.NotContains(t, w.log.String(), "level=ERROR")
		require.Zero(t, s.count(`SELECT count(*) FROM river.river_job WHERE state = 'running'`))
	})

	t.Run("E8 E11 two workers at once: one is killed, one replaced, and every increment counts once", func(t *testing.T) {
		t.Parallel()
		s := newServices(t)
		namespace, repository := s.namespace()
		workers := []*worker{s.start(), s.start()}
		const commits = 300
		for n := range commits {
			s.publish(namespace, repository)
			switch n {
			case commits / 3:
				require.NoError(t, workers[0].cmd.Process.Kill())
			case commits / 2:
				require.NoError(t, workers[1].cmd.Process.Signal(syscall.SIGTERM))
				s.start()
			}
			if n%10 == 0 {
				s.exec(`INSERT INTO reconciliation_requests (namespace_id, marker) VALUES ($1, clock_timestamp())
					ON CONFLICT (namespace_id) DO UPDATE SET marker = clock_timestamp()`, namespace)
			}
		}
		s.counted(namespace, repository, commits)
		require.Equal(t, -1, workers[0].exit(), "killed")
		require.Zero(t, workers[1].exit())
	})

	t.Run("S2 the schedule alone finds drift, and the ledger shows it", func(t *testing.T) {
		t.Parallel()
		s := newServices(t)
		namespace, repository := s.namespace()
		s.start("--reconciliation-staleness", "1s")
		s.publish(namespace, repository)
		s.counted(namespace, repository, 1)
		s.exec(`UPDATE repositories SET artifacts_count = 41 WHERE id = $1`, repository)
		s.counted(namespace, repository, 1)
		require.Equal(t, int64(1), s.count(`SELECT count(*) FROM storage_ledger WHERE scope_id = $1 AND outcome = 4 AND components = -40 AND namespace_id = $2`, repository, namespace))
	})

	t.Run("a job that does not end within the deadline is canceled", func(t *testing.T) {
		t.Parallel()
		s := newServices(t)
		namespace, repository := s.namespace()
		lock, err := s.pool.Begin(t.Context())
		require.NoError(t, err)
		t.Cleanup(func() { _ = lock.Rollback(context.Background()) })
		var holder int
		require.NoError(t, lock.QueryRow(t.Context(), `SELECT pg_backend_pid() FROM repositories WHERE id = $1 FOR UPDATE`, repository).Scan(&holder))
		w := s.start("--shutdown-timeout", "300ms")
		// Only a pass waits for this lock: the worker's other jobs wait for each other's.
		require.Eventually(t, func() bool {
			return s.count(`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND $1 = ANY(pg_blocking_pids(pid))`, holder) > 0
		}, patience, often)
		require.NoError(t, w.cmd.Process.Signal(os.Interrupt))
		require.Zero(t, w.exit())
		require.Equal(t, int64(1), s.count(`SELECT count(*) FROM river.river_job WHERE kind = 'reconcile_namespace' AND state = 'available'`))
		require.Zero(t, s.count(`SELECT count(*) FROM namespace_statistics WHERE namespace_id = $1 AND last_reconciled_at > 'epoch'`, namespace))
	})
}

func TestWorkerRefuses(t *testing.T) {
	t.Parallel()

	t.Run("a database that lacks migrations, and says what to run", func(t *testing.T) {
		t.Parallel()
		s := &services{t: t, url: dbtest.NewEmptyURL(t), redis: redistest.Start(t)}
		w := s.process(s.args()...)
		require.Equal(t, 1, w.exit())
		require.Contains(t, w.log.String(), "run stowage migrate apply")
	})

	t.Run("a Redis that evicts keys", func(t *testing.T) {
		t.Parallel()
		s := newServices(t)
		client := s.redis.Client(t)
		require.NoError(t, client.Do(t.Context(), client.B().ConfigSet().ParameterValue().ParameterValue("maxmemory-policy", "allkeys-lru").Build()).Error())
		w := s.process(s.args()...)
		require.Equal(t, 1, w.exit())
		require.Contains(t, w.log.String(), "noeviction")
	})

	t.Run("AC32 an invalid configuration, all mistakes at once", func(t *testing.T) {
		t.Parallel()
		_, _, err := run(t, "worker", "--drain-interval", "soon", "--reconciliation-max-in-flight", "0")
		for _, path := range []string{"database.url", "redis.addresses", "drain.interval", "reconciliation.max_in_flight"} {
			require.ErrorContains(t, err, path)
		}
	})

	t.Run("S3 its errors keep the password", func(t *testing.T) {
		t.Parallel()
		s := &services{t: t, redis: redistest.Start(t), url: "postgres://stowage:hunter2@127.0.0.1:1/x?sslmode=disable"}
		w := s.process(s.args()...)
		require.Equal(t, 1, w.exit())
		require.NotContains(t, w.log.String(), "hunter2")
	})
}

func TestWorkerValidateOnlyChecks(t *testing.T) {
	t.Parallel()
	// Nothing listens at these addresses.
	stdout, _, err := run(t, "worker", "--validate", "--database-url", "postgres://stowage:hunter2@127.0.0.1:1/x", "--redis-addresses", "127.0.0.1:1")
	require.NoError(t, err)
	require.Contains(t, stdout, "max_in_flight: 4")
	require.NotContains(t, stdout, "hunter2")

	_, _, err = run(t, "worker", "--validate", "--redis-addresses", "127.0.0.1:1")
	require.ErrorContains(t, err, "database.url")
}

// A registry and its workers must agree on how long a buffer lives.
func TestDefaultsOfRegistryAndWorkerAgree(t *testing.T) {
	t.Parallel()
	require.Equal(t, entdb.DefaultBufferTTL, config.Default().Buffer.TTL)
}
