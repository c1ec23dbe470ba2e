package sim

import (
	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine/reference"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// watchedPool is the allocator of a node with the checker looking on.
type watchedPool struct {
	*reference.Pool
	process *process
	pins    map[pages.PinKey]pinned
}

type pinned struct {
	partition pd.Partition
	snapshot  pages.Snapshot
}

// Open implements lease.Allocator.
func (p *watchedPool) Open(d demand) (grant, error) {
	c := p.process.host.world.check
	c.allocating(p.process, d.Owner)
	g, err := p.Pool.Open(d)
	if err == nil {
		c.leased(p.process, d, g)
	}
	return g, err
}

// Close implements lease.Allocator.
func (p *watchedPool) Close(h pd.HandoffID) {
	p.process.host.world.check.freeing(p.process, h)
	p.Pool.Close(h)
}

// Quarantine implements lease.Allocator.
func (p *watchedPool) Quarantine(h pd.HandoffID) int {
	c := p.process.host.world.check
	if l := c.leases[key{p.process.peer.Boot, h}]; l != nil {
		l.quarantined = true
	}
	return p.Pool.Quarantine(h)
}

// Publish implements lease.Allocator.
func (p *watchedPool) Publish(h pd.HandoffID, known map[pd.GroupName][]pd.Span) {
	p.process.host.world.check.publishing(p.process, h, known)
	p.Pool.Publish(h, known)
}

// Pin implements lease.Allocator.
func (p *watchedPool) Pin(k pages.PinKey) (pages.Snapshot, error) {
	partition, _ := p.Held(k.Owner)
	s, err := p.Pool.Pin(k)
	if err == nil {
		if p.pins == nil {
			p.pins = map[pages.PinKey]pinned{}
		}
		p.pins[k] = pinned{partition, s}
	}
	return s, err
}

// Unpin implements lease.Allocator.
func (p *watchedPool) Unpin(k pages.PinKey) {
	delete(p.pins, k)
	p.Pool.Unpin(k)
}

// posted and closed: the router's POST is open at a node between the two.
func (c *checker) posted(*process, *leg) {}
func (c *checker) closed(*process, *leg) {}

// allocating: decode takes memory for a handoff.
func (c *checker) allocating(p *process, h pd.HandoffID) {
	for _, l := range p.posts {
		if l.handoff() == h && l.role == pd.Decode && !l.seen && !l.over {
			return
		}
	}
	c.world.broken("NoAllocWithoutOpenPost", "%s allocates for %s, whose POST is not open", p.name(), short(h))
}

// reserveArrived notes reservations that come after their handoff's end.
func (c *checker) reserveArrived(p *process, r *wire.Reserve) {
	f := c.world.flight(r.Fence.Handoff)
	if f != nil && (f.over[pd.Decode] || f.asking[pd.Decode]) {
		c.world.happened(ReserveAfterAbort)
	}
	_ = p
}

// leased makes the shadow of a lease: every page that peers may write.
func (c *checker) leased(p *process, d demand, g grant) {
	boot := p.peer.Boot
	k := key{boot, d.Owner}
	c.generation++
	l := &shadow{key: k, generation: c.generation, grant: g, tokens: d.Tokens, units: map[unitName]pd.Settlement{}}
	if f := c.world.flight(d.Owner); f != nil {
		l.fence = f.fence
	}
	c.leases[k] = l
	for group, table := range g.Tables {
		shared := map[pd.Page]bool{}
		for _, page := range g.Shared[group] {
			shared[page] = true
		}
		for _, page := range table {
			if !shared[page] {
				c.owned[boot][place{g.Partition, group, int(page)}] = l
			}
		}
	}
	c.owned[boot][place{g.Partition, "", g.Slot}] = l
	if g.HitTokens > 0 {
		c.hit(p, d, g)
	}
}

// freeing: decode gives the memory of a lease back.
func (c *checker) freeing(p *process, h pd.HandoffID) {
	w := c.world
	k := key{p.peer.Boot, h}
	if b := c.writer(p.peer.Boot, h); b != nil {
		w.broken("NoFreeWithLiveWriter", "%s frees %s while batch %d may still land", p.name(), short(h), b.id)
	}
	for _, o := range w.allOwners() {
		r := o.records[h]
		if r == nil || r.sealed {
			continue
		}
		for _, j := range r.queued {
			if e := w.data.endpoints[j.peer.registry.Ranks[j.target].Endpoint]; e != nil && e.rank.owners == p.owners && e.identity.Epoch == j.peer.registry.Ranks[j.target].Epoch {
				w.broken("NoFreeWithLiveWriter", "%s frees %s while chunk %d waits to be posted", p.name(), short(h), j.chunk.id)
			}
		}
	}
	l := c.leases[k]
	for at, owner := range c.owned[p.peer.Boot] {
		if owner == l {
			delete(c.owned[p.peer.Boot], at)
		}
	}
	delete(c.leases, k)
}

// allOwners lists the owners of all hosts, those that outlived their node too.
func (w *World) allOwners() []*owners {
	var out []*owners
	for _, h := range w.hosts {
		if h.proc != nil {
			out = append(out, h.proc.owners)
		}
		if h.lingering != nil {
			out = append(out, h.lingering)
		}
	}
	return out
}

// placesOf lists the pages and slots that a segment covers on a target.
func placesOf(e *dataEngine, s pd.Segment) []place {
	h := e.rank.owners.proc.host
	partition := pd.Partition(int(e.rank.rank) / h.layout.Topology.TP)
	comp, ok := model.contract.Component(s.Component)
	size := blockBytes(s.Component)
	var out []place
	for at := s.TargetOffset; at < s.TargetOffset+s.Bytes; at += size {
		if !ok {
			out = append(out, place{partition, "", int(at / size)})
			continue
		}
		out = append(out, place{partition, comp.Group, int(at/size) % h.layout.PagesPerLayer[comp.Group]})
	}
	return out
}

// posted2 looks at a batch when it is handed to the provider.
func (c *checker) posted2(b *batch) {
	w := c.world
	h := b.job.chunk.record.id
	if fact, told := c.told[key{b.source.owners.proc.peer.Boot, h}]; told {
		w.broken("NoSubmitAfterFact", "batch %d of %s is posted after the fact %v", b.id, short(h), fact)
	}
	for _, s := range b.segments {
		c.mayWrite(b, s, b.target, "is posted")
	}
}

// mayWrite judges a write against the shadow of what it hits.
func (c *checker) mayWrite(b *batch, s pd.Segment, e *dataEngine, what string) {
	w := c.world
	h := b.job.chunk.record.id
	shadows, alive := c.owned[e.identity.Boot]
	if !alive {
		return // the node is gone; its owners take the bytes for nobody
	}
	name := e.rank.owners.proc.name()
	for _, at := range placesOf(e, s) {
		l := shadows[at]
		switch {
		case l == nil:
			w.broken("NoFreeWithLiveWriter", "batch %d of %s %s into %s page %d of %s, which is free", b.id, short(h), what, at.group, at.page, name)
		case l.handoff != h:
			w.broken("NoWriteUnderTwoFences", "batch %d of %s %s into %s page %d of %s, which is leased to %s", b.id, short(h), what, at.group, at.page, name, short(l.handoff))
		case l.adopted && !l.quarantined:
			w.broken("NoReadOfUnsettledPage", "batch %d of %s %s into %s page %d of %s, which decode reads", b.id, short(h), what, at.group, at.page, name)
		}
	}
}

// landing looks at bytes that are about to be written.
func (c *checker) landing(b *batch, s pd.Segment, e *dataEngine) {
	w := c.world
	host := e.rank.owners.proc.host
	if e.identity != b.target.identity || host.proc != nil && host.proc.peer.Boot != e.identity.Boot {
		w.broken("BootMatchesAtLanding", "batch %d of %s was meant for boot %s epoch %d and lands at %s in boot %s epoch %d",
			b.id, short(b.job.chunk.record.id), b.target.identity.Boot[:8], b.target.identity.Epoch, host.name, e.identity.Boot[:8], e.identity.Epoch)
	}
	if e.identity.Epoch < e.rank.epoch || !e.open {
		w.broken("FenceThenSilence", "batch %d of %s lands in epoch %d of %s, which ended", b.id, short(b.job.chunk.record.id), e.identity.Epoch, host.name)
	}
	c.mayWrite(b, s, e, "lands")
}

// fenced: no earlier write may land any more.
func (c *checker) fenced(o *owners) {
	for _, b := range c.world.data.live {
		if b.target.rank.owners == o && b.target.open {
			c.world.broken("FenceThenSilence", "batch %d may land at %s after its fence", b.id, o.proc.name())
		}
	}
}

// sourceRead compares what the provider reads with what was submitted.
func (c *checker) sourceRead(b *batch, segment int, now []byte) {
	h := b.job.chunk.record.id
	if c.freedByOrder[key{b.source.owners.proc.peer.Boot, h}] {
		return
	}
	if !sameBytes(now, b.snapshot[segment]) {
		c.world.broken("SourceStableUntilSourceDone", "%s of batch %d of %s changed at %s before its verdict",
			b.segments[segment].Component, b.id, short(h), b.source.owners.proc.name())
	}
}

// verdict notes what an owner was told.
func (c *checker) verdict(b *batch, s pd.Settlement) {
	if s == pd.Uncertain {
		c.unclear[key{b.source.owners.proc.peer.Boot, b.job.chunk.record.id}] = true
	}
}

// publishing compares every page that decode is about to give a name with what
// the name promises.
func (c *checker) publishing(p *process, h pd.HandoffID, known map[pd.GroupName][]pd.Span) {
	l := c.leases[key{p.peer.Boot, h}]
	f := c.world.flight(h)
	if !p.host.cache || l == nil || f == nil {
		return
	}
	for _, g := range model.contract.Groups {
		for _, span := range known[g.Name] {
			c.compare(p, f.client.prompt, l.grant, l.tokens, g, span, "publishes")
		}
	}
}

// hit compares the pages that decode believes to have already.
func (c *checker) hit(p *process, d demand, g grant) {
	f := c.world.flight(d.Owner)
	for _, group := range model.contract.Groups {
		if group.Kind == pd.FinalOnly {
			continue
		}
		first := 0
		if group.Kind == pd.Rolling {
			first = max(0, g.HitTokens-group.WindowTokens) / group.PageTokens
		}
		c.compare(p, f.client.prompt, g, d.Tokens, group, pd.Span{Start: first, End: g.HitTokens / group.PageTokens}, "finds")
	}
}

// compare checks logical pages of a table against the library.
func (c *checker) compare(p *process, of prompt, g grant, tokens int, group pd.CacheGroup, span pd.Span, what string) {
	host := p.host
	hashes := adapter.PrefixHashes(&c.world.kind.contract, c.world.kind.digest, model.prompt(of))[group.PageTokens]
	period := host.layout.RingPeriods[group.Name]
	for page := span.Start; page < min(span.End, len(hashes)); page++ {
		if group.Kind != pd.Full && page < group.Pages(tokens)-period {
			continue // it has left the ring
		}
		id := g.Tables[group.Name][adapter.Slot(group, period, page)]
		want, ok := model.pageSum(c.world.kind, of.book, group.Name, hashes[page])
		for _, r := range host.layout.Topology.RanksOf(g.Partition) {
			if got := sumPage(&model.contract, host.layout, host.memory[r], group.Name, id); !ok || got != want {
				c.world.broken("PublishedBytesMatchHash", "%s %s page %d of %s of %v on rank %d under a name that its bytes do not have", p.name(), what, page, group.Name, of, r)
			}
		}
	}
}
