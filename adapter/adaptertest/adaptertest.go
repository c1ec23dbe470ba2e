// Package adaptertest holds the properties that every adapter must have. An
// adapter's own tests call Run. It starts no goroutine.
package adaptertest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// Run checks an adapter's contract, and its plans over random prompts,
// chunkings, hits, topologies and tables, under every rolling policy.
func Run(t *testing.T, a adapter.Adapter) {
	c := a.Contract("revision", "simulator")
	t.Run("pages are aligned and windows fit between boundaries", func(t *testing.T) {
		for _, comp := range c.Components {
			g, ok := c.Group(comp.Group)
			require.True(t, ok, comp.ID)
			require.Zero(t, comp.PageBytes()%c.ByteAlignment, comp.ID)
			require.Equal(t, g.PageTokens, comp.RowsPerPage*comp.RowTokens, comp.ID)
			require.Zero(t, c.AlignmentTokens%g.PageTokens, comp.ID)
		}
		for _, g := range c.Groups {
			// What the checkpoint policy relies on.
			require.LessOrEqual(t, g.WindowTokens, c.AlignmentTokens, g.Name)
			require.Equal(t, g.Kind == pd.Full, g.WindowTokens == 0, g.Name)
		}
		require.Zero(t, c.Bootstrap.SlotBytes()%c.ByteAlignment)
	})
	// Behaviour 165: whatever prefill has, it computes every row that is captured.
	t.Run("a prefill hit leaves the captured window", func(t *testing.T) {
		for prompt := 1; prompt < 5*c.AlignmentTokens; prompt++ {
			source, target := a.SourceHitLimit(prompt), a.TargetHitLimit(prompt)
			require.Zero(t, source%c.AlignmentTokens)
			require.LessOrEqual(t, source, max(0, prompt-c.Bootstrap.Rows), prompt)
			require.Greater(t, source+c.AlignmentTokens, prompt-c.Bootstrap.Rows, "no smaller than needed: %d", prompt)
			require.Equal(t, pd.FloorTo(prompt, c.AlignmentTokens), target)
		}
	})
	for _, policy := range adapter.RollingPolicies() {
		t.Run("plans of policy "+policy, func(t *testing.T) {
			chosen, err := adapter.WithPolicy(a, policy)
			require.NoError(t, err)
			rapid.Check(t, func(t *rapid.T) { checkHandoff(t, chosen) })
		})
	}
}

// oddSteps are chunk lengths at which boundaries, pages and chunks disagree.
var oddSteps = []int{1, 31, 32, 127, 128, 129, 1000}

func drawSide(t *rapid.T, name string, c *pd.Contract, hitLimit int) Side {
	tp := rapid.SampledFrom([]int{1, 2, 4}).Draw(t, name+" tp")
	s := Side{
		Sizing: adapter.Sizing{
			Topology:   pd.Topology{Ranks: 16, TP: tp},
			PoolTokens: rapid.SampledFrom([]int{8192, 16384}).Draw(t, name+" pool"),
			StepTokens: rapid.SampledFrom([]int{128, 256, 1000, 8192}).Draw(t, name+" step"), Sequences: 4,
		},
		Partition: pd.Partition(rapid.IntRange(0, 16/tp-1).Draw(t, name+" partition")),
		Hit:       rapid.IntRange(0, hitLimit/c.AlignmentTokens).Draw(t, name+" hit") * c.AlignmentTokens,
	}
	stride := rapid.IntRange(1, 2).Draw(t, name+" stride")
	swap := rapid.SampledFrom([]int{1, 3, 64}).Draw(t, name+" swap")
	s.Page = func(_ pd.CacheGroup, slot int) pd.Page {
		if group := slot / swap * swap; swap < 64 {
			slot = group + swap - 1 - slot%swap // backwards within each small group
		}
		return pd.Page(slot * stride)
	}
	return s
}

// checkHandoff plays one handoff against memories that remember which logical
// page every page holds.
func checkHandoff(t *rapid.T, a adapter.Adapter) {
	c := a.Contract("revision", "simulator")
	prompt := rapid.IntRange(1, 2600).Draw(t, "prompt")
	source := drawSide(t, "source", &c, a.SourceHitLimit(prompt))
	target := drawSide(t, "target", &c, a.TargetHitLimit(prompt))
	p := NewPair(a, prompt, source, target)
	h := newHandoff(t, p)
	for start, chunk := 0, 0; start < prompt; chunk++ {
		n := rapid.IntRange(1, 2*source.Sizing.StepTokens).Draw(t, "chunk")
		if n > source.Sizing.StepTokens {
			n = min(oddSteps[n%len(oddSteps)], source.Sizing.StepTokens)
		}
		span := pd.Span{Start: start, End: min(prompt, max(start, source.Hit)+n)}
		h.chunk(p.At(chunk, span))
		start = span.End
	}
	h.finish()
}

