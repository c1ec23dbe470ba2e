package mooncake

import (
	"fmt"
	"time"

	"github.com/hw-native-sys/pypto-pd/cgo/te"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// ending is a kind of end of a native batch.
type ending int

const (
	allCompleted ending = iota + 1
	completedShort
	completedLate
	taskFailed
	taskTimeout
	taskCanceled
	taskInvalid
	taskUnknown
	statusRefused
	submitBroken
	attemptOver
	engineGone
)

// proof is one row of the table.
type proof struct {
	ending     ending
	native     string
	settlement pd.Settlement
	// tcpSource and ascendSource say whether the library reads the source no more.
	tcpSource, ascendSource bool
	reason                  string
}

// proofs is the only place where a native status becomes a settlement. Failed
// is not in it: the library posts a batch as a whole and retracts nothing, so
// only a submit call that refused everything proves that nothing was written,
// and that is an error of Submit and no verdict.
var proofs = []proof{
	{
		allCompleted, "COMPLETED, all bytes", pd.Done, true, true,
		"acknowledged by the target; no second attempt hides behind it, because MC_RETRY_CNT=1, ASCEND_AUTO_CONNECT=0 and MC_TCP_PROTO are enforced before the library is loaded",
	},
	{
		completedShort, "COMPLETED, other than all bytes", pd.Uncertain, true, false,
		"a task whose transport failed before it made slices reads as completed with 0 bytes",
	},
	{
		completedLate, "COMPLETED after the transfer time-out (ascend)", pd.Uncertain, true, false,
		"the library's first try timed out and a second one completed; the first may still land, and still read",
	},
	{
		taskFailed, "FAILED", pd.Uncertain, true, false,
		"what was sent is not called back: bytes may be in the network or in the target's socket. On TCP the connection was closed before the status showed, so nothing reads the source; a failed try on Ascend may go on reading",
	},
	{
		taskTimeout, "TIMEOUT", pd.Uncertain, false, false,
		"the library gave up waiting and the task goes on",
	},
	{
		taskCanceled, "CANCELED", pd.Uncertain, false, false,
		"there is no cancel, so nothing is known of it",
	},
	{
		taskInvalid, "INVALID", pd.Uncertain, false, false,
		"not produced by a transport that is used here, so nothing is known of it",
	},
	{
		taskUnknown, "any other status", pd.Uncertain, false, false,
		"a number of a later library",
	},
	{
		statusRefused, "getTransferStatus refused", pd.Uncertain, false, false,
		"the task cannot be asked, so it may be anywhere",
	},
	{
		submitBroken, "submitTransfer broke off", pd.Uncertain, false, false,
		"any code but the two that refuse everything leaves open how many tasks began",
	},
	{
		attemptOver, "WAITING or PENDING at the attempt's time-out", pd.Uncertain, false, false,
		"neither transport ends a body that stalls; the batch goes on and stays polled",
	},
	{
		engineGone, "not ended when the engine was destroyed", pd.Uncertain, true, false,
		"destroying ends the threads that read the source on TCP; what was sent may land. On Ascend the device may go on",
	},
}

func proofOf(e ending) *proof {
	for i := range proofs {
		if proofs[i].ending == e {
			return &proofs[i]
		}
	}
	panic(fmt.Sprintf("mooncake: ending %d has no row", e))
}

// endings of single tasks by their status.
var statusEndings = map[te.Status]ending{
	te.Failed: taskFailed, te.Timeout: taskTimeout, te.Canceled: taskCanceled, te.Invalid: taskInvalid,
}

// endingOf says how a batch ended, by the worst that is known of it. late is
// how long ago it was submitted.
func endingOf(r *te.Report, protocol Protocol, age, transferTimeout time.Duration) ending {
	switch {
	case r.Call == "submitTransfer":
		return submitBroken
	case r.Absent > 0:
		return statusRefused
	case !r.Ended:
		if e, ok := statusEndings[r.Status]; ok {
			return e
		}
		return taskUnknown
	case r.Failed > 0:
		return taskFailed
	case r.Short > 0 || r.Completed != r.Tasks:
		return completedShort
	case protocol == Ascend && age > transferTimeout:
		return completedLate
	}
	return allCompleted
}

// sourceFree says whether a batch that ended so leaves its source unread.
func (p *proof) sourceFree(protocol Protocol) bool {
	if protocol == Ascend {
		return p.ascendSource
	}
	return p.tcpSource
}

// detail is the provider's own account of a batch, for people.
func detail(r *te.Report, p *proof) string {
	if p.ending == allCompleted {
		return ""
	}
	text := fmt.Sprintf("%s: %d of %d tasks completed, %d failed, %d short", p.native, r.Completed, r.Tasks, r.Failed, r.Short)
	if r.Code != 0 {
		return text + ": " + (&te.Error{Call: r.Call, Code: r.Code}).Error()
	}
	return text + fmt.Sprintf(": getTransferStatus: task %d is %s", r.Task, r.Status)
}
