// Package dl loads the native libraries of the data plane at run time, so that
// one program works with and without them.
//
// It owns the search (explicit path, environment, usual places), the checks
// before a library is let in, the side effects of letting it in, and the record
// of what was loaded. It refuses to know what a library does.
//
// # What holds
//
//   - A library is loaded once per process, with RTLD_NOW and RTLD_LOCAL, and
//     never unloaded: C++ libraries leave threads and signal dispositions
//     behind.
//   - A file that brings a second Go runtime, itself or by what it needs, is
//     refused before any of its code runs.
//   - The disposition of SIGPIPE and of every other signal that Go handles is
//     after loading what it was before; a library that set one is corrected.
//   - Descriptors that the library opened while loading are closed on exec.
//
// The package starts no goroutine. Built without cgo, everything that would
// enter C answers ErrNoCgo.
package dl
