// Package failpoint lets tests stop, fail or kill a process between any two
// steps of the protocol. Tests are built with the tag failpoint, and `make
// test` sets it. Without it Hit is an empty function that the compiler removes,
// and a test fails on its first call of With.
//
// A test arms points for one context, so tests run side by side. A child
// process, which is not reached by a context, is armed by the environment:
//
//	STOWAGE_FAILPOINT=drain.claimed=kill
//
// ends it with SIGKILL at that point, =stop stops it with SIGSTOP, and =error
// makes the point fail; each the first time that it comes there.
package failpoint

import "context"

// Hook is called at each point that a context meets. What it returns is the
// error of that step. It may block, which is a long pause of the actor.
type Hook func(ctx context.Context, at Point) error