// handoff is what a whole handoff has moved so far.
type handoff struct {
	t *rapid.T
	p Pair
	// held is which logical page decode's page of a component holds.
	held map[pd.ComponentID]map[pd.Page]int
	// moved are the logical pages that chunks moved, known what Moved says of it.
	moved map[pd.ComponentID]map[int]bool
	known map[pd.GroupName]map[int]bool
	boot  int64
}

// newHandoff puts decode's hit into its memory.
func newHandoff(t *rapid.T, p Pair) *handoff {
	h := &handoff{
		t: t, p: p, held: map[pd.ComponentID]map[pd.Page]int{}, moved: map[pd.ComponentID]map[int]bool{},
		known: map[pd.GroupName]map[int]bool{},
	}
	for _, comp := range p.Input.Contract.Components {
		g, _ := p.Input.Contract.Group(comp.Group)
		h.held[comp.ID], h.moved[comp.ID] = map[pd.Page]int{}, map[int]bool{}
		h.known[g.Name] = map[int]bool{}
		first := 0
		switch g.Kind {
		case pd.Rolling:
			first = max(0, p.Input.TargetHit-g.WindowTokens) / g.PageTokens
		case pd.FinalOnly:
			continue
		}
		for l := first; l < p.Input.TargetHit/g.PageTokens; l++ {
			if page, ok := h.place(g, l); ok {
				h.held[comp.ID][page] = l
			}
		}
	}
	return h
}

// place is where decode's table has a logical page at the end, if anywhere.
func (h *handoff) place(g pd.CacheGroup, logical int) (pd.Page, bool) {
	in := &h.p.Input
	if g.Kind != pd.Full && logical < g.Pages(in.PromptTokens)-in.TargetPeriods[g.Name] {
		return 0, false
	}
	return in.TargetTables[g.Name][adapter.Slot(g, in.TargetPeriods[g.Name], logical)], true
}

// sourceContent says which logical page each of prefill's pages holds once a
// chunk is computed.
func sourceContent(in *adapter.Input, g pd.CacheGroup) map[pd.Page]int {
	content := map[pd.Page]int{}
	first := 0
	if g.Kind != pd.Full {
		first = max(0, in.SourceHit-g.WindowTokens) / g.PageTokens
		first = max(first, g.Pages(in.Span.End)-in.SourcePeriods[g.Name])
	}
	for l := first; l < g.Pages(in.Span.End); l++ {
		content[in.SourceTables[g.Name][adapter.Slot(g, in.SourcePeriods[g.Name], l)]] = l
	}
	return content
}

// chunk plans one chunk on both sides, moves it and checks what it did.
func (h *handoff) chunk(in adapter.Input) {
	t := h.t
	m, err := adapter.Build(in)
	require.NoError(t, err)
	require.Equal(t, adapter.RankMap(in.Source, in.SourcePartition, in.Target, in.TargetPartition), m.RankMap)
	theirs := in
	theirs.SourceTables, theirs.SourceHit, theirs.SourceSlot = nil, 0, 0
	require.NoError(t, adapter.Verify(theirs, &m), "decode agrees")
	h.refuses(theirs, m)

	moved := adapter.Moved(in)
	perRank := map[pd.ComponentID]int64{}
	var comp pd.Component
	var g pd.CacheGroup
	var content map[pd.Page]int
	for i, cp := range m.Copies {
		if comp.ID != cp.Component {
			var ok bool
			comp, ok = in.Contract.Component(cp.Component)
			require.True(t, ok)
			g, _ = in.Contract.Group(comp.Group)
			content = sourceContent(&in, g)
		}
		perRank[comp.ID] += int64(cp.Count) * int64(len(comp.Layers)) * int64(comp.PageBytes())
		for k := range pd.Page(cp.Count) {
			l, ok := content[cp.Source+k]
			page, resident := h.place(g, l)
			held, full := h.held[comp.ID][page]
			rows, want := cp.ValidRows, min(comp.RowsPerPage, (in.Span.End-l*g.PageTokens)/comp.RowTokens)
			if k < pd.Page(cp.Count)-1 {
				rows = comp.RowsPerPage // only the last page may be partial
			}
			switch {
			case !ok:
				require.Fail(t, "reads a page that holds nothing of this prompt", "copy %d: %v", i, cp)
			case !resident:
				require.Fail(t, "moves a page that will have left decode's ring", "page %d of %s", l, comp.ID)
			case page != cp.Target+k:
				require.Fail(t, "moves to another page than the table's", "page %d of %s to %d, want %d", l, comp.ID, cp.Target+k, page)
			case full:
				require.Fail(t, "writes over a page", "page %d of %s over page %d", l, comp.ID, held)
			case rows != want:
				require.Fail(t, "rows", "page %d of %s has %d, want %d", l, comp.ID, rows, want)
			case g.Kind != pd.FinalOnly && (l < moved[g.Name].Start || l >= moved[g.Name].End):
				require.Fail(t, "Moved does not say so", "page %d of %s", l, comp.ID)
			}
			h.held[comp.ID][page], h.moved[comp.ID][l] = l, true
		}
	}
	for g, span := range moved {
		for l := span.Start; l < span.End; l++ {
			if h.known[g][l] {
				require.Fail(t, "a page twice", "page %d of %s", l, g)
			}
			h.known[g][l] = true
		}
	}
	h.units(in, m, perRank)
	h.lowered(m, perRank)
	h.linear(in, m)
}

