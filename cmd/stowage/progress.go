package main

import (
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/term"
)

// progress tells on stderr how far long work is: on a terminal in one line that is
// written over, else in a line now and then.
type progress struct {
	out      io.Writer
	terminal bool
	pause    time.Duration
	shown    time.Time
	text     string
}

func newProgress(out io.Writer) *progress {
	file, isFile := out.(*os.File)
	if isFile && term.IsTerminal(int(file.Fd())) {
		return &progress{out: out, terminal: true, pause: 100 * time.Millisecond}
	}
	return &progress{out: out, pause: 5 * time.Second}
}

func (p *progress) show(text string) {
	p.text = text
	if time.Since(p.shown) >= p.pause {
		p.write()
	}
}

func (p *progress) write() {
	p.shown = time.Now()
	if p.terminal {
		fmt.Fprintf(p.out, "\r\x1b[K%s", p.text)
	} else {
		fmt.Fprintln(p.out, p.text)
	}
	p.text = ""
}

// end shows what was last, also when the work was cut short. Only the first call
// does.
func (p *progress) end() {
	if p.text != "" {
		p.write()
	}
	if p.terminal && !p.shown.IsZero() {
		fmt.Fprintln(p.out)
	}
	p.shown, p.terminal = time.Time{}, false
}
