package node_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// stepTokens is how much of a prompt the test's engine computes at once.
const stepTokens = 128

// side is one node of the test's pair with the engine and owners around it.
type side struct {
	name  string
	role  pd.Role
	self  pd.Peer
	node  *node.Node
	alloc *pages.Allocator
	posts map[string]node.PostID

	registry pd.Registry
	// hello is the last that was sent.
	hello wire.Session
	// installed is the epoch of the peer's registry that the owners know.
	installed pd.Epoch
	prompts   map[pd.HandoffID]*prompt
	writes    map[pd.HandoffID]map[pd.ChunkID]node.Submit
	facts     map[pd.HandoffID][]pd.Settlement
	sealing   map[pd.HandoffID]bool
}

type prompt struct {
	tokens int
	done   int
	chunk  pd.ChunkID
	slot   int
}

// pair is a prefill and a decode node joined by queues that the test controls.
type pair struct {
	t     *testing.T
	now   time.Duration
	p, d  *side
	queue []func()
	calls map[node.CallID]func(any, error)
	last  node.CallID
	post  node.PostID

	holdWrites, holdCompute, holdFence bool
	holdSessions, holdAcks, holdGrants bool
	sourceHeld                         bool // whoever settles may still read the source
	lateSession                        bool // the next session's answer is held
	hellos                             int
	heldSessions, heldAcks, heldGrants []func()
	lost                               map[string]bool // "chunk", "reserve", …: the call never arrives
	cut                                bool            // no call arrives
	boots                              int
	make                               func(name string, boot int) *side
	out                                strings.Builder
}

func newPair(t *testing.T, options map[string]int) *pair {
	c := &pair{t: t, calls: map[node.CallID]func(any, error){}, lost: map[string]bool{}}
	contract := dsv4.Tiny().Contract("revision", "simulator")
	digest, err := wire.ContractDigest(&contract)
	require.NoError(t, err)
	option := func(name string, otherwise int) int {
		if v, ok := options[name]; ok {
			return v
		}
		return otherwise
	}
	make := func(name string, boot int) *side {
		role, tp, sequences, tokens := pd.Prefill, option("tp_p", 4), option("slots", 4), option("pool", 1024)
		if name == "d" {
			role, tp, sequences, tokens = pd.Decode, option("tp_d", 4), option("slots_d", sequences), option("pool_d", tokens)
		}
		s := &side{
			name: name, role: role, self: pd.Peer{Node: pd.NodeID("node-" + name), Boot: pd.BootID(fmt.Sprintf("%s%030d", map[string]string{"p": "aa", "d": "dd"}[name], boot))},
			posts: map[string]node.PostID{}, prompts: map[pd.HandoffID]*prompt{}, writes: map[pd.HandoffID]map[pd.ChunkID]node.Submit{},
			facts: map[pd.HandoffID][]pd.Settlement{}, sealing: map[pd.HandoffID]bool{},
		}
		topology := pd.Topology{Ranks: 4, TP: tp}
		layout := adapter.LayoutFor(&contract, adapter.Sizing{Topology: topology, PoolTokens: tokens, StepTokens: stepTokens, Sequences: sequences})
		pool := map[pd.GroupName]int{}
		for _, g := range contract.Groups {
			pool[g.Name] = layout.PoolPages(g.Name)
		}
		s.alloc = pages.New(pages.Config{
			Groups: contract.Groups, Partitions: topology.Partitions(), PoolPages: pool, RingPeriods: layout.RingPeriods, AlignmentTokens: contract.AlignmentTokens, Slots: layout.BootstrapSlots,
		})
		registry := pd.Registry{
			Topology: topology, PagesPerLayer: layout.PagesPerLayer, RingPeriods: layout.RingPeriods, BootstrapSlots: layout.BootstrapSlots, Build: "test",
		}
		for r := range topology.Ranks {
			reg := pd.RankRegistration{Rank: pd.Rank(r), Epoch: 1, Endpoint: fmt.Sprintf("%s%d", name, r)}
			for _, comp := range contract.Components {
				reg.Regions = append(reg.Regions, pd.Region{Component: comp.ID, Bytes: contract.RegionBytes(comp, layout.PagesPerLayer[comp.Group]), Envelope: "e"})
			}
			reg.Regions = append(reg.Regions, pd.Region{Component: contract.Bootstrap.Component, Bytes: int64(layout.BootstrapSlots * contract.Bootstrap.SlotBytes()), Envelope: "e"})
			registry.Ranks = append(registry.Ranks, reg)
		}
		other := pd.NodeID("node-" + map[string]string{"p": "d", "d": "p"}[name])
		s.registry = registry
		s.node = node.New(node.Config{
			Role: role, Self: s.self, Run: "run", Contract: &contract, ContractDigest: digest, Registry: registry,
			Peers: map[pd.NodeID]struct{}{other: {}}, Capacity: option("capacity", 8),
			FenceProves: option("fence_proves", 1) == 1, AutoFence: option("auto_fence", 0) == 1,
			Adapter: dsv4.Tiny(), PrefixCaching: option("cache", 0) == 1,
			HandoffTimeout: 300 * time.Second, RequestTimeout: 3600 * time.Second, MaxModelTokens: 8192,
			Allocator: &slowHost{Allocator: s.alloc, pair: c, side: s, asked: map[pd.HandoffID]bool{}},
		})
		return s
	}
	c.make = make
	c.p, c.d = make("p", 0), make("d", 0)
	return c
}

