package host

import (
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/lease"
)

// memory is what the host has given for whom. It is the node's allocator: the
// loop asks, the host decides through the queue, and both may come at once.
//
// Invariant: a page that a peer may write is granted to one request at a time.
type memory struct {
	// constant
	s *settings
	q *queue

	// guarded by mu
	mu          sync.Mutex
	asked       map[pd.HandoffID]lease.Demand
	refused     map[pd.HandoffID]error
	granted     map[pd.HandoffID]*granted // decided, and then held
	writable    map[block]pd.HandoffID
	readers     map[block]int
	slots       map[slot]pd.HandoffID
	generations map[slot]pd.Generation
	quarantined map[pd.HandoffID]int
	computed    map[pd.HandoffID]lease.Snapshot
	pins        map[lease.PinKey]lease.Snapshot
}

// block is one page of one group in one partition.
type block struct {
	partition pd.Partition
	group     pd.GroupName
	page      pd.Page
}

type slot struct {
	partition pd.Partition
	slot      int
}

type granted struct {
	lease.Grant
	writable, shared []block
}

var _ lease.Deferred = (*memory)(nil)

func newMemory(s *settings, q *queue) *memory {
	return &memory{
		s: s, q: q, asked: map[pd.HandoffID]lease.Demand{}, refused: map[pd.HandoffID]error{}, granted: map[pd.HandoffID]*granted{},
		writable: map[block]pd.HandoffID{}, readers: map[block]int{}, slots: map[slot]pd.HandoffID{}, generations: map[slot]pd.Generation{},
		quarantined: map[pd.HandoffID]int{}, computed: map[pd.HandoffID]lease.Snapshot{}, pins: map[lease.PinKey]lease.Snapshot{},
	}
}

// Open implements lease.Allocator.
func (m *memory) Open(d lease.Demand) (lease.Grant, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if g := m.granted[d.Owner]; g != nil {
		return g.Grant, nil
	}
	if err := m.refused[d.Owner]; err != nil {
		delete(m.refused, d.Owner)
		return lease.Grant{}, err
	}
	m.asked[d.Owner] = d
	m.q.put(Event{Kind: Reserve, Handoff: d.Owner, Tokens: d.Tokens, HitLimit: d.HitLimit})
	return lease.Grant{}, lease.ErrLater
}

// Withdraw implements lease.Deferred.
func (m *memory) Withdraw(h pd.HandoffID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.asked, h)
	delete(m.refused, h)
	m.drop(h)
	m.q.put(Event{Kind: Withdrawn, Handoff: h})
}

// errNotAsked answers for a reservation that is not waiting.
func errNotAsked(op string, h pd.HandoffID) error {
	return &pd.Error{Op: op, Code: pd.CodeUnknownKey, Handoff: h, Text: "no reservation waits for this; it was decided or withdrawn"}
}

// grant takes the host's memory for a reservation.
func (m *memory) grant(h pd.HandoffID, p pd.Partition, at, hit int, runs []Run) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	d, ok := m.asked[h]
	if !ok {
		return errNotAsked("grant", h)
	}
	bad := func(format string, args ...any) error {
		return &pd.Error{Op: "grant", Code: pd.CodeInvalidRequest, Handoff: h, Text: fmt.Sprintf(format, args...)}
	}
	tables, err := m.s.tables(runs)
	switch align := m.s.contract.AlignmentTokens; {
	case err != nil:
		return bad("%v", err)
	case p < 0 || int(p) >= m.s.layout.Topology.Partitions():
		return bad("partition %d of %d", p, m.s.layout.Topology.Partitions())
	case at < 0 || at >= m.s.layout.BootstrapSlots:
		return bad("slot %d of %d", at, m.s.layout.BootstrapSlots)
	case hit < 0 || hit > d.HitLimit || hit%align != 0:
		return bad("hit of %d tokens: want a multiple of %d up to %d", hit, align, d.HitLimit)
	case m.slots[slot{p, at}] != "":
		return bad("slot %d of partition %d is granted to %s", at, p, m.slots[slot{p, at}])
	}
	g := &granted{Grant: lease.Grant{Partition: p, Tables: tables, HitTokens: hit, Shared: map[pd.GroupName][]pd.Page{}, Slot: at}}
	for i, group := range m.s.contract.Groups {
		want := m.s.pages(i, d.Tokens)
		if len(tables[group.Name]) != want {
			return bad("group %d (%s) has %d pages, %d tokens need %d", i, group.Name, len(tables[group.Name]), d.Tokens, want)
		}
		total := group.Pages(d.Tokens)
		for logical := total - want; logical < total; logical++ {
			page := tables[group.Name][logical%want]
			b := block{p, group.Name, page}
			shared := group.Kind != pd.FinalOnly && (logical+1)*group.PageTokens <= hit
			switch owner := m.writable[b]; {
			case owner != "":
				return bad("page %d of group %d (%s) is granted to %s", page, i, group.Name, owner)
			case !shared && m.readers[b] > 0:
				return bad("page %d of group %d (%s) is shared by another request", page, i, group.Name)
			case shared:
				g.shared = append(g.shared, b)
				g.Shared[group.Name] = append(g.Shared[group.Name], page)
			default:
				g.writable = append(g.writable, b)
			}
		}
		slices.Sort(g.Shared[group.Name])
	}
	for _, b := range g.writable {
		m.writable[b] = h
	}
	for _, b := range g.shared {
		m.readers[b]++
	}
	m.slots[slot{p, at}] = h
	m.generations[slot{p, at}]++
	g.Generation = m.generations[slot{p, at}]
	m.granted[h] = g
	delete(m.asked, h)
	return nil
}

