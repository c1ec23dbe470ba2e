package owner

import (
	"context"
	"sync/atomic"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// rankOwner is the owner of one rank as the group drives it: an agent of this
// process, or a remote one behind a socket. The group may hold its lock while it
// calls; no method waits for anybody, and none calls the reports before it
// returned.
type rankOwner interface {
	// queue takes a job in. Its settled reports add up to all its segments.
	queue(j *job)
	// seal makes the rank refuse the handoff's jobs and drop what it has not
	// posted. False means that the rank's word is still to come (rankReports.sealed).
	seal(h pd.HandoffID) bool
	// forget drops what the rank keeps of a handoff that has nothing open.
	forget(h pd.HandoffID)
	// retire makes the rank drop what is queued for a target that is stale.
	retire(t *target)
	// fence orders the engine to be made anew.
	fence(f fenceOrder)
	// shut orders the end; rankReports.ended follows. No order comes after it.
	shut()
}

type fenceOrder struct {
	ctx context.Context
	// answer is called once and does not block.
	answer func(error)
}

// rankReports is whom the owner of a rank tells what became of its orders: the
// group of the same process, or the far end of a socket. Calls come from one
// goroutine of the rank at a time.
type rankReports interface {
	// began: a batch of the job was handed to the provider.
	began(j *job)
	// settled: count segments of the job, from the first on, have their outcome.
	// Each segment is reported once.
	settled(j *job, first, count int, o outcome)
	// sourceFreed: the provider reads no more of a batch of the job whose outcome
	// had left its source in use.
	sourceFreed(j *job)
	// sealed answers a seal that returned false.
	sealed(rank pd.Rank, h pd.HandoffID)
	// fenced: the engine was made anew. It returns once peers may be told.
	fenced(rank pd.Rank, l engineLife) error
	// lost: nobody answers for the rank any more, now or later. Everything that is
	// open there is reported Uncertain after it.
	lost(rank pd.Rank, why error)
	// ended is the last report of a rank.
	ended(rank pd.Rank)
}

// engineLife is what changes with a fence.
type engineLife struct {
	epoch    pd.Epoch
	endpoint string
	// ports that the engine listens on, where it can say; they were never used
	// before.
	ports []int
}

// opened is a rank that is registered and frozen, and not yet begun.
type opened struct {
	rankOwner
	life    engineLife
	regions []pd.Region
	facts   transfer.Facts
	memory  map[pd.ComponentID]transfer.Memory
	pid     int
	// begin starts what works for the rank; it ends with shut. Exactly one of begin
	// and abandon is called.
	begin   func(rankReports)
	abandon func() error
	// free lets the memory go, after the rank has ended.
	free func() error
}

// target is one life of one rank of a peer.
type target struct {
	transfer.Target
	// id names it towards a remote owner.
	id uint64
	// stale: the peer fenced the rank or started anew; what was not posted by then
	// never is.
	stale atomic.Bool
}

// job is the writes of one chunk between one pair of ranks. What a rank may use
// is constant once the job is queued.
type job struct {
	// id names the job towards a remote owner.
	id       uint64
	handoff  pd.HandoffID
	chunkID  pd.ChunkID
	source   pd.Rank
	target   *target
	segments []pd.Segment
	// dropped: the handoff is sealed; what was not posted by then never is.
	dropped *atomic.Bool

	// The group's own; a rank does not look at it.
	chunk *chunk
	units map[pd.ComponentID]*unit
}

// dead says why a job must not be posted, or "".
func (j *job) dead() string {
	switch {
	case j.dropped.Load():
		return "sealed before it was posted"
	case j.target.stale.Load():
		return "the peer was fenced or restarted before it was posted"
	}
	return ""
}
