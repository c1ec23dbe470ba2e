package handoff

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// EventKind is what happened. The zero value is invalid.
type EventKind int

// The events of both machines; see the tables in the package comment.
const (
	SessionOpened EventKind = iota + 1
	PostOpened
	ReserveCalled
	Granted
	Refused
	Stop
	ChunkComputed
	ChunkAcked
	ChunkSettled
	ResultsAcked
	Committed
	EngineStopped
	Sealed
	AbortAnswered
	Authorized
	Uncertain
	WritersGone
	Proven
)

var eventNames = [...]string{
	SessionOpened: "SessionOpened", PostOpened: "PostOpened", ReserveCalled: "ReserveCalled", Granted: "Granted",
	Refused: "Refused", Stop: "Stop", ChunkComputed: "ChunkComputed", ChunkAcked: "ChunkAcked",
	ChunkSettled: "ChunkSettled", ResultsAcked: "ResultsAcked", Committed: "Committed", EngineStopped: "EngineStopped",
	Sealed: "Sealed", AbortAnswered: "AbortAnswered", Authorized: "Authorized", Uncertain: "Uncertain",
	WritersGone: "WritersGone", Proven: "Proven",
}

// String gives the name used in the tables.
func (k EventKind) String() string {
	if k > 0 && int(k) < len(eventNames) {
		return eventNames[k]
	}
	return fmt.Sprintf("EventKind(%d)", int(k))
}

// Event is one past fact. Fields beside Kind are set as the kind needs.
type Event struct {
	Kind EventKind
	// Err says why, for Refused, Stop and a failed EngineStopped.
	Err error
	// Chunk and Final belong to ChunkComputed; Chunk to ChunkAcked and ChunkSettled.
	Chunk pd.ChunkID
	Final bool
	// Results and SourceFree belong to ChunkSettled.
	Results    []pd.UnitResult
	SourceFree bool
	// Fact belongs to Sealed.
	Fact pd.StopFact
	// Writers says, with a Stop on decode, that an authorized chunk is unsettled.
	Writers bool
}

// EffectKind is what the node is ordered to do. The zero value is invalid.
type EffectKind int

// The effects of both machines.
const (
	SendReserve EffectKind = iota + 1
	SendChunk
	SendResults
	SendCommit
	SendAbort
	CancelCall
	StartPrefill
	Resume
	StopPrefill
	Submit
	Seal
	Unpin
	EndPost
	Reserve
	AnswerReserve
	AcceptPost
	Adopt
	StopDecode
	AbortPeer
	Release
	Gate
)

var effectNames = [...]string{
	SendReserve: "SendReserve", SendChunk: "SendChunk", SendResults: "SendResults", SendCommit: "SendCommit",
	SendAbort: "SendAbort", CancelCall: "CancelCall", StartPrefill: "StartPrefill", Resume: "Resume",
	StopPrefill: "StopPrefill", Submit: "Submit", Seal: "Seal", Unpin: "Unpin", EndPost: "EndPost",
	Reserve: "Reserve", AnswerReserve: "AnswerReserve", AcceptPost: "AcceptPost", Adopt: "Adopt",
	StopDecode: "StopDecode", AbortPeer: "AbortPeer", Release: "Release", Gate: "Gate",
}

// String gives the name used in the tables.
func (k EffectKind) String() string {
	if k > 0 && int(k) < len(effectNames) {
		return effectNames[k]
	}
	return fmt.Sprintf("EffectKind(%d)", int(k))
}

// Effect is one order.
type Effect struct {
	Kind    EffectKind
	Chunk   pd.ChunkID
	Results []pd.UnitResult
	Fact    pd.StopFact
	// Err is the reason of an end; nil where the end is the intended one.
	Err error
}

func refuse(side, state string, e Event) error {
	return &pd.Error{Op: side, Code: pd.CodeConflict, Text: fmt.Sprintf("event %v is not expected in state %s", e.Kind, state)}
}
