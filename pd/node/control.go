package node

import (
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/handoff"
	"github.com/hw-native-sys/pypto-pd/pd/mutant"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// called routes an incoming control call. Messages that only decode takes are
// refused on prefill.
func (n *Node) called(e Called) {
	if n.cfg.Role == pd.Prefill {
		switch e.Message.(type) {
		case wire.Session, wire.Reserve, wire.Chunk, wire.Results, wire.Commit:
			n.emit(Answer{Call: e.Call, Err: n.fail("", "control", pd.CodeNotFound, "only decode nodes take this message")})
			return
		}
	}
	switch m := e.Message.(type) {
	case wire.Session:
		n.sessionCalled(e.Call, &m)
	case wire.Reserve:
		n.reserveCalled(e.Call, m, e.Prefix)
	case wire.Chunk:
		n.chunkCalled(e.Call, m)
	case wire.Results:
		n.resultsCalled(e.Call, m)
	case wire.Commit:
		n.commitCalled(e.Call, m)
	case wire.Abort:
		n.abortCalled(e.Call, m)
	case wire.StatusQuery:
		n.statusCalled(e.Call, m)
	case wire.SourceStopped:
		n.sourceStopped(e.Call, m)
	default:
		n.ordered(e.Call, m)
	}
}

// abortCalled is legal in every state. Its answer is a receipt: it waits for
// the terminal fact, as long as the caller does. An abort for an unknown id
// leaves a tombstone, so that a late reserve cannot revive it.
func (n *Node) abortCalled(call CallID, a wire.Abort) {
	h := a.Fence.Handoff
	if err := n.fenceError(a.Fence); err != nil {
		n.emit(Answer{Call: call, Err: err})
		return
	}
	reason := n.fail(h, "abort", pd.CodeAborted, "%s: %s", a.From, a.Reason)
	if p := n.prefills[h]; p != nil {
		if field := p.fence.Diff(a.Fence); field != "" {
			n.emit(Answer{Call: call, Err: n.fail(h, "abort", pd.CodeIdentity, "%s differs from the handoff's", field)})
			return
		}
		p.askers = append(p.askers, call)
		n.stopPrefill(p, reason)
		return
	}
	if d := n.decodes[h]; d != nil {
		if field := d.fence.Diff(a.Fence); field != "" {
			n.emit(Answer{Call: call, Err: n.fail(h, "abort", pd.CodeIdentity, "%s differs from the handoff's", field)})
			return
		}
		n.abortDecode(call, d, a, reason)
		return
	}
	if t := n.tombstones[h]; t != nil {
		// A definite fact has done its work once decode has it. One that is not is
		// asked for again and again: without it "no record" would say that nothing
		// was ever submitted.
		t.keep = t.keep && (a.From == "router" || !t.status.Fact.Definite())
		n.emit(Answer{Call: call, Message: t.status})
		return
	}
	n.emit(Answer{Call: call, Message: n.buryUnknown(a.Fence, reason)})
}

// buryUnknown answers for a handoff that never was here, and sees to it that it
// never will be.
func (n *Node) buryUnknown(f pd.Fence, reason error) wire.Status {
	s := wire.Status{Role: n.cfg.Role, State: "Aborted", Code: pd.CodeUnknownKey.String(), Why: reason.Error()}
	if n.cfg.Role == pd.Prefill {
		s.Fact = pd.NeverSubmitted
	}
	n.bury(f, s, false)
	return s
}

func (n *Node) abortDecode(call CallID, d *decode, a wire.Abort, reason error) {
	if a.From == pd.Prefill.String() || mutant.Off(mutant.FactFromSource) {
		if s := d.machine.State(); s == handoff.InUse || s == handoff.Stopping {
			n.emit(Answer{Call: call, Err: n.fail(d.fence.Handoff, "abort", pd.CodeCommitted, "committed handoff")})
			return
		}
		if len(a.Results) > 0 {
			_ = n.settle(d, a.Results) // a conflict quarantines by itself
			n.writersGone(d)
		}
		if n.decodes[d.fence.Handoff] == d && a.Fact != 0 {
			n.peerStopped(d, a.Fact, a.Reason)
		}
	}
	if n.decodes[d.fence.Handoff] != d {
		n.emit(Answer{Call: call, Message: n.tombstones[d.fence.Handoff].status})
		return
	}
	if d.machine.State() == handoff.DecodeQuarantined {
		n.emit(Answer{Call: call, Message: n.decodeStatus(d)})
		return
	}
	d.askers = append(d.askers, call)
	n.stopDecode(d, reason)
}

func (n *Node) statusCalled(call CallID, q wire.StatusQuery) {
	h := q.Fence.Handoff
	if err := n.fenceError(q.Fence); err != nil {
		n.emit(Answer{Call: call, Err: err})
		return
	}
	switch p, d, t := n.prefills[h], n.decodes[h], n.tombstones[h]; {
	case p != nil:
		if q.Fence == p.fence {
			n.heardDecode(p)
		}
		n.emit(Answer{Call: call, Message: n.prefillStatus(p)})
	case d != nil:
		n.emit(Answer{Call: call, Message: n.decodeStatus(d)})
	case t != nil:
		n.emit(Answer{Call: call, Message: t.status})
	default:
		n.emit(Answer{Call: call, Message: n.buryUnknown(q.Fence, n.fail(h, "status", pd.CodeUnknownKey, "no such handoff here"))})
	}
}

// sourceStopped is prefill's word at shutdown, for all its handoffs at once.
func (n *Node) sourceStopped(call CallID, s wire.SourceStopped) {
	for _, d := range n.decodesOf(s.Peer) {
		if !d.started {
			n.peerStopped(d, s.Fact, "prefill is shutting down")
		}
		if n.decodes[d.fence.Handoff] == d && !d.started {
			n.stopDecode(d, n.fail(d.fence.Handoff, "source-stopped", pd.CodeDraining, "prefill has shut down"))
		}
	}
	n.emit(Answer{Call: call, Message: wire.Ack{}})
}

// returned takes the end of an outgoing call in.
func (n *Node) returned(e Returned) {
	if p := n.prefills[e.Handoff]; p != nil {
		n.prefillReturned(p, e)
		return
	}
	if d := n.decodes[e.Handoff]; d != nil {
		n.factReturned(d, e)
	}
}

// askFact tells prefill to stop and asks for its fact; the answer carries it.
func (n *Node) askFact(d *decode) {
	d.asking, d.askAt = true, 0
	n.emit(Call{
		Handoff: d.fence.Handoff, Op: OpAbort, Peer: d.fence.Prefill, Timeout: n.cfg.HandoffTimeout,
		Message: wire.Abort{Fence: d.fence, From: pd.Decode.String(), Reason: reasonText(d.machine.Reason())},
	})
}

// askStatus asks how far prefill is.
func (n *Node) askStatus(d *decode) {
	d.asking, d.askAt = true, 0
	n.emit(Call{
		Handoff: d.fence.Handoff, Op: OpStatus, Peer: d.fence.Prefill, Timeout: n.cfg.HandoffTimeout,
		Message: wire.StatusQuery{Fence: d.fence},
	})
}

// factReturned takes prefill's answer to an abort or status question in.
func (n *Node) factReturned(d *decode, e Returned) {
	d.asking = false
	waiting := d.machine.State() == handoff.Reserved || d.machine.State() == handoff.Transferring
	status, ok := e.Answer.(wire.Status)
	if ok {
		n.heardPrefill(d)
	}
	switch {
	case !ok && waiting:
		// Prefill's life is over, or its silence ends by its own deadline.
		if pd.CodeOf(e.Err) == pd.CodeStaleBoot {
			n.stopDecode(d, e.Err)
			return
		}
		n.askLater(d, n.askInterval())
	case !ok && pd.CodeOf(e.Err) == pd.CodeStaleBoot:
		// That life of prefill is over; no fact will come. Other proofs may.
		d.told = true
		if d.machine.State() == handoff.DecodeAborting {
			n.quarantine(d, n.fail(d.fence.Handoff, "abort", pd.CodeUncertain, "prefill's boot ended without saying whether its writes did"))
		}
	case !ok && d.machine.State() == handoff.DecodeAborting && d.doubt <= n.now:
		n.quarantine(d, n.fail(d.fence.Handoff, "abort", pd.CodeUncertain, "prefill cannot be asked whether its writes ended: %v", e.Err))
		n.askLater(d, min(max(2*d.ask, pd.FactAskFirst), pd.FactAskMost))
	case !ok:
		n.askLater(d, min(max(2*d.ask, pd.FactAskFirst), pd.FactAskMost))
	case waiting && (status.Fact != 0 || status.State == "Aborted" || status.State == "Quarantined"):
		// A fact holds from when prefill's owners are sealed, also while prefill
		// itself is still at its end.
		n.peerStopped(d, status.Fact, status.Why)
		if n.decodes[d.fence.Handoff] == d && d.machine.State() != handoff.DecodeQuarantined {
			n.stopDecode(d, n.fail(d.fence.Handoff, "status", pd.CodeAborted, "prefill gave the handoff up: %s", status.Why))
		}
	case waiting:
		n.askLater(d, n.askInterval())
	default:
		n.peerStopped(d, status.Fact, status.Why)
		if n.decodes[d.fence.Handoff] == d && !d.told {
			n.askLater(d, min(max(2*d.ask, pd.FactAskFirst), pd.FactAskMost))
		}
	}
}
