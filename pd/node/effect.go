package node

import (
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
)

// Effect is one order to the shell. The types of this file are all of them.
type Effect interface {
	// class orders effects: journal, send, act, free.
	class() int
}

const (
	classJournal = iota
	classSend
	classAct
	classFree
)

type (
	// Record is one line for the journal. It holds ids and numbers only.
	Record struct {
		Event   string
		Fence   pd.Fence
		Chunk   pd.ChunkID
		Span    pd.Span
		Bytes   int64
		Regions map[pd.ComponentID]int64
		Ranks   int
		// Count is the tokens that the cache had, with HANDOFF_RESERVED.
		Count  int64
		Code   pd.Code
		Detail string
	}
	// Call is an outgoing control call of a handoff, answered by Returned.
	Call struct {
		Handoff pd.HandoffID
		Op      Op
		Peer    pd.Peer
		Message any
		Timeout time.Duration
	}
	// OpenSession is the hello to a peer, answered by SessionReturned.
	OpenSession struct {
		Peer    pd.Peer
		Timeout time.Duration
	}
	// CancelCall ends the waiting for a call; Returned comes with an error.
	CancelCall struct {
		Handoff pd.HandoffID
		Op      Op
	}
	// Answer ends a control call that waited. Exactly one of Message, Err is set.
	Answer struct {
		Call    CallID
		Message any
		Err     error
	}
	// AcceptPost: decode holds memory for the request; headers may go out. HitTokens
	// is how much of the prompt its cache had.
	AcceptPost struct {
		Post      PostID
		HitTokens int
	}
	// EndPost is the end of a POST: the intended one, or an error. On decode the
	// last output of the engine goes out with it.
	EndPost struct {
		Post    PostID
		Handoff pd.HandoffID
		Err     error
	}
	// InstallPeer makes a peer's registry known to the owners.
	InstallPeer struct {
		Peer     pd.Peer
		Registry pd.Registry
	}
	// Submit hands the writes of one acknowledged chunk to the owners.
	Submit struct {
		Handoff pd.HandoffID
		Chunk   pd.ChunkID
		Peer    pd.Peer
		// RegistryEpoch is that of the registry under which the chunk was
		// acknowledged; after a fence in between the owners refuse it.
		RegistryEpoch pd.Epoch
		Writes        []pd.RankWrite
		Units         []pd.Unit
	}
	// Seal makes the owners refuse further writes, answered by Sealed.
	Seal struct{ Handoff pd.HandoffID }
	// Fence makes the owners' engines anew over the same memory, answered by
	// Fenced.
	Fence struct{}
	// Forget lets the owners drop their record of a handoff.
	Forget struct{ Handoff pd.HandoffID }
	// StartPrefill queues the prompt at the engine.
	StartPrefill struct {
		Handoff      pd.HandoffID
		Request      pd.RequestID
		Continuation *pd.Continuation
	}
	// ResumePrefill lets a held prompt compute its next chunk.
	ResumePrefill struct{ Handoff pd.HandoffID }
	// StopPrefill takes a prompt out of the engine.
	StopPrefill struct{ Handoff pd.HandoffID }
	// Adopt starts decoding.
	Adopt struct {
		Handoff       pd.HandoffID
		Request       pd.RequestID
		Continuation  *pd.Continuation
		FirstToken    pd.Token
		Partition     pd.Partition
		HitTokens     int
		CachedTokens  int
		BootstrapSlot int
	}
	// StopDecode cancels a decode.
	StopDecode struct{ Handoff pd.HandoffID }
	// FreeLease gives a released lease's memory back (Node.Free).
	FreeLease struct{ Handoff pd.HandoffID }
	// FreePin drops a pin (Node.Free).
	FreePin struct{ Key lease.PinKey }
)

func (Record) class() int        { return classJournal }
func (Call) class() int          { return classSend }
func (OpenSession) class() int   { return classSend }
func (CancelCall) class() int    { return classSend }
func (Answer) class() int        { return classSend }
func (AcceptPost) class() int    { return classSend }
func (EndPost) class() int       { return classSend }
func (InstallPeer) class() int   { return classAct }
func (Submit) class() int        { return classAct }
func (Seal) class() int          { return classAct }
func (Fence) class() int         { return classAct }
func (Forget) class() int        { return classAct }
func (StartPrefill) class() int  { return classAct }
func (ResumePrefill) class() int { return classAct }
func (StopPrefill) class() int   { return classAct }
func (Adopt) class() int         { return classAct }
func (StopDecode) class() int    { return classAct }
func (FreeLease) class() int     { return classFree }
func (FreePin) class() int       { return classFree }

// order sorts effects by class and keeps the order within each.
func order(effects []Effect) []Effect {
	slices.SortStableFunc(effects, func(a, b Effect) int { return a.class() - b.class() })
	return effects
}
