// Package adaptertest holds the properties that every adapter must have. An
// adapter's own tests call Run.
package adaptertest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// Pair is one request between two nodes, with tables as an allocator would
// hand them out.
type Pair struct {
	Input adapter.Input
	// SourceLayout and TargetLayout are the arenas that Lower needs.
	SourceLayout, TargetLayout adapter.Layout
}

// NewPair makes tables for a prompt. pages chooses the id of each table entry,
// so that a test decides how fragmented they are; it must not repeat an id
// within one group and side.
func NewPair(a adapter.Adapter, prompt int, source, target adapter.Sizing, from, to pd.Partition, pages func(side string, g pd.CacheGroup, slot int) pd.Page) Pair {
	c := a.Contract("revision", "simulator")
	p := Pair{SourceLayout: adapter.LayoutFor(&c, source), TargetLayout: adapter.LayoutFor(&c, target)}
	p.Input = adapter.Input{
		Contract: &c, PromptTokens: prompt,
		Source: source.Topology, SourcePartition: from, SourcePeriods: p.SourceLayout.RingPeriods, SourceTables: adapter.Tables{},
		Target: target.Topology, TargetPartition: to, TargetPeriods: p.TargetLayout.RingPeriods, TargetTables: adapter.Tables{},
		TargetGeneration: 1, MetadataHash: "m", PreparedDigest: "p",
	}
	for _, g := range c.Groups {
		p.Input.SourceTables[g.Name] = table("source", g, p.SourceLayout, prompt, pages)
		p.Input.TargetTables[g.Name] = table("target", g, p.TargetLayout, prompt, pages)
	}
	return p
}

func table(side string, g pd.CacheGroup, l adapter.Layout, prompt int, pages func(string, pd.CacheGroup, int) pd.Page) pd.PageTable {
	n := g.Pages(prompt)
	if g.Kind != pd.Full {
		n = min(n, l.RingPeriods[g.Name])
	}
	t := make(pd.PageTable, n)
	for i := range t {
		t[i] = pages(side, g, i)
	}
	return t
}

// Chunks plans a whole prompt cut at the given ends (ascending, the last one is
// the prompt's length).
func (p Pair) Chunks(ends []int) ([]pd.Manifest, error) {
	var out []pd.Manifest
	start := 0
	for i, end := range ends {
		in := p.Input
		in.Chunk, in.Span, in.Final = pd.ChunkID(i), pd.Span{Start: start, End: end}, end == in.PromptTokens
		m, err := adapter.Build(in)
		if err != nil {
			return nil, err
		}
		out = append(out, m)
		start = end
	}
	return out, nil
}

// Run checks an adapter's contract and its plans over random chunkings.
func Run(t *testing.T, a adapter.Adapter) {
	c := a.Contract("revision", "simulator")
	t.Run("every page is aligned", func(t *testing.T) {
		for _, comp := range c.Components {
			g, ok := c.Group(comp.Group)
			require.True(t, ok, comp.ID)
			require.Zero(t, comp.PageBytes()%c.ByteAlignment, comp.ID)
			require.Equal(t, g.PageTokens, comp.RowsPerPage*comp.RowTokens, comp.ID)
			require.Zero(t, c.AlignmentTokens%g.PageTokens, comp.ID)
		}
		require.Zero(t, c.Bootstrap.SlotBytes()%c.ByteAlignment)
	})
	t.Run("random chunkings move every needed page exactly once", func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) { checkUnion(t, a) })
	})
}

