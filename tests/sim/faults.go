package sim

import (
	"fmt"
	"slices"
	"strings"
)

// Fault is one kind of what may go wrong. The zero value is invalid.
type Fault int

// The kinds. Their names are those of docs/simulation.md.
const (
	LateWriteAfterFailed Fault = iota + 1
	LateWriteAfterHiddenRetry
	DoubleApply
	ReorderedPages
	PartialApplyThenFailed
	CompletedShort
	VerdictNever
	VerdictAfterDeadline
	VerdictLateNeverPosted
	RouteFailsAllPending
	TargetOwnerPaused
	SenderDeadBytesInFlight
	StaleWriteToNewBoot
	SealVsSubmitRace
	SubmitFails
	ControlLostRequest
	ControlLostReply
	ControlDuplicate
	ControlReorder
	ControlBlackhole
	ReserveAfterAbort
	PostNeverArrives
	PostClosedUnseen
	TombstoneEvicted
	RouterCrash
	RouterSecond
	NodeCrashBetweenEffects
	NodePaused
	OwnerCrashNodeAlive
	PredecessorAliveAtStart
	FalseDeathClaim
	BothSigterm
	FenceDuringTransfer
	FenceHangs
	FlippedByte
	PoolExactFit
	RingPeriodMin
	OddChunkEnds
	PrefixEvictUnderLoad
	ClientCancelAtEveryState
	lastFault = ClientCancelAtEveryState
)

var faultNames = [...]string{
	LateWriteAfterFailed: "late_write_after_failed", LateWriteAfterHiddenRetry: "late_write_after_completed_hidden_retry",
	DoubleApply: "double_apply", ReorderedPages: "reordered_pages_in_batch", PartialApplyThenFailed: "partial_apply_then_failed",
	CompletedShort: "completed_short", VerdictNever: "verdict_never", VerdictAfterDeadline: "verdict_after_deadline",
	VerdictLateNeverPosted: "verdict_late_never_posted", RouteFailsAllPending: "route_fails_all_pending",
	TargetOwnerPaused: "target_owner_paused_buffered", SenderDeadBytesInFlight: "sender_dead_bytes_in_flight",
	StaleWriteToNewBoot: "stale_write_to_new_boot_same_addr", SealVsSubmitRace: "seal_vs_submit_race",
	SubmitFails: "submit_fail_rank_r_chunk_k", ControlLostRequest: "ctl_lost_request", ControlLostReply: "ctl_lost_reply",
	ControlDuplicate: "ctl_dup", ControlReorder: "ctl_reorder", ControlBlackhole: "ctl_blackhole_gt_timeout",
	ReserveAfterAbort: "reserve_after_abort", PostNeverArrives: "post_never_arrives", PostClosedUnseen: "post_closed_unseen",
	TombstoneEvicted: "tombstone_evicted", RouterCrash: "router_crash", RouterSecond: "router_second",
	NodeCrashBetweenEffects: "node_crash_between_effects", NodePaused: "node_paused", OwnerCrashNodeAlive: "owner_crash_node_alive",
	PredecessorAliveAtStart: "predecessor_alive_at_start", FalseDeathClaim: "false_death_claim", BothSigterm: "both_sigterm",
	FenceDuringTransfer: "fence_during_transfer", FenceHangs: "fence_hangs", FlippedByte: "flipped_byte",
	PoolExactFit: "pool_exact_fit", RingPeriodMin: "ring_period_min", OddChunkEnds: "odd_chunk_ends",
	PrefixEvictUnderLoad: "prefix_evict_under_load", ClientCancelAtEveryState: "client_cancel_at_every_state",
}

// String gives the name.
func (f Fault) String() string {
	if f > 0 && f <= lastFault {
		return faultNames[f]
	}
	return fmt.Sprintf("Fault(%d)", int(f))
}

// Faults is a set of kinds.
type Faults uint64

// Set makes a set.
func Set(kinds ...Fault) Faults {
	var s Faults
	for _, f := range kinds {
		s |= 1 << f
	}
	return s
}

// Tolerated are all kinds that the system must survive with right answers. A
// byte that flips unseen on its way is not among them: it must be seen.
func Tolerated() Faults {
	var s Faults
	for f := Fault(1); f <= lastFault; f++ {
		if f != FlippedByte {
			s = s.With(f)
		}
	}
	return s
}

// Has says whether a kind is in the set.
func (s Faults) Has(f Fault) bool { return s&(1<<f) != 0 }

// With is the set and one kind more.
func (s Faults) With(f Fault) Faults { return s | 1<<f }

// Without is the set and one kind less.
func (s Faults) Without(f Fault) Faults { return s &^ (1 << f) }

// Kinds lists the set in order.
func (s Faults) Kinds() []Fault {
	var out []Fault
	for f := Fault(1); f <= lastFault; f++ {
		if s.Has(f) {
			out = append(out, f)
		}
	}
	return out
}

// String lists the names with commas; "all" for Tolerated, "none" for nothing.
func (s Faults) String() string {
	switch s {
	case Tolerated():
		return "all"
	case 0:
		return "none"
	}
	var names []string
	for _, f := range s.Kinds() {
		names = append(names, f.String())
	}
	return strings.Join(names, ",")
}

// ParseFaults reads what String writes.
func ParseFaults(text string) (Faults, error) {
	switch text {
	case "all":
		return Tolerated(), nil
	case "none", "":
		return 0, nil
	}
	var s Faults
	for name := range strings.SplitSeq(text, ",") {
		i := slices.Index(faultNames[:], name)
		if i < 1 {
			return 0, fmt.Errorf("fault %q is unknown; known are %s", name, strings.Join(faultNames[1:], ", "))
		}
		s = s.With(Fault(i))
	}
	return s, nil
}

// Counts says how often each kind really happened.
type Counts [lastFault + 1]int

// Add adds another world's counts.
func (c *Counts) Add(o Counts) {
	for i := range c {
		c[i] += o[i]
	}
}
