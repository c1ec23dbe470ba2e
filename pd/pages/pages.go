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
	// Slots is how many bootstrap slots each partition has.
	Slots int
	// OnFree, if set, is told of every page whose last reference went. It runs
	// inside the call that dropped it.
	OnFree func(p pd.Partition, g pd.GroupName, page pd.Page)
}

// pool is one group of one partition.
type pool struct {
	refs []int32
	free fifo
	// receiving counts pages that peers are about to write.
	receiving int
}

// owner is one request's memory.
type owner struct {
	partition pd.Partition
	tables    Tables
	// tokens is how many positions the tables hold.
	tokens      int
	slot        int
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
	free        fifo
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
}

var _ lease.Allocator = (*Allocator)(nil)

// New makes an allocator in which everything is free.
func New(cfg Config) *Allocator {
	a := &Allocator{cfg: cfg, owners: map[pd.HandoffID]*owner{}, pins: map[PinKey]*pin{}}
	for range cfg.Partitions {
		pools := map[pd.GroupName]*pool{}
		for _, g := range cfg.Groups {
			n := cfg.PoolPages[g.Name]
			pools[g.Name] = &pool{refs: make([]int32, n), free: newFIFO(n)}
		}
		a.pools = append(a.pools, pools)
		a.slots = append(a.slots, &slots{
			refs: make([]int32, cfg.Slots), generations: make([]pd.Generation, cfg.Slots), free: newFIFO(cfg.Slots),
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

// Open implements lease.Allocator. Among the partitions with room it takes the
// one with the fewest owners, then the next in turn.
func (a *Allocator) Open(d Demand) (Grant, error) {
	if _, ok := a.owners[d.Owner]; ok {
		return Grant{}, &pd.Error{Op: "open", Code: pd.CodeDuplicateHandoff, Handoff: d.Owner, Text: "owns pages already"}
	}
	counts := make([]int, a.cfg.Partitions)
	for _, o := range a.owners {
		counts[o.partition]++
	}
	best := -1
	var lacking error
	for i := range a.cfg.Partitions {
		p := (a.cursor + i) % a.cfg.Partitions
		if err := a.fits(pd.Partition(p), d); err != nil {
			lacking = err
			continue
		}
		if best < 0 || counts[p] < counts[best] {
			best = p
		}
	}
	if best < 0 {
		return Grant{}, lacking
	}
	a.cursor = (best + 1) % a.cfg.Partitions
	return a.take(pd.Partition(best), d), nil
}

// fits says what a partition lacks for a demand.
func (a *Allocator) fits(p pd.Partition, d Demand) error {
	if a.slots[p].free.len() == 0 {
		return &pd.Error{Op: "open", Code: pd.CodeBootstrapExhausted, Handoff: d.Owner, Text: fmt.Sprintf("all %d bootstrap slots of partition %d are in use", a.cfg.Slots, p)}
	}
	var lacks []string
	for _, g := range a.cfg.Groups {
		pool, need := a.pools[p][g.Name], a.length(g, d.Tokens)
		if need > pool.free.len() {
			lacks = append(lacks, fmt.Sprintf("%s: need %d, free %d", g.Name, need, pool.free.len()))
		} else if d.Receiving && pool.receiving > 0 && pool.receiving+need > len(pool.refs)/pd.MaxReceivingShare {
			lacks = append(lacks, fmt.Sprintf("%s: need %d, receiving %d of %d", g.Name, need, pool.receiving, len(pool.refs)/pd.MaxReceivingShare))
		}
	}
	if len(lacks) > 0 {
		return &pd.Error{Op: "open", Code: pd.CodeCapacityExhausted, Handoff: d.Owner, Text: fmt.Sprintf("partition %d: %s", p, strings.Join(lacks, "; "))}
	}
	return nil
}

func (a *Allocator) take(p pd.Partition, d Demand) Grant {
	o := &owner{partition: p, tables: Tables{}, tokens: d.Tokens, receiving: map[pd.GroupName]int{}}
	for _, g := range a.cfg.Groups {
		pool := a.pools[p][g.Name]
		table := make(pd.PageTable, a.length(g, d.Tokens))
		for i := range table {
			table[i] = pool.take()
		}
		o.tables[g.Name] = table
		if d.Receiving {
			o.receiving[g.Name] = len(table)
			pool.receiving += len(table)
		}
	}
	s := a.slots[p]
	o.slot = int(s.free.pop())
	s.refs[o.slot] = 1
	s.generations[o.slot]++
	a.owners[d.Owner] = o
	return Grant{Partition: p, Tables: clone(o.tables), Slot: o.slot, Generation: s.generations[o.slot]}
}

func (p *pool) take() pd.Page {
	page := p.free.pop()
	p.refs[page] = 1
	return page
}

// Grow extends an owner's tables to hold tokens positions, all groups or none.
// A ring slot that comes round again is written in place if nobody else holds
// its page; else it is detached first: the old page stays with its pins, and
// the slot gets a fresh one.
func (a *Allocator) Grow(h pd.HandoffID, tokens int) error {
	o := a.mustOwner("grow", h)
	var lacks []string
	for _, g := range a.cfg.Groups {
		pool := a.pools[o.partition][g.Name]
		need := 0
		a.eachNewPage(g, o, tokens, func(_ int, old pd.Page, fresh bool) {
			if fresh || pool.refs[old] > 1 {
				need++
			}
		})
		if need > pool.free.len() {
			lacks = append(lacks, fmt.Sprintf("%s: need %d, free %d", g.Name, need, pool.free.len()))
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
				o.tables[g.Name] = append(o.tables[g.Name], pool.take())
			case pool.refs[old] > 1:
				a.drop(o.partition, g.Name, old)
				o.tables[g.Name][slot] = pool.take()
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

// Partition shows where an owner's memory is.
func (a *Allocator) Partition(h pd.HandoffID) pd.Partition {
	return a.mustOwner("partition", h).partition
}

// Received implements lease.Allocator.
func (a *Allocator) Received(h pd.HandoffID) {
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
	o := a.mustOwner("quarantine", h)
	o.quarantined = true
	n := 0
	for _, t := range o.tables {
		n += len(t)
	}
	return n
}

// Pin implements lease.Allocator.
func (a *Allocator) Pin(key PinKey) (Snapshot, error) {
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
			u.Free += p.free.len()
			u.Held += len(p.refs) - p.free.len()
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

// Check implements lease.Allocator: it counts every reference anew.
func (a *Allocator) Check() error {
	want := make([]map[pd.GroupName][]int32, len(a.pools))
	wantSlots := make([][]int32, len(a.slots))
	for p := range a.pools {
		want[p] = map[pd.GroupName][]int32{}
		for g, pool := range a.pools[p] {
			want[p][g] = make([]int32, len(pool.refs))
		}
		wantSlots[p] = make([]int32, a.cfg.Slots)
	}
	count := func(p pd.Partition, t Tables, slot int) {
		for g, table := range t {
			for _, page := range table {
				want[p][g][page]++
			}
		}
		wantSlots[p][slot]++
	}
	for _, o := range a.owners {
		count(o.partition, o.tables, o.slot)
	}
	for _, p := range a.pins {
		count(p.partition, p.snapshot.Tables, p.snapshot.Slot)
	}
	for p := range a.pools {
		for _, g := range slices.Sorted(maps.Keys(a.pools[p])) {
			pool := a.pools[p][g]
			if !slices.Equal(pool.refs, want[p][g]) {
				return fmt.Errorf("invariant I-05: references of group %s in partition %d differ from tables and pins", g, p)
			}
			if err := pool.free.check(pool.refs); err != nil {
				return fmt.Errorf("invariant I-05: group %s in partition %d: %w", g, p, err)
			}
		}
		if !slices.Equal(a.slots[p].refs, wantSlots[p]) {
			return fmt.Errorf("invariant I-05: slot references in partition %d differ from owners and pins", p)
		}
		if err := a.slots[p].free.check(a.slots[p].refs); err != nil {
			return fmt.Errorf("invariant I-05: slots of partition %d: %w", p, err)
		}
	}
	return nil
}
