package entdb_test

import (
	"bytes"
	"context"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/stretchr/testify/require"

	"github.com/stowage-dev/stowage/ent/entdb"
)

func TestCommitOutlivesTheCallersContext(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)

	t.Run("cancelled before the COMMIT", func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		err := b.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
			newVersion(tx, r, 100).SaveX(ctx)
			cancel()
			return nil
		})
		require.NoError(t, err)
		require.Equal(t, entdb.Counters{Bytes: 100, Components: 1}, b.recorder.Repository(r.ID))
		b.requireExact(t, r)
	})

	t.Run("cancelled while the COMMIT waits", func(t *testing.T) {
		holder, err := b.pool.Begin(t.Context())
		require.NoError(t, err)
		_, err = holder.Exec(t.Context(), `SELECT pg_advisory_xact_lock(stowage_namespace_lock_key($1))`, b.namespace.ID)
		require.NoError(t, err)

		ctx, cancel := context.WithCancel(t.Context())
		committed := make(chan error, 1)
		go func() {
			committed <- b.db.WithTx(ctx, func(ctx context.Context, tx *entdb.Tx) error {
				return newVersion(tx, r, 100).Exec(ctx)
			})
		}()
		b.awaitLockWaiters(t, 1)
		cancel()
		require.NoError(t, holder.Rollback(t.Context()))
		require.NoError(t, <-committed)
		b.requireExact(t, r)
	})
	require.Zero(t, b.requests(t))
}

// The proxies cut the connection at the COMMIT, before the server sees it or
// after it has answered: the client cannot tell these apart.
func TestUnknownCommitEmitsNothingAndIsRequested(t *testing.T) {
	t.Parallel()
	for name, reaches := range map[string]bool{"the server committed": true, "the server never saw it": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p *proxy
			b := setup(t, func(cfg *entdb.Config) { p, cfg.Pool = proxied(t, cfg.Pool, reaches) })
			r := b.npm(t)
			b.publish(t, r, 1)
			p.arm()
			err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
				return newVersion(tx, r, 100).Exec(ctx)
			})
			p.disarm()
			require.ErrorIs(t, err, entdb.ErrCommitUnknown)
			require.Len(t, b.recorder.Emissions(), 1)
			b.requireRequested(t, b.namespace.ID)
			require.Eventually(t, func() bool {
				return (b.db.NPMVersion.Query().CountX(t.Context()) == 2) == reaches
			}, time.Minute, 10*time.Millisecond)
		})
	}
}

// The network holds the COMMIT back, and a pass answers the request meanwhile.
func TestLateCommitIsRequestedAgain(t *testing.T) {
	t.Parallel()
	var p *proxy
	b := setup(t, func(cfg *entdb.Config) {
		p, cfg.Pool = proxied(t, cfg.Pool, false)
		cfg.IdleTimeout = 3 * time.Second
	})
	r := b.npm(t)
	b.publish(t, r, 1)
	p.holds = make(chan struct{})
	deliver := sync.OnceFunc(func() { close(p.holds) })
	defer deliver()
	p.arm()
	err := b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		var timeout string
		require.NoError(t, tx.Pgx().QueryRow(ctx, `SHOW idle_in_transaction_session_timeout`).Scan(&timeout))
		require.Equal(t, "3s", timeout)
		return newVersion(tx, r, 100).Exec(ctx)
	})
	p.disarm()
	require.ErrorIs(t, err, entdb.ErrCommitUnknown)
	b.requireRequested(t, b.namespace.ID)
	_, err = b.pool.Exec(t.Context(), `DELETE FROM reconciliation_requests`)
	require.NoError(t, err)
	deliver() // it arrives, unless the server has ended the session by now
	b.requireRequested(t, b.namespace.ID)
	require.Eventually(t, func() bool { return b.sessionsInTransaction(t) == 0 }, time.Minute, 20*time.Millisecond, "a COMMIT can still arrive")
}

func (b *bundle) sessionsInTransaction(t *testing.T) (n int) {
	t.Helper()
	require.NoError(t, b.pool.QueryRow(t.Context(),
		`SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND state = 'idle in transaction'`).Scan(&n))
	return n
}

