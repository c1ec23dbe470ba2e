package node

import (
	"fmt"
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/handoff"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// Orders are what an operator may tell a node; they arrive as Called.
type (
	// FenceOrder ends gates by a destination fence.
	FenceOrder struct{}
	// DeathOrder is the operator's word that no process of a boot lives.
	DeathOrder struct{ Boot pd.BootID }
	// CancelOrder ends one request.
	CancelOrder struct{ Request pd.RequestID }
	// DrainOrder stops admission.
	DrainOrder struct{}
	// GatesOrder asks what holds the node.
	GatesOrder struct{}
)

// Receipt answers an order.
type Receipt struct {
	// Text says what was done, in words.
	Text string `json:"text"`
	// Released and Held count pages.
	Released int `json:"released_pages"`
	Held     int `json:"held_pages"`
	// Gates are the reasons that are left.
	Gates []Gate `json:"gates"`
}

// Gate is one reason for which a node takes nothing new.
type Gate struct {
	Handoff pd.HandoffID `json:"handoff"`
	Request pd.RequestID `json:"request"`
	Peer    pd.Peer      `json:"peer"`
	Pages   int          `json:"pages"`
	Why     string       `json:"why"`
}

// fencing is a destination fence in progress.
type fencing struct {
	// deadline is when the fence takes unsettled chunks along that are not known
	// to be uncertain.
	deadline time.Duration
	running  bool
	// held are offers of chunks that came meanwhile: no authority is given now.
	held []heldChunk
	// askers wait for the outcome; pages counts what the fence gave back.
	askers []CallID
	pages  int
}

type heldChunk struct {
	call  CallID
	chunk wire.Chunk
}

func (n *Node) receipt(text string) Receipt {
	r := Receipt{Text: text, Gates: n.Gates()}
	for _, g := range r.Gates {
		r.Held += g.Pages
	}
	return r
}

// fenceReason says why peers cannot write here at all, "" if they can.
func (n *Node) fenceReason() string {
	if why := n.lostReason(); why != "" {
		return why
	}
	if n.fencing != nil && n.fencing.running {
		return "the data plane is being made anew"
	}
	return n.unfenced
}

// Gates lists why the node takes nothing new, in a fixed order.
func (n *Node) Gates() []Gate {
	out := []Gate{}
	for h, why := range n.gates {
		g := Gate{Handoff: h, Why: why}
		if d := n.decodes[h]; d != nil {
			g.Request, g.Peer = d.fence.Request, d.fence.Prefill
			if l, ok := n.ledger.Lease(h); ok {
				g.Pages = l.Pages
			}
		} else if t := n.tombstones[h]; t != nil {
			g.Request, g.Peer, g.Pages = t.fence.Request, t.fence.Decode, t.status.Held
		}
		out = append(out, g)
	}
	slices.SortFunc(out, func(a, b Gate) int { return compare(a.Handoff, b.Handoff) })
	if why := n.fenceReason(); why != "" {
		out = append(out, Gate{Why: why})
	}
	return out
}

// ordered carries an operator's order out.
func (n *Node) ordered(call CallID, order any) {
	switch o := order.(type) {
	case FenceOrder:
		n.fenceOrdered(call)
	case DeathOrder:
		n.deathOrdered(call, o.Boot)
	case CancelOrder:
		n.cancelOrdered(call, o.Request)
	case DrainOrder:
		n.draining = true
		n.emit(Answer{Call: call, Message: n.receipt("the node admits nothing new; what runs goes on")})
	case GatesOrder:
		n.emit(Answer{Call: call, Message: n.receipt(fmt.Sprintf("%d gates", len(n.gates)))})
	default:
		panic(fmt.Sprintf("node: unknown message %T", order))
	}
}

func (n *Node) fenceOrdered(call CallID) {
	switch {
	case n.cfg.Role != pd.Decode:
		n.emit(Answer{Call: call, Err: n.fail("", "fence", pd.CodeUnsupported, "only a decode node's memory is written by peers; a prefill node's gate ends with its peer's boot or its own restart")})
		return
	case !n.cfg.FenceProves:
		n.emit(Answer{Call: call, Err: n.fail("", "fence", pd.CodeUnsupported, "this data plane does not promise that a fence ends earlier writes")})
		return
	case len(n.lostOwners) > 0:
		n.emit(Answer{Call: call, Err: n.fail("", "fence", pd.CodeOwnerLost, "%s: a fence proves nothing without every owner", n.lostReason())})
		return
	case n.fencing == nil && !n.gated():
		n.emit(Answer{Call: call, Message: n.receipt("nothing is gated")})
		return
	}
	n.orderFence()
	n.fencing.askers = append(n.fencing.askers, call)
}

// orderFence begins a fence unless one is under way.
func (n *Node) orderFence() {
	if n.fencing == nil {
		n.fencing = &fencing{deadline: n.now + n.cfg.HandoffTimeout}
		n.emit(Record{Event: "FENCE_ORDERED"})
	}
	n.tryFence()
}

// tryFence starts the fence once only uncertain writes are left, or its time
// has come.
func (n *Node) tryFence() {
	f := n.fencing
	if f == nil || f.running {
		return
	}
	for _, d := range n.sortedDecodes() {
		if l, ok := n.ledger.Lease(d.fence.Handoff); ok && l.State == lease.Constructing && l.Unsettled > 0 && n.now < f.deadline {
			return
		}
	}
	f.running = true
	n.emit(Fence{})
}

// fenced takes the end of a fence in. After success no earlier write lands any
// more, whoever sent it.
func (n *Node) fenced(e Fenced) {
	f := n.fencing
	if f == nil || !f.running {
		return
	}
	n.fencing, n.unfenced = nil, ""
	// Also a fence that failed may have made some engines anew. Peers must fetch
	// the new endpoints before they write again.
	n.cfg.Registry = e.Registry
	clear(n.sessions)
	if e.Err != nil {
		n.unfenced = fmt.Sprintf("the last fence failed, so peers may not reach every rank: %v", e.Err)
		n.emit(Record{Event: "FENCE_FAILED", Code: pd.CodeOf(e.Err), Detail: e.Err.Error()})
		for _, call := range f.askers {
			n.emit(Answer{Call: call, Err: n.fail("", "fence", pd.CodeUncertain, "the fence did not return: %v; the gates stay", e.Err)})
		}
	} else {
		for _, d := range n.sortedDecodes() {
			n.fencedHandoff(d, f)
		}
		n.emit(Record{Event: "FENCED", Count: int64(f.pages)})
		for _, call := range f.askers {
			r := n.receipt("the fence has ended every earlier write")
			r.Released = f.pages
			n.emit(Answer{Call: call, Message: r})
		}
	}
	for _, h := range f.held {
		n.chunkCalled(h.call, h.chunk)
	}
}

// fencedHandoff frees what the fence has made safe and fails what it has cut.
func (n *Node) fencedHandoff(d *decode, f *fencing) {
	h := d.fence.Handoff
	l, held := n.ledger.Lease(h)
	if !held {
		return
	}
	switch l.State {
	case lease.Quarantined:
		f.pages += l.Pages
		n.prove(d)
	case lease.Constructing:
		if err := n.ledger.Stopped(h); err != nil {
			panic("invariant I-02: " + err.Error())
		}
		if d.machine.State() == handoff.DecodeAborting {
			n.writersGone(d)
			return
		}
		n.stopDecode(d, n.fail(h, "fence", pd.CodeFenced, "the node's data plane was made anew while the request was on its way"))
	}
}

// prove ends a quarantine: no write can land any more. While the engine still
// reads the pages, the memory waits for it.
func (n *Node) prove(d *decode) {
	if d.running {
		d.proven = true
		return
	}
	n.decodeEvent(d, handoff.Event{Kind: handoff.Proven})
}

// deathOrdered takes the operator's word that a boot is dead. Where the data
// plane needs more than that, a fence follows.
func (n *Node) deathOrdered(call CallID, boot pd.BootID) {
	hit := 0
	if n.cfg.Role == pd.Prefill {
		for _, g := range n.Gates() {
			if g.Peer.Boot == boot {
				hit++
				n.dropPins(g.Handoff)
			}
		}
		n.emit(Answer{Call: call, Message: n.receipt(fmt.Sprintf("%d handoffs of boot %s let their source pages go", hit, boot))})
		return
	}
	for _, d := range n.sortedDecodes() {
		if d.fence.Prefill.Boot != boot || d.started && d.machine.State() != handoff.DecodeQuarantined {
			continue // what is committed owes that boot nothing
		}
		hit++
		if d.machine.State() != handoff.DecodeQuarantined {
			n.lostPeer(d, n.fail(d.fence.Handoff, "confirm-dead", pd.CodeOwnerLost, "an operator says that prefill's boot %s is dead", boot))
		}
	}
	switch {
	case hit == 0:
		n.emit(Answer{Call: call, Message: n.receipt(fmt.Sprintf("nothing here belongs to boot %s", boot))})
	case n.cfg.FenceProves && !n.cfg.DeathSuffices && len(n.gates) > 0:
		// People confuse a partition with a death.
		n.orderFence()
		n.fencing.askers = append(n.fencing.askers, call)
	default:
		released := 0
		for _, d := range n.sortedDecodes() {
			if l, ok := n.ledger.Lease(d.fence.Handoff); ok && l.State == lease.Quarantined && d.fence.Prefill.Boot == boot {
				released += l.Pages
				n.prove(d)
			}
		}
		r := n.receipt(fmt.Sprintf("%d handoffs of boot %s are settled by its death", hit, boot))
		r.Released = released
		n.emit(Answer{Call: call, Message: r})
	}
}

// dropPins lets all source pages of an ended handoff go.
func (n *Node) dropPins(h pd.HandoffID) {
	for _, key := range n.ledger.PinsOf(h) {
		n.emit(FreePin{Key: key})
	}
	delete(n.gates, h)
}

// lostPeer ends a handoff whose prefill will never speak again: what it may
// have written is uncertain.
func (n *Node) lostPeer(d *decode, reason *pd.Error) {
	d.told = true // nobody is left to be told
	n.stopDecode(d, reason)
	if n.decodes[d.fence.Handoff] == d && d.machine.State() == handoff.DecodeAborting {
		n.quarantine(d, reason)
	}
}

// quarantine holds the memory of an aborting handoff for want of a fact.
func (n *Node) quarantine(d *decode, reason error) {
	if err := n.ledger.Quarantine(d.fence.Handoff); err != nil {
		panic("invariant I-03: " + err.Error())
	}
	n.decodeEvent(d, handoff.Event{Kind: handoff.Uncertain, Err: reason})
}

// cancelOrdered ends a request by its id; the answer is the receipt of the
// abort.
func (n *Node) cancelOrdered(call CallID, request pd.RequestID) {
	reason := n.fail("", "cancel", pd.CodeAborted, "cancelled by an operator")
	for _, p := range n.sortedPrefills() {
		if p.fence.Request == request {
			p.askers = append(p.askers, call)
			n.stopPrefill(p, reason)
			return
		}
	}
	for _, d := range n.sortedDecodes() {
		if d.fence.Request != request {
			continue
		}
		if d.machine.State() == handoff.DecodeQuarantined {
			n.emit(Answer{Call: call, Message: n.decodeStatus(d)})
			return
		}
		d.askers = append(d.askers, call)
		n.stopDecode(d, reason)
		return
	}
	// The order may be late: the other node, or the client, was faster.
	for _, t := range n.tombstones {
		if t.fence.Request == request { // of which a node has one
			n.emit(Answer{Call: call, Message: t.status})
			return
		}
	}
	n.emit(Answer{Call: call, Err: n.fail("", "cancel", pd.CodeNotFound, "no request %s is known here", request)})
}
