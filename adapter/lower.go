package adapter

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Lower turns a manifest into byte segments per pair of ranks. All pairs of a
// chunk share one segment list, because a page id means the same page on every
// rank of a partition. Each side's offsets use its own arena length. Segments
// that continue each other on both sides are joined.
func Lower(c *pd.Contract, m *pd.Manifest, sourcePages, targetPages map[pd.GroupName]int, sourceSlots, targetSlots int) ([]pd.RankWrite, error) {
	var segments []pd.Segment
	add := func(s pd.Segment) {
		if k := len(segments) - 1; k >= 0 {
			last := &segments[k]
			if last.Component == s.Component && last.SourceOffset+last.Bytes == s.SourceOffset && last.TargetOffset+last.Bytes == s.TargetOffset {
				last.Bytes += s.Bytes
				return
			}
		}
		segments = append(segments, s)
	}
	fail := func(format string, args ...any) error {
		return &pd.Error{
			Op: fmt.Sprintf("lower chunk %d", m.Chunk), Code: pd.CodeInvalidPlan,
			Handoff: m.Fence.Handoff, Text: fmt.Sprintf(format, args...),
		}
	}
	for _, cp := range m.Copies {
		comp, ok := c.Component(cp.Component)
		if !ok {
			return nil, fail("component %q is not in the contract", cp.Component)
		}
		sp, tp := sourcePages[comp.Group], targetPages[comp.Group]
		if cp.Count < 1 || cp.Source < 0 || cp.Target < 0 ||
			int(cp.Source)+cp.Count > sp || int(cp.Target)+cp.Count > tp {
			return nil, fail("copy of %s: pages %d and %d x%d do not fit arenas of %d and %d pages",
				cp.Component, cp.Source, cp.Target, cp.Count, sp, tp)
		}
		size := int64(comp.PageBytes())
		for l := range comp.Layers {
			add(pd.Segment{
				Component:    comp.ID,
				SourceOffset: (int64(l)*int64(sp) + int64(cp.Source)) * size,
				TargetOffset: (int64(l)*int64(tp) + int64(cp.Target)) * size,
				Bytes:        int64(cp.Count) * size,
			})
		}
	}
	if b := m.Bootstrap; b != nil {
		size := int64(c.Bootstrap.SlotBytes())
		if b.SourceSlot < 0 || b.SourceSlot >= sourceSlots || b.TargetSlot < 0 || b.TargetSlot >= targetSlots {
			return nil, fail("bootstrap slots %d and %d: the nodes have %d and %d", b.SourceSlot, b.TargetSlot, sourceSlots, targetSlots)
		}
		add(pd.Segment{
			Component:    c.Bootstrap.Component,
			SourceOffset: int64(b.SourceSlot) * size, TargetOffset: int64(b.TargetSlot) * size, Bytes: size,
		})
	}
	writes := make([]pd.RankWrite, len(m.RankMap))
	for i, pair := range m.RankMap {
		writes[i] = pd.RankWrite{Pair: pair, Segments: segments}
	}
	return writes, nil
}
