package node

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/handoff"
)

// ownerLost ends this boot's work over the data plane: nobody answers for a rank
// any more, and nothing brings it back. What runs on pages that are complete
// goes on; what still has to move fails at once. Only a restart opens the node.
func (n *Node) ownerLost(e OwnerLost) {
	if _, known := n.lostOwners[e.Rank]; known {
		return
	}
	n.lostOwners[e.Rank] = e.Why
	n.emit(Record{Event: "OWNER_LOST", Code: pd.CodeOwnerLost, Detail: fmt.Sprintf("rank %d: %s", e.Rank, e.Why)})
	for _, p := range n.sortedPrefills() {
		n.stopPrefill(p, n.fail(p.fence.Handoff, "prefill", pd.CodeOwnerLost, "%s", n.lostReason()))
	}
	for _, d := range n.sortedDecodes() {
		if !d.started && d.machine.State() != handoff.DecodeQuarantined {
			n.stopDecode(d, n.fail(d.fence.Handoff, "receive", pd.CodeOwnerLost, "%s", n.lostReason()))
		}
	}
}

// lostReason says which ranks have no owner and why, "" if all have.
func (n *Node) lostReason() string {
	if len(n.lostOwners) == 0 {
		return ""
	}
	ranks := slices.Sorted(maps.Keys(n.lostOwners))
	text := fmt.Sprintf("the owner of rank %d is gone: %s", ranks[0], n.lostOwners[ranks[0]])
	if len(ranks) > 1 {
		text += fmt.Sprintf(" (and those of ranks %v)", ranks[1:])
	}
	return text + "; restart the node"
}
