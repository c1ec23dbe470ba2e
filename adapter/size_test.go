package adapter_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
)

const gib = int64(1) << 30

func sizing() adapter.Sizing {
	return adapter.Sizing{Topology: pd.Topology{Ranks: 16, TP: 4}, StepTokens: 128, Sequences: 16, Checkpoints: 16}
}

// What every part of an arena is for, in pages per layer.
func TestPagesOfAGroup(t *testing.T) {
	c := dsv4.Full().Contract("r", "simulator")
	s := sizing()
	s.PoolTokens = 1000
	for name, want := range map[pd.GroupName]adapter.GroupPages{
		dsv4.CmpC4:    {History: 8, Filler: 64},
		dsv4.Ori:      {Rings: 16 * 9, Replacement: 16 * 2 * 5, Checkpoints: 16 * 4, Filler: 64},
		dsv4.HCAState: {Rings: 16 * 33, Replacement: 16 * 2 * 17, Checkpoints: 16 * 16, Filler: 64},
		dsv4.CSAState: {Rings: 16 * 69, Replacement: 16 * 2 * 65, Checkpoints: 16 * 4, Filler: 64},
	} {
		g, ok := c.Group(name)
		require.True(t, ok)
		require.Equal(t, want, s.Pages(g), name)
		require.Equal(t, want.Total(), adapter.LayoutFor(&c, s).PagesPerLayer[name])
		require.Equal(t, want.Total()-want.Filler, adapter.LayoutFor(&c, s).PoolPages(name))
	}
}

func TestSizeWithinABudget(t *testing.T) {
	c := dsv4.Full().Contract("r", "simulator")
	for _, row := range []struct {
		name        string
		change      func(*adapter.Sizing)
		memory      []int64
		utilization float64
		max         int
		tokens      int // per partition; of 128 each
	}{
		{"the reference launch on 32 GiB", func(*adapter.Sizing) {}, []int64{32 * gib}, 0.9, 655360, 4474368},
		{"everything of it", func(*adapter.Sizing) {}, []int64{32 * gib}, 1, 655360, 5025536},
		{"the tightest of 16 ranks decides", func(*adapter.Sizing) {}, append(every(15, 64*gib), 32*gib), 0.9, 655360, 4474368},
		{"rings of long steps", func(s *adapter.Sizing) { s.StepTokens, s.Sequences = 8192, 2 }, []int64{32 * gib}, 0.9, 655360, 2183680},
		{"no checkpoints", func(s *adapter.Sizing) { s.Checkpoints = 0 }, []int64{32 * gib}, 0.9, 655360, 4519936},
		{"an arena has an end", func(*adapter.Sizing) {}, []int64{4096 * gib}, 0.9, 655360, (pd.MaxArenaPages - 64) * 128},
	} {
		t.Run(row.name, func(t *testing.T) {
			s := sizing()
			row.change(&s)
			got, err := adapter.SizeWithin(&c, s, adapter.Budget{RankBytes: row.memory, Utilization: row.utilization, MaxTokens: row.max})
			require.NoError(t, err)
			require.Equal(t, row.tokens, got.PoolTokens)
			require.Equal(t, adapter.LayoutFor(&c, s).RingPeriods, adapter.LayoutFor(&c, got).RingPeriods, "memory does not change rings")
			allowed := int64(float64(slices.Min(row.memory)) * row.utilization)
			require.LessOrEqual(t, adapter.LayoutFor(&c, got).RankBytes(&c), allowed)
			got.PoolTokens += 128
			more := adapter.LayoutFor(&c, got)
			require.True(t, more.RankBytes(&c) > allowed || more.PagesPerLayer[dsv4.CmpC4] > pd.MaxArenaPages, "one page more would not fit")
		})
	}
}

// every is the memory of ranks that have the same.
func every(ranks int, n int64) []int64 {
	out := make([]int64, ranks)
	for i := range out {
		out[i] = n
	}
	return out
}

// One request fits exactly, and one byte less is refused with what to do.
func TestOneRequestMustFit(t *testing.T) {
	c := dsv4.Full().Contract("r", "simulator")
	s := sizing()
	s.PoolTokens = 655360
	need := adapter.LayoutFor(&c, s).RankBytes(&c)
	got, err := adapter.SizeWithin(&c, sizing(), adapter.Budget{RankBytes: []int64{need}, Utilization: 1, MaxTokens: 655360})
	require.NoError(t, err)
	require.GreaterOrEqual(t, got.PoolTokens, 655360)
	_, err = adapter.SizeWithin(&c, sizing(), adapter.Budget{RankBytes: []int64{need - 1}, Utilization: 1, MaxTokens: 655360})
	require.ErrorIs(t, err, pd.CodeCapacityExhausted)
	require.ErrorContains(t, err, fmt.Sprintf("one request of 655360 tokens needs %d bytes", need))
	require.ErrorContains(t, err, fmt.Sprintf("every rank has %d x 1: give more memory, or allow shorter requests, fewer sequences or shorter steps", need-1))
	ranks := every(16, 2*need)
	ranks[5] = need - 1
	_, err = adapter.SizeWithin(&c, sizing(), adapter.Budget{RankBytes: ranks, Utilization: 1, MaxTokens: 655360})
	require.ErrorContains(t, err, "rank 5, the tightest, has")
}

func TestBudgetsThatMakeNoSenseAreRefused(t *testing.T) {
	c := dsv4.Full().Contract("r", "simulator")
	for want, change := range map[string]func(*adapter.Sizing, *adapter.Budget){
		"memory of 2 ranks, want 1 or 16":         func(_ *adapter.Sizing, b *adapter.Budget) { b.RankBytes = []int64{gib, gib} },
		"memory of 0 ranks, want 1 or 16":         func(_ *adapter.Sizing, b *adapter.Budget) { b.RankBytes = nil },
		"rank 0 has 0 bytes":                      func(_ *adapter.Sizing, b *adapter.Budget) { b.RankBytes = []int64{0} },
		"utilization 0, want more than 0":         func(_ *adapter.Sizing, b *adapter.Budget) { b.Utilization = 0 },
		"utilization 1.5, want more than 0":       func(_ *adapter.Sizing, b *adapter.Budget) { b.Utilization = 1.5 },
		"0 sequences, want 1..4096":               func(s *adapter.Sizing, _ *adapter.Budget) { s.Sequences = 0 },
		"steps of 0 tokens, want 1..655360":       func(s *adapter.Sizing, _ *adapter.Budget) { s.StepTokens = 0 },
		"-1 checkpoints, want 0..1048576":         func(s *adapter.Sizing, _ *adapter.Budget) { s.Checkpoints = -1 },
		"requests of 655361 tokens, want 1..":     func(_ *adapter.Sizing, b *adapter.Budget) { b.MaxTokens = 655361 },
		"tp 3 does not divide 16 ranks":           func(s *adapter.Sizing, _ *adapter.Budget) { s.Topology.TP = 3 },
		"an arena has at most 1048576: allow few": func(s *adapter.Sizing, _ *adapter.Budget) { s.Sequences, s.StepTokens = 4096, 8192 },
	} {
		t.Run(want, func(t *testing.T) {
			s, b := sizing(), adapter.Budget{RankBytes: []int64{32 * gib}, Utilization: 0.9, MaxTokens: 655360}
			change(&s, &b)
			_, err := adapter.SizeWithin(&c, s, b)
			require.ErrorContains(t, err, want)
		})
	}
}
