// Package shell runs one node: one goroutine feeds pd/node with events and
// executes its effects in their order (journal, send, act, free) over control
// calls, owners, the engine and the journal.
//
// It decides nothing about memory. It owns the loop, the open POSTs and the
// waiting control calls; it refuses to know HTTP, pages and models.
//
// # Goroutines
//
//   - Run: the loop. It alone calls the node's Step and Free.
//   - one per outgoing control call, ended by its own deadline or by Run's end.
//
// Generate and the control methods run on their callers' goroutines and only
// queue events and wait. The context of a caller ends its waiting, never the
// ownership of memory: what a left client started is retired by the loop.
//
// A broken invariant is caught once: the node takes nothing more in, keeps all
// memory, and says why until it is restarted.
package shell
