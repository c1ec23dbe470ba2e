// Package acl calls the Ascend runtime (libascendcl) through a table of
// functions that were found at run time.
//
// It owns nothing but the table and the fact that the runtime was initialised.
// It refuses to know what device memory is for.
//
// # Threads
//
// A device context belongs to an OS thread. SetDevice gives the calling thread
// one; Malloc, Free, CopyIn, CopyOut, Fill and MemoryInfo need it, so they are
// called on a locked thread that did SetDevice. The runtime's error message is of
// the thread, too, and is fetched in the call that failed.
//
// The package starts no goroutine. Built without cgo, Load answers
// dl.ErrNoCgo.
package acl
