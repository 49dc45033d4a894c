package demo

import (
	"fmt"
	"io"
	"sync/atomic"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// Progress is told how far a piece of work is. Step may be called by several
// goroutines at once, between Begin and End.
type Progress interface {
	Begin(what string, total int)
	Step()
	End()
}

// Bar is a Progress for a terminal.
type Bar struct {
	out  io.Writer
	pool *mpb.Progress
	bar  *mpb.Bar
}

// NewBar shows one bar at a time on a terminal.
func NewBar(out io.Writer) *Bar { return &Bar{out: out} }

// Begin shows an empty bar.
func (b *Bar) Begin(what string, total int) {
	b.pool = mpb.New(mpb.WithOutput(b.out), mpb.WithWidth(60))
	b.bar = b.pool.AddBar(int64(total),
		mpb.PrependDecorators(decor.Name(what, decor.WC{W: 12, C: decor.DindentRight})),
		mpb.AppendDecorators(decor.CountersNoUnit("%d / %d")))
}

// Step moves it on.
func (b *Bar) Step() { b.bar.Increment() }

// End leaves it as it is, also when the work was cut short.
func (b *Bar) End() {
	b.bar.Abort(false)
	b.pool.Wait()
}

// Lines is a Progress for a log: a line for each quarter of the work.
type Lines struct {
	out   io.Writer
	what  string
	total int64
	done  atomic.Int64
}

// NewLines writes to out.
func NewLines(out io.Writer) *Lines { return &Lines{out: out} }

// Begin writes nothing yet.
func (l *Lines) Begin(what string, total int) {
	l.what, l.total = what, int64(total)
	l.done.Store(0)
}

// Step writes a line if a quarter is full.
func (l *Lines) Step() {
	const parts = 4
	done := l.done.Add(1)
	if done*parts/l.total != (done-1)*parts/l.total {
		fmt.Fprintf(l.out, "  %s %d/%d\n", l.what, done, l.total)
	}
}

// End writes nothing more.
func (l *Lines) End() {}
