package admin

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"time"
)

// checkTimeout bounds the answer of /readyz: below the ten seconds after which
// probes usually give up.
const checkTimeout = 5 * time.Second

// Check is one thing that must work for the process to work.
type Check struct {
	// Name is shown to callers of /readyz.
	Name string
	// Run returns nil if the thing works. It has to return when ctx ends; until
	// then it counts as failed, and its goroutine lives on.
	Run func(ctx context.Context) error
}

type readiness struct {
	checks []Check
	log    *slog.Logger
}

// answer is the body of /readyz. It names the checks that failed and keeps
// their errors out: an error may hold addresses, or worse.
type answer struct {
	Ready   bool     `json:"ready"`
	Failing []string `json:"failing"`
}

func (h readiness) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	failing := h.failing(r.Context())
	status := http.StatusOK
	if len(failing) > 0 {
		status = http.StatusServiceUnavailable
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	if err := json.NewEncoder(w).Encode(answer{Ready: len(failing) == 0, Failing: failing}); err != nil {
		h.log.DebugContext(r.Context(), "caller of /readyz hung up", "error", err)
	}
}

// failing runs all checks at once and returns the names of those that failed,
// in the order of the list.
func (h readiness) failing(ctx context.Context) []string {
	// A caller that hangs up would look like checks that fail.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), checkTimeout)
	defer cancel()
	results := make([]chan error, len(h.checks))
	for i, check := range h.checks {
		results[i] = make(chan error, 1)
		go func() { results[i] <- check.Run(ctx) }()
	}
	failing := []string{}
	for i, check := range h.checks {
		if err := await(ctx, results[i]); err != nil {
			failing = append(failing, check.Name)
			h.log.WarnContext(ctx, "not ready", "check", check.Name, "error", err)
		}
	}
	return failing
}

// await prefers the result: after one check has used up the time, the others'
// results are there too.
func await(ctx context.Context, result <-chan error) error {
	select {
	case err := <-result:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-result:
		return err
	default:
		return ctx.Err()
	}
}
