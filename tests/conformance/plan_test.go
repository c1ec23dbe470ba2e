package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/adaptertest"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// longest is a fence in which every id is as long as it may be.
func longest() pd.Fence {
	id, other := strings.Repeat("x", pd.MaxIDBytes), strings.Repeat("y", pd.MaxIDBytes)
	boot := pd.BootID(strings.Repeat("f", 32))
	return pd.Fence{
		Request: pd.RequestID(id), Handoff: pd.HandoffID(strings.Repeat("f", 32)), Run: pd.RunID(id),
		Prefill: pd.Peer{Node: pd.NodeID(id), Boot: boot}, Decode: pd.Peer{Node: pd.NodeID(other), Boot: boot},
	}
}

// worstChunk is the largest manifest that a pair can plan: the longest prompt in
// one chunk, in rings so long that every page of it moves, no two pages
// neighbours on either side, ids with the most digits, and one partition of as
// many ranks as a node can have.
func worstChunk(t *testing.T, a adapter.Adapter) (adapter.Input, pd.Manifest) {
	apart := func(_ pd.CacheGroup, slot int) pd.Page { return pd.Page(pd.MaxArenaPages - 1 - 3*slot) }
	s := adapter.Sizing{
		Topology: pd.Topology{Ranks: pd.MaxRanks, TP: pd.MaxRanks}, PoolTokens: pd.MaxPromptTokens, StepTokens: pd.MaxPromptTokens, Sequences: 1,
	}
	p := adaptertest.NewPair(a, pd.MaxPromptTokens, adaptertest.Side{Sizing: s, Page: apart}, adaptertest.Side{Sizing: s, Page: apart})
	in := p.At(0, pd.Span{Start: 0, End: pd.MaxPromptTokens})
	in.Fence, in.FirstToken = longest(), 1<<31-1
	in.SourceSlot, in.TargetSlot, in.TargetGeneration = pd.MaxCapacity-1, pd.MaxCapacity-1, 1<<62
	in.MetadataHash, in.PreparedDigest = strings.Repeat("f", 64), strings.Repeat("f", 64)
	m, err := adapter.Build(in)
	require.NoError(t, err)
	return in, m
}

// TestNoChunkOutgrowsItsMessage: whatever prefill computes at once can be
// offered in one message, so a chunk is never split (docs/adr/0002).
func TestNoChunkOutgrowsItsMessage(t *testing.T) {
	for name, geometry := range map[string]dsv4.Geometry{"full": dsv4.Full(), "tiny": dsv4.Tiny()} {
		for _, policy := range adapter.RollingPolicies() {
			t.Run(name+" "+policy, func(t *testing.T) {
				a, err := adapter.WithPolicy(geometry, policy)
				require.NoError(t, err)
				in, m := worstChunk(t, a)
				hash, err := wire.ManifestHash(&m)
				require.NoError(t, err)
				b, err := wire.Encode(&wire.Chunk{Manifest: m, ManifestHash: hash})
				require.NoError(t, err)
				t.Logf("%d copies, %d units, %d bytes: %.1f %% of the bound", len(m.Copies), len(m.Units), len(b), 100*float64(len(b))/pd.MaxControlBytes)
				require.LessOrEqual(t, len(b), pd.MaxControlBytes/2, "with room to spare")
				require.LessOrEqual(t, len(m.Copies), pd.MaxCopies)
				chunk, err := wire.Decode[wire.Chunk](b)
				require.NoError(t, err)
				in.SourceTables = nil
				require.NoError(t, adapter.Verify(in, &chunk.Manifest))
				if policy == adapter.RollingAll {
					ori, windows := pd.MaxPromptTokens/32, 16+4+4
					require.Len(t, m.Copies, 4*pd.MaxPromptTokens/128+ori+windows, "every page of every component is a copy of its own")
				}
			})
		}
	}
}

// TestNoGrantOutgrowsItsMessage: so does decode's answer to a reservation, with
// tables as long as the wire takes them.
func TestNoGrantOutgrowsItsMessage(t *testing.T) {
	c := dsv4.Full().Contract("r", "simulator")
	r := wire.Reserved{
		Reservation: pd.ReservationID(strings.Repeat("x", pd.MaxIDBytes)), Partition: pd.MaxRanks - 1, Tables: map[pd.GroupName][]pd.PageRun{},
		HitTokens: pd.MaxPromptTokens, BootstrapSlot: pd.MaxCapacity - 1, Generation: 1 << 62,
	}
	for _, g := range c.Groups {
		for slot := range min(g.Pages(pd.MaxPromptTokens), pd.MaxTablePages) {
			r.Tables[g.Name] = append(r.Tables[g.Name], pd.PageRun{First: pd.Page(pd.MaxArenaPages - 1 - 3*slot), Count: 1})
		}
	}
	b, err := wire.Encode(&r)
	require.NoError(t, err)
	require.LessOrEqual(t, len(b), pd.MaxControlBytes/2, fmt.Sprintf("%d bytes", len(b)))
	_, err = wire.Decode[wire.Reserved](b)
	require.NoError(t, err)
}
