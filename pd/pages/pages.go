package pages

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
)

// The words of the allocator contract, for hosts that may not import lease.
type (
	// Demand asks for memory.
	Demand = lease.Demand
	// Grant is memory.
	Grant = lease.Grant
	// Tables are page tables by group.
	Tables = lease.Tables
	// PinKey names a pin.
	PinKey = lease.PinKey
	// Snapshot is what was pinned.
	Snapshot = lease.Snapshot
	// Usage counts pages.
	Usage = lease.Usage
)

// Config describes the memory to hand out.
type Config struct {
	Groups     []pd.CacheGroup
	Partitions int
	// PoolPages is how many pages each partition has of each group.
	PoolPages map[pd.GroupName]int
	// RingPeriods is the ring length of each group that is not Full.
	RingPeriods map[pd.GroupName]int
	// AlignmentTokens is the step in which prefixes are found.
	AlignmentTokens int
	// Slots is how many bootstrap slots each partition has.
	Slots int
	// OnFree, if set, is told of every page whose bytes nobody may need any more:
	// its last reference went and it has no name, or its name was taken from it.
	// It runs inside the call that did that.
	OnFree func(p pd.Partition, g pd.GroupName, page pd.Page)
}

// pool is one group of one partition.
type pool struct {
	refs []int32
	// free holds pages without a name, idle those with one: a cached page is
	// given away only when no other is left, the one that was used longest ago
	// first.
	free, idle queue
	// cached finds pages by name, names says which page has one. A cached page
	// without references stands in the free queue until its turn comes.
	cached map[cacheKey]pd.Page
	names  map[pd.Page]cacheKey
	// receiving counts pages that peers are about to write.
	receiving int
}

// owner is one request's memory.
type owner struct {
	partition pd.Partition
	tables    Tables
	// tokens is how many positions the tables hold, hit how many of them came from
	// the cache.
	tokens, hit int
	slot        int
	prefix      pd.PrefixHashes
	// shared marks table slots whose page came from the cache.
	shared map[pd.GroupName]map[int]bool
	// published is how many leading pages of a full group have been published.
	published   map[pd.GroupName]int
	receiving   map[pd.GroupName]int
	quarantined bool
}

// pin holds pages by id, apart from the owner's tables, which move on.
type pin struct {
	partition pd.Partition
	snapshot  Snapshot
}

// slots are the bootstrap slots of one partition.
type slots struct {
	refs        []int32
	generations []pd.Generation
	free        queue
}

// Allocator implements lease.Allocator.
type Allocator struct {
	// constant
	cfg Config

	// owned by the caller's goroutine
	pools  []map[pd.GroupName]*pool
	slots  []*slots
	owners map[pd.HandoffID]*owner
	pins   map[PinKey]*pin
	cursor int
	// checked: nothing has changed since Check found all of it right. What hands
	// memory out, takes it back or names it clears this.
	checked bool
}

var _ lease.Allocator = (*Allocator)(nil)

// New makes an allocator in which everything is free.
func New(cfg Config) *Allocator {
	a := &Allocator{cfg: cfg, owners: map[pd.HandoffID]*owner{}, pins: map[PinKey]*pin{}}
	for range cfg.Partitions {
		pools := map[pd.GroupName]*pool{}
		for _, g := range cfg.Groups {
			n := cfg.PoolPages[g.Name]
			pools[g.Name] = &pool{refs: make([]int32, n), free: newQueue(n), idle: newEmptyQueue(n), cached: map[cacheKey]pd.Page{}, names: map[pd.Page]cacheKey{}}
		}
		a.pools = append(a.pools, pools)
		a.slots = append(a.slots, &slots{
			refs: make([]int32, cfg.Slots), generations: make([]pd.Generation, cfg.Slots), free: newQueue(cfg.Slots),
		})
	}
	return a
}

// length is how many slots a table has for a number of tokens.
func (a *Allocator) length(g pd.CacheGroup, tokens int) int {
	n := g.Pages(tokens)
	if g.Kind != pd.Full {
		n = min(n, a.cfg.RingPeriods[g.Name])
	}
	return n
}

// Open implements lease.Allocator. The partition with the longest hit wins if
// it has room for the rest; else the placement starts once more without hits,
// in the partition with room that has the fewest owners, or the next in turn.
func (a *Allocator) Open(d Demand) (Grant, error) {
	if _, ok := a.owners[d.Owner]; ok {
		return Grant{}, &pd.Error{Op: "open", Code: pd.CodeDuplicateHandoff, Handoff: d.Owner, Text: "owns pages already"}
	}
	var best hit
	var at pd.Partition
	for p := range a.pools {
		if h := a.lookup(pd.Partition(p), d); h.tokens > best.tokens {
			best, at = h, pd.Partition(p)
		}
	}
	if best.tokens > 0 && a.fits(at, d, best) == nil {
		return a.take(at, d, best), nil
	}
	p, err := a.coldPartition(d)
	if err != nil {
		return Grant{}, err
	}
	g := a.take(p, d, hit{})
	g.ColdRetry = best.tokens > 0
	return g, nil
}

