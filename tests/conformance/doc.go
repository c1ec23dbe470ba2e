// Package conformance holds what must not change by accident: golden vectors of
// every control message and digest, and the generated documents. Its tests run
// with -update to rewrite them; a difference must be explained in the commit
// that makes it.
package conformance
