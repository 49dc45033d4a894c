package admin_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/stowage-dev/stowage/internal/admin"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	eventually = time.Minute
	tick       = 5 * time.Millisecond
)

const token = "correct-horse-battery-staple"

type bundle struct {
	url  string
	log  *lockedBuffer
	stop context.CancelFunc
	done <-chan error
}

// serve runs a server on a free loopback port until the test ends.
func serve(t *testing.T, change func(*admin.Config)) *bundle {
	t.Helper()
	log := &lockedBuffer{}
	cfg := admin.Config{
		Listen:   "127.0.0.1:0",
		Gatherer: prometheus.NewRegistry(),
		Log:      slog.New(slog.NewTextHandler(log, nil)),
	}
	change(&cfg)
	server, err := admin.Listen(t.Context(), cfg)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- server.Serve(ctx); close(done) }()
	t.Cleanup(func() {
		stop()
		require.NoError(t, <-done)
	})
	return &bundle{url: server.URL(), log: log, stop: stop, done: done}
}

type response struct {
	status int
	body   string
	header http.Header
}

func get(t *testing.T, url, authorization string) response {
	t.Helper()
	got, err := fetch(t.Context(), url, authorization)
	require.NoError(t, err)
	return got
}

func fetch(ctx context.Context, url, authorization string) (response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return response{}, err
	}
	if authorization != "" {
		req.Header.Set("Authorization", authorization)
	}
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return response{}, err
	}
	text, err := io.ReadAll(resp.Body)
	return response{resp.StatusCode, string(text), resp.Header}, errors.Join(err, resp.Body.Close())
}

func TestMetricsComeFromTheGatherer(t *testing.T) {
	t.Parallel()
	registry := prometheus.NewRegistry()
	counter := prometheus.NewCounter(prometheus.CounterOpts{Name: "boxes_total", Help: "Boxes."})
	registry.MustRegister(counter)
	counter.Add(3)
	b := serve(t, func(c *admin.Config) { c.Gatherer = registry })

	got := get(t, b.url+"/metrics", "")
	require.Equal(t, http.StatusOK, got.status)
	require.Contains(t, got.body, "boxes_total 3\n")
}

func TestReadiness(t *testing.T) {
	t.Parallel()
	works := func(context.Context) error { return nil }
	fails := func(context.Context) error { return errors.New("dial postgres://app:hunter2@db") }

	t.Run("ready when every check passes", func(t *testing.T) {
		t.Parallel()
		b := serve(t, func(c *admin.Config) { c.Checks = []admin.Check{{"database", works}, {"redis", works}} })
		got := get(t, b.url+"/readyz", "")
		require.Equal(t, http.StatusOK, got.status)
		require.JSONEq(t, `{"ready": true, "failing": []}`, got.body)
		require.Equal(t, "application/json", got.header.Get("Content-Type"))
	})
	t.Run("S3 not ready names the failing checks without their errors", func(t *testing.T) {
		t.Parallel()
		b := serve(t, func(c *admin.Config) {
			c.Checks = []admin.Check{{"migrations", fails}, {"database", works}, {"redis", fails}}
		})
		got := get(t, b.url+"/readyz", "")
		require.Equal(t, http.StatusServiceUnavailable, got.status)
		require.JSONEq(t, `{"ready": false, "failing": ["migrations", "redis"]}`, got.body)
		require.Contains(t, b.log.String(), "check=redis", "the operator finds the error in the log")
	})
	t.Run("checks run at the same time", func(t *testing.T) {
		t.Parallel()
		var meet sync.WaitGroup
		meet.Add(2)
		waitsForTheOther := func(context.Context) error { meet.Done(); meet.Wait(); return nil }
		b := serve(t, func(c *admin.Config) {
			c.Checks = []admin.Check{{"a", waitsForTheOther}, {"b", waitsForTheOther}}
		})
		got := get(t, b.url+"/readyz", "")
		require.Equal(t, http.StatusOK, got.status)
	})
	t.Run("the process is alive while nothing else works", func(t *testing.T) {
		t.Parallel()
		b := serve(t, func(c *admin.Config) { c.Checks = []admin.Check{{"database", fails}} })
		got := get(t, b.url+"/healthz", "")
		require.Equal(t, http.StatusOK, got.status)
		require.Equal(t, "ok\n", got.body)
	})
}