// units checks that the completion records account for every byte.
func (h *handoff) units(in adapter.Input, m pd.Manifest, perRank map[pd.ComponentID]int64) {
	t := h.t
	want := map[pd.Unit]bool{}
	for _, pair := range m.RankMap {
		for _, comp := range in.Contract.Components {
			if g, _ := in.Contract.Group(comp.Group); g.Kind != pd.FinalOnly || m.Final {
				want[pd.Unit{Target: pair.Target, Component: comp.ID, Bytes: perRank[comp.ID]}] = true
			}
		}
		if m.Final {
			b := in.Contract.Bootstrap
			want[pd.Unit{Target: pair.Target, Component: b.Component, Bytes: int64(b.SlotBytes())}] = true
			h.boot += int64(b.SlotBytes())
		}
	}
	require.Len(t, m.Units, len(want))
	for _, u := range m.Units {
		require.True(t, want[u], "unit %v", u)
	}
}

// lowered checks the segments: inside both arenas, aligned, of the right size,
// and no two on one target byte.
func (h *handoff) lowered(m pd.Manifest, perRank map[pd.ComponentID]int64) {
	t, c := h.t, h.p.Input.Contract
	writes, err := adapter.Lower(c, &m, h.p.SourceLayout.PagesPerLayer, h.p.TargetLayout.PagesPerLayer, h.p.SourceLayout.BootstrapSlots, h.p.TargetLayout.BootstrapSlots)
	require.NoError(t, err)
	require.Len(t, writes, len(m.RankMap))
	for i, w := range writes {
		if i > 0 {
			require.Equal(t, writes[0].Segments, w.Segments)
			continue
		}
		got := map[pd.ComponentID]int64{}
		taken := map[pd.ComponentID]map[int64]bool{}
		for _, s := range w.Segments {
			unit := int64(c.Bootstrap.SlotBytes())
			sourceBytes, targetBytes := unit*int64(h.p.SourceLayout.BootstrapSlots), unit*int64(h.p.TargetLayout.BootstrapSlots)
			if comp, ok := c.Component(s.Component); ok {
				unit = int64(comp.PageBytes())
				sourceBytes = c.RegionBytes(comp, h.p.SourceLayout.PagesPerLayer[comp.Group])
				targetBytes = c.RegionBytes(comp, h.p.TargetLayout.PagesPerLayer[comp.Group])
			}
			align := int64(c.ByteAlignment)
			if s.Bytes <= 0 || s.SourceOffset < 0 || s.TargetOffset < 0 || s.SourceOffset+s.Bytes > sourceBytes || s.TargetOffset+s.Bytes > targetBytes {
				require.Fail(t, "outside a region", "%v in %d and %d bytes", s, sourceBytes, targetBytes)
			}
			if s.SourceOffset%align+s.TargetOffset%align+s.Bytes%align+s.TargetOffset%unit+s.Bytes%unit != 0 {
				require.Fail(t, "not aligned", "%v", s)
			}
			if taken[s.Component] == nil {
				taken[s.Component] = map[int64]bool{}
			}
			for at := s.TargetOffset; at < s.TargetOffset+s.Bytes; at += unit {
				if taken[s.Component][at] {
					require.Fail(t, "writes a page a second time", "%v", s)
				}
				taken[s.Component][at] = true
			}
			got[s.Component] += s.Bytes
		}
		want := map[pd.ComponentID]int64{}
		for id, n := range perRank {
			want[id] = n
		}
		if m.Final {
			want[c.Bootstrap.Component] = int64(c.Bootstrap.SlotBytes())
		}
		require.Equal(t, want, got)
	}
}

