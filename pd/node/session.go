package node

import (
	"fmt"
	"maps"
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/handoff"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// Hello is this node's half of a session. The shell fills the nonce.
func (n *Node) Hello() wire.Session {
	return wire.Session{
		ProtocolVersion: pd.ProtocolVersion, Role: n.cfg.Role, Peer: n.cfg.Self, Run: n.cfg.Run,
		Contract: *n.cfg.Contract, ContractDigest: n.cfg.ContractDigest, Registry: n.cfg.Registry,
	}
}

// peersAdded makes nodes known. The configuration's own map stays as it is.
func (n *Node) peersAdded(nodes []pd.NodeID) {
	n.cfg.Peers = maps.Clone(n.cfg.Peers)
	for _, id := range nodes {
		n.cfg.Peers[id] = struct{}{}
	}
}

// sessionError says why a peer's hello is refused.
func (n *Node) sessionError(s *wire.Session) error {
	refuse := func(code pd.Code, format string, args ...any) error {
		return &pd.Error{Op: "session", Code: code, Node: s.Peer.Node, Text: fmt.Sprintf(format, args...)}
	}
	if _, known := n.cfg.Peers[s.Peer.Node]; !known || s.Role != n.cfg.Role.Other() {
		return refuse(pd.CodeIdentity, "%s node %q is not a peer in this configuration", s.Role, s.Peer.Node)
	}
	if s.Run != n.cfg.Run {
		return refuse(pd.CodeIdentity, "run %q, this node's is %q", s.Run, n.cfg.Run)
	}
	if field := n.cfg.Contract.Diff(&s.Contract); field != "" {
		return refuse(pd.CodeContractMismatch, "PD capability mismatch: %s", field)
	}
	if s.ContractDigest != n.cfg.ContractDigest {
		return refuse(pd.CodeContractMismatch, "contract digest differs although every field is equal")
	}
	if s.Registry.Build != n.cfg.Registry.Build {
		return refuse(pd.CodeContractMismatch, "PD capability mismatch: data-plane build %q, this node's is %q", s.Registry.Build, n.cfg.Registry.Build)
	}
	if err := n.registryError(&s.Registry); err != nil {
		return refuse(pd.CodeRegistryMismatch, "%v", err)
	}
	return nil
}

// registryError checks a peer's registry against the contract (pd-domain §3.4).
func (n *Node) registryError(r *pd.Registry) error {
	if err := r.Topology.Check(); err != nil {
		return err
	}
	if len(r.Ranks) != r.Topology.Ranks {
		return fmt.Errorf("%d ranks are registered, the topology has %d", len(r.Ranks), r.Topology.Ranks)
	}
	want := map[pd.ComponentID]int64{n.cfg.Contract.Bootstrap.Component: int64(r.BootstrapSlots) * int64(n.cfg.Contract.Bootstrap.SlotBytes())}
	for _, g := range n.cfg.Contract.Groups {
		pages := r.PagesPerLayer[g.Name]
		if pages < 1 {
			return fmt.Errorf("group %s has no pages", g.Name)
		}
		if g.Kind != pd.Full && r.RingPeriods[g.Name] < 1 {
			return fmt.Errorf("group %s has no ring period", g.Name)
		}
		for _, c := range n.cfg.Contract.Components {
			if c.Group == g.Name {
				want[c.ID] = n.cfg.Contract.RegionBytes(c, pages)
			}
		}
	}
	for i, rank := range r.Ranks {
		if rank.Rank != pd.Rank(i) || rank.Epoch < 1 || rank.Endpoint == "" {
			return fmt.Errorf("rank %d: want rank %d with an epoch and an endpoint", rank.Rank, i)
		}
		got := map[pd.ComponentID]int64{}
		for _, region := range rank.Regions {
			if _, twice := got[region.Component]; twice || region.Envelope == "" {
				return fmt.Errorf("rank %d: region %s is given twice or without envelope", i, region.Component)
			}
			got[region.Component] = region.Bytes
		}
		if !maps.Equal(got, want) {
			return fmt.Errorf("rank %d: regions or their sizes differ from the contract", i)
		}
	}
	return nil
}

// sessionCalled answers a prefill node's hello.
func (n *Node) sessionCalled(call CallID, s *wire.Session) {
	if err := n.sessionError(s); err != nil {
		n.emit(Answer{Call: call, Err: err}, Record{Event: "CONTROL_MESSAGE_REJECTED", Code: pd.CodeOf(err), Detail: err.Error()})
		return
	}
	// The same hello again says nothing new, least of all who lives.
	if !n.hellos.knows(s.Nonce) {
		n.sessions[s.Peer] = &session{open: true, registry: s.Registry, opened: n.sequence}
		n.dropOldBoots(s.Peer)
	}
	hello := n.Hello()
	hello.Nonce = s.Nonce
	n.emit(Answer{Call: call, Message: hello})
}

// nonces are the last hellos that a decode node has taken in.
type nonces struct {
	seen  map[string]struct{}
	order []string // oldest first
}

// knows notes a nonce and says whether it came before. The empty one is new.
func (k *nonces) knows(nonce string) bool {
	if _, known := k.seen[nonce]; known || nonce == "" {
		return known
	}
	if len(k.order) == pd.MaxHellos {
		delete(k.seen, k.order[0])
		k.order = slices.Delete(k.order, 0, 1)
	}
	k.seen[nonce] = struct{}{}
	k.order = append(k.order, nonce)
	return false
}

// lives are what prefill knows of one decode node: its present boot, and those
// that must not come back with an answer that was late.
type lives struct {
	current pd.BootID
	opened  int64 // session.opened of current
	past    []pd.BootID
}

func (l *lives) ended(boot pd.BootID) {
	if boot == "" || slices.Contains(l.past, boot) {
		return
	}
	l.past = append(l.past, boot)
	if n := len(l.past); n > pd.MaxPastBoots {
		l.past = slices.Delete(l.past, 0, n-pd.MaxPastBoots)
	}
}

// olderThan names a life of a peer's node that is known to be later than the
// peer's own, "" if there is none.
func (n *Node) olderThan(peer pd.Peer) pd.BootID {
	l, s := n.lives[peer.Node], n.sessions[peer]
	if l == nil || l.current == peer.Boot || (!slices.Contains(l.past, peer.Boot) && (s == nil || s.opened > l.opened)) {
		return ""
	}
	return l.current
}

// dropOldBoots ends what there was with earlier lives of a node than the one
// that a session was opened with. A life that was asked for since and has not
// answered may be a later one, or a mistake of who asked: then nothing ends yet.
func (n *Node) dropOldBoots(peer pd.Peer) {
	l, opened := n.lives[peer.Node], n.sessions[peer].opened
	if l == nil {
		l = &lives{}
		n.lives[peer.Node] = l
	}
	if l.current != peer.Boot {
		l.ended(l.current)
		l.current = peer.Boot
	}
	l.opened = max(l.opened, opened)
	last := true
	for p, s := range n.sessions {
		switch {
		case p.Node != peer.Node || p.Boot == peer.Boot:
		case s.opened > opened:
			last = false
		default:
			l.ended(p.Boot)
			delete(n.sessions, p)
		}
	}
	if !last {
		return
	}
	for _, d := range n.sortedDecodes() {
		if d.fence.Prefill.Node == peer.Node && d.fence.Prefill.Boot != peer.Boot && !d.started {
			n.lostPeer(d, n.fail(d.fence.Handoff, "session", pd.CodeStaleBoot, "prefill has started anew"))
		}
	}
	for _, t := range n.tombstones {
		if t.fence.Decode.Node == peer.Node && t.fence.Decode.Boot != peer.Boot {
			t.keep = false // who could ask is gone
		}
	}
}

// needSession opens a session unless there is one.
func (n *Node) needSession(p *prefill) {
	peer := p.fence.Decode
	s := n.sessions[peer]
	switch {
	case s == nil:
		n.sessions[peer] = &session{opened: n.sequence}
		n.emit(OpenSession{Peer: peer, Timeout: n.cfg.HandoffTimeout})
	case s.open && !s.doubted:
		n.prefillEvent(p, handoff.Event{Kind: handoff.SessionOpened})
	case s.open && !s.asked:
		s.asked = true
		n.emit(OpenSession{Peer: peer, Timeout: n.cfg.HandoffTimeout})
	}
}

// openTo is the open session with a peer; nil while there is none.
func (n *Node) openTo(peer pd.Peer) *session {
	if s := n.sessions[peer]; s != nil && s.open {
		return s
	}
	return nil
}

// doubtSession notes that a write to a peer did not end as it should.
func (n *Node) doubtSession(peer pd.Peer) {
	if s := n.openTo(peer); s != nil {
		s.doubted = true
	}
}

func (n *Node) sessionReturned(e SessionReturned) {
	err := e.Err
	if err == nil && e.Answer.Peer != e.Peer {
		err = &pd.Error{Op: "session", Code: pd.CodeStaleBoot, Node: e.Peer.Node, Text: fmt.Sprintf("boot %s answered, want %s", e.Answer.Peer.Boot, e.Peer.Boot)}
	}
	if later := n.olderThan(e.Peer); err == nil && later != "" {
		err = &pd.Error{Op: "session", Code: pd.CodeStaleBoot, Node: e.Peer.Node, Text: fmt.Sprintf("boot %s ended before boot %s began", e.Peer.Boot, later)}
	}
	if err == nil {
		err = n.sessionError(e.Answer)
	}
	if err != nil {
		if s := n.openTo(e.Peer); s != nil && pd.CodeOf(err).Retryable() {
			s.asked = false // what runs goes on with what is known
			n.failWaiting(e.Peer, err)
			return
		}
		n.closeSession(e.Peer, err)
		return
	}
	opened := n.sequence
	if s := n.sessions[e.Peer]; s != nil {
		opened = s.opened
	}
	n.sessions[e.Peer] = &session{open: true, registry: e.Answer.Registry, opened: opened}
	n.dropOldBoots(e.Peer)
	n.emit(InstallPeer{Peer: e.Peer, Registry: e.Answer.Registry})
	for _, p := range n.prefillsOf(e.Peer) {
		switch {
		case p.machine.State() == handoff.Connecting:
			n.prefillEvent(p, handoff.Event{Kind: handoff.SessionOpened})
		case p.again == reserveWaits:
			p.again = reserveSent
			n.prefillEffect(p, handoff.Effect{Kind: handoff.SendReserve})
		}
	}
}

// closeSession fails what waits for a session; the next request tries again.
func (n *Node) closeSession(peer pd.Peer, err error) {
	delete(n.sessions, peer)
	n.failWaiting(peer, err)
	for _, p := range n.prefillsOf(peer) {
		n.stopPrefill(p, err)
	}
}

// failWaiting fails the handoffs that can go on only with a new session.
func (n *Node) failWaiting(peer pd.Peer, err error) {
	for _, p := range n.prefillsOf(peer) {
		switch {
		case p.again == reserveWaits:
			p.again = reserveSent
			n.prefillEvent(p, handoff.Event{Kind: handoff.Refused, Err: err})
		case p.machine.State() == handoff.Connecting:
			n.stopPrefill(p, err)
		}
	}
}

// prefillsOf lists the handoffs to a peer in a fixed order.
func (n *Node) prefillsOf(peer pd.Peer) []*prefill {
	var out []*prefill
	for _, p := range n.prefills {
		if p.fence.Decode == peer {
			out = append(out, p)
		}
	}
	slices.SortFunc(out, func(a, b *prefill) int { return int(a.order - b.order) })
	return out
}
