package dsv4_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/adaptertest"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
)

func TestTinyHasEveryProperty(t *testing.T) { adaptertest.Run(t, dsv4.Tiny()) }
func TestFullHasEveryProperty(t *testing.T) { adaptertest.Run(t, dsv4.Full()) }

// Behaviour 27, and the table of pd-domain §5.1 and §5.3.
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
	var order []pd.ComponentID
	for _, comp := range c.Components {
		order = append(order, comp.ID)
	}
	require.Equal(t, []pd.ComponentID{"ori", "hca_cmp", "csa_cmp", "idx_k", "idx_scale", "hca_state", "csa_state", "csa_inner_state"}, order)
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
	c := dsv4.Full().Contract("r", "simulator")
	ori, _ := c.Group(dsv4.Ori)
	for _, row := range []struct{ prompt, start int }{{127, 0}, {128, 0}, {129, 0}, {255, 0}, {256, 128}, {640, 512}} {
		require.Equal(t, row.start, adapter.TailStart(&c, ori, row.prompt), row.prompt)
	}
}

// Behaviour 165.
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
	return adaptertest.NewPair(dsv4.Full(), prompt, adaptertest.Side{Sizing: s, Partition: 1}, adaptertest.Side{Sizing: s, Partition: 2})
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

// Behaviours 38, 61 and 161: the examples of pd-domain §5.8.
func TestRankMap(t *testing.T) {
	tp := func(n int) pd.Topology { return pd.Topology{Ranks: 16, TP: n} }
	require.Equal(t, []pd.RankPair{{Source: 4, Target: 8}, {Source: 5, Target: 9}, {Source: 6, Target: 10}, {Source: 7, Target: 11}}, adapter.RankMap(tp(4), 1, tp(4), 2))
	require.Equal(t, []pd.RankPair{{Source: 7, Target: 7}}, adapter.RankMap(tp(4), 1, tp(1), 7))
	require.Equal(t, []pd.RankPair{{Source: 6, Target: 6}, {Source: 7, Target: 7}}, adapter.RankMap(tp(4), 1, tp(2), 3))
	require.Equal(t, []pd.RankPair{{Source: 3, Target: 0}, {Source: 3, Target: 1}, {Source: 3, Target: 2}, {Source: 3, Target: 3}}, adapter.RankMap(tp(1), 3, tp(4), 0))
}

// Behaviours 50 and 105: decode refuses whatever it would not plan itself.
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
		"two sources for one target":   func(m *pd.Manifest) { m.Copies = append(m.Copies, m.Copies[0]) },
		"a copy of no pages":           func(m *pd.Manifest) { m.Copies[0].Count = 0 },
		"more pages than the plan":     func(m *pd.Manifest) { m.Copies[0].Count = 1 << 40 },
		"fewer pages than the plan":    func(m *pd.Manifest) { m.Copies[0].Count-- },
		"another partition":            func(m *pd.Manifest) { m.TargetPartition++ },
		"a source partition too high":  func(m *pd.Manifest) { m.SourcePartition = 4 },
		"idx_k without idx_scale": func(m *pd.Manifest) {
			m.Copies = slices.DeleteFunc(m.Copies, func(c pd.Copy) bool { return c.Component == "idx_scale" })
		},
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

// arenas gives every group of a contract an arena of the same length.
func arenas(c *pd.Contract, pages int) map[pd.GroupName]int {
	out := map[pd.GroupName]int{}
	for _, g := range c.Groups {
		out[g.Name] = pages
	}
	return out
}

func segmentsOf(t *testing.T, p adaptertest.Pair, m *pd.Manifest, source, target int, component pd.ComponentID) []pd.Segment {
	writes, err := adapter.Lower(p.Input.Contract, m, arenas(p.Input.Contract, source), arenas(p.Input.Contract, target), 1, 1)
	require.NoError(t, err)
	require.Len(t, writes, len(m.RankMap))
	var out []pd.Segment
	for _, s := range writes[0].Segments {
		if s.Component == component {
			out = append(out, s)
		}
	}
	return out
}

