// Package adapter says what the bytes of a model's cache are, where they sit
// and where they must go: the data contract, the layout of a node's arenas,
// the rank map, the prefix rules and the plan of a chunk.
//
// Everything here is a pure function of its arguments; both nodes of a pair
// call the same functions on their own tables and must get the same answer. It
// knows no HTTP, no lease and no native code, and starts no goroutine.
package adapter

import (
	"github.com/hw-native-sys/pypto-pd/pd"
)

// Adapter is one model family that can be handed over. An implementation is a
// value without state.
type Adapter interface {
	// ID is the registry key and the contract's adapter field.
	ID() string
	// Contract is the common data contract for one set of weights and one
	// provider. The result is the caller's.
	Contract(revision, provider string) pd.Contract
	// SourceHitLimit is how much of a prompt a prefill node may take from its
	// own prefix cache: the rest must be computed, because its hidden states are
	// captured.
	SourceHitLimit(promptTokens int) int
	// TargetHitLimit is how much of a prompt a decode node may already have.
	TargetHitLimit(promptTokens int) int
}

// Tables are one request's page tables, one per cache group.
type Tables map[pd.GroupName]pd.PageTable

// Layout is one node's local side of the cache: it is never compared with the
// peer's.
type Layout struct {
	Topology pd.Topology
	// PagesPerLayer is the physical arena length of each group in pages, the
	// filler pages included.
	PagesPerLayer map[pd.GroupName]int
	// RingPeriods is each ring's length in pages.
	RingPeriods    map[pd.GroupName]int
	BootstrapSlots int
}

// PoolPages is how many pages of a group an allocator may hand out.
func (l Layout) PoolPages(g pd.GroupName) int { return l.PagesPerLayer[g] - pd.FillerPages }

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
}

// minInFlight is the K7 verification width: seven drafts and the token before
// them (pd-domain §5.5).
const minInFlight = 8

// LayoutFor sizes every group of a contract. A ring gets, beside its period
// for each sequence, replacement pages for two pinned chunks of each sequence:
// at most one transfer is in flight per request while the next chunk waits.
func LayoutFor(c *pd.Contract, s Sizing) Layout {
	l := Layout{
		Topology:       s.Topology,
		PagesPerLayer:  map[pd.GroupName]int{},
		RingPeriods:    map[pd.GroupName]int{},
		BootstrapSlots: s.Sequences,
	}
	inFlight := max(minInFlight, s.StepTokens)
	for _, g := range c.Groups {
		pages := g.Pages(s.PoolTokens)
		if g.Kind != pd.Full {
			period := g.RingPeriod(inFlight)
			l.RingPeriods[g.Name] = period
			pages = s.Sequences * (period + 2*(g.Pages(inFlight)+1))
		}
		l.PagesPerLayer[g.Name] = pages + pd.FillerPages
	}
	return l
}

// RankMap names the source rank of every target rank: the target's global
// index modulo the source's tensor-parallel size, inside the source partition.
// It is total and deterministic, and spreads targets over all source replicas.
func RankMap(source pd.Topology, from pd.Partition, target pd.Topology, to pd.Partition) []pd.RankPair {
	pairs := make([]pd.RankPair, 0, target.TP)
	for _, g := range target.RanksOf(to) {
		pairs = append(pairs, pd.RankPair{Source: pd.Rank(int(from)*source.TP + int(g)%source.TP), Target: g})
	}
	return pairs
}

// TailStart is the first token of the rolling pages that move under the tail
// policy: one window before the last alignment boundary, so that decode can
// read its window and publish the prompt's last boundary as a prefix.
func TailStart(promptTokens, alignment int) int {
	return max(0, pd.FloorTo(promptTokens, alignment)-alignment)
}
