package redistest

import "go.uber.org/goleak"

// VerifyTestMain runs the tests of a package and fails when they leave
// goroutines. After a failure in a cluster, or of a primary, rueidis looks at
// the topology again a second later, and lets go of old connections after five,
// also when its client is closed by then; those are no leaks.
func VerifyTestMain(m goleak.TestingM) {
	goleak.VerifyTestMain(m,
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*call).DelayDo.func1"),
		goleak.IgnoreAnyFunction("github.com/redis/rueidis.(*clusterClient)._refresh.func2"))
}
