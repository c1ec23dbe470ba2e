package adapter

import (
	"fmt"
	"math"
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Sizing says how large a node's cache should be.
type Sizing struct {
	Topology pd.Topology
	// PoolTokens is how many prompt and output tokens the full-history groups
	// of one partition can hold.
	PoolTokens int
	// StepTokens is the most tokens that one request gets in one step.
	StepTokens int
	// Sequences is how many requests of one partition hold rings at once.
	Sequences int
	// Checkpoints is how many prefix boundaries of one partition keep their
	// windows and states in the cache beside the rings of all sequences.
	Checkpoints int
}

// minInFlight is the K7 verification width: seven drafts and the token before
// them (pd-domain §5.5).
const minInFlight = 8

// pinnedChunks is how many chunks of one request may be pinned at once: one in
// flight and the next one, which waits for it. Their pages are replaced when the
// ring comes round.
const pinnedChunks = 2

// GroupPages says what the pages of one group's arena are for; all layers of
// the group's components have as many.
type GroupPages struct {
	// History holds every page of requests (full groups), Rings the rings of all
	// sequences, Replacement what takes the place of pinned ring pages, and
	// Checkpoints the windows of cached prefixes.
	History, Rings, Replacement, Checkpoints int
	// Filler pages are never handed out.
	Filler int
}

// Total is the arena's length in pages.
func (p GroupPages) Total() int {
	return p.History + p.Rings + p.Replacement + p.Checkpoints + p.Filler
}

// Pages sizes one group of a contract.
func (s Sizing) Pages(g pd.CacheGroup) GroupPages {
	p := GroupPages{Filler: pd.FillerPages}
	if g.Kind == pd.Full {
		p.History = g.Pages(s.PoolTokens)
		return p
	}
	inFlight := max(minInFlight, s.StepTokens)
	p.Rings = s.Sequences * g.RingPeriod(inFlight)
	p.Replacement = s.Sequences * pinnedChunks * (g.Pages(inFlight) + 1)
	p.Checkpoints = s.Checkpoints * g.Pages(g.WindowTokens)
	return p
}

// LayoutFor sizes every group of a contract.
func LayoutFor(c *pd.Contract, s Sizing) Layout {
	l := Layout{
		Topology:       s.Topology,
		PagesPerLayer:  map[pd.GroupName]int{},
		RingPeriods:    map[pd.GroupName]int{},
		BootstrapSlots: s.Sequences,
	}
	for _, g := range c.Groups {
		if g.Kind != pd.Full {
			l.RingPeriods[g.Name] = g.RingPeriod(max(minInFlight, s.StepTokens))
		}
		l.PagesPerLayer[g.Name] = s.Pages(g).Total()
	}
	return l
}

// regionAlignment is the granularity in which a device hands out memory; every
// region of a rank may lose up to as much.
const regionAlignment = 2 << 20

// RankBytes is the memory of all regions of one rank, each rounded up to the
// granularity of device memory.
func (l Layout) RankBytes(c *pd.Contract) int64 {
	round := func(n int64) int64 { return (n + regionAlignment - 1) / regionAlignment * regionAlignment }
	total := round(int64(l.BootstrapSlots) * int64(c.Bootstrap.SlotBytes()))
	for _, comp := range c.Components {
		total += round(c.RegionBytes(comp, l.PagesPerLayer[comp.Group]))
	}
	return total
}

// Budget says what memory a node's cache may take.
type Budget struct {
	// RankBytes is what each rank has free once its weights and workspaces are
	// in place; one number stands for all ranks. All ranks get equal arenas, so
	// the tightest decides.
	RankBytes []int64
	// Utilization is the share of it that the cache may take, in (0,1].
	Utilization float64
	// MaxTokens is how long one request may get, prompt and output. It must fit
	// alone; several such requests at once need not.
	MaxTokens int
}

// SizeWithin is s with the largest PoolTokens that fit a budget. Everything
// else of s is kept: rings are as long as the steps demand, whatever the memory.
// It fails with CodeInvalidConfig where the budget makes no sense, and with
// CodeCapacityExhausted where not even one request of MaxTokens fits; both say
// what to change.
func SizeWithin(c *pd.Contract, s Sizing, b Budget) (Sizing, error) {
	const op = "size the cache"
	if err := s.Topology.Check(); err != nil {
		return Sizing{}, pd.Errorf(pd.CodeInvalidConfig, op, "%v", err)
	}
	bad := func(format string, args ...any) (Sizing, error) {
		return Sizing{}, pd.Errorf(pd.CodeInvalidConfig, op, format, args...)
	}
	switch {
	case len(b.RankBytes) != 1 && len(b.RankBytes) != s.Topology.Ranks:
		return bad("memory of %d ranks, want 1 or %d", len(b.RankBytes), s.Topology.Ranks)
	case !(b.Utilization > 0 && b.Utilization <= 1):
		return bad("utilization %v, want more than 0 and at most 1", b.Utilization)
	case s.Sequences < 1 || s.Sequences > pd.MaxCapacity:
		return bad("%d sequences, want 1..%d", s.Sequences, pd.MaxCapacity)
	case s.StepTokens < 1 || s.StepTokens > pd.MaxModelTokens:
		return bad("steps of %d tokens, want 1..%d", s.StepTokens, pd.MaxModelTokens)
	case s.Checkpoints < 0 || s.Checkpoints > pd.MaxArenaPages:
		return bad("%d checkpoints, want 0..%d", s.Checkpoints, pd.MaxArenaPages)
	case b.MaxTokens < 1 || b.MaxTokens > pd.MaxModelTokens:
		return bad("requests of %d tokens, want 1..%d", b.MaxTokens, pd.MaxModelTokens)
	}
	tightest := slices.Min(b.RankBytes)
	if tightest < 1 {
		return bad("rank %d has %d bytes", slices.Index(b.RankBytes, tightest), tightest)
	}
	allowed := int64(float64(tightest) * b.Utilization)
	where := "every rank"
	if len(b.RankBytes) > 1 {
		where = fmt.Sprintf("rank %d, the tightest,", slices.Index(b.RankBytes, tightest))
	}
	s.PoolTokens = pd.CeilDiv(b.MaxTokens, c.AlignmentTokens) * c.AlignmentTokens
	for _, g := range c.Groups {
		if n := s.Pages(g).Total(); n > pd.MaxArenaPages {
			return Sizing{}, pd.Errorf(pd.CodeCapacityExhausted, op, "group %s needs %d pages per layer, an arena has at most %d: allow fewer sequences, shorter steps or fewer checkpoints",
				g.Name, n, pd.MaxArenaPages)
		}
	}
	if least := LayoutFor(c, s).RankBytes(c); least > allowed {
		s.PoolTokens = 0
		return Sizing{}, pd.Errorf(pd.CodeCapacityExhausted, op,
			"one request of %d tokens needs %d bytes (%d of them for %d rings of steps of %d tokens, %d checkpoints, bootstrap slots and filler); %s has %d x %v: give more memory, or allow shorter requests, fewer sequences or shorter steps",
			b.MaxTokens, least, LayoutFor(c, s).RankBytes(c), s.Sequences, s.StepTokens, s.Checkpoints, where, tightest, b.Utilization)
	}
	s.PoolTokens = largestPool(c, s, allowed)
	return s, nil
}

// largestPool searches between a pool that fits and the first that cannot,
// because an arena would have too many pages.
func largestPool(c *pd.Contract, s Sizing, allowed int64) int {
	fits := func(units int) bool {
		s.PoolTokens = units * c.AlignmentTokens
		return LayoutFor(c, s).RankBytes(c) <= allowed
	}
	low, high := s.PoolTokens/c.AlignmentTokens, math.MaxInt
	for _, g := range c.Groups {
		if g.Kind == pd.Full {
			high = min(high, (pd.MaxArenaPages-pd.FillerPages)*g.PageTokens/c.AlignmentTokens+1)
		}
	}
	if high == math.MaxInt {
		return s.PoolTokens // no group keeps history
	}
	for low+1 < high {
		if mid := low + (high-low)/2; fits(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	return low * c.AlignmentTokens
}
