package devstack

import (
	"errors"
	"fmt"
	"os"
)

// The folders of an append-only server's data: Redis' own, and the copy that
// Keep makes.
const (
	appendOnlyDir = "appendonlydir"
	keptDir       = "kept"
)

// Keep copies the data of a running append-only server for Rewind, in the place
// of an earlier copy. The server is frozen meanwhile, so the copy is of one
// instant; a command that was half-way is not in it.
func (r *Redis) Keep() error {
	if err := r.Pause(); err != nil {
		return err
	}
	return errors.Join(r.replace(keptDir, appendOnlyDir), r.Resume())
}

// Rewind makes the data of a stopped server those of the last Keep.
func (r *Redis) Rewind() error {
	if err := r.requireStopped(); err != nil {
		return err
	}
	return r.replace(appendOnlyDir, keptDir)
}

// Forget removes the data of a stopped server.
func (r *Redis) Forget() error {
	if err := r.requireStopped(); err != nil {
		return err
	}
	return os.RemoveAll(r.scratch.path(appendOnlyDir))
}

// replace makes the folder to a copy of the folder from.
func (r *Redis) replace(to, from string) error {
	if err := os.RemoveAll(r.scratch.path(to)); err != nil {
		return err
	}
	if err := os.CopyFS(r.scratch.path(to), os.DirFS(r.scratch.path(from))); err != nil {
		return fmt.Errorf("copy the data of Redis: %w", err)
	}
	return nil
}

func (r *Redis) requireStopped() error {
	if r.process != nil {
		return errors.New("devstack: Redis is running: Stop it first")
	}
	return nil
}