func checkUnion(t *rapid.T, a adapter.Adapter) {
	prompt := rapid.IntRange(1, 2000).Draw(t, "prompt")
	step := rapid.SampledFrom([]int{128, 256, 1000}).Draw(t, "step")
	tps := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "tpS")
	tpd := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, "tpD")
	source := adapter.Sizing{Topology: pd.Topology{Ranks: 16, TP: tps}, PoolTokens: 4096, StepTokens: step, Sequences: 2}
	target := adapter.Sizing{Topology: pd.Topology{Ranks: 16, TP: tpd}, PoolTokens: 8192, StepTokens: 128, Sequences: 3}
	from := pd.Partition(rapid.IntRange(0, 16/tps-1).Draw(t, "from"))
	to := pd.Partition(rapid.IntRange(0, 16/tpd-1).Draw(t, "to"))
	stride := rapid.IntRange(1, 2).Draw(t, "stride")
	p := NewPair(a, prompt, source, target, from, to, func(side string, _ pd.CacheGroup, slot int) pd.Page {
		if side == "target" {
			return pd.Page(slot * stride)
		}
		return pd.Page(slot)
	})
	p.Input.TargetHit = rapid.IntRange(0, a.TargetHitLimit(prompt)/p.Input.Contract.AlignmentTokens).Draw(t, "hit") * p.Input.Contract.AlignmentTokens
	var ends []int
	for end := 0; end < prompt; {
		end = min(prompt, end+rapid.IntRange(1, step).Draw(t, "chunk"))
		ends = append(ends, end)
	}
	chunks, err := p.Chunks(ends)
	require.NoError(t, err)

	written := map[pd.ComponentID]map[pd.Page]int{}
	var bootstrap int64
	for i := range chunks {
		m := &chunks[i]
		require.Equal(t, adapter.RankMap(p.Input.Source, from, p.Input.Target, to), m.RankMap)
		in := p.Input
		in.SourceTables = nil
		require.NoError(t, adapter.Verify(in, m), "decode agrees with chunk %d", i)
		var sum int64
		for _, cp := range m.Copies {
			comp, _ := in.Contract.Component(cp.Component)
			sum += int64(cp.Count) * int64(len(comp.Layers)) * int64(comp.PageBytes())
			for k := range cp.Count {
				if written[cp.Component] == nil {
					written[cp.Component] = map[pd.Page]int{}
				}
				written[cp.Component][cp.Target+pd.Page(k)]++
			}
		}
		var units int64
		for _, u := range m.Units {
			units += u.Bytes
			if u.Component == in.Contract.Bootstrap.Component {
				bootstrap += u.Bytes
			}
		}
		boot := int64(0)
		if m.Final {
			boot = int64(in.Contract.Bootstrap.SlotBytes() * tpd)
		}
		require.Equal(t, sum*int64(tpd)+boot, units, "units account for every byte of chunk %d", i)
		writes, err := adapter.Lower(in.Contract, m, p.SourceLayout.PagesPerLayer, p.TargetLayout.PagesPerLayer, p.SourceLayout.BootstrapSlots, p.TargetLayout.BootstrapSlots)
		require.NoError(t, err)
		for _, w := range writes {
			var n int64
			for _, s := range w.Segments {
				n += s.Bytes
				require.Zero(t, (s.SourceOffset|s.TargetOffset|s.Bytes)%int64(in.Contract.ByteAlignment))
			}
			require.Equal(t, units/int64(tpd), n)
		}
	}
	// Invariant I12: what decode needs is written once, and nothing else is.
	require.Equal(t, int64(p.Input.Contract.Bootstrap.SlotBytes()*tpd), bootstrap)
	for _, comp := range p.Input.Contract.Components {
		g, _ := p.Input.Contract.Group(comp.Group)
		first := p.Input.TargetHit
		switch g.Kind {
		case pd.Rolling:
			first = max(first, adapter.TailStart(prompt, p.Input.Contract.AlignmentTokens))
		case pd.FinalOnly:
			first = max(0, prompt-g.WindowTokens)
		}
		need := map[pd.Page]int{}
		for l := first / g.PageTokens; l < g.Pages(prompt); l++ {
			if (prompt-l*g.PageTokens)/comp.RowTokens > 0 && (g.Kind == pd.FinalOnly || prompt > p.Input.TargetHit) {
				need[p.Input.TargetTables[g.Name][adapter.Slot(g, p.Input.TargetPeriods[g.Name], l)]] = 1
			}
		}
		if len(need) == 0 {
			require.Empty(t, written[comp.ID], comp.ID)
			continue
		}
		require.Equal(t, need, written[comp.ID], comp.ID)
	}
}
