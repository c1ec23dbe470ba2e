package owner_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
)

// doneCounter answers one chunk at a time.
type doneCounter chan owner.ChunkSettled

func (doneCounter) UnitSettled(owner.UnitSettled)       {}
func (c doneCounter) ChunkSettled(e owner.ChunkSettled) { c <- e }
func (doneCounter) SourceFreed(owner.SourceFreed)       {}
func (doneCounter) HandoffStopped(owner.HandoffStopped) {}
func (doneCounter) OwnerLost(owner.OwnerLost)           {}

// benchmarkChunks moves whole chunks between two nodes of the given number of
// ranks, with two chunks on their way; one iteration is one chunk.
func benchmarkChunks(b *testing.B, ranks, pages int) {
	arena := map[pd.GroupName]int{"kv": pages, "win": pages}
	start := func(name pd.NodeID) (*owner.Group, *side, doneCounter) {
		o := sideOptions{name: name, topology: pd.Topology{Ranks: ranks, TP: ranks}, pages: arena}.withDefaults(b)
		done := make(doneCounter, 2)
		config := o.config(nil)
		config.Events = done
		g, err := open(b.Context(), config)
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, g.Close(context.Background())) })
		return g, &side{Group: g, peer: config.Peer, pages: arena}, done
	}
	from, fromSide, done := start("p0")
	_, to, _ := start("d0")
	require.NoError(b, from.Install(to.peer, to.Registry()))
	var copies []copyPages
	for i := range pages {
		// Targets in reverse: nothing can be joined.
		copies = append(copies, copyPages{"kv", i, pages - 1 - i}, copyPages{"win", i, pages - 1 - i})
	}
	segments, sums := chunkOf(fromSide, to, 0, copies...)
	var pairs []pd.RankPair
	for r := range pd.Rank(ranks) {
		pairs = append(pairs, pd.RankPair{Source: r, Target: r})
	}
	w := write("", 0, to, pairs, segments, sums)
	var bytes int64
	for _, u := range w.Units {
		bytes += u.Bytes
	}
	b.SetBytes(bytes)
	b.ReportAllocs()
	ready := func() {
		e := <-done
		requireAll(b, pd.Done, e)
		from.Forget(e.Handoff)
	}
	under := 0
	for b.Loop() {
		if under == 2 {
			ready()
			under--
		}
		w.Handoff = pd.NewHandoffID()
		require.NoError(b, from.Submit(w))
		under++
	}
	for ; under > 0; under-- {
		ready()
	}
	b.ReportMetric(float64(b.N)*float64(len(segments)*ranks)/b.Elapsed().Seconds(), "segments/s")
}

func BenchmarkChunk1Rank(b *testing.B)   { benchmarkChunks(b, 1, 512) }
func BenchmarkChunk4Ranks(b *testing.B)  { benchmarkChunks(b, 4, 512) }
func BenchmarkChunk16Ranks(b *testing.B) { benchmarkChunks(b, 16, 512) }