func TestS3TokenIsDemanded(t *testing.T) {
	t.Parallel()
	// 0.0.0.0 listens beyond loopback; the test reaches it by loopback.
	b := serve(t, func(c *admin.Config) { c.Listen, c.Token = "0.0.0.0:0", token })
	_, port, err := net.SplitHostPort(strings.TrimPrefix(b.url, "http://"))
	require.NoError(t, err)
	url := "http://127.0.0.1:" + port

	for _, path := range []string{"/metrics", "/readyz", "/", "/nowhere"} {
		for _, authorization := range []string{
			"", token, "Bearer", "Bearer ", "Basic " + token, "Bearer " + token[1:], "Bearer " + token + "x", "Bearer  " + token,
		} {
			got := get(t, url+path, authorization)
			require.Equal(t, http.StatusUnauthorized, got.status, "%s with %q", path, authorization)
			require.Contains(t, got.header.Get("WWW-Authenticate"), "Bearer")
			require.NotContains(t, got.body, token)
		}
	}
	for path, want := range map[string]int{"/metrics": 200, "/readyz": 200, "/nowhere": 404} {
		got := get(t, url+path, "Bearer "+token)
		require.Equal(t, want, got.status, path)
	}
	got := get(t, url+"/healthz", "")
	require.Equal(t, http.StatusOK, got.status, "probes of life need no token")
	require.NotContains(t, b.log.String(), token)
}

func TestS3ListenRefusesToBeReachableWithoutToken(t *testing.T) {
	t.Parallel()
	for _, listen := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:80", "worker.example:80"} {
		_, err := admin.Listen(t.Context(), admin.Config{Listen: listen})
		require.ErrorContains(t, err, "needs a token", listen)
	}
}

func TestIsLoopback(t *testing.T) {
	t.Parallel()
	for listen, want := range map[string]bool{
		"127.0.0.1:80": true, "127.8.8.8:0": true, "[::1]:80": true, "localhost:80": true,
		"0.0.0.0:80": false, ":80": false, "[::]:80": false, "10.0.0.1:80": false,
		"localhost.example:80": false, "127.0.0.1": false, "": false,
	} {
		require.Equal(t, want, admin.IsLoopback(listen), listen)
	}
}

func TestListenReportsTakenPort(t *testing.T) {
	t.Parallel()
	b := serve(t, func(*admin.Config) {})
	_, err := admin.Listen(t.Context(), admin.Config{Listen: strings.TrimPrefix(b.url, "http://"), Log: slog.New(slog.DiscardHandler)})
	require.ErrorContains(t, err, "admin server: ")
	require.ErrorContains(t, err, "address already in use")
}

func TestServeLetsRequestsEndWhenItStops(t *testing.T) {
	t.Parallel()
	entered, leave := make(chan struct{}), make(chan struct{})
	b := serve(t, func(c *admin.Config) {
		c.Checks = []admin.Check{{"slow", func(context.Context) error {
			close(entered)
			<-leave
			return nil
		}}}
	})
	answered := make(chan response, 1)
	go func() {
		got, _ := fetch(t.Context(), b.url+"/readyz", "")
		answered <- got
	}()
	<-entered
	b.stop()
	require.Eventually(t, func() bool { return refused(t, b.url) }, eventually, tick, "no new requests are taken")
	select {
	case err := <-b.done:
		require.Fail(t, "Serve returned while a request was under way", "%v", err)
	default:
	}
	close(leave)
	require.Equal(t, http.StatusOK, (<-answered).status)
	require.NoError(t, <-b.done)
}

func TestServeStopsAtOnceWhenItsContextHasEnded(t *testing.T) {
	t.Parallel()
	server, err := admin.Listen(t.Context(), admin.Config{
		Listen: "127.0.0.1:0", Gatherer: prometheus.NewRegistry(), Log: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, server.Serve(ctx))
	require.True(t, refused(t, server.URL()), "the port is closed")
}

func refused(t *testing.T, url string) bool {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", strings.TrimPrefix(url, "http://"))
	if err == nil {
		require.NoError(t, conn.Close())
	}
	return err != nil
}

// lockedBuffer is a log that several goroutines write.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
