package node

import (
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

type (
	// PostID names one generation POST that is open at this node. The shell
	// draws them; they are never reused.
	PostID uint64
	// CallID names one control call that waits for this node's answer.
	CallID uint64
)

// Op is the kind of an outgoing control call. The zero value is invalid.
type Op int

// The outgoing control calls.
const (
	OpReserve Op = iota + 1
	OpChunk
	OpResults
	OpCommit
	OpAbort
	OpStatus
)

var opNames = [...]string{OpReserve: "reserve", OpChunk: "chunk", OpResults: "result", OpCommit: "commit", OpAbort: "abort", OpStatus: "status"}

// String gives the last element of the call's path.
func (o Op) String() string { return opNames[o] }

// Event is one past fact. The types of this file are all of them.
type Event interface{ isEvent() }

type (
	// PrefillPosted: a router's POST arrived at a prefill node, its body is
	// tokenized. The hashes are those of the continuation.
	PrefillPosted struct {
		Post           PostID
		Fence          pd.Fence
		Continuation   *pd.Continuation
		MetadataHash   string
		PreparedDigest string
	}
	// DecodePosted: a router's POST arrived at a decode node.
	DecodePosted struct {
		Post   PostID
		Fence  pd.Fence
		Stream bool
	}
	// PostClosed: whoever sent a POST has left.
	PostClosed struct{ Post PostID }
	// Called: a control call waits for an answer. Message is one of the request
	// types of pd/wire, already validated by itself, or an operator's order.
	Called struct {
		Call    CallID
		Message any
		// Prefix are the hashes of a reservation's prompt (Node.Prefix), computed
		// off the loop.
		Prefix pd.PrefixHashes
	}
	// Returned: an outgoing call of a handoff ended. Exactly one of Answer and
	// Err is set; Answer is the answer type of pd/wire.
	Returned struct {
		Handoff pd.HandoffID
		Op      Op
		Answer  any
		Err     error
	}
	// SessionReturned: an outgoing session call ended.
	SessionReturned struct {
		Peer   pd.Peer
		Answer *wire.Session
		Err    error
	}
	// InstallFailed: the owners refused a peer's registry.
	InstallFailed struct {
		Peer pd.Peer
		Err  error
	}
	// ChunkComputed: a chunk's pages are complete on every source rank that a
	// plan may read (Invariant I-09: the fences of every rank have passed).
	ChunkComputed struct {
		Handoff       pd.HandoffID
		Partition     pd.Partition
		Chunk         pd.ChunkID
		Span          pd.Span
		Final         bool
		HitTokens     int
		BootstrapSlot int
		FirstToken    pd.Token
	}
	// PrefillStopped: the engine has let a prompt go and closed its table.
	PrefillStopped struct {
		Handoff pd.HandoffID
		Err     error
	}
	// DecodeStopped: the engine reads and writes a request's pages no more.
	DecodeStopped struct {
		Handoff pd.HandoffID
		Err     error
	}
	// GrantDecided: the host of a lease.Deferred allocator has given the memory
	// that was asked for, or refused it.
	GrantDecided struct{ Handoff pd.HandoffID }
	// ChunkSettled: every unit of a submitted chunk has its fact.
	ChunkSettled struct {
		Handoff    pd.HandoffID
		Chunk      pd.ChunkID
		Results    []pd.UnitResult
		SourceFree bool
	}
	// SourceFreed: the source bytes of a chunk that settled without that are read no
	// more.
	SourceFreed struct {
		Handoff pd.HandoffID
		Chunk   pd.ChunkID
	}
	// SubmitRefused: the owners refused a chunk whole; nothing was written.
	SubmitRefused struct {
		Handoff pd.HandoffID
		Chunk   pd.ChunkID
		Err     error
	}
	// Sealed: no owner will accept a write of this handoff any more.
	Sealed struct {
		Handoff pd.HandoffID
		Fact    pd.StopFact
	}
	// Fenced: the owners' engines were made anew, or not all of them could be.
	// Registry is what peers need from now on, in either case.
	Fenced struct {
		Registry pd.Registry
		Err      error
	}
	// OwnerLost: nobody answers for a rank of this node any more. What was written
	// from there is reported Uncertain after it.
	OwnerLost struct {
		Rank pd.Rank
		Why  string
	}
	// TimeAdvanced: the time of NextDeadline has come.
	TimeAdvanced struct{}
	// LoopPaused: the loop itself slept this long; deadlines move by it.
	LoopPaused struct{ For time.Duration }
	// DrainOrdered: admit nothing new, let the rest go on.
	DrainOrdered struct{}
	// PeersAdded: pd.json has further nodes of the other role now. Those that it has
	// no longer stay known: what runs with them goes on to its end, and it is for
	// the router to give them nothing new.
	PeersAdded struct{ Nodes []pd.NodeID }
)

func (PrefillPosted) isEvent()   {}
func (DecodePosted) isEvent()    {}
func (PostClosed) isEvent()      {}
func (Called) isEvent()          {}
func (Returned) isEvent()        {}
func (SessionReturned) isEvent() {}
func (InstallFailed) isEvent()   {}
func (ChunkComputed) isEvent()   {}
func (PrefillStopped) isEvent()  {}
func (DecodeStopped) isEvent()   {}
func (GrantDecided) isEvent()    {}
func (ChunkSettled) isEvent()    {}
func (SourceFreed) isEvent()     {}
func (SubmitRefused) isEvent()   {}
func (Sealed) isEvent()          {}
func (Fenced) isEvent()          {}
func (OwnerLost) isEvent()       {}
func (TimeAdvanced) isEvent()    {}
func (LoopPaused) isEvent()      {}
func (DrainOrdered) isEvent()    {}
func (PeersAdded) isEvent()      {}
