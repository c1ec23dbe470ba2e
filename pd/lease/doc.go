// Package lease is the ledger of who may write which memory, until when:
// decode's leases, prefill's source pins, and quarantine.
//
// It is pure: no goroutine, clock, lock, log or I/O. It asks an Allocator for
// pages and never looks at their bytes. The node that owns it is its only
// caller.
//
// # Leases
//
// A lease is the memory that decode reserved for one handoff. Events are
// methods of Ledger; every pair that is not in this table is refused and
// changes nothing (the tests read the table):
//
//	state         event        next          condition
//	-             Reserve      Constructing  every group and the bootstrap slot fit
//	Constructing  Authorize    Constructing  the chunk is the next one
//	Constructing  Settle       Constructing  the fact is Done or Failed
//	Constructing  Settle       Quarantined   the fact is Uncertain
//	Constructing  Stopped      Constructing  prefill's definite stop fact
//	Constructing  Commit       Ready         the final chunk and all before it are Done
//	Constructing  Release      Released      no authorized chunk is unsettled
//	Constructing  Quarantine   Quarantined
//	Ready         Adopt        InUse
//	Ready         Release      Released
//	Ready         Quarantine   Quarantined
//	InUse         Release      Released
//	InUse         Quarantine   Quarantined
//	Quarantined   Settle       Quarantined
//	Quarantined   Resolve      Released      a proof named by docs/protocol.md
//	Released      Free         -
//
// Ready and InUse take a repeated fact in without a change; a fact that
// contradicts an earlier one is answered with an error and quarantines from
// every state that holds memory.
//
// Invariant I-01 AckBeforeSubmit: Authorize is the only authority to write.
// A lease without an authorized, unsettled chunk has no writer and may be
// released at once.
//
// Invariant I-02 NoFreeWithLiveWriter: Free follows Release or Resolve, and
// Release is refused while an authorized chunk is unsettled.
//
// Invariant I-03: Uncertain is absorbing. A later Done changes nothing.
//
// # Pins
//
// A pin holds the pages that prefill's writes read. It is taken in the step
// that learns of the computed chunk and dropped when the provider no longer
// reads (SourceStableUntilSourceDone).
package lease
