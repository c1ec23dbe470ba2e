// Package node is one node as a value: its ledger, its handoffs, its peers and
// sessions, its gates, capacity and drain, and the join of POST and reserve.
//
// It is pure: Step(event, now) → effects. It has no goroutine, clock, lock, log
// or I/O; time is what the caller says. pd/shell executes the effects in their
// order: journal, send, act (submit, engine, owners), free. Freeing is last and
// is the one that needs proof; it goes through Free.
//
// A broken invariant panics with its number; bad input never does.
package node
