package simulator

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Fault kinds. Each is applied by the source engine, or asked of the target in
// the batch's header.
const (
	// FlippedByte inverts one byte of the batch on its way.
	FlippedByte = "flipped_byte"
	// PartialApplyThenFailed loses the connection in the middle of the batch;
	// the first half has been written. Uncertain.
	PartialApplyThenFailed = "partial_apply_then_failed"
	// CompletedShort: the target leaves out the last bytes and acknowledges less
	// than was submitted. Uncertain.
	CompletedShort = "completed_short"
	// VerdictNever: everything is written but no answer comes. Uncertain at
	// AttemptTimeout.
	VerdictNever = "verdict_never"
	// VerdictAfterDeadline is VerdictNever whose answer does come after the
	// batch settled Uncertain; it must change nothing.
	VerdictAfterDeadline = "verdict_after_deadline"
	// SubmitFailed makes the k-th Submit to rank r fail (Target, Nth); nothing
	// is written.
	SubmitFailed = "submit_fail_rank_r_chunk_k"
	// LateWriteAfterFailed: the sender loses the connection and settles
	// Uncertain; the bytes wait at the target and are written DelayMillis after.
	LateWriteAfterFailed = "late_write_after_failed"
	// LateWriteAfterCompleted: the batch is Done, and DelayMillis later a hidden
	// earlier attempt writes the same bytes once more.
	LateWriteAfterCompleted = "late_write_after_completed_hidden_retry"
	// DoubleApply writes the batch twice before it is acknowledged.
	DoubleApply = "double_apply"
	// ReorderedPages writes the segments of the batch in a seeded order.
	ReorderedPages = "reordered_pages_in_batch"
	// RouteFailsAllPending loses the connection after the batch was sent:
	// everything posted on the session settles Uncertain.
	RouteFailsAllPending = "route_fails_all_pending"
	// TargetPausedBuffered: the target copies nothing for DelayMillis; the bytes
	// wait in its socket, where they survive the sender.
	TargetPausedBuffered = "target_owner_paused_buffered"
	// VerdictLateNeverPosted: the batch never leaves, and the verdict that says
	// so comes at AttemptTimeout only. Failed.
	VerdictLateNeverPosted = "verdict_late_never_posted"
	// FenceHangs: a Fence of the engine of rank Target returns with the end of
	// its context and has done nothing. Counted in calls of Fence.
	FenceHangs = "fence_hangs"
)

var faultKinds = []string{
	FlippedByte, PartialApplyThenFailed, CompletedShort, VerdictNever, VerdictAfterDeadline,
	SubmitFailed, LateWriteAfterFailed, LateWriteAfterCompleted, DoubleApply, ReorderedPages,
	RouteFailsAllPending, TargetPausedBuffered, VerdictLateNeverPosted, FenceHangs,
}

// FaultKinds lists every kind that Validate accepts.
func FaultKinds() []string { return slices.Clone(faultKinds) }

// maxFaultDelay bounds DelayMillis on both ends.
const maxFaultDelay = time.Hour

// Fault is one entry of a faults file: what happens to which batches. A batch
// matches if it goes to Target and holds a segment of Component; an absent
// field matches all. Of the matching batches, in the order of Submit, those
// numbered Nth to Nth+Times-1 are hit. The first fault of the list that wants
// a batch gets it.
type Fault struct {
	Kind      string         `json:"kind"`
	Component pd.ComponentID `json:"component,omitempty"`
	Target    *pd.Rank       `json:"target,omitempty"`
	// Nth counts from 1; 0 means 1.
	Nth int `json:"nth,omitempty"`
	// Times is how many batches in a row are hit; 0 means 1.
	Times int `json:"times,omitempty"`
	// Offset is which byte flipped_byte inverts, counted from the start of the
	// batch's first segment of Component, or of the batch without one. Past the
	// end it wraps.
	Offset int64 `json:"offset,omitempty"`
	// DelayMillis is how long the late and paused kinds wait.
	DelayMillis int64 `json:"delay_millis,omitempty"`
}

// Validate reports every defect of a list of faults, each with its position.
func Validate(faults []Fault) error {
	var all []error
	for i, f := range faults {
		bad := func(format string, args ...any) {
			all = append(all, fmt.Errorf("faults[%d]."+format, append([]any{i}, args...)...))
		}
		if !slices.Contains(faultKinds, f.Kind) {
			bad("kind: %q is unknown; known are %s", f.Kind, strings.Join(faultKinds, ", "))
		}
		if f.Target != nil && (*f.Target < 0 || *f.Target >= pd.MaxRanks) {
			bad("target: %d: want a rank 0..%d", *f.Target, pd.MaxRanks-1)
		}
		if f.Kind == SubmitFailed && f.Target == nil {
			bad("target: is required for %s", f.Kind)
		}
		if f.Kind == FenceHangs && f.Component != "" {
			bad("component: %q: a fence has none", f.Component)
		}
		if f.Nth < 0 {
			bad("nth: %d: want 1 for the first, or more", f.Nth)
		}
		if f.Times < 0 {
			bad("times: %d: want 1 or more", f.Times)
		}
		if f.Offset < 0 {
			bad("offset: %d: want 0 or more", f.Offset)
		}
		if limit := maxFaultDelay.Milliseconds(); f.DelayMillis < 0 || f.DelayMillis > limit {
			bad("delay_millis: %d: want 0..%d", f.DelayMillis, limit)
		}
	}
	return errors.Join(all...)
}

// armedFault is a fault with its counters. They are shared by all engines of
// the provider.
type armedFault struct {
	Fault        // constant
	matched, hit atomic.Int64
}

func arm(f Fault) *armedFault {
	f.Nth, f.Times = max(f.Nth, 1), max(f.Times, 1)
	return &armedFault{Fault: f}
}

// wants counts the batch if it matches and says whether the fault hits it.
func (f *armedFault) wants(target pd.Rank, segments []pd.Segment) bool {
	if f.Target != nil && *f.Target != target {
		return false
	}
	if f.Component != "" && !slices.ContainsFunc(segments, func(s pd.Segment) bool { return s.Component == f.Component }) {
		return false
	}
	n := f.matched.Add(1)
	return n >= int64(f.Nth) && n-int64(f.Nth) < int64(f.Times)
}

// directive is what the header of a batch asks of the target.
type directive uint8

const (
	applyOnce     directive = 0
	applyTwice    directive = 1
	applyLate     directive = 2
	applyAgain    directive = 3
	applyPaused   directive = 4
	applyShort    directive = 5
	lastDirective           = applyShort
)

// directive is what this fault asks of the target; a nil fault asks nothing.
func (f *armedFault) directive() (directive, time.Duration) {
	if f == nil {
		return applyOnce, 0
	}
	delay := time.Duration(f.DelayMillis) * time.Millisecond
	switch f.Kind {
	case DoubleApply:
		return applyTwice, 0
	case LateWriteAfterFailed:
		return applyLate, delay
	case LateWriteAfterCompleted:
		return applyAgain, delay
	case TargetPausedBuffered:
		return applyPaused, delay
	case CompletedShort:
		return applyShort, 0
	}
	return applyOnce, 0
}

// is says whether this fault is of the kind; a nil fault is of none.
func (f *armedFault) is(kind string) bool { return f != nil && f.Kind == kind }