// Behaviours 103, 104 and 107: layer bases use each side's own arena, the whole
// partial page moves, and consecutive pages are one segment.
func TestLowerUsesEachSidesArena(t *testing.T) {
	p := pair(200)
	chunks, err := p.Chunks([]int{200})
	require.NoError(t, err)
	scale := segmentsOf(t, p, &chunks[0], 300, 100, "idx_scale")
	require.Len(t, scale, 21, "one per layer: the page of 128 tokens and the partial one are neighbours")
	require.Equal(t, pd.Segment{Component: "idx_scale", SourceOffset: 0, TargetOffset: 0, Bytes: 2 * 128}, scale[0])
	require.Equal(t, pd.Segment{Component: "idx_scale", SourceOffset: 20 * 300 * 128, TargetOffset: 20 * 100 * 128, Bytes: 2 * 128}, scale[20])
	ori := segmentsOf(t, p, &chunks[0], 300, 100, "ori")
	require.Len(t, ori, 43)
	require.Equal(t, pd.Segment{Component: "ori", SourceOffset: 300 * 32768, TargetOffset: 100 * 32768, Bytes: 7 * 32768}, ori[1])
	require.Len(t, segmentsOf(t, p, &chunks[0], 300, 100, dsv4.Hidden), 1)

	target := arenas(p.Input.Contract, 100)
	target[dsv4.Ori] = 6
	_, err = adapter.Lower(p.Input.Contract, &chunks[0], arenas(p.Input.Contract, 300), target, 1, 1)
	require.ErrorContains(t, err, "do not fit arenas of 300 and 6 pages")
	_, err = adapter.Lower(p.Input.Contract, &chunks[0], arenas(p.Input.Contract, 300), arenas(p.Input.Contract, 100), 1, 0)
	require.ErrorContains(t, err, "bootstrap slots 0 and 0: the nodes have 1 and 0")
}

// Behaviour 103: the order of copies changes no byte.
func TestOrderOfCopiesDoesNotMatterToLower(t *testing.T) {
	p := pair(300)
	p.Input.TargetTables[dsv4.CmpC4] = pd.PageTable{5, 3, 1}
	chunks, err := p.Chunks([]int{300})
	require.NoError(t, err)
	want := segmentsOf(t, p, &chunks[0], 300, 100, "csa_cmp")
	require.Len(t, want, 3*21)
	slices.Reverse(chunks[0].Copies)
	require.ElementsMatch(t, want, segmentsOf(t, p, &chunks[0], 300, 100, "csa_cmp"))
}

// A copy that fills both arenas is one segment over all layers.
func TestWholeArenaIsOneSegment(t *testing.T) {
	p := pair(256)
	chunks, err := p.Chunks([]int{256})
	require.NoError(t, err)
	require.Equal(t, []pd.Segment{{Component: "csa_cmp", Bytes: 21 * 2 * 32768}}, segmentsOf(t, p, &pd.Manifest{
		RankMap: chunks[0].RankMap, Copies: []pd.Copy{{Component: "csa_cmp", Count: 2, ValidRows: 32}},
	}, 2, 2, "csa_cmp"))
}

func TestLowerRefuses(t *testing.T) {
	for name, row := range map[string]struct {
		change func(*pd.Manifest)
		want   string
	}{
		"an unknown component":   {func(m *pd.Manifest) { m.Copies[0].Component = "x" }, `component "x" is not in the contract`},
		"no pages":               {func(m *pd.Manifest) { m.Copies[0].Count = 0 }, "do not fit arenas"},
		"a negative page":        {func(m *pd.Manifest) { m.Copies[0].Target = -1 }, "do not fit arenas"},
		"pages behind the arena": {func(m *pd.Manifest) { m.Copies[0].Source = 1<<31 - 2 }, "do not fit arenas"},
		"a huge count":           {func(m *pd.Manifest) { m.Copies[0].Count = 1 << 62 }, "do not fit arenas"},
	} {
		t.Run(name, func(t *testing.T) {
			p := pair(200)
			chunks, err := p.Chunks([]int{200})
			require.NoError(t, err)
			row.change(&chunks[0])
			_, err = adapter.Lower(p.Input.Contract, &chunks[0], arenas(p.Input.Contract, 300), arenas(p.Input.Contract, 300), 1, 1)
			require.ErrorIs(t, err, pd.CodeInvalidPlan)
			require.ErrorContains(t, err, row.want)
		})
	}
}

// Behaviours 28 and 106: contracts made of the same facts are equal, those of
// other weights or another policy are not, and say where.
func TestContractsAreEqualOrSayWhereNot(t *testing.T) {
	a, b := dsv4.Full().Contract("r", "simulator"), dsv4.Full().Contract("r", "simulator")
	require.Empty(t, a.Diff(&b))
	other := dsv4.Full().Contract("s", "simulator")
	require.Equal(t, "model_revision", a.Diff(&other))
	tiny := dsv4.Tiny().Contract("r", "simulator")
	require.NotEmpty(t, a.Diff(&tiny))
	checkpoint, err := adapter.WithPolicy(dsv4.Full(), adapter.RollingCheckpoint)
	require.NoError(t, err)
	other = checkpoint.Contract("r", "simulator")
	require.Equal(t, "rolling_policy", a.Diff(&other))
	require.Equal(t, adapter.RollingTail, a.RollingPolicy, "the default")
	require.Equal(t, dsv4.Full().SourceHitLimit(640), checkpoint.SourceHitLimit(640), "nothing else changes")
	_, err = adapter.WithPolicy(dsv4.Full(), "some")
	require.ErrorIs(t, err, pd.CodeInvalidConfig)
}

