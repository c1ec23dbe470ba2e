// Package soak runs a fleet router over stub replicas under load while they are
// killed, stopped, made unready, cut off and replaced, and looks at what its users
// saw: no two processes on one group of cards, no answer of a replica that was not
// chosen, no failed turn but those on a replica that was in trouble.
//
// It starts processes, one goroutine per user and one that brings the trouble; all
// have ended when the test has.
package soak
