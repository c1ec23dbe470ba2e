package fleet

import "time"

// State is where a launch slot stands; doc.go has the table.
type State int

// The states of a slot.
const (
	Free State = iota + 1
	Launching
	Starting
	Ready
	Failed
	Draining
	Stopping
	Backoff
	Unconfirmed
	Abandoned
	stateEnd
)

// String is the name as logs, metrics and tests have it.
func (s State) String() string {
	if s < Free || s >= stateEnd {
		return "invalid"
	}
	return [...]string{"free", "launching", "starting", "ready", "failed", "draining", "stopping", "backoff", "unconfirmed", "abandoned"}[s-1]
}

// Reserved says that the slot counts against the ceiling.
func (s State) Reserved() bool { return s != Free && s != Abandoned }

// occupied says that an instance exists or may exist.
func (s State) occupied() bool { return s.Reserved() && s != Backoff }

// listed says that the slot's replica is in the table of replicas.
func (s State) listed() bool { return s == Starting || s == Ready || s == Failed || s == Draining }

// Phase is a replica's state as /health and /replicas show it; "" where the slot
// has no replica in the table.
func (s State) Phase() string {
	if !s.listed() {
		return ""
	}
	return s.String()
}

// Reason is why a slot stays reserved without a replica.
type Reason string

// The reasons of an unconfirmed slot.
const (
	StopUnconfirmedReason   Reason = "stop-unconfirmed"
	LaunchUnconfirmedReason Reason = "launch-unconfirmed"
	UnreachableReason       Reason = "unreachable-at-startup"
	NotDeclaredReason       Reason = "not-declared"
)

// EventKind is what happened to one slot.
type EventKind int

// The events of a slot.
const (
	// LaunchOrdered: an operator or the start wants a replica; see Machine.Launch.
	LaunchOrdered EventKind = iota + 1
	// LaunchAccepted: the launch command was accepted; the load has begun.
	LaunchAccepted
	// LaunchRefused: the command failed and nothing was started.
	LaunchRefused
	// LaunchUncertain: the command failed and something may have been started.
	LaunchUncertain
	// ProbeOK: /health answered 200. ProbeAnswered: it answered something else,
	// which is a failed probe except where any sign of life counts. ProbeFailed:
	// nothing answered. A probe that the router itself could not make, for want of
	// descriptors say, is no event.
	ProbeOK
	ProbeAnswered
	ProbeFailed
	// RequestFailed: a request could not be sent.
	RequestFailed
	// Exited: the process that was launched here ended with an error.
	Exited
	// RemoveOrdered: an operator or the shutdown wants it gone.
	RemoveOrdered
	// Drained: no request runs there any more.
	Drained
	// StopConfirmed and StopUnconfirmed are the two ends of a stop.
	StopConfirmed
	StopUnconfirmed
	// ForceReleased: an operator vouches that nothing is left.
	ForceReleased
	// TimePassed: nothing happened but time.
	TimePassed
	eventEnd
)

// String is the name as logs, metrics and tests have it.
func (k EventKind) String() string {
	if k < LaunchOrdered || k >= eventEnd {
		return "invalid"
	}
	return [...]string{
		"LaunchOrdered", "LaunchAccepted", "LaunchRefused", "LaunchUncertain", "ProbeOK", "ProbeAnswered", "ProbeFailed", "RequestFailed",
		"Exited", "RemoveOrdered", "Drained", "StopConfirmed", "StopUnconfirmed", "ForceReleased", "TimePassed",
	}[k-1]
}

// Event is a fact about one instance of one slot.
type Event struct {
	Kind EventKind
	Slot string
	// Instance is whom the fact is about; "" only for an operator's orders, which
	// mean whatever is in the slot.
	Instance string
}

// EffectKind is an order to the shell.
type EffectKind int

// The effects, in the order in which one step gives them.
const (
	// Persist: write the state file now, before the effects behind it.
	Persist EffectKind = iota + 1
	// Register puts the instance's replica into the table, Deregister takes it out.
	Register
	// StartDrain: take no new requests, drop pins, tell Drained.
	StartDrain
	Deregister
	// StartStop: run the stop command and its confirmation.
	StartStop
	// StartLaunch: run the launch command.
	StartLaunch
	// Retired: the instance is gone or given up; all who wait are told. The slot's
	// state says which.
	Retired
	// MarkReady and MarkFailed change the replica in the table.
	MarkReady
	MarkFailed
	effectEnd
)

// String is the name as logs, metrics and tests have it.
func (k EffectKind) String() string {
	if k < Persist || k >= effectEnd {
		return "invalid"
	}
	return [...]string{"Persist", "Register", "StartDrain", "Deregister", "StartStop", "StartLaunch", "Retired", "MarkReady", "MarkFailed"}[k-1]
}

// Effect is one order about one instance.
type Effect struct {
	Kind     EffectKind
	Slot     string
	Instance string
}

// failuresMax is how many probes in a row must fail.
const failuresMax = 2

// slotState is one slot. Only the functions of transitions.go change its state.
type slotState struct {
	Slot
	state State
	// Invariant F-2: instance is set exactly where state is occupied.
	instance string
	// reason is set exactly where state is Unconfirmed; stopReason is what it
	// becomes if the stop that runs is not confirmed.
	reason, stopReason Reason
	// since is when the state began.
	since time.Time
	// launchedAt is when the instance was ordered; serverID is what it called this
	// start of itself.
	launchedAt time.Time
	serverID   string
	failures   int
	strikes    int
	everReady  bool
	// replacing: a confirmed stop is a loss, and the slot is launched again.
	// replacement: the instance is such a launch.
	replacing, replacement bool
	// removing: retire the instance as soon as its launch has ended.
	removing bool
	// leaving: the slot is no longer declared and goes when it is empty.
	leaving bool
	readyAt time.Time
	// due is when TimePassed has something to do; zero if never.
	due time.Time
}
