package node

import (
	"fmt"
	"slices"
	"time"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// Config is what a node is. It does not change during a boot.
type Config struct {
	Role           pd.Role
	Self           pd.Peer
	Run            pd.RunID
	Contract       *pd.Contract
	ContractDigest string
	// Registry is this node's registered memory; the registry's layout facts
	// are used on both roles.
	Registry pd.Registry
	// Peers are the nodes of the other role in pd.json.
	Peers map[pd.NodeID]struct{}
	// Capacity is how many requests may be active.
	Capacity       int
	HandoffTimeout time.Duration
	RequestTimeout time.Duration
	// MaxModelTokens bounds prompt plus output.
	MaxModelTokens int
	// Adapter knows the prefix rules; PrefixCaching switches them on.
	Adapter       adapter.Adapter
	PrefixCaching bool
	// FenceProves and DeathSuffices are what the data plane declares
	// (transfer.Facts). AutoFence runs a fence whenever the node is gated.
	FenceProves, DeathSuffices, AutoFence bool
	// Allocator is not owned by the node; the node is its only ledger.
	Allocator lease.Allocator
}

// session is what is known of one peer's life.
type session struct {
	open     bool
	registry pd.Registry
	// opened is when it was asked for, in steps: of two lives of a node, the one
	// that was asked for later is the later one. Answers may come in any order.
	opened int64
	// doubted: a write did not end as it should, so the peer's data plane may be
	// another one by now; the next request asks for it again. asked: it does.
	doubted, asked bool
}

// tombstone answers for an ended handoff.
type tombstone struct {
	status wire.Status
	fence  pd.Fence
	// keep: decode may still have to ask for the fact (never evicted).
	keep bool
}

// Node is one node as a value.
type Node struct {
	// constant
	cfg Config

	// owned by the caller's goroutine
	ledger     *lease.Ledger
	sessions   map[pd.Peer]*session
	lives      map[pd.NodeID]*lives
	hellos     nonces
	prefills   map[pd.HandoffID]*prefill
	decodes    map[pd.HandoffID]*decode
	posts      map[PostID]pd.HandoffID
	tombstones map[pd.HandoffID]*tombstone
	graves     []pd.HandoffID // oldest first
	gates      map[pd.HandoffID]string
	fencing    *fencing
	// unfenced is how the last fence failed: engines of this node may be gone, so
	// it takes nothing new until another fence succeeds.
	unfenced string
	// lostOwners are the ranks for which nobody answers any more, and why. They stay
	// lost until this boot ends.
	lostOwners map[pd.Rank]string
	draining   bool
	sequence   int64
	// unclear: a handoff of this boot has ended without knowing whether its
	// writes did; no word about all of them may say that they have.
	unclear bool

	// valid during one Step
	now time.Duration
	out []Effect
}

// New makes a node that is ready.
func New(cfg Config) *Node {
	return &Node{
		cfg: cfg, ledger: lease.New(cfg.Allocator),
		sessions: map[pd.Peer]*session{}, lives: map[pd.NodeID]*lives{}, hellos: nonces{seen: map[string]struct{}{}}, prefills: map[pd.HandoffID]*prefill{}, decodes: map[pd.HandoffID]*decode{},
		posts: map[PostID]pd.HandoffID{}, tombstones: map[pd.HandoffID]*tombstone{}, gates: map[pd.HandoffID]string{},
		lostOwners: map[pd.Rank]string{},
	}
}

// Prefix computes the page hashes of a prompt; nil without prefix caching. It
// reads what is constant only and may be called from any goroutine.
func (n *Node) Prefix(tokens []pd.Token) pd.PrefixHashes {
	if !n.cfg.PrefixCaching {
		return nil
	}
	return adapter.PrefixHashes(n.cfg.Contract, n.cfg.ContractDigest, tokens)
}

// Step takes one event in. now is the time since the boot and never goes back.
// The effects are in the order in which they must be executed.
func (n *Node) Step(e Event, now time.Duration) []Effect {
	n.now, n.out = now, nil
	switch e := e.(type) {
	case PrefillPosted:
		n.prefillPosted(e)
	case DecodePosted:
		n.decodePosted(e)
	case PostClosed:
		n.postClosed(e)
	case Called:
		n.called(e)
	case Returned:
		n.returned(e)
	case SessionReturned:
		n.sessionReturned(e)
	case InstallFailed:
		n.closeSession(e.Peer, e.Err)
	case ChunkComputed:
		n.chunkComputed(e)
	case PrefillStopped:
		n.prefillStopped(e)
	case DecodeStopped:
		n.decodeStopped(e)
	case GrantDecided:
		n.grantDecided(e)
	case SourceFreed:
		n.sourceFreed(e)
	case ChunkSettled:
		n.chunkSettled(e)
	case SubmitRefused:
		n.submitRefused(e)
	case Sealed:
		n.sealed(e)
	case Fenced:
		n.fenced(e)
	case OwnerLost:
		n.ownerLost(e)
	case TimeAdvanced:
		n.timeAdvanced()
	case LoopPaused:
		n.loopPaused(e.For)
	case DrainOrdered:
		n.draining = true
	case PeersAdded:
		n.peersAdded(e.Nodes)
	default:
		panic(fmt.Sprintf("node: unknown event %T", e))
	}
	n.tryFence()
	n.sequence++
	return order(n.out)
}

func (n *Node) emit(effects ...Effect) { n.out = append(n.out, effects...) }

// Free executes a FreeLease or FreePin effect. It comes last, after everything
// that the same step sends.
func (n *Node) Free(e Effect) {
	var err error
	switch e := e.(type) {
	case FreeLease:
		err = n.ledger.Free(e.Handoff)
	case FreePin:
		err = n.ledger.Unpin(e.Key)
	default:
		err = fmt.Errorf("%T frees nothing", e)
	}
	if err != nil {
		panic("invariant I-02: " + err.Error())
	}
}

// admit says why a new request is refused, nil if it is not.
func (n *Node) admit(f pd.Fence) error {
	if err := n.fenceError(f); err != nil {
		return err
	}
	_, known := n.tombstones[f.Handoff]
	switch {
	case known, n.prefills[f.Handoff] != nil:
		return n.fail(f.Handoff, "admit", pd.CodeDuplicateHandoff, "this handoff was posted before")
	case n.draining:
		return n.fail(f.Handoff, "admit", pd.CodeDraining, "the node is shutting down")
	case n.gated():
		return n.fail(f.Handoff, "admit", pd.CodeNodeGated, "%s", n.gateReason())
	case n.active() >= n.cfg.Capacity:
		return n.fail(f.Handoff, "admit", pd.CodeBusy, "%d requests are active, the limit is %d", n.active(), n.cfg.Capacity)
	}
	return nil
}

// fenceError says in what a fence differs from this node's own identity.
func (n *Node) fenceError(f pd.Fence) error {
	self, peer := f.Prefill, f.Decode
	if n.cfg.Role == pd.Decode {
		self, peer = peer, self
	}
	switch {
	case f.Run != n.cfg.Run:
		return n.fail(f.Handoff, "fence", pd.CodeIdentity, "run %q, this node's is %q", f.Run, n.cfg.Run)
	case self.Node != n.cfg.Self.Node:
		return n.fail(f.Handoff, "fence", pd.CodeIdentity, "node %q, this is %q", self.Node, n.cfg.Self.Node)
	case self.Boot != n.cfg.Self.Boot:
		return n.fail(f.Handoff, "fence", pd.CodeStaleBoot, "stale boot identity %s, this boot is %s", self.Boot, n.cfg.Self.Boot)
	}
	if _, ok := n.cfg.Peers[peer.Node]; !ok {
		return n.fail(f.Handoff, "fence", pd.CodeIdentity, "peer %q is not a %s node of this configuration", peer.Node, n.cfg.Role.Other())
	}
	return nil
}

func (n *Node) fail(h pd.HandoffID, op string, code pd.Code, format string, args ...any) *pd.Error {
	return &pd.Error{Op: op, Code: code, Handoff: h, Node: n.cfg.Self.Node, Text: fmt.Sprintf(format, args...)}
}

func (n *Node) active() int {
	active := len(n.prefills)
	for _, d := range n.decodes {
		if d.holdsSlot() {
			active++
		}
	}
	return active
}

func (n *Node) postClosed(e PostClosed) {
	h, ok := n.posts[e.Post]
	if !ok {
		return // it ended at the same moment
	}
	gone := n.fail(h, "post", pd.CodeClientGone, "the connection of the request was closed")
	if p := n.prefills[h]; p != nil {
		n.stopPrefill(p, gone)
	} else if d := n.decodes[h]; d != nil {
		n.stopDecode(d, gone)
	}
}

// endPost emits the end of a POST once.
func (n *Node) endPost(post *PostID, h pd.HandoffID, err error) {
	if *post != 0 {
		n.emit(EndPost{Post: *post, Handoff: h, Err: err})
		delete(n.posts, *post)
		*post = 0
	}
}

// bury leaves a tombstone; the oldest that nobody needs gives way.
func (n *Node) bury(f pd.Fence, s wire.Status, keep bool) {
	if t := n.tombstones[f.Handoff]; t != nil {
		return // the first terminal fact wins
	}
	n.tombstones[f.Handoff] = &tombstone{status: s, fence: f, keep: keep}
	n.graves = append(n.graves, f.Handoff)
	for i := 0; len(n.graves) > pd.MaxTombstones && i < len(n.graves); {
		if h := n.graves[i]; !n.tombstones[h].keep {
			delete(n.tombstones, h)
			n.graves = slices.Delete(n.graves, i, i+1)
			continue
		}
		i++
	}
}

func (n *Node) gate(h pd.HandoffID, reason string) {
	n.gates[h] = reason
	// Without every owner no fence can prove anything.
	if n.cfg.AutoFence && len(n.lostOwners) == 0 && n.cfg.FenceProves && n.cfg.Role == pd.Decode {
		n.orderFence()
	}
}

// gated says that the node takes nothing new.
func (n *Node) gated() bool { return len(n.gates) > 0 || n.fenceReason() != "" }

func (n *Node) gateReason() string {
	// Restarting for want of an owner ends every gate, too.
	if len(n.gates) == 0 || len(n.lostOwners) > 0 {
		return n.fenceReason()
	}
	keys := make([]pd.HandoffID, 0, len(n.gates))
	for h := range n.gates {
		keys = append(keys, h)
	}
	slices.Sort(keys)
	return fmt.Sprintf("%d writes may still land, first handoff %s: %s", len(keys), keys[0], n.gates[keys[0]])
}

// Snapshot is what a node says of itself.
type Snapshot struct {
	Health   pd.Health
	Reason   string
	Capacity wire.Capacity
	Pins     int
	Gates    map[pd.HandoffID]string
	Pages    map[pd.GroupName]lease.Usage
	// Stopped is what prefill may say at its end of all its writes together.
	Stopped pd.StopFact
}

// Snapshot shows the node as it is now.
func (n *Node) Snapshot() Snapshot {
	held, quarantined := n.ledger.Counts()
	s := Snapshot{
		Health: pd.Ready,
		Capacity: wire.Capacity{
			Limit: n.cfg.Capacity, Active: n.active(), Reservations: held, Quarantined: quarantined, Sequence: n.sequence,
		},
		Pins: n.ledger.Pins(""), Gates: map[pd.HandoffID]string{}, Pages: n.cfg.Allocator.Usage(),
		Stopped: pd.AllDone,
	}
	if n.unclear {
		s.Stopped = pd.Unknown
	}
	for h, r := range n.gates {
		s.Gates[h] = r
	}
	switch {
	case n.gated():
		s.Health, s.Reason = pd.RecoveryRequired, n.gateReason()
	case n.draining:
		s.Health, s.Reason = pd.Draining, "the node is shutting down"
	}
	return s
}

// Idle says that no handoff is in progress and no write may land.
func (n *Node) Idle() bool {
	return len(n.prefills) == 0 && len(n.decodes) == 0 && n.ledger.Pins("") == 0
}

// Check reports the first broken invariant. It is meant for use between steps,
// after the step's frees were executed.
func (n *Node) Check() error {
	if err := n.ledger.Check(); err != nil {
		return err
	}
	for h, d := range n.decodes {
		if err := d.check(n, h); err != nil {
			return err
		}
	}
	for h := range n.gates {
		d := n.decodes[h]
		if (d == nil || d.machine.State().String() != "Quarantined") && n.ledger.Pins(h) == 0 {
			return fmt.Errorf("invariant I-11 GateHasReason: gate of %s names no unsettled write", h)
		}
	}
	for post, h := range n.posts {
		if n.prefills[h] == nil && n.decodes[h] == nil {
			return fmt.Errorf("invariant I-12 OneEndPerRequest: post %d of %s has no handoff", post, h)
		}
	}
	if a := n.active(); a > n.cfg.Capacity {
		return fmt.Errorf("invariant I-13: %d active requests, the limit is %d", a, n.cfg.Capacity)
	}
	return nil
}
