package devstack

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"time"
)

// stopTimeout is how long an orderly stop may take before the process is
// killed.
const stopTimeout = 10 * time.Second

// logTailBytes is how much of a failed server's log an error carries.
const logTailBytes = 4096

// process is a running server. Its end is noticed whenever it comes.
type process struct {
	name    string
	cmd     *exec.Cmd
	scratch *scratch
	done    chan struct{}
	waitErr error // valid once done is closed
}

// Program is a program that runs beside the servers and, like them, does not
// outlive this process.
type Program struct {
	scratch *scratch
	process *process
}

// StartProgram starts cmd in a process group of its own. Output that cmd does not
// take elsewhere goes to a log. The name is for errors. SIGTERM must end it in an
// orderly way.
func StartProgram(name string, cmd *exec.Cmd) (*Program, error) {
	s, err := newScratch("stowage-program-", syscall.SIGTERM)
	if err != nil {
		return nil, err
	}
	cmd.SysProcAttr = ownGroup()
	p, err := startProcess(name, s, cmd)
	if err != nil {
		return nil, errors.Join(err, s.remove())
	}
	return &Program{scratch: s, process: p}, nil
}

// Done is closed when the program has ended.
func (p *Program) Done() <-chan struct{} { return p.process.done }

// Err says, once Done is closed, how the program ended and what it logged last.
func (p *Program) Err() error {
	return fmt.Errorf("%s ended (%w):\n%s", p.process.name, p.process.exitError(), p.process.logTail())
}

// LogPath is the file that takes its output, until Close.
func (p *Program) LogPath() string { return p.scratch.path("log") }

// LogTail is what it logged last.
func (p *Program) LogTail() string { return p.process.logTail() }

// Kill ends the program as a crash does, and returns when it is gone.
func (p *Program) Kill() error { return p.process.stop(syscall.SIGKILL) }

// Stop ends the program in an orderly way, and returns when it is gone.
func (p *Program) Stop() error { return p.process.stop(syscall.SIGTERM) }

// Close ends the program and removes its log.
func (p *Program) Close() error { return errors.Join(p.Stop(), p.scratch.remove()) }

// startProcess starts cmd, with what output it does not take elsewhere in the
// scratch folder's log.
func startProcess(name string, s *scratch, cmd *exec.Cmd) (*process, error) {
	log, err := os.OpenFile(s.path("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	if cmd.Stdout == nil {
		cmd.Stdout = log
	}
	if cmd.Stderr == nil {
		cmd.Stderr = log
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &process{name: name, cmd: cmd, scratch: s, done: make(chan struct{})}
	go func() {
		p.waitErr = cmd.Wait()
		close(p.done)
	}()
	if err := s.setPID(cmd.Process.Pid); err != nil {
		return nil, errors.Join(err, p.stop(syscall.SIGKILL))
	}
	return p, nil
}

func (p *process) signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("send %v to %s: %w", s, p.name, err)
	}
	return nil
}

// stop sends the signal, kills what has not ended after stopTimeout, and
// returns when the process is gone. A process that has ended already is no
// error.
func (p *process) stop(s syscall.Signal) error {
	err := p.cmd.Process.Signal(s)
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("send %v to %s: %w", s, p.name, err)
	}
	timer := time.NewTimer(stopTimeout)
	defer timer.Stop()
	select {
	case <-p.done:
	case <-timer.C:
		_ = p.cmd.Process.Kill()
		<-p.done
	}
	if err := p.scratch.setPID(0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// wait returns when a process that ends by itself has succeeded. It is killed
// when ctx ends.
func (p *process) wait(ctx context.Context) error {
	select {
	case <-p.done:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("%s: %w", p.name, ctx.Err()), p.stop(syscall.SIGKILL))
	}
	if p.waitErr != nil {
		return fmt.Errorf("%s: %w:\n%s", p.name, p.waitErr, p.logTail())
	}
	return nil
}

func (p *process) exitError() error {
	if p.waitErr == nil {
		return errors.New("exit status 0")
	}
	return p.waitErr
}

func (p *process) logTail() string {
	b, err := os.ReadFile(p.scratch.path("log"))
	if err != nil {
		return err.Error()
	}
	return string(b[max(0, len(b)-logTailBytes):])
}
