// Package stub is a replica that computes nothing: it has the HTTP API of a
// model server, says who it is in every answer, and misbehaves on demand. Replica
// is its HTTP side, for use within a test; stub-replica is the program, which
// also takes the locks of its cards, loads for a while and starts workers.
//
// The lock of a card is what checks a fleet router: a replica that finds one of
// its cards taken writes that down, loudly, and leaves. Violations reads it.
//
// A Replica starts no goroutine but the ones of its HTTP server's connections.
package stub
