// Package cluster runs the built programs as processes for tests: nodes, a
// router, a replica to compare texts with, and what a test wants to know of
// them.
//
// The programs are built once per test binary, by the first test that needs
// them, without the race detector; the tests themselves run under it. Main
// starts at most one goroutine that owns the thread from which all children are
// started, because the signal that ends a child with its parent follows that
// thread. Every child has a process group of its own, is waited for by one
// goroutine, and is ended with its group when its test ends, however it ends.
//
// Nothing here sleeps: waiting is asking again until a deadline.
package cluster