func (a *Allocator) coldPartition(d Demand) (pd.Partition, error) {
	counts := make([]int, a.cfg.Partitions)
	for _, o := range a.owners {
		counts[o.partition]++
	}
	best := -1
	var lacking error
	for i := range a.cfg.Partitions {
		p := (a.cursor + i) % a.cfg.Partitions
		if err := a.fits(pd.Partition(p), d, hit{}); err != nil {
			lacking = err
			continue
		}
		if best < 0 || counts[p] < counts[best] {
			best = p
		}
	}
	if best < 0 {
		return 0, lacking
	}
	a.cursor = (best + 1) % a.cfg.Partitions
	return pd.Partition(best), nil
}

// fits says what a partition lacks for a demand beside a hit.
func (a *Allocator) fits(p pd.Partition, d Demand, h hit) error {
	if a.slots[p].free.len() == 0 {
		return &pd.Error{Op: "open", Code: pd.CodeBootstrapExhausted, Handoff: d.Owner, Text: fmt.Sprintf("all %d bootstrap slots of partition %d are in use", a.cfg.Slots, p)}
	}
	var lacks []string
	for _, g := range a.cfg.Groups {
		pool := a.pools[p][g.Name]
		need, free := a.length(g, max(d.Tokens, h.tokens)), pool.available()
		for l, page := range h.pages[g.Name] {
			if a.resident(g, max(d.Tokens, h.tokens), l) {
				need--
				if pool.refs[page] == 0 {
					free--
				}
			}
		}
		if need > free {
			lacks = append(lacks, fmt.Sprintf("%s: need %d, free %d", g.Name, need, free))
		} else if d.Receiving && pool.receiving > 0 && pool.receiving+need > len(pool.refs)/pd.MaxReceivingShare {
			lacks = append(lacks, fmt.Sprintf("%s: need %d, receiving %d of %d", g.Name, need, pool.receiving, len(pool.refs)/pd.MaxReceivingShare))
		}
	}
	if len(lacks) > 0 {
		return &pd.Error{Op: "open", Code: pd.CodeCapacityExhausted, Handoff: d.Owner, Text: fmt.Sprintf("partition %d: %s", p, strings.Join(lacks, "; "))}
	}
	return nil
}

// resident says whether a logical page has a slot in a table of tokens.
func (a *Allocator) resident(g pd.CacheGroup, tokens, l int) bool {
	return g.Kind == pd.Full || l >= g.Pages(tokens)-a.cfg.RingPeriods[g.Name]
}

func (a *Allocator) take(p pd.Partition, d Demand, h hit) Grant {
	a.checked = false
	o := &owner{
		partition: p, tables: Tables{}, tokens: max(d.Tokens, h.tokens), hit: h.tokens, prefix: d.Prefix,
		shared: map[pd.GroupName]map[int]bool{}, published: map[pd.GroupName]int{}, receiving: map[pd.GroupName]int{},
	}
	shared := map[pd.GroupName][]pd.Page{}
	// Pages of the hit first, so that no fresh page is one of them.
	for _, g := range a.cfg.Groups {
		pool := a.pools[p][g.Name]
		table := make(pd.PageTable, a.length(g, o.tokens))
		o.tables[g.Name], o.shared[g.Name] = table, map[int]bool{}
		for _, l := range slices.Sorted(maps.Keys(h.pages[g.Name])) {
			if !a.resident(g, o.tokens, l) {
				continue
			}
			slot := l
			if g.Kind != pd.Full {
				slot = l % a.cfg.RingPeriods[g.Name]
			}
			table[slot] = pool.share(h.pages[g.Name][l])
			o.shared[g.Name][slot] = true
			shared[g.Name] = append(shared[g.Name], table[slot])
		}
		if g.Kind == pd.Full {
			o.published[g.Name] = h.tokens / g.PageTokens
		}
	}
	for _, g := range a.cfg.Groups {
		pool, table := a.pools[p][g.Name], o.tables[g.Name]
		fresh := 0
		for slot := range table {
			if !o.shared[g.Name][slot] {
				table[slot] = a.fresh(p, g.Name)
				fresh++
			}
		}
		if d.Receiving {
			o.receiving[g.Name] = fresh
			pool.receiving += fresh
		}
	}
	s := a.slots[p]
	o.slot = int(s.free.pop())
	s.refs[o.slot] = 1
	s.generations[o.slot]++
	a.owners[d.Owner] = o
	return Grant{Partition: p, Tables: clone(o.tables), HitTokens: h.tokens, Shared: shared, Slot: o.slot, Generation: s.generations[o.slot]}
}

