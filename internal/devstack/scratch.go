package devstack

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
)

// janitor waits on its standard input, a pipe that only this process holds. A
// line means that all is tidied up already. End of file without one means that
// this process died: the janitor then ends the server named in the folder's
// pid file and removes the folder. A pipe and not a parent-death signal,
// because that signal is bound to the thread that forked, and because somebody
// must be left to remove the files.
const janitor = `
read -r done && exit 0
if pid=$(cat "$1/pid" 2>/dev/null); then
	kill -CONT "$pid"; kill -"$2" "$pid"
	for i in $(seq 100); do kill -0 "$pid" || break; sleep 0.1; done
	kill -KILL "$pid"
fi
rm -rf -- "$1"
`

// scratch is the temporary folder of one server, removed even if this process
// is killed.
type scratch struct {
	dir     string
	janitor *exec.Cmd
	pipe    io.WriteCloser
}

// newScratch makes the folder and starts its janitor. stop is the signal that
// ends the server of this folder in an orderly way.
func newScratch(prefix string, stop syscall.Signal) (*scratch, error) {
	dir, err := os.MkdirTemp("", prefix)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("/bin/sh", "-c", janitor, "janitor", dir, strconv.Itoa(int(stop)))
	cmd.Dir = "/"
	cmd.SysProcAttr = ownGroup()
	pipe, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start the janitor of %s: %w", dir, err), os.RemoveAll(dir))
	}
	return &scratch{dir: dir, janitor: cmd, pipe: pipe}, nil
}

func (s *scratch) path(name string) string { return filepath.Join(s.dir, name) }

// setPID tells the janitor which process to end; 0 takes the word back.
func (s *scratch) setPID(pid int) error {
	if pid == 0 {
		return os.Remove(s.path("pid"))
	}
	return os.WriteFile(s.path("pid"), []byte(strconv.Itoa(pid)), 0o600)
}

// remove deletes the folder and dismisses the janitor.
func (s *scratch) remove() error {
	err := os.RemoveAll(s.dir)
	_, werr := io.WriteString(s.pipe, "done\n")
	return errors.Join(err, werr, s.pipe.Close(), s.janitor.Wait())
}

// ownGroup keeps a terminal's Ctrl-C away from a child: this process decides
// when and in which order children end.
func ownGroup() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }
