// Package wire is control protocol version 2 as data: its messages, their
// canonical form, digests and bounds. docs/protocol.md tells the same story in
// prose; tests/conformance holds golden vectors.
//
// It reads and writes bytes; it opens no connection and starts no goroutine.
package wire
