package exactness

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/redis/rueidis"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivertest"
	"github.com/riverqueue/river/rivertype"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/schematype"
	"github.com/stowage-dev/stowage/internal/accounting"
	"github.com/stowage-dev/stowage/internal/drain"
	"github.com/stowage-dev/stowage/internal/failpoint"
	"github.com/stowage-dev/stowage/internal/redisconn"
)

// An actor does one thing of the protocol, from its begin to its end.
type actor string

const (
	// writer publishes one version.
	writer actor = "writer"
	// unheard publishes one version, and Redis does not hear of it.
	unheard actor = "unheard writer"
	drainer actor = "drain"
	ticker  actor = "tick"
	passer  actor = "pass"
)

// errInjected is what a failpoint fails with.
var errInjected = errors.New("injected")

// act is the actor's work. What it writes is 10 bytes.
func (p *process) act(ctx context.Context, who actor, namespace, repository uuid.UUID) error {
	switch who {
	case writer:
		return p.publish(ctx, repository, "acted", 10)
	case unheard:
		return p.publish(failpoint.With(ctx, failing(failpoint.WriterEmits)), repository, "acted", 10)
	case drainer:
		return p.drain(ctx, accounting.Bucket(namespace))
	case ticker:
		return p.tick(ctx)
	case passer:
		return p.reconcile(ctx, namespace)
	default:
		return fmt.Errorf("no such actor: %q", who)
	}
}

// failing fails at a point.
func failing(at failpoint.Point) failpoint.Hook {
	return func(_ context.Context, met failpoint.Point) error {
		if met == at {
			return errInjected
		}
		return nil
	}
}

// tick works one tick. Nobody works the jobs that it inserts.
func (p *process) tick(ctx context.Context) error {
	client, err := river.NewClient(riverpgxv5.New(p.pool.Pool), &river.Config{Schema: "river"})
	if err != nil {
		return err
	}
	job := &river.Job[drain.TickArgs]{JobRow: &rivertype.JobRow{ScheduledAt: time.Now()}}
	return p.ticks.Work(rivertest.WorkContext(ctx, client), job)
}

// What a child process needs to know.
const (
	actorVariable      = "EXACTNESS_ACTOR"
	databaseVariable   = "EXACTNESS_DATABASE"
	redisVariable      = "EXACTNESS_REDIS"
	namespaceVariable  = "EXACTNESS_NAMESPACE"
	repositoryVariable = "EXACTNESS_REPOSITORY"
)

// child is the test binary as a process with one actor, armed at one point.
func (s *stage) child(t testing.TB, who actor, at failpoint.Point, action string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = []string{
		actorVariable + "=" + string(who),
		databaseVariable + "=" + s.databaseURL,
		redisVariable + "=" + s.redisAddress,
		namespaceVariable + "=" + s.namespace.String(),
		repositoryVariable + "=" + s.repository().String(),
		failpoint.Variable + "=" + string(at) + "=" + action,
	}
	cmd.Stderr = t.Output()
	return cmd
}

// runActor is the main of a child process.
func runActor() {
	if err := actInChild(context.Background()); err != nil {
		panic(err)
	}
}

func actInChild(ctx context.Context) error {
	redis, err := redisconn.Open(rueidis.ClientOption{InitAddress: []string{os.Getenv(redisVariable)}}, "child")
	if err != nil {
		return err
	}
	defer redis.Close()
	pool, err := connect(ctx, "child", os.Getenv(databaseVariable))
	if err != nil {
		return err
	}
	defer pool.Close()
	p, err := openProcess(pool, redis)
	if err != nil {
		return err
	}
	namespace, err := uuid.Parse(os.Getenv(namespaceVariable))
	if err != nil {
		return err
	}
	repository, err := uuid.Parse(os.Getenv(repositoryVariable))
	if err != nil {
		return err
	}
	err = p.act(ctx, actor(os.Getenv(actorVariable)), namespace, repository)
	return errors.Join(err, p.db.Close(ctx))
}

// requireKilled waits for the child's end by SIGKILL.
func requireKilled(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	var ended *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &ended, "the child met no failpoint")
	status, ok := ended.Sys().(syscall.WaitStatus)
	require.True(t, ok)
	require.Equal(t, syscall.SIGKILL, status.Signal(), "the child ended by itself: %s", ended)
}

// awaitStopped waits until the child has stopped itself.
func awaitStopped(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", cmd.Process.Pid))
		require.NoError(t, err, "the child met no failpoint")
		_, state, _ := strings.Cut(string(stat), ") ")
		return strings.HasPrefix(state, "T")
	}, patience, often, "the child does not stop")
}

func goOn(t testing.TB, cmd *exec.Cmd) {
	t.Helper()
	require.NoError(t, cmd.Process.Signal(syscall.SIGCONT))
}

func digestOf(name string) schematype.Digest { return sha256.Sum256([]byte(name)) }

// blocked reports whether a statement of one process waits for a lock of the
// other.
func (s *servers) blocked(t testing.TB, waiting, holding *process) (is bool) {
	t.Helper()
	require.NoError(t, s.pool.QueryRow(context.Background(), `
		SELECT EXISTS (
			SELECT FROM pg_stat_activity w JOIN pg_stat_activity h ON h.pid = ANY (pg_blocking_pids(w.pid))
			WHERE w.application_name = $1 AND h.application_name = $2)`, waiting.pool.name, holding.pool.name).Scan(&is))
	return is
}
