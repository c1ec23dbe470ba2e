package dsv4_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/adaptertest"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
)

func TestTinyHasEveryProperty(t *testing.T) { adaptertest.Run(t, dsv4.Tiny()) }
func TestFullHasEveryProperty(t *testing.T) { adaptertest.Run(t, dsv4.Full()) }

// The table of pd-domain §5.1 and §5.3.
func TestFullGeometryMatchesTheModel(t *testing.T) {
	c := dsv4.Full().Contract("r", "simulator")
	want := []struct {
		id              pd.ComponentID
		layers, page128 int
		page            int
	}{
		{"ori", 43, 5636096, 32768},
		{"hca_cmp", 20, 20480, 1024},
		{"csa_cmp", 21, 688128, 32768},
		{"idx_k", 21, 86016, 4096},
		{"idx_scale", 21, 2688, 128},
	}
	for _, w := range want {
		comp, ok := c.Component(w.id)
		require.True(t, ok)
		g, _ := c.Group(comp.Group)
		require.Len(t, comp.Layers, w.layers, w.id)
		require.Equal(t, w.page, comp.PageBytes(), w.id)
		require.Equal(t, w.page128, 128/g.PageTokens*len(comp.Layers)*comp.PageBytes(), w.id)
	}
	require.Equal(t, 3145728, c.Bootstrap.SlotBytes())
	require.Len(t, c.Groups, 7)
	require.Len(t, c.Components, 8)
	var final []pd.GroupName
	for _, g := range c.Groups {
		if g.Kind == pd.FinalOnly {
			final = append(final, g.Name)
		}
	}
	require.Equal(t, []pd.GroupName{dsv4.HCAState, dsv4.CSAState, dsv4.CSAInnerState}, final)
}

// The table of pd-domain §5.5.
func TestRingPeriods(t *testing.T) {
	c := dsv4.Full().Contract("r", "simulator")
	for _, row := range []struct{ step, ori, hca, csa int }{{8192, 261, 1041, 4101}, {128, 9, 33, 69}} {
		l := adapter.LayoutFor(&c, adapter.Sizing{Topology: pd.Topology{Ranks: 16, TP: 4}, PoolTokens: 1024, StepTokens: row.step, Sequences: 1})
		require.Equal(t, map[pd.GroupName]int{
			dsv4.Ori: row.ori, dsv4.HCAState: row.hca, dsv4.CSAState: row.csa, dsv4.CSAInnerState: row.csa,
		}, l.RingPeriods)
	}
}

// The boundary table of safety.md §5.
func TestTailStart(t *testing.T) {
	for _, row := range []struct{ prompt, start int }{{127, 0}, {128, 0}, {129, 0}, {255, 0}, {256, 128}, {640, 512}} {
		require.Equal(t, row.start, adapter.TailStart(row.prompt, 128), row.prompt)
	}
}

func TestHitLimits(t *testing.T) {
	g := dsv4.Full()
	for _, row := range []struct{ prompt, source, target int }{
		{1, 0, 0}, {127, 0, 0}, {128, 0, 128}, {255, 0, 128}, {256, 128, 256}, {640, 512, 640},
	} {
		require.Equal(t, row.source, g.SourceHitLimit(row.prompt), row.prompt)
		require.Equal(t, row.target, g.TargetHitLimit(row.prompt), row.prompt)
	}
}

func pair(prompt int) adaptertest.Pair {
	s := adapter.Sizing{Topology: pd.Topology{Ranks: 16, TP: 4}, PoolTokens: 4096, StepTokens: 128, Sequences: 2}
	return adaptertest.NewPair(dsv4.Full(), prompt, s, s, 1, 2, func(_ string, _ pd.CacheGroup, slot int) pd.Page { return pd.Page(slot) })
}

// Behaviours 29 and 30: a 33-token prompt in chunks of 32 and 1.
func TestUnitsOfShortPrompt(t *testing.T) {
	chunks, err := pair(33).Chunks([]int{32, 33})
	require.NoError(t, err)
	bytes := func(m pd.Manifest, rank pd.Rank) map[pd.ComponentID]int64 {
		out := map[pd.ComponentID]int64{}
		for _, u := range m.Units {
			if u.Target == rank {
				out[u.Component] = u.Bytes
			}
		}
		return out
	}
	require.Equal(t, map[pd.ComponentID]int64{"ori": 43 * 32768, "hca_cmp": 0, "csa_cmp": 0, "idx_k": 0, "idx_scale": 0}, bytes(chunks[0], 8))
	require.Equal(t, map[pd.ComponentID]int64{
		"ori": 43 * 32768, "hca_cmp": 0, "csa_cmp": 21 * 32768, "idx_k": 21 * 4096, "idx_scale": 21 * 128,
		"hca_state": 5 * 20 * 32768, "csa_state": 5 * 21 * 16384, "csa_inner_state": 5 * 21 * 4096, "dspark_hidden": 3145728,
	}, bytes(chunks[1], 11))
	for _, cp := range chunks[1].Copies {
		if cp.Component == "ori" {
			require.Equal(t, pd.Copy{Component: "ori", Source: 1, Target: 1, Count: 1, ValidRows: 1}, cp)
		}
	}
}

