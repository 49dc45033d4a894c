package chaos

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/stowage-dev/stowage/internal/devstack"
)

// process is a worker or a writer.
type process struct {
	*devstack.Program
	began time.Time
	// testimony is a writer's.
	testimony *testimony
}

func (p *process) dead() bool {
	select {
	case <-p.Done():
		return true
	default:
		return false
	}
}

// fleet are the processes of one kind: the one that dies is replaced. It serves
// one goroutine.
type fleet struct {
	start   func(number int) (*process, error)
	members []*process
	started int
}

func (f *fleet) launch(n int) error {
	for range n {
		p, err := f.next()
		if err != nil {
			return err
		}
		f.members = append(f.members, p)
	}
	return nil
}

// next gives each process a number that no other had.
func (f *fleet) next() (*process, error) {
	f.started++
	return f.start(f.started)
}

// kill kills one by SIGKILL, hands it to mourn, and starts another.
func (f *fleet) kill(pick int, mourn func(*process) error) error {
	i := pick % len(f.members)
	if err := f.members[i].Kill(); err != nil {
		return err
	}
	return f.replace(i, mourn)
}

func (f *fleet) replace(i int, mourn func(*process) error) error {
	err := errors.Join(mourn(f.members[i]), f.members[i].Close())
	next, startErr := f.next()
	if startErr == nil {
		f.members[i] = next
	}
	return errors.Join(err, startErr)
}

// mend replaces those that ended by themselves.
func (f *fleet) mend(mourn func(*process) error) error {
	for i, p := range f.members {
		if p.dead() {
			if err := f.replace(i, mourn); err != nil {
				return err
			}
		}
	}
	return nil
}

// dismiss ends all of them in order, at the same time, and hands each to mourn.
func (f *fleet) dismiss(mourn func(*process) error) error {
	errs := make([]error, 2*len(f.members))
	var stopping sync.WaitGroup
	for i, p := range f.members {
		stopping.Go(func() { errs[i] = p.Stop() })
	}
	stopping.Wait()
	for i, p := range f.members {
		errs[len(f.members)+i] = errors.Join(mourn(p), p.Close())
	}
	f.members = nil
	return errors.Join(errs...)
}

// startWriter starts a writer whose events are heard by the witness.
func (s *storm) startWriter(number int) (*process, error) {
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	cmd := s.Writer(number)
	cmd.Stdout = write
	program, err := devstack.StartProgram("writer", cmd)
	if err := errors.Join(err, write.Close()); err != nil {
		return nil, errors.Join(err, read.Close())
	}
	return &process{Program: program, began: time.Now(), testimony: s.witness.hear(read)}, nil
}

func (s *storm) startWorker(int) (*process, error) {
	program, err := devstack.StartProgram("worker", s.Worker())
	return &process{Program: program, began: time.Now()}, err
}

const (
	// workerStart is how long a worker may need to start, in which it ends if a
	// server is down, as under any supervisor. Some of that is after its log says
	// that it has started.
	workerStart = 10 * time.Second
	// workerPanicked is in the log of one that did.
	workerPanicked = "panic"
)

// writerKilled notes what a killed writer may have left undone.
func (s *storm) writerKilled(p *process) error {
	s.witness.killed(p.testimony)
	return nil
}

// writerEnded is for one that was told to end.
func (s *storm) writerEnded(p *process) error {
	s.witness.ended(p.testimony)
	return nil
}

// writerDied is for one that ended by itself, which none may.
func (s *storm) writerDied(p *process) error {
	s.witness.complain("%v", p.Err())
	s.witness.killed(p.testimony)
	return nil
}

// workerEnded looks for panics in the log of a worker that is gone.
func (s *storm) workerEnded(p *process) error {
	log, err := os.ReadFile(p.LogPath())
	if err != nil {
		return fmt.Errorf("read the worker's log: %w", err)
	}
	if at := bytes.Index(log, []byte(workerPanicked)); at >= 0 {
		s.witness.complain("a worker panicked: %.2000s", log[at:])
	}
	return nil
}

// workerDied is for one that ended by itself, which none may once it has started.
func (s *storm) workerDied(p *process) error {
	if time.Since(p.began) > workerStart {
		s.witness.complain("%v", p.Err())
	}
	return s.workerEnded(p)
}
