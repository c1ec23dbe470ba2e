package node

import (
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/handoff"
	"github.com/hw-native-sys/pypto-pd/pd/mutant"
)

// NextDeadline is when TimeAdvanced is due; false if nothing waits for time.
func (n *Node) NextDeadline() (time.Duration, bool) {
	next, ok := time.Duration(0), false
	take := func(t time.Duration) {
		if t > 0 && (!ok || t < next) {
			next, ok = t, true
		}
	}
	for _, p := range n.prefills {
		take(p.due())
	}
	for _, d := range n.decodes {
		take(d.due())
		take(d.askAt)
	}
	if n.fencing != nil && !n.fencing.running {
		take(n.fencing.deadline)
	}
	return next, ok
}

// due is when a prompt's request time is over, or decode's silence too long;
// what is ending already has no such time.
func (p *prefill) due() time.Duration {
	switch p.machine.State() {
	case handoff.PrefillAborting, handoff.Retiring:
		return 0
	case handoff.Prefilling:
		return min(p.deadline, p.silent)
	}
	return p.deadline
}

// due is when the present wait is over. Decoding has no deadline of its own.
func (d *decode) due() time.Duration {
	switch d.machine.State() {
	case handoff.Reserved, handoff.Transferring:
		return min(d.deadline, d.silent)
	case handoff.Waiting, handoff.DecodeAborting:
		return d.deadline
	}
	return 0
}

// askInterval is how often decode asks a prefill that computes or writes. Each
// side hears of the other at least so often, so that handoff_timeout without a
// word means silence.
func (n *Node) askInterval() time.Duration {
	return min(pd.PeerAskInterval, n.cfg.HandoffTimeout/4)
}

// heardPrefill and heardDecode note a word of the other side about a handoff.
func (n *Node) heardPrefill(d *decode) { d.silent = n.now + n.cfg.HandoffTimeout }

func (n *Node) heardDecode(p *prefill) { p.silent = n.now + n.cfg.HandoffTimeout }

func (n *Node) askLater(d *decode, pause time.Duration) {
	d.ask, d.askAt = pause, n.now+pause
}

// timeAdvanced ends waits. A time never ends the ownership of memory: it starts
// the ordinary abort, which ends in quarantine without proof (Invariant I-15).
func (n *Node) timeAdvanced() {
	for _, p := range n.sortedPrefills() {
		if due := p.due(); due > 0 && due <= n.now {
			n.prefillExpired(p)
		}
	}
	for _, d := range n.sortedDecodes() {
		if due := d.due(); due > 0 && due <= n.now {
			n.decodeExpired(d)
		}
		if d.askAt > 0 && d.askAt <= n.now && !d.asking && n.decodes[d.fence.Handoff] == d {
			n.askPeer(d)
		}
	}
}

func (n *Node) prefillExpired(p *prefill) {
	if p.deadline > n.now {
		n.stopPrefill(p, n.fail(p.fence.Handoff, "prefill", pd.CodeDeadline, "decode was not heard of for %v", n.cfg.HandoffTimeout))
		return
	}
	p.deadline = n.now + n.cfg.RequestTimeout
	n.stopPrefill(p, n.fail(p.fence.Handoff, "prefill", pd.CodeDeadline, "the request took longer than %v", n.cfg.RequestTimeout))
}

func (n *Node) decodeExpired(d *decode) {
	h := d.fence.Handoff
	switch d.machine.State() {
	case handoff.Waiting:
		what := "prefill's reservation"
		if d.post == 0 {
			what = "the router's POST"
		}
		n.stopDecode(d, n.fail(h, "wait", pd.CodeDeadline, "%s did not come within %v", what, n.cfg.HandoffTimeout))
	case handoff.DecodeAborting:
		if mutant.Off(mutant.HoldAtTimeout) {
			n.peerStopped(d, pd.DefiniteFailed, "")
			return
		}
		n.quarantine(d, n.fail(h, "abort", pd.CodeUncertain, "prefill did not say within %v that its writes ended", n.cfg.HandoffTimeout))
	default:
		if d.deadline > n.now {
			n.stopDecode(d, n.fail(h, "wait", pd.CodeDeadline, "prefill was not heard of for %v", n.cfg.HandoffTimeout))
			return
		}
		n.stopDecode(d, n.fail(h, "wait", pd.CodeDeadline, "prefill did not finish within %v", n.cfg.RequestTimeout))
	}
}

// askPeer asks prefill what the present state needs to know.
func (n *Node) askPeer(d *decode) {
	switch d.machine.State() {
	case handoff.Reserved, handoff.Transferring:
		n.askStatus(d)
	case handoff.DecodeAborting, handoff.DecodeQuarantined:
		n.askFact(d)
	default:
		d.askAt = 0
	}
}

// loopPaused moves every deadline, because the judge itself was asleep.
func (n *Node) loopPaused(by time.Duration) {
	for _, p := range n.prefills {
		p.deadline += by
		p.silent += by
	}
	for _, d := range n.decodes {
		d.deadline += by
		d.silent += by
		d.doubt += by
		if d.askAt > 0 {
			d.askAt += by
		}
	}
	if n.fencing != nil {
		n.fencing.deadline += by
	}
}

func (n *Node) sortedPrefills() []*prefill {
	out := make([]*prefill, 0, len(n.prefills))
	for _, p := range n.prefills {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *prefill) int { return int(a.order - b.order) })
	return out
}

func (n *Node) sortedDecodes() []*decode {
	out := make([]*decode, 0, len(n.decodes))
	for _, d := range n.decodes {
		out = append(out, d)
	}
	slices.SortFunc(out, func(a, b *decode) int { return compare(a.fence.Handoff, b.fence.Handoff) })
	return out
}

func compare(a, b pd.HandoffID) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func (n *Node) decodesOf(peer pd.Peer) []*decode {
	return slices.DeleteFunc(n.sortedDecodes(), func(d *decode) bool { return d.fence.Prefill != peer })
}
