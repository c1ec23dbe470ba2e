// Package simulator is a data plane on host memory and TCP, written in Go: the
// same one-sided writes between two engines of one process as between two
// machines, with a link of chosen rate and latency, and with seeded faults.
//
// It owns the wire format of its batches, the copy loops that write into a
// target's registered memory, and the mapping from what happened on a
// connection to a settlement:
//
//	refused by Submit                               error; nothing was written
//	refused by the target before it copied          Failed
//	connection lost, or time up, before the
//	first byte left                                 Failed
//	connection lost, or time up, after that         Uncertain
//	acknowledged with fewer bytes than the batch    Uncertain
//	acknowledged with all bytes                     Done
//	engine closed or fenced                         Uncertain
//
// The source is free with every verdict: before one is given the writer has
// returned, so nothing reads the source any more.
//
// It refuses to know leases, pages, models and nodes. Whoever can reach a
// listener can write; use it on a trusted network.
//
// # Goroutines
//
// Freeze and Fence start one acceptor per engine, the acceptor one copy loop
// per inbound connection; Connect starts a writer and a reader per session.
// The acceptor ends when Fence or Close closed its listener and every copy
// loop returned. Writer and reader end when the connection does, at the
// latest with Fence or Close. A Connect whose context ends starts one more, for
// the moment in which it closes the connection.
package simulator
