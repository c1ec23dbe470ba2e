// Package pages is our own page allocator: partitioned pools with first-in
// first-out free queues, page tables that grow by the token, ring rotation,
// bootstrap slots, pins and quarantine. It implements lease.Allocator, and the
// reference engine grows tables through it.
//
// It is pure: no goroutine, clock, lock, log or I/O. A host that shares it
// between goroutines guards it.
//
// Invariant I-05 CapacityConserved: in every group and partition, free pages
// plus held pages are all pages; a held page's reference count is the number
// of tables and pins that name it.
//
// Full pages can be named by their hash (Publish, PublishComputed) and found
// again (Open). Invariant I-17: a name is given only to a page whose bytes are
// all known. Invariant I-18: a named page is never written; Grow gives it up
// first. A duplicate never takes a name over.
//
// Invariant I-06: a page is handed out only from the free queue, as late as
// possible after it came back (reuse distance).
package pages
