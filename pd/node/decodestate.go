package node

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/handoff"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// decodeStatus is what decode says of one handoff.
func (n *Node) decodeStatus(d *decode) wire.Status {
	s := wire.Status{
		Role: pd.Decode, State: d.machine.State().String(), Reservation: reservation(d), Admitted: d.started,
		Why: reasonText(d.machine.Reason()), Progress: d.end,
	}
	if k := len(d.hashes); k > 0 {
		s.ManifestHash = d.hashes[k-1]
	}
	if r := d.machine.Reason(); r != nil {
		s.Code = pd.CodeOf(r).String()
	}
	if d.machine.State().Terminal() {
		s.Released = d.pages
	} else {
		s.Held = d.pages
	}
	return s
}

// check holds what must be true of one decode handoff between steps.
func (d *decode) check(n *Node, h pd.HandoffID) error {
	l, held := n.ledger.Lease(h)
	want := map[handoff.DecodeState]lease.State{
		handoff.Reserved: lease.Constructing, handoff.Transferring: lease.Constructing, handoff.DecodeAborting: lease.Constructing,
		handoff.InUse: lease.InUse, handoff.Stopping: lease.InUse, handoff.DecodeQuarantined: lease.Quarantined,
	}[d.machine.State()]
	switch {
	case want == 0 && held:
		return fmt.Errorf("invariant I-08 NoAllocWithoutOpenPost: %s is %v and holds a lease", h, d.machine.State())
	case want != 0 && (!held || l.State != want):
		return fmt.Errorf("invariant I-14: %s is %v and its lease is %v", h, d.machine.State(), l.State)
	case (d.machine.State() == handoff.Reserved || d.machine.State() == handoff.Transferring) && d.post == 0:
		return fmt.Errorf("invariant I-08 NoAllocWithoutOpenPost: %s is %v without an open POST", h, d.machine.State())
	}
	return nil
}
