// Package te calls the C API of Mooncake's Transfer Engine through a table of
// functions that were found at run time.
//
// It owns the engines' pointers, the native batches and the memory that their
// requests lie in. A native batch id, which the library follows as a pointer,
// never leaves the package: a batch is known by the handle that its owner gave.
// It refuses to know peers, regions, sessions and what a settlement is.
//
// # Threads
//
// Create, Register, Unregister and Destroy of one engine belong on one locked
// OS thread, because on Ascend they need that thread's device context. Poll
// belongs on one thread, because the library keeps what a freed batch leaves
// behind in thread-local storage. Submit and OpenSegment may be called on any
// thread while the engine lives. Nothing may run during or after Destroy; the
// caller sees to that.
//
// The package starts no goroutine. Built without cgo, Load answers
// dl.ErrNoCgo.
package te
