package admin

import (
	"context"
	"log/slog"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A bubble's clock runs only while nothing else can: the timeout costs no time.
func TestReadinessDoesNotWaitForAStuckCheck(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		leave := make(chan struct{})
		defer close(leave)
		stuck := func(context.Context) error { <-leave; return nil }
		works := func(context.Context) error { return nil }
		h := readiness{checks: []Check{{"stuck", stuck}, {"fine", works}}, log: slog.New(slog.DiscardHandler)}

		began := time.Now()
		recorder := httptest.NewRecorder()
		h.ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), "GET", "/readyz", nil))
		require.JSONEq(t, `{"ready": false, "failing": ["stuck"]}`, recorder.Body.String())
		require.Equal(t, checkTimeout, time.Since(began))
	})
}

func TestReadinessOutlivesACallerThatHangsUp(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	h := readiness{checks: []Check{{"fine", func(ctx context.Context) error { return ctx.Err() }}}}
	require.Empty(t, h.failing(ctx))
}
