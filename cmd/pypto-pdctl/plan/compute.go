package plan

import (
	"fmt"
	"strings"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// chunk is what one chunk moves to each target rank.
type chunk struct {
	Chunk pd.ChunkID `json:"chunk"`
	Span  pd.Span    `json:"span"`
	Final bool       `json:"final"`
	// Regions are bytes per target rank.
	Regions map[pd.ComponentID]int64 `json:"regions"`
	Bytes   int64                    `json:"bytes"`
	// Segments are writes per target rank, Message the bytes of the offer.
	Segments int `json:"segments"`
	Message  int `json:"message_bytes"`
}

// policy is what a rolling policy would move in all.
type policy struct {
	Bytes   int64  `json:"bytes"`
	Refused string `json:"refused,omitempty"`
}

// report is everything that is printed. All bytes are per target rank.
type report struct {
	Tokens     int                      `json:"tokens"`
	ChunkSteps int                      `json:"chunk_tokens"`
	Geometry   string                   `json:"geometry"`
	Policy     string                   `json:"policy"`
	Prefill    side                     `json:"prefill"`
	Decode     side                     `json:"decode"`
	RankMap    []pd.RankPair            `json:"rank_map"`
	Chunks     []chunk                  `json:"chunks"`
	Regions    map[pd.ComponentID]int64 `json:"regions"`
	Bytes      int64                    `json:"bytes"`
	AllRanks   int64                    `json:"bytes_to_all_ranks"`
	Policies   map[string]policy        `json:"policies"`
	Caches     []cache                  `json:"caches,omitempty"`

	columns []pd.ComponentID
}

// side is one node of the pair.
type side struct {
	Layout   string      `json:"layout"`
	Topology pd.Topology `json:"topology"`
	Hit      int         `json:"hit_tokens"`
}

// handoff is a whole prompt between two nodes, on tables of consecutive pages.
type handoff struct {
	flags          Flags
	contract       pd.Contract
	source, target adapter.Layout
	// pages is the longest table; every table is its beginning.
	pages pd.PageTable
}

func newHandoff(f Flags, a adapter.Adapter) *handoff {
	h := &handoff{flags: f, contract: a.Contract(strings.Repeat("0", 64), "simulator")}
	s := adapter.Sizing{Topology: f.source, PoolTokens: f.Tokens, StepTokens: f.Chunk, Sequences: 1}
	h.source = adapter.LayoutFor(&h.contract, s)
	s.Topology, s.StepTokens = f.target, f.DChunk
	h.target = adapter.LayoutFor(&h.contract, s)
	most := 0
	for _, g := range h.contract.Groups {
		most = max(most, g.Pages(f.Tokens))
	}
	for page := range pd.Page(most) {
		h.pages = append(h.pages, page)
	}
	return h
}

func (h *handoff) tables(l adapter.Layout, tokens int) adapter.Tables {
	t := adapter.Tables{}
	for _, g := range h.contract.Groups {
		n := g.Pages(tokens)
		if g.Kind != pd.Full {
			n = min(n, l.RingPeriods[g.Name])
		}
		t[g.Name] = h.pages[:n]
	}
	return t
}

// each plans every chunk, as the two nodes would.
func (h *handoff) each(visit func(pd.Manifest) error) error {
	f := &h.flags
	in := adapter.Input{
		Contract: &h.contract, PromptTokens: f.Tokens,
		Source: f.source, SourcePeriods: h.source.RingPeriods, SourceHit: f.PHit,
		Target: f.target, TargetPeriods: h.target.RingPeriods, TargetHit: f.DHit, TargetTables: h.tables(h.target, f.Tokens),
		TargetGeneration: 1, MetadataHash: strings.Repeat("0", 64), PreparedDigest: strings.Repeat("0", 64),
	}
	for start := 0; start < f.Tokens; {
		in.Span = pd.Span{Start: start, End: min(f.Tokens, max(start, f.PHit)+f.Chunk)}
		in.Final = in.Span.End == f.Tokens
		in.SourceTables = h.tables(h.source, in.Span.End)
		m, err := adapter.Build(in)
		if err != nil {
			return err
		}
		m.Fence = example
		if err := visit(m); err != nil {
			return err
		}
		start = in.Span.End
		in.Chunk++
	}
	return nil
}

// example stands for the ids of a real handoff, which have the same lengths.
var example = pd.Fence{
	Request: "cmpl-00000000000000000000000000000000", Handoff: pd.HandoffID(strings.Repeat("0", 32)), Run: "pd-0000000000000000",
	Prefill: pd.Peer{Node: "192.168.100.100:8000", Boot: pd.BootID(strings.Repeat("0", 32))},
	Decode:  pd.Peer{Node: "192.168.100.101:8000", Boot: pd.BootID(strings.Repeat("1", 32))},
}

func compute(f Flags) (*report, error) {
	h := newHandoff(f, f.adapter)
	r := &report{
		Tokens: f.Tokens, ChunkSteps: f.Chunk, Geometry: f.Geometry, Policy: f.Policy,
		Prefill: side{f.PLayout, f.source, f.PHit}, Decode: side{f.DLayout, f.target, f.DHit},
		Regions: map[pd.ComponentID]int64{}, Policies: map[string]policy{},
	}
	for _, c := range h.contract.Components {
		r.columns = append(r.columns, c.ID)
	}
	r.columns = append(r.columns, h.contract.Bootstrap.Component)
	err := h.each(func(m pd.Manifest) error {
		c, err := h.chunk(&m)
		if err != nil {
			return err
		}
		r.RankMap = m.RankMap
		r.Chunks = append(r.Chunks, c)
		r.Bytes += c.Bytes
		for id, n := range c.Regions {
			r.Regions[id] += n
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	r.AllRanks = r.Bytes * int64(len(r.RankMap))
	for _, name := range adapter.RollingPolicies() {
		if r.Policies[name], err = total(f, name); err != nil {
			return nil, err
		}
	}
	r.Caches, err = caches(f, &h.contract)
	return r, err
}

// total is what another policy would move; that it would refuse the pair is an
// answer, too.
func total(f Flags, name string) (policy, error) {
	a, err := adapter.WithPolicy(f.adapter, name)
	if err != nil {
		return policy{}, err
	}
	var p policy
	err = newHandoff(f, a).each(func(m pd.Manifest) error {
		for _, u := range m.Units {
			if u.Target == m.RankMap[0].Target {
				p.Bytes += u.Bytes
			}
		}
		return nil
	})
	if err != nil {
		return policy{Refused: err.Error()}, nil
	}
	return p, nil
}

func (h *handoff) chunk(m *pd.Manifest) (chunk, error) {
	c := chunk{Chunk: m.Chunk, Span: m.Span, Final: m.Final, Regions: map[pd.ComponentID]int64{}}
	for _, u := range m.Units {
		if u.Target == m.RankMap[0].Target {
			c.Regions[u.Component] += u.Bytes
			c.Bytes += u.Bytes
		}
	}
	writes, err := adapter.Lower(&h.contract, m, h.source.PagesPerLayer, h.target.PagesPerLayer, h.source.BootstrapSlots, h.target.BootstrapSlots)
	if err != nil {
		return c, err
	}
	c.Segments = len(writes[0].Segments)
	hash, err := wire.ManifestHash(m)
	if err != nil {
		return c, err
	}
	b, err := wire.Encode(&wire.Chunk{Manifest: *m, ManifestHash: hash})
	if err != nil {
		return c, fmt.Errorf("offer chunk %d: %w", m.Chunk, err)
	}
	c.Message = len(b)
	return c, nil
}