// pd-domain §5.8 examples and behaviours 61 and 161.
func TestRankMap(t *testing.T) {
	tp := func(n int) pd.Topology { return pd.Topology{Ranks: 16, TP: n} }
	require.Equal(t, []pd.RankPair{{Source: 4, Target: 8}, {Source: 5, Target: 9}, {Source: 6, Target: 10}, {Source: 7, Target: 11}}, adapter.RankMap(tp(4), 1, tp(4), 2))
	require.Equal(t, []pd.RankPair{{Source: 7, Target: 7}}, adapter.RankMap(tp(4), 1, tp(1), 7))
	require.Equal(t, []pd.RankPair{{Source: 6, Target: 6}, {Source: 7, Target: 7}}, adapter.RankMap(tp(4), 1, tp(2), 3))
	require.Equal(t, []pd.RankPair{{Source: 3, Target: 0}, {Source: 3, Target: 1}, {Source: 3, Target: 2}, {Source: 3, Target: 3}}, adapter.RankMap(tp(1), 3, tp(4), 0))
}

func TestVerifyRefuses(t *testing.T) {
	for name, change := range map[string]func(*pd.Manifest){
		"a target block off by one":    func(m *pd.Manifest) { m.Copies[0].Target++ },
		"a missing copy":               func(m *pd.Manifest) { m.Copies = m.Copies[1:] },
		"another rank map":             func(m *pd.Manifest) { m.RankMap[0].Source++ },
		"a unit of another size":       func(m *pd.Manifest) { m.Units[0].Bytes++ },
		"one unit less":                func(m *pd.Manifest) { m.Units = m.Units[1:] },
		"a stale bootstrap generation": func(m *pd.Manifest) { m.Bootstrap.TargetGeneration++ },
		"another bootstrap slot":       func(m *pd.Manifest) { m.Bootstrap.TargetSlot++ },
		"no bootstrap":                 func(m *pd.Manifest) { m.Bootstrap = nil },
		"another end":                  func(m *pd.Manifest) { m.Span.End-- },
		"more valid rows":              func(m *pd.Manifest) { m.Copies[0].ValidRows++ },
		"another fence":                func(m *pd.Manifest) { m.Fence.Handoff = "x" },
		"another metadata hash":        func(m *pd.Manifest) { m.MetadataHash = "x" },
		"a negative source page":       func(m *pd.Manifest) { m.Copies[0].Source = -1 },
		"a prefill hit off alignment":  func(m *pd.Manifest) { m.SourceHitTokens = 7 },
		"an idx pair torn apart": func(m *pd.Manifest) {
			for i := range m.Copies {
				if m.Copies[i].Component == "idx_scale" {
					m.Copies[i].Source += 3
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			p := pair(200)
			chunks, err := p.Chunks([]int{200})
			require.NoError(t, err)
			require.NoError(t, adapter.Verify(p.Input, &chunks[0]))
			change(&chunks[0])
			require.ErrorIs(t, adapter.Verify(p.Input, &chunks[0]), pd.CodeInvalidPlan)
		})
	}
}

func TestRingTooShortIsRefused(t *testing.T) {
	p := pair(255)
	p.Input.TargetPeriods = map[pd.GroupName]int{dsv4.Ori: 6, dsv4.HCAState: 33, dsv4.CSAState: 69, dsv4.CSAInnerState: 69}
	_, err := p.Chunks([]int{255})
	require.ErrorContains(t, err, "8 live pages do not fit decode's ring of 6")
}

// Each side's offsets use its own arena length.
func TestLowerUsesEachSidesArena(t *testing.T) {
	p := pair(128)
	chunks, err := p.Chunks([]int{128})
	require.NoError(t, err)
	source, target := map[pd.GroupName]int{}, map[pd.GroupName]int{}
	for _, g := range p.Input.Contract.Groups {
		source[g.Name], target[g.Name] = 300, 100
	}
	writes, err := adapter.Lower(p.Input.Contract, &chunks[0], source, target, 1, 1)
	require.NoError(t, err)
	require.Len(t, writes, 4)
	require.Equal(t, pd.Segment{Component: "ori", SourceOffset: 300 * 32768, TargetOffset: 100 * 32768, Bytes: 4 * 32768}, writes[0].Segments[1])
	target[dsv4.Ori] = 3
	_, err = adapter.Lower(p.Input.Contract, &chunks[0], source, target, 1, 1)
	require.ErrorContains(t, err, "do not fit arenas of 300 and 3 pages")
}