// slowHost decides about memory at once, or when the test frees the grants.
type slowHost struct {
	*pages.Allocator
	pair  *pair
	side  *side
	asked map[pd.HandoffID]bool
}

// Open implements lease.Allocator.
func (a *slowHost) Open(d lease.Demand) (lease.Grant, error) {
	if !a.pair.holdGrants {
		return a.Allocator.Open(d)
	}
	a.asked[d.Owner] = true
	a.pair.printf("%s asks its host for %d tokens of %s", a.side.name, d.Tokens, short(d.Owner))
	a.pair.heldGrants = append(a.pair.heldGrants, func() {
		if a.asked[d.Owner] {
			delete(a.asked, d.Owner)
			a.pair.step(a.side, node.GrantDecided{Handoff: d.Owner})
		}
	})
	return lease.Grant{}, lease.ErrLater
}

// Withdraw implements lease.Deferred.
func (a *slowHost) Withdraw(h pd.HandoffID) {
	require.True(a.pair.t, a.asked[h], "%s was not asked for", h)
	delete(a.asked, h)
	a.pair.printf("%s withdraws the demand of %s", a.side.name, short(h))
}

// Unpinned implements lease.Deferred.
func (a *slowHost) Unpinned(key lease.PinKey) {
	a.pair.printf("%s does not pin chunk %d of %s", a.side.name, key.Chunk, short(key.Owner))
}

func (c *pair) side(name string) *side {
	if name == "p" {
		return c.p
	}
	require.Equal(c.t, "d", name)
	return c.d
}

func (c *pair) printf(format string, args ...any) { fmt.Fprintf(&c.out, format+"\n", args...) }

func handoffID(short string) pd.HandoffID {
	return pd.HandoffID(strings.Repeat("0", 32-len(short)) + short)
}

func short(h pd.HandoffID) string { return strings.TrimLeft(string(h), "0") }

func (c *pair) fence(h string) pd.Fence {
	return pd.Fence{Request: pd.RequestID("cmpl-" + h), Handoff: handoffID(h), Run: "run", Prefill: c.p.self, Decode: c.d.self}
}

// step gives one event to a node, prints and executes the effects in order,
// and checks every invariant.
func (c *pair) step(s *side, e node.Event) {
	effects := s.node.Step(e, c.now)
	for _, eff := range effects {
		c.execute(s, eff)
	}
	require.NoError(c.t, s.node.Check(), "after %T on %s\n%s", e, s.name, c.out.String())
}

