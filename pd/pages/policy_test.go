package pages_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
)

// receive takes a prompt in as decode does: it plans every chunk with the
// granted tables and publishes the union of what moved.
func receive(t *testing.T, a *pages.Allocator, c *pd.Contract, l adapter.Layout, h pd.HandoffID, prompt, sourceHit int, ends []int) pages.Grant {
	tokens := make([]pd.Token, prompt)
	for i := range tokens {
		tokens[i] = pd.Token(i)
	}
	g, err := a.Open(pages.Demand{
		Owner: h, Tokens: prompt, Prefix: adapter.PrefixHashes(c, "digest", tokens), HitLimit: dsv4.Tiny().TargetHitLimit(prompt), Receiving: true,
	})
	require.NoError(t, err)
	known := map[pd.GroupName][]pd.Span{}
	start := 0
	for i, end := range ends {
		in := adapter.Input{
			Contract: c, PromptTokens: prompt, Chunk: pd.ChunkID(i), Span: pd.Span{Start: start, End: end}, Final: end == prompt,
			Source: l.Topology, SourceTables: adapter.Tables{}, SourcePeriods: l.RingPeriods, SourceHit: sourceHit,
			Target: l.Topology, TargetTables: g.Tables, TargetPeriods: l.RingPeriods, TargetHit: g.HitTokens,
		}
		for _, group := range c.Groups {
			n := group.Pages(end)
			if group.Kind != pd.Full {
				n = min(n, l.RingPeriods[group.Name])
			}
			for page := range pd.Page(n) {
				in.SourceTables[group.Name] = append(in.SourceTables[group.Name], page)
			}
		}
		m, err := adapter.Build(in)
		require.NoError(t, err)
		for _, cp := range m.Copies {
			comp, _ := c.Component(cp.Component)
			for _, shared := range g.Shared[comp.Group] {
				require.False(t, shared >= cp.Target && shared < cp.Target+pd.Page(cp.Count), "Invariant I-16")
			}
		}
		for group, span := range adapter.Moved(in) {
			known[group] = append(known[group], span)
		}
		start = end
	}
	a.Publish(h, known)
	a.Received(h)
	a.Close(h)
	require.NoError(t, a.Check())
	return g
}

// decodePool is a decode node's cache under a rolling policy.
func decodePool(t *testing.T, policy string) (*pages.Allocator, *pd.Contract, adapter.Layout) {
	a, err := adapter.WithPolicy(dsv4.Tiny(), policy)
	require.NoError(t, err)
	c := a.Contract("revision", "simulator")
	l := adapter.LayoutFor(&c, adapter.Sizing{Topology: pd.Topology{Ranks: 4, TP: 4}, PoolTokens: 8192, StepTokens: 1024, Sequences: 4})
	cfg := pages.Config{Groups: c.Groups, Partitions: 1, PoolPages: map[pd.GroupName]int{}, RingPeriods: l.RingPeriods, AlignmentTokens: c.AlignmentTokens, Slots: 4}
	for _, g := range c.Groups {
		cfg.PoolPages[g.Name] = l.PoolPages(g.Name)
	}
	return pages.New(cfg), &c, l
}

// Which shorter prompts decode finds again is the rolling policy's choice.
func TestShorterPromptsAreFoundWhereTheirWindowMoved(t *testing.T) {
	for _, row := range []struct {
		policy    string
		sourceHit int
		ends      []int
		// found is the hit of a second prompt that shares so many tokens.
		found map[int]int
	}{
		{adapter.RollingTail, 0, []int{256, 512, 640}, map[int]int{640: 640, 639: 0, 512: 0, 300: 0}},
		{adapter.RollingCheckpoint, 0, []int{256, 512, 640}, map[int]int{640: 640, 639: 512, 512: 512, 511: 256, 300: 256, 255: 0}},
		{adapter.RollingCheckpoint, 0, []int{1, 127, 129, 400, 640}, map[int]int{640: 640, 639: 384, 383: 128, 127: 0}},
		{adapter.RollingAll, 0, []int{256, 512, 640}, map[int]int{640: 640, 639: 512, 511: 384, 383: 256, 255: 128, 127: 0}},
		// Behaviour 59: prefill had 512 tokens and no rolling page before 384.
		{adapter.RollingAll, 512, []int{640}, map[int]int{640: 640, 639: 512, 511: 0, 383: 0}},
	} {
		for shared, want := range row.found {
			pool, c, l := decodePool(t, row.policy)
			require.Zero(t, receive(t, pool, c, l, "first", 640, row.sourceHit, row.ends).HitTokens)
			second := receive(t, pool, c, l, "second", shared, 0, []int{shared})
			require.Equal(t, want, second.HitTokens, "%s, chunks to %v, hit of prefill %d: a prompt of %d tokens", row.policy, row.ends, row.sourceHit, shared)
		}
	}
}

// The same prompt, prefill and decode with hits of their own: what decode got
// once, it finds from then on.
func TestHitsOfBothSidesAddUp(t *testing.T) {
	for _, policy := range adapter.RollingPolicies() {
		for _, sourceHit := range []int{0, 128, 256, 512} {
			pool, c, l := decodePool(t, policy)
			require.Zero(t, receive(t, pool, c, l, "128", 128, 0, []int{128}).HitTokens)
			require.Equal(t, 128, receive(t, pool, c, l, "640", 640, sourceHit, []int{640}).HitTokens)
			require.Equal(t, 640, receive(t, pool, c, l, "again", 641, sourceHit, []int{641}).HitTokens)
			require.Equal(t, 640, receive(t, pool, c, l, "longer", 1100, 0, []int{700, 1100}).HitTokens)
			require.Equal(t, 1024, receive(t, pool, c, l, "longest", 1100, 896, []int{1100}).HitTokens, "the last boundary of 1100")
		}
	}
}
