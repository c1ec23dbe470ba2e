package adaptertest

import (
	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// Side is one node of a pair as far as a plan depends on it.
type Side struct {
	Sizing    adapter.Sizing
	Partition pd.Partition
	// Hit is how much of the prompt the node had.
	Hit int
	// Page chooses the id of each table entry, so that a test decides how
	// fragmented tables are; nil is the slot itself. It must not repeat an id
	// within one group.
	Page func(g pd.CacheGroup, slot int) pd.Page
}

// Pair is one request between two nodes, with tables as an allocator would
// hand them out.
type Pair struct {
	Input adapter.Input
	// SourceLayout and TargetLayout are the arenas that Lower needs.
	SourceLayout, TargetLayout adapter.Layout

	sourcePage func(pd.CacheGroup, int) pd.Page
}

// NewPair makes the tables of a prompt.
func NewPair(a adapter.Adapter, prompt int, source, target Side) Pair {
	c := a.Contract("revision", "simulator")
	p := Pair{
		SourceLayout: adapter.LayoutFor(&c, source.Sizing), TargetLayout: adapter.LayoutFor(&c, target.Sizing),
		sourcePage: source.Page,
	}
	p.Input = adapter.Input{
		Contract: &c, PromptTokens: prompt,
		Source: source.Sizing.Topology, SourcePartition: source.Partition, SourcePeriods: p.SourceLayout.RingPeriods, SourceHit: source.Hit,
		Target: target.Sizing.Topology, TargetPartition: target.Partition, TargetPeriods: p.TargetLayout.RingPeriods, TargetHit: target.Hit,
		TargetTables: adapter.Tables{}, TargetGeneration: 1, MetadataHash: "m", PreparedDigest: "p",
	}
	for _, g := range c.Groups {
		p.Input.TargetTables[g.Name] = table(g, p.TargetLayout, prompt, target.Page)
	}
	return p
}

func table(g pd.CacheGroup, l adapter.Layout, tokens int, page func(pd.CacheGroup, int) pd.Page) pd.PageTable {
	n := g.Pages(tokens)
	if g.Kind != pd.Full {
		n = min(n, l.RingPeriods[g.Name])
	}
	t := make(pd.PageTable, n)
	for i := range t {
		t[i] = pd.Page(i)
		if page != nil {
			t[i] = page(g, i)
		}
	}
	return t
}

// At is the input of one chunk: the source tables are as they are when the
// chunk has been computed.
func (p Pair) At(chunk int, span pd.Span) adapter.Input {
	in := p.Input
	in.Chunk, in.Span, in.Final = pd.ChunkID(chunk), span, span.End == in.PromptTokens
	in.SourceTables = adapter.Tables{}
	for _, g := range in.Contract.Groups {
		in.SourceTables[g.Name] = table(g, p.SourceLayout, span.End, p.sourcePage)
	}
	return in
}

// Chunks plans a whole prompt cut at the given ends (ascending, the last one is
// the prompt's length). The first chunk holds what prefill had of the prompt.
func (p Pair) Chunks(ends []int) ([]pd.Manifest, error) {
	var out []pd.Manifest
	start := 0
	for i, end := range ends {
		m, err := adapter.Build(p.At(i, pd.Span{Start: start, End: end}))
		if err != nil {
			return nil, err
		}
		out = append(out, m)
		start = end
	}
	return out, nil
}

// Ends cuts a prompt into chunks of the given number of tokens; the first
// begins behind prefill's hit.
func Ends(prompt, hit, chunk int) []int {
	var ends []int
	for end := hit; end < prompt; {
		end = min(prompt, end+chunk)
		ends = append(ends, end)
	}
	return ends
}
