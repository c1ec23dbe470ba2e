package reference

import (
	"sync"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
)

// Pool is the engine's page allocator as the node's ledger sees it
// (lease.Allocator). The step loop grows tables through the same pool, so a
// mutex guards it; it is a leaf and never held across a call out.
type Pool struct {
	// constant
	store *store
	// freed tells the step loop that memory may have come back.
	freed func()

	// guarded by mu
	mu    sync.Mutex
	pages *pages.Allocator
}

func newPool(s *store, freed func()) *Pool {
	p := &Pool{store: s, freed: freed}
	cfg := pages.Config{
		Groups: s.contract.Groups, Partitions: s.layout.Topology.Partitions(), PoolPages: map[pd.GroupName]int{},
		RingPeriods: s.layout.RingPeriods, AlignmentTokens: s.contract.AlignmentTokens, Slots: s.layout.BootstrapSlots, OnFree: s.freed,
	}
	for _, g := range s.contract.Groups {
		cfg.PoolPages[g.Name] = s.layout.PoolPages(g.Name)
	}
	p.pages = pages.New(cfg)
	return p
}

// Open implements lease.Allocator. A slot that peers will write is poisoned, one
// that this engine captures into is zeroed.
func (p *Pool) Open(d pages.Demand) (pages.Grant, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	g, err := p.pages.Open(d)
	if err != nil {
		return g, err
	}
	p.store.clearSlot(g.Partition, g.Slot, d.Receiving)
	return g, nil
}

// Publish implements lease.Allocator.
func (p *Pool) Publish(h pd.HandoffID, known map[pd.GroupName][]pd.Span) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pages.Publish(h, known)
}

// publish makes what the engine itself computed findable.
func (p *Pool) publish(h pd.HandoffID, computed int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pages.PublishComputed(h, computed)
}

// Held shows the partition and the tables of an owner; nil tables for who owns
// none.
func (p *Pool) Held(h pd.HandoffID) (pd.Partition, pages.Tables) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pages.Held(h)
}

// Received implements lease.Allocator.
func (p *Pool) Received(h pd.HandoffID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pages.Received(h)
}

// Close implements lease.Allocator.
func (p *Pool) Close(h pd.HandoffID) {
	p.mu.Lock()
	p.pages.Close(h)
	p.mu.Unlock()
	p.freed()
}

// Quarantine implements lease.Allocator.
func (p *Pool) Quarantine(h pd.HandoffID) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pages.Quarantine(h)
}

// Pin implements lease.Allocator.
func (p *Pool) Pin(k pages.PinKey) (pages.Snapshot, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pages.Pin(k)
}

// Unpin implements lease.Allocator.
func (p *Pool) Unpin(k pages.PinKey) {
	p.mu.Lock()
	p.pages.Unpin(k)
	p.mu.Unlock()
	p.freed()
}

// Usage implements lease.Allocator.
func (p *Pool) Usage() map[pd.GroupName]pages.Usage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pages.Usage()
}

// Check implements lease.Allocator.
func (p *Pool) Check() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pages.Check()
}

// grow extends an owner's tables and shows them.
func (p *Pool) grow(h pd.HandoffID, tokens int) (pages.Tables, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.pages.Grow(h, tokens); err != nil {
		return nil, err
	}
	return p.pages.Tables(h), nil
}

// pinned says whether any pin is held, by whomever.
func (p *Pool) pinned() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pages.Pins() > 0
}
