package adapter

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Lower turns a manifest into byte segments per pair of ranks. All pairs of a
// chunk share one segment list, because a page id means the same page on every
// rank of a partition. Each side's offsets use its own arena length, in pages
// per layer and group. Copies and segments that continue each other on both
// sides are joined. An error is CodeInvalidPlan: a component that the contract
// does not have, or a page or slot outside its arena.
func Lower(c *pd.Contract, m *pd.Manifest, sourcePages, targetPages map[pd.GroupName]int, sourceSlots, targetSlots int) ([]pd.RankWrite, error) {
	segments := make([]pd.Segment, 0, mostSegments(c, m))
	fail := func(format string, args ...any) error {
		return &pd.Error{
			Op: fmt.Sprintf("lower chunk %d", m.Chunk), Code: pd.CodeInvalidPlan,
			Handoff: m.Fence.Handoff, Text: fmt.Sprintf(format, args...),
		}
	}
	var comp pd.Component
	var sp, tp int
	for i := 0; i < len(m.Copies); {
		cp := m.Copies[i]
		if cp.Component != comp.ID {
			var ok bool
			if comp, ok = c.Component(cp.Component); !ok {
				return nil, fail("component %q is not in the contract", cp.Component)
			}
			sp, tp = sourcePages[comp.Group], targetPages[comp.Group]
		}
		// A partial page follows its run as a copy of its own and is moved whole.
		for i++; i < len(m.Copies) && continues(cp, m.Copies[i]); i++ {
			cp.Count += m.Copies[i].Count
		}
		if cp.Count < 1 || cp.Source < 0 || cp.Target < 0 || cp.Count > sp || cp.Count > tp ||
			int(cp.Source) > sp-cp.Count || int(cp.Target) > tp-cp.Count {
			return nil, fail("copy of %s: pages %d and %d x%d do not fit arenas of %d and %d pages",
				cp.Component, cp.Source, cp.Target, cp.Count, sp, tp)
		}
		segments = appendLayers(segments, &comp, cp, int64(sp), int64(tp))
	}
	if b := m.Bootstrap; b != nil {
		size := int64(c.Bootstrap.SlotBytes())
		if b.SourceSlot < 0 || b.SourceSlot >= sourceSlots || b.TargetSlot < 0 || b.TargetSlot >= targetSlots {
			return nil, fail("bootstrap slots %d and %d: the nodes have %d and %d", b.SourceSlot, b.TargetSlot, sourceSlots, targetSlots)
		}
		segments = append(segments, pd.Segment{
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

// mostSegments is how many segments a manifest has if nothing can be joined.
func mostSegments(c *pd.Contract, m *pd.Manifest) int {
	n := 1
	for i := range c.Components {
		comp := &c.Components[i]
		copies := 0
		for k := range m.Copies {
			if m.Copies[k].Component == comp.ID {
				copies++
			}
		}
		n += copies * len(comp.Layers)
	}
	return n
}

// continues says whether b begins where a ends, on both sides. A copy without
// pages is left to the checks.
func continues(a, b pd.Copy) bool {
	return a.Component == b.Component && a.Count > 0 && b.Count > 0 &&
		int(a.Source)+a.Count == int(b.Source) && int(a.Target)+a.Count == int(b.Target)
}

// appendLayers adds one copy of every layer. Layers are joined where the copy
// is the whole arena on both sides.
func appendLayers(segments []pd.Segment, c *pd.Component, cp pd.Copy, sourcePages, targetPages int64) []pd.Segment {
	size, layers := int64(c.PageBytes()), int64(len(c.Layers))
	bytes := int64(cp.Count) * size
	if sourcePages == targetPages && int64(cp.Count) == sourcePages {
		return append(segments, pd.Segment{Component: c.ID, Bytes: layers * bytes})
	}
	for l := range layers {
		segments = append(segments, pd.Segment{
			Component:    c.ID,
			SourceOffset: (l*sourcePages + int64(cp.Source)) * size,
			TargetOffset: (l*targetPages + int64(cp.Target)) * size,
			Bytes:        bytes,
		})
	}
	return segments
}
