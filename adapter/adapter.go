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

// Slot is where a logical page sits in its table: itself for full groups, the
// remainder by the ring period for rings.
func Slot(g pd.CacheGroup, period, logical int) int {
	if g.Kind == pd.Full {
		return logical
	}
	return logical % period
}
