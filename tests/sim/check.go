package sim

import (
	"fmt"
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// checker watches a world from outside. It believes nothing that the checked
// code says of itself: it knows every write in flight from the data plane, every
// lease from the allocator's calls, every fact from the messages.
type checker struct {
	world *World
	// leases are decode's, by boot and handoff; owned is the shadow of every page
	// and slot: whose it is, as far as peers may write it.
	leases map[key]*shadow
	owned  map[pd.BootID]map[place]*shadow
	// acked are the chunks that a decode node has acknowledged, told the stop
	// facts that a prefill node has stated.
	acked map[ack]bool
	told  map[key]pd.StopFact
	// placed are the target blocks of each handoff, by prefill's boot.
	placed map[key]map[block]pd.ChunkID
	// unclear are handoffs of a prefill boot with an Uncertain verdict.
	unclear map[key]bool
	// freedByOrder are handoffs whose source pins an operator has dropped.
	freedByOrder map[key]bool
	gates        map[key]bool
	// claimed are leases whose prefill somebody said was dead.
	claimed    map[key]bool
	generation int
}

// key names a handoff in one life of a node.
type key struct {
	boot    pd.BootID
	handoff pd.HandoffID
}

type ack struct {
	key
	chunk pd.ChunkID
}

// place is one page, or one bootstrap slot, of a node.
type place struct {
	partition pd.Partition
	group     pd.GroupName // "" for slots
	page      int
}

// block is one page of one layer of one component.
type block struct {
	component pd.ComponentID
	at        int64
}

// shadow is what the checker knows of a lease.
type shadow struct {
	key
	generation int
	grant      grant
	fence      pd.Fence
	tokens     int
	// units are those of acknowledged chunks, with what decode was told.
	units map[unitName]pd.Settlement
	// stopped: a definite stop fact or a fence came.
	stopped, quarantined, adopted, running bool
}

type unitName struct {
	chunk     pd.ChunkID
	target    pd.Rank
	component pd.ComponentID
}

func newChecker(w *World) *checker {
	return &checker{
		world: w, leases: map[key]*shadow{}, owned: map[pd.BootID]map[place]*shadow{}, acked: map[ack]bool{}, told: map[key]pd.StopFact{},
		placed: map[key]map[block]pd.ChunkID{}, unclear: map[key]bool{}, freedByOrder: map[key]bool{}, gates: map[key]bool{}, claimed: map[key]bool{},
	}
}

func (c *checker) booted(p *process) { c.owned[p.peer.Boot] = map[place]*shadow{} }

// died forgets what a boot held: its memory belongs to the next one.
func (c *checker) died(p *process) {
	delete(c.owned, p.peer.Boot)
	for k := range c.leases {
		if k.boot == p.peer.Boot {
			delete(c.leases, k)
		}
	}
}

// before looks at an event that a node is about to take in.
func (c *checker) before(p *process, e node.Event) {
	boot := p.peer.Boot
	switch e := e.(type) {
	case node.Called:
		switch m := e.Message.(type) {
		case wire.Results:
			c.stated(p, m.Fence, m.Results)
		case wire.Commit:
			c.stated(p, m.Fence, m.Results)
		case wire.Abort:
			if m.From == pd.Prefill.String() {
				c.stated(p, m.Fence, m.Results)
				c.proven(p, m.Fence.Handoff, m.Fact)
			}
		case wire.SourceStopped:
			for _, l := range c.leases {
				if l.boot == boot && l.fence.Prefill == m.Peer {
					c.proven(p, l.handoff, m.Fact)
				}
			}
		}
	case node.Returned:
		if s, ok := e.Answer.(wire.Status); ok && p.host.role == pd.Decode {
			c.proven(p, e.Handoff, s.Fact)
		}
	case node.Fenced:
		for _, l := range c.leases {
			if l.boot == boot && !l.adopted && e.Err == nil {
				l.stopped = true
			}
		}
	case node.DecodeStopped:
		if l := c.leases[key{boot, e.Handoff}]; l != nil {
			l.running = false
		}
	}
}

// stated notes facts that reach decode.
func (c *checker) stated(p *process, f pd.Fence, results []pd.UnitResult) {
	l := c.leases[key{p.peer.Boot, f.Handoff}]
	if l == nil {
		return
	}
	for _, r := range results {
		u := unitName{r.Chunk, r.Target, r.Component}
		if old, acked := l.units[u]; acked {
			l.units[u] = old.Worse(r.Settlement)
		}
	}
}

func (c *checker) proven(p *process, h pd.HandoffID, fact pd.StopFact) {
	if l := c.leases[key{p.peer.Boot, h}]; l != nil && fact.Definite() {
		if l.quarantined && !l.stopped {
			c.world.tally.Proofs++
		}
		l.stopped = true
	}
}

// unresolved says that a write of the lease may still land, as far as decode
// can know.
func (l *shadow) unresolved() bool {
	if l.stopped {
		return l.running // the proof waits for the engine
	}
	for _, s := range l.units {
		if s == 0 || s == pd.Uncertain {
			return true
		}
	}
	return false
}

// open lists decode's leases with acknowledged chunks that are not settled, in
// the order in which they were made.
func (c *checker) open() []*shadow {
	var out []*shadow
	for _, l := range c.leases {
		if !l.adopted && !l.quarantined && l.unresolved() {
			out = append(out, l)
		}
	}
	slices.SortFunc(out, func(a, b *shadow) int { return a.generation - b.generation })
	return out
}

// effect looks at an order before it is carried out.
func (c *checker) effect(p *process, effect node.Effect) {
	w := c.world
	switch e := effect.(type) {
	case node.Call:
		if a, ok := e.Message.(wire.Abort); ok && a.Fact != 0 {
			c.fact(p, e.Handoff, a.Fact, false)
		}
	case node.Answer:
		in := p.calls[e.Call]
		if in == nil {
			w.broken("OneEndPerRequest", "%s answers call %d twice", p.name(), e.Call)
		}
		switch m := e.Message.(type) {
		case wire.ChunkAck:
			c.acknowledged(p, in.message.(wire.Chunk))
		case wire.Status:
			if p.host.role == pd.Prefill && m.Fact != 0 {
				c.fact(p, fenceOf(in.message).Handoff, m.Fact, m.Admitted)
			}
		}
	case node.EndPost:
		if p.posts[e.Post] == nil {
			w.broken("OneEndPerRequest", "%s ends post %d twice", p.name(), e.Post)
		}
	case node.Adopt:
		c.adopted(p, e.Handoff)
	}
}

// acknowledged notes an authority to write.
func (c *checker) acknowledged(p *process, m wire.Chunk) {
	h := m.Manifest.Fence.Handoff
	k := key{p.peer.Boot, h}
	c.acked[ack{k, m.Manifest.Chunk}] = true
	l := c.leases[k]
	if l == nil {
		c.world.broken("AckBeforeSubmit", "%s acknowledges a chunk of %s, which holds no lease", p.name(), short(h))
	}
	for _, u := range m.Manifest.Units {
		n := unitName{m.Manifest.Chunk, u.Target, u.Component}
		if _, known := l.units[n]; !known {
			l.units[n] = 0
		}
	}
}

// adopted: from here on decode reads the pages.
func (c *checker) adopted(p *process, h pd.HandoffID) {
	w := c.world
	l := c.leases[key{p.peer.Boot, h}]
	if l == nil {
		w.broken("NoReadOfUnsettledPage", "%s decodes %s without a lease", p.name(), short(h))
	}
	if b := c.writer(p.peer.Boot, h); b != nil {
		w.broken("NoReadOfUnsettledPage", "%s decodes %s while batch %d may still land", p.name(), short(h), b.id)
	}
	l.adopted, l.running = true, true
}

// writer finds a write that may still land in the memory of a lease.
func (c *checker) writer(boot pd.BootID, h pd.HandoffID) *batch {
	for _, b := range c.world.data.live {
		if b.job.chunk.record.id == h && b.target.identity.Boot == boot && b.target.open {
			return b
		}
	}
	return nil
}

// fact judges a stop fact that a prefill node states.
func (c *checker) fact(p *process, h pd.HandoffID, fact pd.StopFact, admitted bool) {
	w := c.world
	c.told[key{p.peer.Boot, h}] = fact
	if r := p.owners.records[h]; r != nil {
		if !r.sealed && !admitted {
			w.broken("FactOnlyFromSealedOwner", "%s states %v of %s, whose owners are not sealed", p.name(), fact, short(h))
		}
		if r.open > 0 {
			w.broken("FactOnlyFromSealedOwner", "%s states %v of %s with %d chunks open", p.name(), fact, short(h), r.open)
		}
	}
	if !fact.Definite() {
		return
	}
	for _, b := range w.data.live {
		if b.job.chunk.record.id == h && b.source.owners == p.owners && b.target.open {
			w.broken("FactOnlyFromSealedOwner", "%s states %v of %s while batch %d may still land", p.name(), fact, short(h), b.id)
		}
	}
}

// submitted looks at a chunk that a prefill node gives to its owners.
func (c *checker) submitted(o *owners, e node.Submit) {
	w := c.world
	if !c.acked[ack{key{e.Peer.Boot, e.Handoff}, e.Chunk}] {
		w.broken("AckBeforeSubmit", "%s submits chunk %d of %s, which decode has not acknowledged", o.proc.name(), e.Chunk, short(e.Handoff))
	}
	k := key{o.proc.peer.Boot, e.Handoff}
	blocks := c.placed[k]
	if blocks == nil {
		blocks = map[block]pd.ChunkID{}
		c.placed[k] = blocks
	}
	for _, s := range e.Writes[0].Segments { // all pairs share one list
		for at, size := s.TargetOffset, blockBytes(s.Component); at < s.TargetOffset+s.Bytes; at += size {
			b := block{s.Component, at}
			if chunk, twice := blocks[b]; twice {
				w.broken("OneLogicalPagePerBlock", "chunks %d and %d of %s both write %s at %d", chunk, e.Chunk, short(e.Handoff), s.Component, at)
			}
			blocks[b] = e.Chunk
		}
	}
}

// blockBytes is the unit in which a component's memory is given away.
func blockBytes(id pd.ComponentID) int64 {
	if c, ok := model.contract.Component(id); ok {
		return int64(c.PageBytes())
	}
	return int64(model.contract.Bootstrap.SlotBytes())
}

// after looks at a node between two steps.
func (c *checker) after(p *process) {
	w := c.world
	if err := p.node.Check(); err != nil {
		w.broken(invariantOf(err), "%s: %v", p.name(), err)
	}
	gates := p.node.Gates()
	if len(gates) == 0 {
		p.gatedAt = 0
	} else if p.gatedAt == 0 {
		p.gatedAt = w.now
	}
	for _, g := range gates {
		c.gate(p, g)
	}
	if p.steps%32 == 0 {
		c.capacity(p)
	}
}

// gate judges one reason for which a node takes nothing new.
func (c *checker) gate(p *process, g node.Gate) {
	w := c.world
	k := key{p.peer.Boot, g.Handoff}
	if g.Handoff == "" {
		if !p.owners.unfenced && !p.owners.fencing {
			w.broken("GateHasReason", "%s is gated by a fence that is not under way and has not failed", p.name())
		}
		return
	}
	if !c.gates[k] {
		c.gates[k] = true
		w.tally.Gates++
	}
	f := w.flight(g.Handoff)
	if f == nil || f.fence.Prefill != p.peer && f.fence.Decode != p.peer {
		w.broken("ThirdNodeNeverGated", "%s is gated by %s, which it has no part in", p.name(), short(g.Handoff))
	}
	if p.host.role == pd.Prefill {
		if !c.unclear[k] {
			w.broken("GateHasReason", "%s is gated by %s, none of whose writes is uncertain", p.name(), short(g.Handoff))
		}
		return
	}
	l := c.leases[k]
	switch {
	case l == nil || !l.quarantined:
		w.broken("GateHasReason", "%s is gated by %s, whose memory is not held", p.name(), short(g.Handoff))
	case !l.unresolved():
		name := "GateHasReason"
		if l.stopped {
			name = "GateEndsWhenProofExists"
		}
		w.broken(name, "%s is gated by %s, all of whose writes are settled", p.name(), short(g.Handoff))
	}
}

// capacity counts every page anew: free, live, pinned and quarantined ones are
// all there are.
func (c *checker) capacity(p *process) {
	w := c.world
	held := map[place]bool{}
	hold := func(partition pd.Partition, tables map[pd.GroupName]pd.PageTable) {
		for g, t := range tables {
			for _, page := range t {
				held[place{partition, g, int(page)}] = true
			}
		}
	}
	for h := range p.prompts {
		hold(p.pool.Held(h))
	}
	for k := range c.leases {
		if k.boot == p.peer.Boot {
			hold(p.pool.Held(k.handoff))
		}
	}
	for _, s := range p.pool.pins {
		hold(s.partition, s.snapshot.Tables)
	}
	count := map[pd.GroupName]int{}
	for at := range held {
		count[at.group]++
	}
	for g, u := range p.pool.Usage() {
		if u.Free+u.Held != u.Total || u.Held != count[g] {
			w.broken("CapacityConserved", "%s group %s: %d free and %d held of %d, %d are live, pinned or quarantined", p.name(), g, u.Free, u.Held, u.Total, count[g])
		}
	}
}

// invariantOf names the invariant that a self-check of production code found
// broken.
func invariantOf(err error) string {
	var number string
	if _, scanErr := fmt.Sscanf(err.Error(), "invariant %s", &number); scanErr != nil {
		return "Check"
	}
	return invariantName(number)
}

// invariantName is the name of a numbered invariant (docs/invariants.md).
func invariantName(number string) string {
	names := map[string]string{
		"I-01": "AckBeforeSubmit", "I-02": "NoFreeWithLiveWriter", "I-03": "UncertainAbsorbs", "I-04": "NoReadOfUnsettledPage",
		"I-05": "CapacityConserved", "I-06": "LateReuse", "I-07": "OneCallOneTransfer", "I-08": "NoAllocWithoutOpenPost",
		"I-11": "GateHasReason", "I-12": "OneEndPerRequest", "I-13": "CapacityKept", "I-14": "StatesAgree",
	}
	number = slices.Collect(fields(number))[0]
	if n, ok := names[number]; ok {
		return n
	}
	return number
}

func fields(s string) func(func(string) bool) {
	return func(yield func(string) bool) {
		end := len(s)
		for i, r := range s {
			if r == ':' || r == ' ' {
				end = i
				break
			}
		}
		yield(s[:end])
	}
}