// Behaviour 108: which layers have which tensor.
func TestLayersByCompression(t *testing.T) {
	c := dsv4.Full().Contract("r", "simulator")
	layers := map[pd.ComponentID][]int{}
	for _, comp := range c.Components {
		layers[comp.ID] = comp.Layers
	}
	require.Equal(t, layers["hca_cmp"], layers["hca_state"], "ratio 128")
	for _, id := range []pd.ComponentID{"idx_k", "idx_scale", "csa_state", "csa_inner_state"} {
		require.Equal(t, layers["csa_cmp"], layers[id], "ratio 4")
	}
	all := append(append([]int{0, 1}, layers["hca_cmp"]...), layers["csa_cmp"]...)
	slices.Sort(all)
	require.Equal(t, layers["ori"], all, "every layer, and two with nothing else")
}

// Behaviour 31: the two tensors of the index move as one.
func TestIndexMovesAsOne(t *testing.T) {
	for _, prompt := range []int{3, 33, 127, 128, 300} {
		chunks, err := pair(prompt).Chunks(adaptertest.Ends(prompt, 0, 128))
		require.NoError(t, err)
		for _, m := range chunks {
			sides := map[pd.ComponentID][]pd.Copy{}
			for _, cp := range m.Copies {
				id := cp.Component
				cp.Component = ""
				sides[id] = append(sides[id], cp)
			}
			require.Equal(t, sides["idx_k"], sides["idx_scale"])
		}
	}
}

// Behaviour 36: the final manifest carries what the plan was given, unchanged.
func TestFinalManifestCarriesTheContinuation(t *testing.T) {
	p := pair(33)
	p.Input.Fence = pd.Fence{Request: "r", Handoff: "h", Run: "run"}
	p.Input.FirstToken, p.Input.SourceSlot, p.Input.TargetSlot, p.Input.TargetGeneration = 77, 3, 5, 9
	chunks, err := p.Chunks([]int{32, 33})
	require.NoError(t, err)
	require.Nil(t, chunks[0].Bootstrap)
	require.Nil(t, chunks[0].FirstToken)
	require.Empty(t, chunks[0].MetadataHash+chunks[0].PreparedDigest)
	last := chunks[1]
	require.Equal(t, pd.BootstrapCopy{SourceSlot: 3, TargetSlot: 5, TargetGeneration: 9}, *last.Bootstrap)
	require.Equal(t, pd.Token(77), *last.FirstToken)
	require.Equal(t, []string{"m", "p"}, []string{last.MetadataHash, last.PreparedDigest})
	require.Equal(t, p.Input.Fence, last.Fence)
}

// Behaviour 163: the bootstrap slot is 3 MiB for every target rank, whatever the
// prompt and decode's hit.
func TestBootstrapIsWholeForEveryPrompt(t *testing.T) {
	for _, row := range []struct{ prompt, hit, tp int }{{1, 0, 4}, {127, 0, 4}, {128, 0, 1}, {129, 0, 4}, {256, 256, 4}, {256, 256, 1}} {
		s := adapter.Sizing{Topology: pd.Topology{Ranks: 16, TP: 4}, PoolTokens: 4096, StepTokens: 128, Sequences: 2}
		d := s
		d.Topology.TP = row.tp
		p := adaptertest.NewPair(dsv4.Full(), row.prompt, adaptertest.Side{Sizing: s}, adaptertest.Side{Sizing: d, Hit: row.hit})
		p.Input.TargetGeneration = 8
		chunks, err := p.Chunks(adaptertest.Ends(row.prompt, 0, 128))
		require.NoError(t, err)
		var got []pd.Unit
		for _, m := range chunks {
			for _, u := range m.Units {
				if u.Component == dsv4.Hidden {
					got = append(got, u)
				}
			}
		}
		require.Len(t, got, row.tp)
		for i, u := range got {
			require.Equal(t, pd.Unit{Target: pd.Rank(i), Component: dsv4.Hidden, Bytes: 3145728}, u)
		}
		require.Equal(t, pd.Generation(8), chunks[len(chunks)-1].Bootstrap.TargetGeneration, "decode's own generation")
	}
}

// Invariant I-19: a table of decode that names a page twice is
// refused before anything is offered.
func TestTargetPageNamedTwiceIsRefused(t *testing.T) {
	for _, table := range []pd.PageTable{{1, 1, 2}, {2, 1, 2}, {0, 1, 1}, {5, 4, 5}} {
		p := pair(300)
		p.Input.TargetTables[dsv4.CmpC4] = table
		_, err := p.Chunks([]int{300})
		require.ErrorIs(t, err, pd.CodeInvalidPlan)
		require.ErrorContains(t, err, "two logical pages have decode's page")
	}
}

