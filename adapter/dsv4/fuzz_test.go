package dsv4_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// targetPages are what a manifest writes.
func targetPages(copies []pd.Copy) map[pd.ComponentID]map[pd.Page]bool {
	out := map[pd.ComponentID]map[pd.Page]bool{}
	for _, cp := range copies {
		for k := range pd.Page(cp.Count) {
			if out[cp.Component] == nil {
				out[cp.Component] = map[pd.Page]bool{}
			}
			out[cp.Component][cp.Target+k] = true
		}
	}
	return out
}

// FuzzVerify: whatever a peer offers, decode plans its own and accepts no other
// target pages. One copy of an honest offer and its frame are replaced.
func FuzzVerify(f *testing.F) {
	f.Add(0, 0, 200, true, 0, 1, "ori", int32(0), int32(0), 6, 32)
	f.Add(0, 0, 200, true, 0, 1, "ori", int32(6), int32(6), 1, 8)
	f.Add(1, 128, 200, true, 128, 0, "csa_cmp", int32(1), int32(1), 1<<40, 18)
	f.Add(0, 0, 128, false, -128, -1, "", int32(-1), int32(1<<31-1), 0, -1)
	p := pair(200)
	f.Fuzz(func(t *testing.T, chunk, start, end int, final bool, hit, partition int, component string, source, target int32, count, rows int) {
		chunks, err := p.Chunks([]int{128, 200})
		require.NoError(t, err)
		m := chunks[0]
		if final {
			m = chunks[1]
		}
		m.Chunk, m.Span, m.Final = pd.ChunkID(chunk), pd.Span{Start: start, End: end}, final
		m.SourceHitTokens, m.SourcePartition = hit, pd.Partition(partition)
		m.Copies[(end%len(m.Copies)+len(m.Copies))%len(m.Copies)] = pd.Copy{
			Component: pd.ComponentID(component), Source: pd.Page(source), Target: pd.Page(target), Count: count, ValidRows: rows,
		}
		if adapter.Verify(p.Input, &m) != nil {
			return
		}
		in := p.At(chunk, m.Span)
		in.SourcePartition, in.SourceHit = m.SourcePartition, hit
		want, err := adapter.Build(in)
		require.NoError(t, err)
		require.Equal(t, want.Units, m.Units)
		require.Equal(t, want.RankMap, m.RankMap)
		require.Equal(t, targetPages(want.Copies), targetPages(m.Copies), "the source pages are prefill's choice, the target pages are not")
	})
}