func (c *pair) later(f func()) { c.queue = append(c.queue, f) }

// run delivers everything until nothing moves.
func (c *pair) run() {
	for steps := 0; len(c.queue) > 0; steps++ {
		require.Less(c.t, steps, 10000, "the pair never comes to rest")
		f := c.queue[0]
		c.queue = c.queue[1:]
		f()
	}
}

func (c *pair) execute(s *side, eff node.Effect) {
	switch e := eff.(type) {
	case node.Record:
		line := fmt.Sprintf("%s journal %s %s", s.name, e.Event, short(e.Fence.Handoff))
		if e.Bytes > 0 {
			line += fmt.Sprintf(" chunk=%d %v bytes=%d ranks=%d", e.Chunk, e.Span, e.Bytes, e.Ranks)
		}
		if e.Code != 0 {
			line += " " + e.Code.String()
		}
		c.printf("%s", line)
	case node.OpenSession:
		c.printf("%s session -> %s", s.name, c.other(s).name)
		send := func() { c.openSession(s, e.Peer) }
		if c.holdSessions {
			c.heldSessions = append(c.heldSessions, send)
		} else {
			send()
		}
	case node.Call:
		c.printf("%s %v %s -> %s", s.name, e.Op, short(e.Handoff), c.other(s).name)
		if c.cut || c.lost[e.Op.String()] {
			delete(c.lost, e.Op.String())
			c.later(func() {
				c.step(s, node.Returned{Handoff: e.Handoff, Op: e.Op, Err: pd.Errorf(pd.CodePeerUnreachable, e.Op.String(), "lost")})
			})
			return
		}
		c.deliver(c.other(s), e.Message, func(a any, err error) {
			c.step(s, node.Returned{Handoff: e.Handoff, Op: e.Op, Answer: a, Err: err})
		})
	case node.CancelCall:
		c.printf("%s cancel %v %s", s.name, e.Op, short(e.Handoff))
		c.later(func() {
			c.step(s, node.Returned{Handoff: e.Handoff, Op: e.Op, Err: pd.Errorf(pd.CodeAborted, e.Op.String(), "cancelled")})
		})
	case node.Answer:
		c.printf("%s answer %s", s.name, describe(e))
		if reply := c.calls[e.Call]; reply != nil {
			delete(c.calls, e.Call)
			if _, ack := e.Message.(wire.ChunkAck); ack && c.holdAcks {
				c.heldAcks = append(c.heldAcks, func() { reply(e.Message, e.Err) })
				break
			}
			c.later(func() { reply(e.Message, e.Err) })
		}
	case node.AcceptPost:
		c.printf("%s accept post", s.name)
	case node.EndPost:
		c.printf("%s end post %s %s", s.name, short(e.Handoff), outcome(e.Err))
	case node.InstallPeer:
		c.printf("%s install %s", s.name, e.Peer.Node)
		s.installed = e.Registry.Epoch()
	case node.StartPrefill:
		c.printf("%s start prefill %s", s.name, short(e.Handoff))
		c.later(func() { c.startPrefill(s, e) })
	case node.ResumePrefill:
		c.printf("%s resume %s", s.name, short(e.Handoff))
		c.later(func() { c.compute(s, e.Handoff) })
	case node.StopPrefill:
		c.printf("%s stop prefill %s", s.name, short(e.Handoff))
		c.later(func() {
			if _, ok := s.prompts[e.Handoff]; ok {
				delete(s.prompts, e.Handoff)
				s.alloc.Close(e.Handoff)
			}
			c.step(s, node.PrefillStopped{Handoff: e.Handoff})
		})
	case node.Submit:
		segments := 0
		for _, w := range e.Writes {
			segments += len(w.Segments)
		}
		c.printf("%s submit %s chunk=%d pairs=%d segments=%d", s.name, short(e.Handoff), e.Chunk, len(e.Writes), segments)
		if e.RegistryEpoch != s.installed {
			c.printf("%s owners refuse %s chunk=%d", s.name, short(e.Handoff), e.Chunk)
			c.later(func() {
				c.step(s, node.SubmitRefused{Handoff: e.Handoff, Chunk: e.Chunk, Err: pd.Errorf(pd.CodeStaleBoot, "submit", "the peer was fenced")})
			})
			return
		}
		if s.writes[e.Handoff] == nil {
			s.writes[e.Handoff] = map[pd.ChunkID]node.Submit{}
		}
		s.writes[e.Handoff][e.Chunk] = e
		if !c.holdWrites {
			c.later(func() { c.settle(s, e.Handoff, e.Chunk, pd.Done) })
		}
	case node.Seal:
		c.printf("%s seal %s", s.name, short(e.Handoff))
		s.sealing[e.Handoff] = true
		c.later(func() { c.sealed(s, e.Handoff) })
	case node.Forget:
	case node.Fence:
		c.printf("%s fence", s.name)
		if !c.holdFence {
			c.later(func() { c.fenceEnds(s, nil) })
		}
	case node.Adopt:
		c.printf("%s adopt %s first=%d cached=%d", s.name, short(e.Handoff), e.FirstToken, e.CachedTokens)
	case node.StopDecode:
		c.printf("%s stop decode %s", s.name, short(e.Handoff))
		c.later(func() { c.step(s, node.DecodeStopped{Handoff: e.Handoff}) })
	case node.FreeLease:
		c.printf("%s free lease %s", s.name, short(e.Handoff))
		s.node.Free(e)
	case node.FreePin:
		c.printf("%s free pin %s chunk=%d", s.name, short(e.Key.Owner), e.Key.Chunk)
		s.node.Free(e)
	default:
		c.t.Fatalf("effect %T", eff)
	}
}

