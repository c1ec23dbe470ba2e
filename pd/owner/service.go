package owner

import (
	"context"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Write asks for one acknowledged chunk to be written. The group keeps the
// slices until ChunkSettled and does not change them.
type Write struct {
	Handoff pd.HandoffID
	Chunk   pd.ChunkID
	// Peer is the node that acknowledged the chunk.
	Peer pd.Peer
	// RegistryEpoch is the Epoch of the registry under which the peer acknowledged
	// the chunk. If the peer was fenced since, the chunk is refused: the peer may
	// have given its pages to someone else. 0 leaves it unchecked for the first
	// chunk of a handoff; later ones are held to the registry of the first.
	RegistryEpoch pd.Epoch
	// Writes holds one entry per target rank, also where nothing is to be sent.
	Writes []pd.RankWrite
	// Units are the chunk's expected units; the segments must add up to them.
	Units []pd.Unit
}

// UnitSettled says that units of a chunk have their fact.
type UnitSettled struct {
	Handoff pd.HandoffID
	Chunk   pd.ChunkID
	Results []pd.UnitResult
}

// ChunkSettled says that every unit of a chunk has its fact. It follows the
// UnitSettled of its last unit.
type ChunkSettled struct {
	Handoff pd.HandoffID
	Chunk   pd.ChunkID
	// Results are in the order of Write.Units.
	Results []pd.UnitResult
	// SourceFree: the provider reads no source byte of the chunk any more.
	SourceFree bool
	// Began is when the first batch was handed to the provider and Ended when
	// the last unit settled, both in nanoseconds since the group was opened.
	// They are equal if nothing was handed over.
	Began, Ended int64
	// Bytes counts what was settled Done.
	Bytes int64
}

// SourceFreed says that the provider reads no source byte of a chunk any more that
// was settled without that.
type SourceFreed struct {
	Handoff pd.HandoffID
	Chunk   pd.ChunkID
}

// HandoffStopped is the answer to Seal: the fact that holds for all writes of
// the handoff, past and future.
type HandoffStopped struct {
	Handoff pd.HandoffID
	Fact    pd.StopFact
}

// OwnerLost says that nobody answers for a rank any more: its process has ended
// or its connection is cut. Nothing brings the rank back. What was outstanding
// there is reported Uncertain after this, and no fact can come from it.
type OwnerLost struct {
	Rank pd.Rank
	// PID is the process that was the owner.
	PID int
	// Err says what happened to it, with its signal if one ended it.
	Err error
}

// Events receives what owners report. Calls come one at a time, in order, from
// a goroutine of the group; they should not block, for they hold up the events
// behind them (never the transfers).
type Events interface {
	UnitSettled(UnitSettled)
	ChunkSettled(ChunkSettled)
	SourceFreed(SourceFreed)
	HandoffStopped(HandoffStopped)
	OwnerLost(OwnerLost)
}

// Service is what a node asks of its owners. Its methods are safe for
// concurrent use and, except Fence and Close, do not wait for the data plane.
type Service interface {
	// Registry is what a peer needs to write into this node. It changes with
	// Fence only.
	Registry() pd.Registry
	// Install remembers a peer's registry. The same registry may be installed
	// again; at the same boot only the endpoints of ranks whose epoch rose may
	// differ (CodeRegistryMismatch otherwise). A new boot of the same node ends
	// the old one: what was not yet posted to it settles Failed. An earlier boot
	// never comes back (CodeStaleBoot).
	Install(peer pd.Peer, r pd.Registry) error
	// Submit checks the whole chunk and queues it. An error means that nothing
	// was written and nothing will be. After nil, ChunkSettled follows.
	Submit(w Write) error
	// Seal makes every rank refuse further writes of a handoff, known or not,
	// and drops what is queued and not posted (Failed). HandoffStopped follows
	// once everything is settled, and again for every further Seal.
	Seal(h pd.HandoffID) error
	// Forget drops the record of a handoff once everything of it is settled. It
	// seals, and no HandoffStopped follows any more.
	Forget(h pd.HandoffID)
	// Fence makes every rank's engine anew over the same memory. See
	// transfer.Engine. After an error it may be called again; the ranks that
	// succeeded are then fenced once more.
	Fence(ctx context.Context) error
	// Close ends the engines and frees the memory. What is queued settles
	// Failed, what is unsettled Uncertain. If ctx ends first the error is
	// CodeDeadline, the memory stays, and Close may be called again.
	Close(ctx context.Context) error
}
