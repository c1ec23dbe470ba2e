// Package wire is control protocol version 2 as data: its messages, their
// canonical form, digests and bounds. docs/protocol.md tells the same story in
// prose; tests/conformance holds golden vectors.
//
// What one message can show to be wrong by itself is refused here, before
// anything acts on it: bad JSON, a bound exceeded, a malformed identity, a
// digest that does not match what it digests. What needs a node's state is
// pd/node's business.
//
// It reads and writes bytes; it opens no connection, holds no state and starts
// no goroutine.
package wire