// linear checks that a component has no more copies than its moved pages have
// runs: two whole copies that continue each other on both sides would be one.
func (h *handoff) linear(in adapter.Input, m pd.Manifest) {
	for i := 1; i < len(m.Copies); i++ {
		a, b := m.Copies[i-1], m.Copies[i]
		comp, _ := in.Contract.Component(b.Component)
		if a.Component == b.Component && b.ValidRows == comp.RowsPerPage {
			require.False(h.t, a.Source+pd.Page(a.Count) == b.Source && a.Target+pd.Page(a.Count) == b.Target, "copies %d and %d are one run", i-1, i)
		}
	}
}

// refuses changes one thing of a manifest and expects decode to see it.
func (h *handoff) refuses(in adapter.Input, m pd.Manifest) {
	if len(m.Copies) == 0 {
		return
	}
	i := rapid.IntRange(0, len(m.Copies)-1).Draw(h.t, "changed copy")
	copies := append([]pd.Copy(nil), m.Copies...)
	switch rapid.IntRange(0, 5).Draw(h.t, "change") {
	case 0:
		copies[i].Target++
	case 1:
		copies[i].Count++
	case 2:
		copies[i].ValidRows--
	case 3:
		copies = append(copies[:i], copies[i+1:]...)
	case 4:
		copies = append(copies, copies[i])
	case 5:
		copies[i].Component = in.Contract.Bootstrap.Component
	}
	m.Copies = copies
	require.ErrorIs(h.t, adapter.Verify(in, &m), pd.CodeInvalidPlan)
}

// finish checks that decode has every byte that it may read, and that what it
// would publish is exactly what arrived.
func (h *handoff) finish() {
	t, in := h.t, &h.p.Input
	require.Equal(t, int64(in.Contract.Bootstrap.SlotBytes()*in.Target.TP), h.boot, "Behaviour 163: every target rank gets the whole slot once")
	for _, comp := range in.Contract.Components {
		g, _ := in.Contract.Group(comp.Group)
		first := 0
		if g.Kind != pd.Full {
			first = max(0, in.PromptTokens-g.WindowTokens) / g.PageTokens
		}
		for l := first; l < g.Pages(in.PromptTokens); l++ {
			if (in.PromptTokens-l*g.PageTokens)/comp.RowTokens == 0 {
				continue
			}
			page, ok := h.place(g, l)
			require.True(t, ok)
			held, full := h.held[comp.ID][page]
			require.True(t, full && held == l, "decode reads page %d of %s at page %d, which holds page %d (%t)", l, comp.ID, page, held, full)
		}
		if g.Kind == pd.FinalOnly {
			require.Len(t, h.moved[comp.ID], g.Pages(in.PromptTokens)-first, "the window and nothing else")
			continue
		}
		for l := range h.moved[comp.ID] {
			require.GreaterOrEqual(t, l, in.TargetHit/g.PageTokens, "page %d of %s is below decode's hit", l, comp.ID)
		}
		for l := range h.known[g.Name] {
			if (l+1)*g.PageTokens <= in.PromptTokens {
				require.True(t, h.moved[comp.ID][l], "page %d of %s is known and never came", l, comp.ID)
			}
		}
		if g.Kind == pd.Rolling {
			h.tail(g, comp)
		}
	}
}

// tail checks that every policy that promises the tail leaves decode with the
// window before the last boundary, so that the prompt is found again there.
func (h *handoff) tail(g pd.CacheGroup, comp pd.Component) {
	in := &h.p.Input
	if in.Contract.RollingPolicy == adapter.RollingAll {
		return
	}
	boundary := pd.FloorTo(in.PromptTokens, in.Contract.AlignmentTokens)
	for l := max(0, boundary-g.WindowTokens) / g.PageTokens; l < boundary/g.PageTokens; l++ {
		page, ok := h.place(g, l)
		require.True(h.t, ok)
		require.Equal(h.t, l, h.held[comp.ID][page])
	}
}