func (c *pair) openSession(s *side, peer pd.Peer) {
	late := c.lateSession
	c.lateSession = false
	hello := s.node.Hello()
	c.hellos++
	hello.Nonce = fmt.Sprintf("%032d", c.hellos)
	s.hello = hello
	c.deliver(c.other(s), hello, func(a any, err error) {
		returned := func() {
			if err != nil {
				c.step(s, node.SessionReturned{Peer: peer, Err: err})
				return
			}
			answer := a.(wire.Session)
			c.step(s, node.SessionReturned{Peer: peer, Answer: &answer})
		}
		if late {
			c.heldSessions = append(c.heldSessions, returned)
			return
		}
		returned()
	})
}

// fenceEnds answers a fence: every rank has a new engine, or none.
func (c *pair) fenceEnds(s *side, err error) {
	if err != nil {
		c.step(s, node.Fenced{Registry: s.registry, Err: err})
		return
	}
	r := s.registry
	r.Ranks = slices.Clone(r.Ranks)
	for i := range r.Ranks {
		r.Ranks[i].Epoch++
	}
	s.registry = r
	c.step(s, node.Fenced{Registry: r})
}

// restart ends a node's life and begins another; nothing of the old one is left
// but its writes in flight.
func (c *pair) restart(name string) {
	fresh := c.make(name, c.boots+1)
	c.boots++
	if name == "p" {
		c.p = fresh
	} else {
		c.d = fresh
	}
}

func (c *pair) other(s *side) *side {
	if s == c.p {
		return c.d
	}
	return c.p
}

func (c *pair) deliver(to *side, message any, reply func(any, error)) {
	c.last++
	call := c.last
	c.calls[call] = reply
	e := node.Called{Call: call, Message: message}
	if r, ok := message.(wire.Reserve); ok {
		e.Prefix = to.node.Prefix(r.Continuation.PromptTokens)
	}
	c.later(func() { c.step(to, e) })
}

