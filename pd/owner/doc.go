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
// Group is the service. It checks and splits chunks and joins what the ranks say,
// once for both kinds of owners that it drives: agents of this process, and
// remote ones behind a local socket, each in a process of its own that Children
// starts and Serve runs. Everything that crosses Service is a value. The engine of
// a node computes in host memory itself, which an owner process shares in a memory
// file; other memory it can only copy.
//
// A remote owner whose process ends, whose connection is cut, that says anything
// malformed or that gives no sign of life for the attempt timeout is lost for
// good: everything that was outstanding there is Uncertain and may still be read,
// queued or not, and no fact comes from it any more. A stopped process that goes
// on finds its connection closed, and ends.
//
// BootLock is the liveness of a boot and the memory of its data-plane ports.
//
// # What holds
//
//   - NoSubmitAfterFact: once a stop fact of a handoff was stated, nothing is
//     submitted for it.
//   - FactOnlyFromSealedOwner: a stop fact is stated only when the handoff is
//     sealed on every rank that had a part of it and everything that was accepted
//     for it is settled. One that is lost before it said so makes it Unknown.
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
// Open starts one goroutine per rank of this process, which alone calls that
// rank's engine (connect, submit, poll, fence, close), or a reader and a writer
// per owner process, and one that delivers events in order. Close ends them all;
// it returns nil after they have returned. Serve starts the agent's goroutine and
// a writer and returns after both. Children has one that starts processes on a
// thread of its own and, for each process, one that waits for its end.
package owner
