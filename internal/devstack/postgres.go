package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/jackc/pgx/v5"
)

// PostgresOptions choose the version of a throw-away PostgreSQL and its settings.
type PostgresOptions struct {
	// Version is one of PostgresVersions, which FetchPostgres has fetched. Zero
	// means the server that is installed on this machine.
	Version int
	// Stock leaves the number of connections, and with it the number of locks, at
	// the default. With Durable every setting but the address is at its default.
	Stock bool
	// Durable leaves fsync and full_page_writes on, as in production, so that
	// the speed of commits is a real one. Without it nothing survives a crash
	// of the machine, which is all that tests need.
	Durable bool
	// Settings are further ones, as "shared_buffers=1GB".
	Settings []string
}

// Postgres is a throw-away PostgreSQL server, bound to loopback, whose only
// user is the superuser postgres without a password.
//
// Its methods are not safe for concurrent use.
type Postgres struct {
	opts    PostgresOptions
	bin     string
	account *syscall.Credential
	port    *port
	scratch *scratch
	process *process // nil while stopped
}

// StartPostgres makes a cluster, starts its server and returns when it answers.
// As root it runs under the user postgres, else nobody, because PostgreSQL
// refuses root. ctx bounds the start, not the server's life; Close ends that.
func StartPostgres(ctx context.Context, opts PostgresOptions) (*Postgres, error) {
	bin, err := opts.bin()
	if err != nil {
		return nil, err
	}
	account, err := unprivileged()
	if err != nil {
		return nil, err
	}
	port, err := reservePort()
	if err != nil {
		return nil, err
	}
	// SIGINT is PostgreSQL's fast shutdown.
	s, err := newScratch("stowage-postgres-", syscall.SIGINT)
	if err != nil {
		return nil, errors.Join(err, port.release())
	}
	p := &Postgres{opts: opts, bin: bin, account: account, port: port, scratch: s}
	if err := p.bringUp(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Postgres) bringUp(ctx context.Context) error {
	if err := p.giveFolder(); err != nil {
		return err
	}
	if err := p.initdb(ctx); err != nil {
		return err
	}
	return p.start(ctx)
}

// bin is the folder of the server's programs.
func (o PostgresOptions) bin() (string, error) {
	if o.Version == 0 {
		return findPostgres()
	}
	native, err := fetchedPostgres(o.Version)
	return filepath.Join(native, "bin"), err
}

// URL is the address of the maintenance database for the superuser.
func (p *Postgres) URL() string {
	return fmt.Sprintf("postgres://postgres@%s/postgres?sslmode=disable", p.port.addr())
}

// LogPath is the file that takes the server's log, over restarts, until Close.
func (p *Postgres) LogPath() string { return p.scratch.path("log") }

// Crash ends the server and its sessions at once, as an immediate shutdown or
// a kill does. What was committed is there after Start, also without Durable:
// it was handed to the kernel, which lives on.
func (p *Postgres) Crash() error { return p.stop(syscall.SIGQUIT) }

// Start starts the server again after Crash and returns when it has recovered
// and answers, on the same address.
func (p *Postgres) Start(ctx context.Context) error {
	if p.process != nil {
		return errors.New("devstack: PostgreSQL is running already: Crash it first")
	}
	return p.start(ctx)
}

// Close stops the server, ending its sessions, and removes its files.
func (p *Postgres) Close() error {
	return errors.Join(p.stop(syscall.SIGINT), p.scratch.remove(), p.port.release())
}

func (p *Postgres) stop(s syscall.Signal) error {
	if p.process == nil {
		return nil
	}
	process := p.process
	p.process = nil
	return process.stop(s)
}

func (p *Postgres) start(ctx context.Context) error {
	cmd := p.command("postgres", p.serverArgs()...)
	proc, err := startProcess("postgres", p.scratch, cmd)
	if err != nil {
		return err
	}
	p.process = proc
	return waitReady(ctx, proc, p.ping)
}

func (p *Postgres) data() string { return p.scratch.path("data") }

// giveFolder lets the server's account work in the server's folder, and gives it
// a copy of a fetched server: it may not enter the cache folder of root.
func (p *Postgres) giveFolder() error {
	if p.account == nil {
		return nil
	}
	if err := os.Chown(p.scratch.dir, int(p.account.Uid), int(p.account.Gid)); err != nil {
		return err
	}
	if p.opts.Version == 0 {
		return nil
	}
	programs := p.scratch.path("programs")
	native := filepath.Dir(p.bin)
	p.bin = filepath.Join(programs, "bin")
	return os.CopyFS(programs, os.DirFS(native))
}

func (p *Postgres) initdb(ctx context.Context) error {
	cmd := p.command("initdb",
		"--pgdata", p.data(), "--username", "postgres", "--auth", "trust",
		"--encoding", "UTF8", "--locale", "C", "--no-sync", "--no-instructions")
	proc, err := startProcess("initdb", p.scratch, cmd)
	if err != nil {
		return err
	}
	return proc.wait(ctx)
}

// serverArgs are stock settings but for the address and, unless told otherwise,
// more connections (tests of several packages share one server) and no durability.
func (p *Postgres) serverArgs() []string {
	settings := []string{
		"listen_addresses=127.0.0.1",
		"port=" + strconv.Itoa(p.port.number),
		// A socket's path would have to fit in 107 bytes; TMPDIR may be longer.
		"unix_socket_directories=",
	}
	if !p.opts.Stock {
		settings = append(settings, "max_connections=500")
	}
	if !p.opts.Durable {
		settings = append(settings, "fsync=off", "full_page_writes=off")
	}
	args := []string{"-D", p.data()}
	for _, s := range append(settings, p.opts.Settings...) {
		args = append(args, "-c", s)
	}
	return args
}

func (p *Postgres) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, program), args...)
	cmd.Dir = p.scratch.dir
	cmd.SysProcAttr = ownGroup()
	cmd.SysProcAttr.Credential = p.account
	return cmd
}

func (p *Postgres) ping(ctx context.Context) error {
	conn, err := pgx.Connect(ctx, p.URL())
	if err != nil {
		return err
	}
	return conn.Close(ctx)
}

// unprivileged is the account that PostgreSQL runs under when this process is
// root, and nil otherwise.
func unprivileged() (*syscall.Credential, error) {
	if os.Geteuid() != 0 {
		return nil, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, uerr := strconv.ParseUint(u.Uid, 10, 32)
		gid, gerr := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(uerr, gerr); err != nil {
			return nil, fmt.Errorf("account %s: %w", name, err)
		}
		return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
	}
	return nil, errors.New("devstack: PostgreSQL refuses to run as root, and there is no account postgres or nobody to run it under: create one")
}