func (c *pair) startPrefill(s *side, e node.StartPrefill) {
	g, err := s.alloc.Open(pages.Demand{Owner: e.Handoff})
	if err != nil {
		c.step(s, node.PrefillStopped{Handoff: e.Handoff, Err: err})
		return
	}
	s.prompts[e.Handoff] = &prompt{tokens: len(e.Continuation.PromptTokens), slot: g.Slot}
	c.compute(s, e.Handoff)
}

func (c *pair) compute(s *side, h pd.HandoffID) {
	p := s.prompts[h]
	if p == nil || c.holdCompute {
		return
	}
	span := pd.Span{Start: p.done, End: min(p.tokens, p.done+stepTokens)}
	if err := s.alloc.Grow(h, span.End); err != nil {
		delete(s.prompts, h)
		s.alloc.Close(h)
		c.step(s, node.PrefillStopped{Handoff: h, Err: err})
		return
	}
	p.done, p.chunk = span.End, p.chunk+1
	c.step(s, node.ChunkComputed{
		Handoff: h, Partition: s.alloc.Partition(h), Chunk: p.chunk - 1, Span: span, Final: p.done == p.tokens, BootstrapSlot: p.slot, FirstToken: 42,
	})
}

// settle ends a submitted chunk with one answer for all its units.
func (c *pair) settle(s *side, h pd.HandoffID, chunk pd.ChunkID, answer pd.Settlement) {
	w, ok := s.writes[h][chunk]
	require.True(c.t, ok, "chunk %d of %s was never submitted", chunk, h)
	delete(s.writes[h], chunk)
	s.facts[h] = append(s.facts[h], answer)
	var results []pd.UnitResult
	for _, u := range w.Units {
		r := pd.UnitResult{Chunk: chunk, Target: u.Target, Component: u.Component, Settlement: answer}
		for _, pair := range w.Writes {
			if pair.Pair.Target == u.Target {
				r.Source = pair.Pair.Source
			}
		}
		results = append(results, r)
	}
	c.step(s, node.ChunkSettled{Handoff: h, Chunk: chunk, Results: results, SourceFree: !c.sourceHeld})
	c.sealed(s, h)
}

// sealed answers a seal once nothing of the handoff is in flight.
func (c *pair) sealed(s *side, h pd.HandoffID) {
	if !s.sealing[h] || len(s.writes[h]) > 0 {
		return
	}
	delete(s.sealing, h)
	fact := pd.NeverSubmitted
	for _, f := range s.facts[h] {
		fact = max(fact, map[pd.Settlement]pd.StopFact{pd.Done: pd.AllDone, pd.Failed: pd.DefiniteFailed, pd.Uncertain: pd.Unknown}[f])
	}
	c.step(s, node.Sealed{Handoff: h, Fact: fact})
}

func outcome(err error) string {
	if err == nil {
		return "ok"
	}
	return pd.CodeOf(err).String()
}

func describe(a node.Answer) string {
	if a.Err != nil {
		return pd.CodeOf(a.Err).String()
	}
	switch m := a.Message.(type) {
	case node.Receipt:
		return fmt.Sprintf("receipt %q released=%d held=%d gates=%d", m.Text, m.Released, m.Held, len(m.Gates))
	case wire.Session:
		return "session"
	case wire.Reserved:
		n := 0
		for _, g := range slices.Sorted(maps.Keys(m.Tables)) {
			for _, r := range m.Tables[g] {
				n += r.Count
			}
		}
		return fmt.Sprintf("reserved partition=%d pages=%d hit=%d slot=%d generation=%d", m.Partition, n, m.HitTokens, m.BootstrapSlot, m.Generation)
	case wire.ChunkAck:
		return fmt.Sprintf("ack chunk=%d", m.Chunk)
	case wire.Ack:
		return "ack"
	case wire.Committed:
		return fmt.Sprintf("committed admitted=%t", m.Admitted)
	case wire.Status:
		return fmt.Sprintf("status %s fact=%q released=%d held=%d code=%q", m.State, m.Fact, m.Released, m.Held, m.Code)
	}
	return fmt.Sprintf("%T", a.Message)
}
