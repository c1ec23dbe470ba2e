package pd

import (
	"encoding/json"
	"fmt"
)

// Topology is a node's local rank group layout. It is never compared between
// the nodes of a pair.
type Topology struct {
	// Ranks is the number of devices, N.
	Ranks int `json:"ranks"`
	// TP is how many consecutive ranks hold complete replicas of one partition.
	TP int `json:"tp"`
}

// Partitions is N / TP.
func (t Topology) Partitions() int { return t.Ranks / t.TP }

// RanksOf lists the ranks that replicate a partition.
func (t Topology) RanksOf(p Partition) []Rank {
	ranks := make([]Rank, t.TP)
	for i := range ranks {
		ranks[i] = Rank(int(p)*t.TP + i)
	}
	return ranks
}

// Check reports a layout that cannot exist.
func (t Topology) Check() error {
	switch {
	case t.Ranks < 1 || t.Ranks > MaxRanks:
		return fmt.Errorf("ranks %d: want 1..%d", t.Ranks, MaxRanks)
	case t.TP < 1 || t.Ranks%t.TP != 0:
		return fmt.Errorf("tp %d does not divide %d ranks", t.TP, t.Ranks)
	}
	return nil
}

// RankPair says from which source rank one target rank is fed. On the wire it
// is [source,target].
type RankPair struct {
	Source Rank
	Target Rank
}

// MarshalJSON writes [source,target].
func (p RankPair) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "[%d,%d]", p.Source, p.Target), nil
}

// UnmarshalJSON reads [source,target] and refuses anything else.
func (p *RankPair) UnmarshalJSON(b []byte) error {
	var v []int
	if err := json.Unmarshal(b, &v); err != nil || len(v) != 2 || v[0] < 0 || v[1] < 0 {
		return fmt.Errorf("rank pair: want [source,target]")
	}
	p.Source, p.Target = Rank(v[0]), Rank(v[1])
	return nil
}

// Region is the arena of one component on one rank, as its peer sees it.
type Region struct {
	Component ComponentID `json:"component"`
	// Bytes is the extent of the arena.
	Bytes int64 `json:"bytes"`
	// Envelope is how the provider addresses the arena. Only the peer's
	// provider of the same kind may look inside; it never reaches a log.
	Envelope string `json:"envelope"`
}

// RankRegistration is everything a peer needs to write into one rank.
type RankRegistration struct {
	Rank  Rank  `json:"rank"`
	Epoch Epoch `json:"epoch"`
	// Endpoint is the owner's data-plane endpoint in the provider's own form.
	Endpoint string   `json:"endpoint"`
	Regions  []Region `json:"regions"`
}

// Registry is one node's registered memory, exchanged once per session.
type Registry struct {
	Topology Topology `json:"topology"`
	// PagesPerLayer is the physical arena length of each group, filler pages
	// included. It may differ between the nodes of a pair.
	PagesPerLayer map[GroupName]int `json:"pages_per_layer"`
	// RingPeriods is each ring's length in pages on this node.
	RingPeriods map[GroupName]int `json:"ring_periods"`
	// BootstrapSlots is how many bootstrap slots each rank has.
	BootstrapSlots int `json:"bootstrap_slots"`
	// Build identifies the data-plane library; both ends must be equal.
	Build string             `json:"build"`
	Ranks []RankRegistration `json:"ranks"`
}

// Epoch numbers a registry among those of one boot: it rises with every fence
// of any rank.
func (r *Registry) Epoch() Epoch {
	var sum Epoch
	for _, rank := range r.Ranks {
		sum += rank.Epoch
	}
	return sum
}
