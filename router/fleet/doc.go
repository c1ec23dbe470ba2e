// Package fleet is the session-affinity router: it spreads OpenAI-compatible
// requests over independent replicas, keeps each conversation on the replica
// that holds its KV cache, and can launch and replace replicas itself.
//
// Most of it is pure: the configuration, the commands that a launch runs, the
// choice of a replica (Table), the launch slots (Machine), and what a restart
// makes of the state file (Recover) read no clock and start nothing. Pool makes
// them live: it probes, carries the machine's effects out through a Launcher, and
// keeps the state file.
//
// The router knows no memory, no page and no model: it never reads a checkpoint
// and never tokenizes. Devices are declared, not discovered.
//
// # Slots
//
// Machine holds every launch slot. A slot holds at most one instance, which is
// one life of it. What each event does in each state; what is not listed is
// refused, and an event of another instance than the slot's does nothing:
//
//	state        event             next
//	free         LaunchOrdered     launching     below the ceiling
//	launching    LaunchAccepted    starting
//	launching    LaunchRefused     free          surely not started; of a replacement: backoff or abandoned
//	launching    LaunchUncertain   stopping
//	launching    RemoveOrdered     launching     retired when the launch has ended
//	starting     ProbeOK           ready
//	starting     ProbeAnswered     starting
//	starting     ProbeFailed       starting
//	starting     RequestFailed     starting
//	starting     TimePassed        stopping      at the launch timeout, without drain
//	starting     Exited            stopping
//	starting     RemoveOrdered     draining
//	ready        ProbeOK           ready         strikes are forgotten after the stability window
//	ready        ProbeAnswered     failed        at the second one in a row
//	ready        ProbeFailed       failed        at the second one in a row
//	ready        RequestFailed     failed
//	ready        Exited            failed
//	ready        TimePassed        ready
//	ready        RemoveOrdered     draining
//	failed       ProbeOK           ready
//	failed       ProbeAnswered     failed
//	failed       ProbeFailed       failed
//	failed       RequestFailed     failed
//	failed       Exited            failed
//	failed       TimePassed        draining      at the threshold, unless the guard holds it
//	failed       RemoveOrdered     draining
//	draining     ProbeOK           draining
//	draining     ProbeAnswered     draining
//	draining     ProbeFailed       draining
//	draining     RequestFailed     draining
//	draining     Exited            draining
//	draining     RemoveOrdered     draining      one retirement for all who ask
//	draining     Drained           stopping
//	draining     TimePassed        stopping      at the drain timeout
//	stopping     ProbeOK           stopping
//	stopping     ProbeAnswered     stopping
//	stopping     ProbeFailed       stopping
//	stopping     RequestFailed     stopping
//	stopping     Exited            stopping
//	stopping     RemoveOrdered     stopping
//	stopping     StopConfirmed     free          of a replaced one: backoff, abandoned at the third loss
//	stopping     StopUnconfirmed   unconfirmed
//	backoff      TimePassed        launching     when the wait is over
//	backoff      RemoveOrdered     free
//	unconfirmed  ProbeOK           ready         only if unreachable-at-startup
//	unconfirmed  ProbeAnswered     starting      only if unreachable-at-startup
//	unconfirmed  ProbeFailed       unconfirmed
//	unconfirmed  RemoveOrdered     stopping      not if not-declared: see ReleaseRecord
//	unconfirmed  ForceReleased     free          not if not-declared
//	abandoned    LaunchOrdered     launching     by an operator only; strikes are forgotten
//
// # Invariants
//
// Machine.Check asserts them after every step, in production too.
//
//	F-1 a reservation and the choice of its slot are one step: no two live instances are equal
//	F-2 a slot has an instance exactly in the states in which one may exist, and a launch is ordered only for a slot without one
//	F-3 at most the ceiling of slots is reserved, or as many as a restart found
//	F-4 an event that names another instance than the slot's changes nothing
//	F-5 a replica of the file is never launched, stopped or replaced
//	F-6 the state file is written between a reservation and its launch
//
// # Goroutines
//
// Pool.Run passes the time in its caller. One goroutine probes each replica and
// each slot that may be adopted; each launch, each stop and each drain has one
// until it ends; one makes the initial launches. All have ended when Run returns.
// Two locks: Pool.slots (machine, state file, waiters; held over the file's write)
// is taken before Pool.table (what requests need; never held over a system call).
package fleet