func TestVerifyRefusesAnotherPreparedRequest(t *testing.T) {
	p := pair(200)
	chunks, err := p.Chunks([]int{200})
	require.NoError(t, err)
	chunks[0].PreparedDigest = "other"
	require.ErrorIs(t, adapter.Verify(p.Input, &chunks[0]), pd.CodeInvalidDigest)
}

func TestShortTablesAreRefused(t *testing.T) {
	for group, want := range map[pd.GroupName]string{
		dsv4.CmpC4:    "decode's table has 1 pages, page 2 needs slot 2",
		dsv4.Ori:      "decode's table has 1 pages, page 9 needs slot 8",
		dsv4.HCAState: "decode's table has 1 pages, page 37 needs slot 32",
	} {
		p := pair(300)
		p.Input.TargetTables[group] = p.Input.TargetTables[group][:1]
		_, err := p.Chunks([]int{300})
		require.ErrorContains(t, err, want)

		p = pair(300)
		table := p.Input.TargetTables[group]
		p.Input.TargetTables[group] = table[:len(table)-1]
		_, err = p.Chunks([]int{300})
		require.ErrorIs(t, err, pd.CodeInvalidPlan, "one page less than %d", len(table))
	}
	p := pair(300)
	p.Input.SourcePeriods = nil
	_, err := p.Chunks([]int{300})
	require.ErrorContains(t, err, "prefill's ring has 0 pages")
}

// Behaviour 34, and everything else that Build is given.
func TestInputsThatContradictEachOtherAreRefused(t *testing.T) {
	for want, change := range map[string]func(*adapter.Input){
		"is not inside a prompt of 300":             func(in *adapter.Input) { in.Span.End = 301 },
		"the first chunk starts at 1, want 0":       func(in *adapter.Input) { in.Span.Start = 1 },
		"has final=false":                           func(in *adapter.Input) { in.Final = false },
		"prefill hit -128: want a multiple of 128":  func(in *adapter.Input) { in.SourceHit = -128 },
		"decode hit 384: want a multiple of 128":    func(in *adapter.Input) { in.TargetHit = 384 },
		"source partition 4: the node has 4":        func(in *adapter.Input) { in.SourcePartition = 4 },
		"target partition -1: the node has 4":       func(in *adapter.Input) { in.TargetPartition = -1 },
		`rolling policy "x": want tail, checkpoint`: func(in *adapter.Input) { in.Contract.RollingPolicy = "x" },
		"prefill's table has 2 pages, page 2":       func(in *adapter.Input) { in.SourceTables[dsv4.Idx] = in.SourceTables[dsv4.Idx][:2] },
		"page -1 or 9 is negative": func(in *adapter.Input) {
			in.SourceTables[dsv4.Idx] = pd.PageTable{0, 1, -1}
			in.TargetTables[dsv4.Idx][2] = 9
		},
	} {
		t.Run(want, func(t *testing.T) {
			in := pair(300).At(0, pd.Span{Start: 0, End: 300})
			change(&in)
			_, err := adapter.Build(in)
			require.ErrorIs(t, err, pd.CodeInvalidPlan)
			require.ErrorContains(t, err, want)
		})
	}
}

// Behaviour 105: what belongs to the final chunk is refused in any other.
func TestVerifyRefusesInEarlierChunks(t *testing.T) {
	for name, change := range map[string]func(*pd.Manifest){
		"a partial page": func(m *pd.Manifest) { m.Copies[0].ValidRows-- },
		"a final-only component": func(m *pd.Manifest) {
			m.Copies = append(m.Copies, pd.Copy{Component: "hca_state", Count: 1, ValidRows: 8})
		},
		"a final-only unit":   func(m *pd.Manifest) { m.Units = append(m.Units, pd.Unit{Component: "hca_state"}) },
		"a bootstrap":         func(m *pd.Manifest) { m.Bootstrap = &pd.BootstrapCopy{} },
		"a first token":       func(m *pd.Manifest) { m.FirstToken = new(pd.Token) },
		"a metadata hash":     func(m *pd.Manifest) { m.MetadataHash = "m" },
		"a claim to be final": func(m *pd.Manifest) { m.Final, m.Bootstrap, m.FirstToken = true, &pd.BootstrapCopy{}, new(pd.Token) },
	} {
		t.Run(name, func(t *testing.T) {
			p := pair(200)
			chunks, err := p.Chunks([]int{128, 200})
			require.NoError(t, err)
			require.NoError(t, adapter.Verify(p.Input, &chunks[0]))
			change(&chunks[0])
			require.ErrorIs(t, adapter.Verify(p.Input, &chunks[0]), pd.CodeInvalidPlan)
		})
	}
}
