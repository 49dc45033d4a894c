//go:build failpoint

package failpoint

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
)

// Variable is the environment variable that arms a process: point=kill,
// point=stop or point=error.
const Variable = "STOWAGE_FAILPOINT"

type key struct{}

// With arms points for whatever runs under the context that it returns.
func With(ctx context.Context, hook Hook) context.Context {
	return context.WithValue(ctx, key{}, hook)
}

// Hit is called at each point.
func Hit(ctx context.Context, at Point) error {
	if err := ofProcess(at); err != nil {
		return err
	}
	if hook, ok := ctx.Value(key{}).(Hook); ok {
		return hook(ctx, at)
	}
	return nil
}

// armed is read once: a process is armed from its start or never.
var armed = sync.OnceValues(func() (Point, string) {
	point, action, _ := strings.Cut(os.Getenv(Variable), "=")
	return Point(point), action
})

// met says that the process was at its point, which acts once.
var met atomic.Bool

func ofProcess(at Point) error {
	point, action := armed()
	switch {
	case point != at:
		return nil
	case !met.CompareAndSwap(false, true):
		return nil
	case action == "error":
		return fmt.Errorf("failpoint %s", at)
	case action == "stop":
		return stop()
	default:
		_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
		select {}
	}
}

// stop returns when the process has been stopped and goes on. Kill alone may return
// before: the signal is another thread's to take, which on a busy machine comes late,
// and the caller would pass the point.
func stop() error {
	goesOn := make(chan os.Signal, 1)
	signal.Notify(goesOn, syscall.SIGCONT)
	defer signal.Stop(goesOn)
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		return err
	}
	<-goesOn
	return nil
}
