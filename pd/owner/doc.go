// Package owner is the service that lives where a node's cache memory lives:
// it allocates and registers the regions of every rank, writes acknowledged
// chunks into a peer's regions, and states what became of them.
//
// It owns the arenas, the data-plane engines (one per rank), the peers'
// registries as far as they are installed, and the record of every handoff it
// was asked to write for. It refuses to know pages, leases, models and HTTP:
// a chunk arrives here as byte segments per pair of ranks, and leaves as facts
// per unit. Whether a chunk may be written at all (AckBeforeSubmit) is the
// node's business.
//
// Group is the service in the node's own process. Everything that crosses
// Service is a value, so that the same node can talk to owners behind a local
// socket; only Memory, which the engine of the same process computes in, is not
// part of it.
//
// # What holds
//
//   - NoSubmitAfterFact: once a stop fact of a handoff was stated, nothing is
//     submitted for it.
//   - FactOnlyFromSealedOwner: a stop fact is stated only when the handoff is
//     sealed on every rank and everything that was accepted for it is settled.
//   - FenceThenSilence: Fence returned nil only after every rank's engine said
//     that no earlier write lands.
//   - SourceStableUntilSourceDone: a chunk is reported source-free only when
//     every batch of it was, or never left.
//   - Attempts are made once. A batch that the provider refused or lost is
//     never submitted again, and behind a refused one the rest of its pair's
//     writes is not submitted at all.
//
// # Goroutines
//
// Open starts one goroutine per rank, which alone calls that rank's engine
// (connect, submit, poll, fence, close), and one that delivers events in
// order. Close ends them all; it returns nil after they have returned.
package owner