// refuse is the host's no.
func (m *memory) refuse(h pd.HandoffID, err error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if _, ok := m.asked[h]; !ok {
		return errNotAsked("refuse", h)
	}
	delete(m.asked, h)
	m.refused[h] = err
	return nil
}

// drop forgets a grant; the caller tells the host.
func (m *memory) drop(h pd.HandoffID) {
	g := m.granted[h]
	if g == nil {
		return
	}
	for _, b := range g.writable {
		delete(m.writable, b)
	}
	m.dropShared(g)
	delete(m.slots, slot{g.Partition, g.Slot})
	delete(m.quarantined, h)
	delete(m.granted, h)
}

func (m *memory) dropShared(g *granted) {
	for _, b := range g.shared {
		if m.readers[b]--; m.readers[b] == 0 {
			delete(m.readers, b)
		}
	}
	g.shared = nil
}

// Publish implements lease.Allocator. Which prefixes can be found again is the
// host's business: it sees every prompt and every Adopt.
func (m *memory) Publish(pd.HandoffID, map[pd.GroupName][]pd.Span) {}

// Received implements lease.Allocator.
func (m *memory) Received(pd.HandoffID) {}

// Close implements lease.Allocator.
func (m *memory) Close(h pd.HandoffID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.drop(h)
	m.q.put(Event{Kind: Released, Handoff: h})
}

// Quarantine implements lease.Allocator.
func (m *memory) Quarantine(h pd.HandoffID) int {
	m.mu.Lock()
	defer m.mu.Unlock()
	g := m.granted[h]
	m.dropShared(g)
	m.quarantined[h] = len(g.writable)
	m.q.put(Event{Kind: Quarantined, Handoff: h})
	return len(g.writable)
}

// offer remembers what the next pin of a prompt holds.
func (m *memory) offer(h pd.HandoffID, s lease.Snapshot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.computed[h] = s
}

// forget drops what offer remembered.
func (m *memory) forget(h pd.HandoffID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.computed, h)
}

// Pin implements lease.Allocator. The tables are never changed after offer, so
// the snapshot may share them.
func (m *memory) Pin(k lease.PinKey) (lease.Snapshot, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	s, ok := m.computed[k.Owner]
	if !ok {
		return lease.Snapshot{}, &pd.Error{Op: "pin", Code: pd.CodeUnknownKey, Handoff: k.Owner, Text: "no chunk was offered"}
	}
	m.pins[k] = s
	return s, nil
}

// Unpin implements lease.Allocator.
func (m *memory) Unpin(k lease.PinKey) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.pins, k)
	m.q.put(Event{Kind: PagesFree, Handoff: k.Owner, Chunk: k.Chunk})
}

// Unpinned implements lease.Deferred.
func (m *memory) Unpinned(k lease.PinKey) {
	m.q.put(Event{Kind: PagesFree, Handoff: k.Owner, Chunk: k.Chunk})
}

// Usage implements lease.Allocator: what of the pools is granted.
func (m *memory) Usage() map[pd.GroupName]lease.Usage {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := map[pd.GroupName]lease.Usage{}
	for _, g := range m.s.contract.Groups {
		out[g.Name] = lease.Usage{Total: m.s.layout.PoolPages(g.Name) * m.s.layout.Topology.Partitions()}
	}
	count := func(b block) {
		u := out[b.group]
		if h := m.writable[b]; h != "" && m.quarantined[h] > 0 {
			u.Quarantined++
		} else {
			u.Held++
		}
		out[b.group] = u
	}
	for b := range m.writable {
		count(b)
	}
	for b := range m.readers {
		count(b)
	}
	for name, u := range out {
		u.Free = u.Total - u.Held - u.Quarantined
		out[name] = u
	}
	return out
}

// Check implements lease.Allocator: every granted page has the owner whose
// grant names it, and no other page has one.
func (m *memory) Check() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := 0
	for h, g := range m.granted {
		for _, b := range g.writable {
			if m.writable[b] != h {
				return fmt.Errorf("invariant I-05: page %d of group %s is granted to %s and to %s", b.page, b.group, h, m.writable[b])
			}
		}
		n += len(g.writable)
	}
	if n != len(m.writable) {
		return errors.New("invariant I-05: a granted page has no grant")
	}
	return nil
}
