// Package host is one side of a pair whose model engine and cache manager are
// someone else's: a server in another language, in the same process. It is
// everything of libpypto-pd that is not C.
//
// It owns the node (pd/node in its shell, the control port, the data plane over
// the host's memory), the queue of events that the host polls, and what the
// host has granted. It refuses to call the host: orders wait in the queue,
// answers come as calls, and neither waits for the other.
//
// # What the host promises
//
//   - From Chunk until PagesFree of that chunk the chunk's pages stay as they
//     are (SourceStableUntilSourceDone).
//   - From Grant until Released or Withdrawn the granted pages and the slot are
//     given to nobody else, and nothing of them is read before Adopt.
//   - After StopDecode or its own end, DecodeStopped comes once nothing of the
//     request's pages is read or written any more.
//
// A grant that breaks the second promise within one node is refused.
//
// # Goroutines
//
// Start begins one for the node's loop, and Post one per open POST, which ends
// with the POST. Close waits for all of them.
package host
