// Package handoff is the state machine of one request on each side of a pair:
// Prefill and Decode.
//
// It is pure: Step(event) → effects, no goroutine, clock, lock, log or I/O. It
// knows no page, no message format and no peer address; the node that owns the
// machines translates. A pair of state and event that is not in a table below
// is refused with an error naming both and changes nothing (the tests read the
// tables).
//
// # Prefill
//
//	state       event           next         effects
//	Connecting  SessionOpened   Reserving    SendReserve
//	Connecting  Stop            Aborted      EndPost
//	Reserving   Granted         Prefilling   StartPrefill
//	Reserving   Refused         Aborted      EndPost
//	Reserving   Stop            Aborting     CancelCall Seal EndPost
//	Prefilling  ChunkComputed   Prefilling   SendChunk
//	Prefilling  ChunkAcked      Prefilling   Submit Resume
//	Prefilling  ChunkSettled    Prefilling   SendResults
//	Prefilling  ResultsAcked    Prefilling
//	Prefilling  Refused         Aborting     StopPrefill Seal EndPost
//	Prefilling  Stop            Aborting     StopPrefill Seal EndPost
//	Prefilling  EngineStopped   Aborting     Seal EndPost
//	Committing  Committed       Retiring     StopPrefill
//	Committing  Refused         Aborting     StopPrefill Seal EndPost
//	Committing  Stop            Committing
//	Retiring    EngineStopped   Retired      EndPost
//	Retiring    Stop            Retiring
//	Aborting    Granted         Aborting
//	Aborting    Refused         Aborting
//	Aborting    ChunkAcked      Aborting
//	Aborting    ResultsAcked    Aborting
//	Aborting    Committed       Aborting
//	Aborting    ChunkComputed   Aborting
//	Aborting    ChunkSettled    Aborting
//	Aborting    Stop            Aborting
//	Aborting    EngineStopped   Aborting
//	Aborting    Sealed          Aborting
//	Aborting    AbortAnswered   Aborted
//
// The last row waits for all of: the engine stopped, the owners sealed, no call
// in flight; only then is the abort with its fact sent (SendAbort), and its
// answer ends the handoff: Aborted when the fact is definite, Quarantined when
// it is not. The POST does not wait for that: it ends with the reason as soon as
// Aborting is entered. At most one control call and one transfer of a handoff are in
// flight; a chunk computed meanwhile waits, pinned, and its request is held.
//
// # Decode
//
//	state         event          next          effects
//	Waiting       PostOpened     Waiting       Reserve
//	Waiting       ReserveCalled  Waiting       Reserve
//	Waiting       Granted        Reserved      AnswerReserve AcceptPost
//	Waiting       Refused        Aborted       AnswerReserve EndPost
//	Waiting       Stop           Aborted       AnswerReserve EndPost
//	Reserved      Authorized     Transferring
//	Transferring  Authorized     Transferring
//	Reserved      Stop           Aborted       Release EndPost AbortPeer
//	Transferring  Stop           Aborted       Release EndPost AbortPeer
//	Transferring  Stop           Aborting      EndPost AbortPeer
//	Transferring  Uncertain      Quarantined   EndPost AbortPeer Gate
//	Transferring  Committed      InUse         Adopt
//	InUse         Stop           Stopping      StopDecode
//	InUse         EngineStopped  Completed     Release EndPost
//	InUse         Uncertain      Quarantined   StopDecode EndPost Gate
//	Stopping      Stop           Stopping
//	Stopping      EngineStopped  Completed     Release EndPost
//	Stopping      Uncertain      Quarantined   EndPost Gate
//	Aborting      Stop           Aborting
//	Aborting      WritersGone    Aborted       Release
//	Aborting      Uncertain      Quarantined   Gate
//	Quarantined   EngineStopped  Quarantined
//	Quarantined   Stop           Quarantined
//	Quarantined   Uncertain      Quarantined
//	Quarantined   Proven         Aborted       Release
//
// Reserve is ordered when both the POST and prefill's call are there, whichever
// came last: decode holds no memory without an open POST. A Stop in Transferring
// goes to Aborted when no authorized chunk is unsettled, else to Aborting.
package handoff