// A session that is ended while it waits for the namespace's lock answers with
// a FATAL error: that decides nothing.
func TestTerminatedBackendIsAnUnknownCommit(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)
	holder, err := b.pool.Begin(t.Context())
	require.NoError(t, err)
	_, err = holder.Exec(t.Context(), `SELECT pg_advisory_xact_lock(stowage_namespace_lock_key($1))`, b.namespace.ID)
	require.NoError(t, err)
	committed := make(chan error, 1)
	go func() {
		committed <- b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
			return newVersion(tx, r, 100).Exec(ctx)
		})
	}()
	b.awaitLockWaiters(t, 1)
	_, err = b.pool.Exec(t.Context(),
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)
	require.NoError(t, err)
	require.ErrorIs(t, <-committed, entdb.ErrCommitUnknown)
	require.NoError(t, holder.Rollback(t.Context()))
	b.requireRequested(t, b.namespace.ID)
	b.requireExact(t, r)
}

func TestRefusedCommitIsNotUnknown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	r := b.npm(t)
	_, err := b.pool.Exec(t.Context(), `
		CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'refused at commit'; END $$;
		CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON npm_versions DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION refuse()`)
	require.NoError(t, err)
	err = b.db.WithTx(t.Context(), func(ctx context.Context, tx *entdb.Tx) error {
		return newVersion(tx, r, 100).Exec(ctx)
	})
	require.ErrorContains(t, err, "refused at commit")
	require.NotErrorIs(t, err, entdb.ErrCommitUnknown)
	require.Empty(t, b.recorder.Emissions())
	require.Zero(t, b.requests(t))
	b.requireExact(t, r)
}

// proxy stands between the client and PostgreSQL and cuts a connection at its
// COMMIT when it is armed.
type proxy struct {
	listener net.Listener
	server   string
	reaches  bool
	// holds, if not nil, keeps the COMMIT until it is closed. The client sees its
	// connection break.
	holds chan struct{}

	mu    sync.Mutex
	armed bool
	group sync.WaitGroup
}

func proxied(t *testing.T, pool *pgxpool.Pool, reaches bool) (*proxy, *pgxpool.Pool) {
	t.Helper()
	cfg := pool.Config()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	p := &proxy{
		listener: listener, reaches: reaches,
		server: net.JoinHostPort(cfg.ConnConfig.Host, strconv.Itoa(int(cfg.ConnConfig.Port))),
	}
	p.group.Go(p.serve)
	addr := listener.Addr().(*net.TCPAddr)
	cfg.ConnConfig.Host, cfg.ConnConfig.Port = "127.0.0.1", uint16(addr.Port)
	// The statement's text travels with every execution, so that the proxy
	// sees the COMMIT, and the one connection has it described already.
	cfg.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	cfg.MaxConns = 1
	through, err := pgxpool.NewWithConfig(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() {
		through.Close()
		require.NoError(t, listener.Close())
		p.group.Wait()
	})
	return p, through
}

func (p *proxy) arm()    { p.set(true) }
func (p *proxy) disarm() { p.set(false) }

func (p *proxy) set(armed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.armed = armed
}

func (p *proxy) isArmed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.armed
}

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.group.Go(func() { p.relay(client) })
	}
}

func (p *proxy) relay(client net.Conn) {
	server, err := net.Dial("tcp", p.server)
	if err != nil {
		_ = client.Close()
		return
	}
	var answers sync.WaitGroup
	cut := make(chan struct{})
	answers.Go(func() {
		buf := make([]byte, 64<<10)
		for {
			n, err := server.Read(buf)
			if err != nil {
				break
			}
			select {
			case <-cut:
				// The answer to the COMMIT is here, and goes no further.
				_ = client.Close()
				return
			default:
				_, _ = client.Write(buf[:n])
			}
		}
		_ = client.Close()
	})
	p.forward(client, server, cut)
	_ = server.Close()
	_ = client.Close()
	answers.Wait()
}

// deliverLate writes the COMMIT when the client has long gone, and waits for its
// answer.
func (p *proxy) deliverLate(client net.Conn, server net.Conn, commit []byte) {
	_ = client.Close()
	<-p.holds
	_, _ = server.Write(commit)
	_ = server.(*net.TCPConn).CloseWrite()
}

func (p *proxy) forward(client, server net.Conn, cut chan struct{}) {
	buf := make([]byte, 64<<10)
	for {
		n, err := client.Read(buf)
		if err != nil {
			return
		}
		if p.isArmed() && bytes.Contains(buf[:n], []byte("COMMIT\x00")) {
			if p.holds != nil {
				p.deliverLate(client, server, buf[:n])
				return
			}
			if !p.reaches {
				return
			}
			close(cut)
			p.disarm()
		}
		if _, err := server.Write(buf[:n]); err != nil {
			return
		}
	}
}
