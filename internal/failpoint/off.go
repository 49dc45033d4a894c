//go:build !failpoint

package failpoint

import "context"

// With tells how to build the tests that need it.
func With(context.Context, Hook) context.Context {
	panic("failpoint: built without the tag failpoint: run make test, or go test -tags failpoint")
}

// Hit does nothing.
func Hit(context.Context, Point) error { return nil }