// available counts the pages that nobody holds, named or not.
func (p *pool) available() int { return p.free.len() + p.idle.len() }

// fresh takes the page without a name that is free the longest, else the cached
// one that was used longest ago; its name is gone.
func (a *Allocator) fresh(p pd.Partition, g pd.GroupName) pd.Page {
	pool := a.pools[p][g]
	from := &pool.free
	if from.len() == 0 {
		from = &pool.idle
	}
	page := from.pop()
	if pool.refs[page] != 0 {
		panic(fmt.Sprintf("invariant I-06: page %d of group %s in partition %d is handed out and has %d references", page, g, p, pool.refs[page]))
	}
	pool.refs[page] = 1
	if pool.unpublish(page) && a.cfg.OnFree != nil {
		a.cfg.OnFree(p, g, page)
	}
	return page
}

// share takes one more reference on a cached page.
func (p *pool) share(page pd.Page) pd.Page {
	if p.refs[page] == 0 {
		p.idle.remove(page)
	}
	p.refs[page]++
	return page
}

// Grow extends an owner's tables to hold tokens positions, all groups or none.
// A ring slot that comes round again is written in place if nobody else holds
// its page and it has no name; else it is detached first: the old page stays
// with its pins or in the cache, and the slot gets a fresh one.
func (a *Allocator) Grow(h pd.HandoffID, tokens int) error {
	a.checked = false
	o := a.mustOwner("grow", h)
	var lacks []string
	for _, g := range a.cfg.Groups {
		pool := a.pools[o.partition][g.Name]
		need := 0
		a.eachNewPage(g, o, tokens, func(_ int, old pd.Page, fresh bool) {
			if fresh || pool.refs[old] > 1 {
				need++ // a page that is only detached from the cache comes free itself
			}
		})
		if need > pool.available() {
			lacks = append(lacks, fmt.Sprintf("%s: need %d, free %d", g.Name, need, pool.available()))
		}
	}
	if len(lacks) > 0 {
		return &pd.Error{Op: "grow", Code: pd.CodeCapacityExhausted, Handoff: h, Text: fmt.Sprintf("partition %d: %s", o.partition, strings.Join(lacks, "; "))}
	}
	for _, g := range a.cfg.Groups {
		pool := a.pools[o.partition][g.Name]
		a.eachNewPage(g, o, tokens, func(slot int, old pd.Page, fresh bool) {
			switch {
			case fresh:
				o.tables[g.Name] = append(o.tables[g.Name], a.fresh(o.partition, g.Name))
			case pool.refs[old] > 1 || pool.named(old):
				a.drop(o.partition, g.Name, old)
				o.tables[g.Name][slot] = a.fresh(o.partition, g.Name)
				delete(o.shared[g.Name], slot)
			}
			if page := o.tables[g.Name][slot]; pool.named(page) || pool.refs[page] != 1 {
				panic(fmt.Sprintf("invariant I-18: page %d of group %s is written by %s and others may read it", page, g.Name, h))
			}
		})
	}
	o.tokens = max(o.tokens, tokens)
	return nil
}

// eachNewPage visits what growing to tokens changes: the table slots that are
// added, then the ring slots that come round again with the page they hold
// now. It visits every slot at most once.
func (a *Allocator) eachNewPage(g pd.CacheGroup, o *owner, tokens int, visit func(slot int, old pd.Page, fresh bool)) {
	table := o.tables[g.Name]
	for slot := len(table); slot < a.length(g, tokens); slot++ {
		visit(slot, 0, true)
	}
	if g.Kind == pd.Full {
		return
	}
	period := a.cfg.RingPeriods[g.Name]
	for l := max(g.Pages(o.tokens), g.Pages(tokens)-period); l < g.Pages(tokens); l++ {
		if slot := l % period; slot < len(table) {
			visit(slot, table[slot], false)
		}
	}
}

// Tables shows an owner's tables. The result is a copy.
func (a *Allocator) Tables(h pd.HandoffID) Tables { return clone(a.mustOwner("tables", h).tables) }

// Held shows where an owner's memory is and its tables; nil tables for who owns
// none. The tables are copies.
func (a *Allocator) Held(h pd.HandoffID) (pd.Partition, Tables) {
	if o := a.owners[h]; o != nil {
		return o.partition, clone(o.tables)
	}
	return 0, nil
}

// Partition shows where an owner's memory is.
func (a *Allocator) Partition(h pd.HandoffID) pd.Partition {
	return a.mustOwner("partition", h).partition
}

