// Package admin serves what operators need of a running process: /metrics,
// /healthz (the process lives) and /readyz (it can work). It has no TLS: beyond
// loopback, put it behind something that has.
package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Config is what a Server needs. Every field but Token is required.
type Config struct {
	// Listen is a host:port; port 0 takes a free one.
	Listen string
	// Token is demanded as a bearer token by all but /healthz. Empty demands
	// none, which is only allowed on loopback.
	Token string
	// Gatherer is what /metrics shows.
	Gatherer prometheus.Gatherer
	// Checks decide what /readyz answers.
	Checks []Check
	// Log gets the errors of failed checks, which callers of /readyz do not see.
	Log *slog.Logger
}

// Bounds of a connection, so that a slow client cannot hold one for ever.
const (
	readTimeout  = 10 * time.Second
	writeTimeout = 30 * time.Second
	idleTimeout  = time.Minute
	maxHeader    = 16 << 10
	// stopTimeout is what requests under way get to end when Serve is stopped.
	stopTimeout = 5 * time.Second
)

// Server listens from Listen on and answers while Serve runs.
type Server struct {
	listener net.Listener
	http     *http.Server
}

// Listen opens the port, so that a port that is taken is an error at start. It
// refuses to be reachable from other machines without a token.
func Listen(ctx context.Context, cfg Config) (*Server, error) {
	if cfg.Token == "" && !IsLoopback(cfg.Listen) {
		return nil, fmt.Errorf("admin server: %q can be reached from other machines: it needs a token", cfg.Listen)
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Listen)
	if err != nil {
		return nil, fmt.Errorf("admin server: %w", err)
	}
	return &Server{
		listener: listener,
		http: &http.Server{
			Handler:        handler(cfg),
			ReadTimeout:    readTimeout,
			WriteTimeout:   writeTimeout,
			IdleTimeout:    idleTimeout,
			MaxHeaderBytes: maxHeader,
			ErrorLog:       slog.NewLogLogger(cfg.Log.Handler(), slog.LevelWarn),
		},
	}, nil
}

// URL is the server's address, with the port it really has.
func (s *Server) URL() string { return "http://" + s.listener.Addr().String() }

// Serve answers until ctx ends; then it takes no new requests, lets those under
// way end for a moment, and returns nil. It closes the port in any case.
func (s *Server) Serve(ctx context.Context) error {
	stopped := make(chan error, 1)
	stop := context.AfterFunc(ctx, func() { stopped <- s.stop(ctx) })
	err := s.http.Serve(s.listener)
	if stop() {
		return fmt.Errorf("admin server: %w", err)
	}
	return <-stopped
}

func (s *Server) stop(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		return errors.Join(fmt.Errorf("admin server: requests cut off: %w", err), s.http.Close())
	}
	return nil
}

func handler(cfg Config) http.Handler {
	guarded := func(h http.Handler) http.Handler { return demandToken(cfg.Token, h) }
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write([]byte("ok\n"))
	})
	mux.Handle("GET /readyz", guarded(readiness{checks: cfg.Checks, log: cfg.Log}))
	mux.Handle("GET /metrics", guarded(promhttp.HandlerFor(cfg.Gatherer, promhttp.HandlerOpts{})))
	mux.Handle("/", guarded(http.NotFoundHandler()))
	return mux
}

// demandToken compares digests, so that the time it takes tells neither the
// token nor its length.
func demandToken(token string, next http.Handler) http.Handler {
	if token == "" {
		return next
	}
	want := sha256.Sum256([]byte(token))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, given, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		got := sha256.Sum256([]byte(given))
		if !strings.EqualFold(scheme, "Bearer") || subtle.ConstantTimeCompare(got[:], want[:]) != 1 {
			w.Header().Set("WWW-Authenticate", `Bearer realm="stowage"`)
			http.Error(w, "this address needs the admin token as a bearer token", http.StatusUnauthorized)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// IsLoopback reports whether a host:port names this machine only. A name other
// than localhost does not: it may resolve to anything.
func IsLoopback(hostPort string) bool {
	host, _, err := net.SplitHostPort(hostPort)
	if err != nil {
		return false
	}
	return host == "localhost" || net.ParseIP(host).IsLoopback()
}