// Received implements lease.Allocator.
func (a *Allocator) Received(h pd.HandoffID) {
	a.checked = false
	o := a.mustOwner("received", h)
	for g, n := range o.receiving {
		a.pools[o.partition][g].receiving -= n
	}
	clear(o.receiving)
}

// Close implements lease.Allocator.
func (a *Allocator) Close(h pd.HandoffID) {
	a.Received(h)
	o := a.owners[h]
	for g, table := range o.tables {
		for _, page := range table {
			a.drop(o.partition, g, page)
		}
	}
	a.dropSlot(o.partition, o.slot)
	delete(a.owners, h)
}

// Quarantine implements lease.Allocator.
func (a *Allocator) Quarantine(h pd.HandoffID) int {
	a.checked = false
	o := a.mustOwner("quarantine", h)
	o.quarantined = true
	n := 0
	for g, t := range o.tables {
		pool := a.pools[o.partition][g]
		held := pd.PageTable{}
		for slot, page := range t {
			if o.shared[g][slot] {
				a.drop(o.partition, g, page) // never in a write set
				continue
			}
			pool.unpublish(page)
			held = append(held, page)
		}
		o.tables[g] = held
		clear(o.shared[g])
		n += len(held)
	}
	return n
}

// Pin implements lease.Allocator.
func (a *Allocator) Pin(key PinKey) (Snapshot, error) {
	a.checked = false
	o := a.owners[key.Owner]
	if o == nil {
		return Snapshot{}, &pd.Error{Op: "pin", Code: pd.CodeUnknownKey, Handoff: key.Owner, Text: "owns no pages"}
	}
	if _, ok := a.pins[key]; ok {
		return Snapshot{}, &pd.Error{Op: "pin", Code: pd.CodeConflict, Handoff: key.Owner, Text: fmt.Sprintf("chunk %d is pinned", key.Chunk)}
	}
	p := &pin{partition: o.partition, snapshot: Snapshot{Tables: clone(o.tables), Slot: o.slot}}
	for g, table := range p.snapshot.Tables {
		for _, page := range table {
			a.pools[o.partition][g].refs[page]++
		}
	}
	a.slots[o.partition].refs[o.slot]++
	a.pins[key] = p
	return Snapshot{Tables: clone(p.snapshot.Tables), Slot: o.slot}, nil
}

// Unpin implements lease.Allocator.
func (a *Allocator) Unpin(key PinKey) {
	a.checked = false
	p := a.pins[key]
	if p == nil {
		panic(fmt.Sprintf("invariant I-05: unpin of %v, which is not pinned", key))
	}
	delete(a.pins, key)
	for g, table := range p.snapshot.Tables {
		for _, page := range table {
			a.drop(p.partition, g, page)
		}
	}
	a.dropSlot(p.partition, p.snapshot.Slot)
}

func (a *Allocator) drop(p pd.Partition, g pd.GroupName, page pd.Page) {
	pool := a.pools[p][g]
	if pool.refs[page]--; pool.refs[page] > 0 {
		return
	}
	if pool.named(page) {
		pool.idle.push(page)
		return
	}
	if a.cfg.OnFree != nil {
		a.cfg.OnFree(p, g, page)
	}
	pool.free.push(page)
}

func (a *Allocator) dropSlot(p pd.Partition, slot int) {
	s := a.slots[p]
	if s.refs[slot]--; s.refs[slot] == 0 {
		s.free.push(pd.Page(slot))
	}
}

// Usage implements lease.Allocator.
func (a *Allocator) Usage() map[pd.GroupName]Usage {
	out := map[pd.GroupName]Usage{}
	for _, pools := range a.pools {
		for g, p := range pools {
			u := out[g]
			u.Free += p.available()
			u.Held += len(p.refs) - p.available()
			u.Total += len(p.refs)
			out[g] = u
		}
	}
	for _, o := range a.owners {
		if o.quarantined {
			for g, t := range o.tables {
				u := out[g]
				u.Quarantined += len(t)
				out[g] = u
			}
		}
	}
	return out
}

// Owners counts the owners, quarantined ones included.
func (a *Allocator) Owners() int { return len(a.owners) }

// Pins counts the pins.
func (a *Allocator) Pins() int { return len(a.pins) }

func (a *Allocator) mustOwner(op string, h pd.HandoffID) *owner {
	o := a.owners[h]
	if o == nil {
		panic(fmt.Sprintf("invariant I-05: %s of %s, which owns no pages", op, h))
	}
	return o
}

func clone(t Tables) Tables {
	out := make(Tables, len(t))
	for g, table := range t {
		out[g] = slices.Clone(table)
	}
	return out
}
