package conformance

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// TestSessionsOfRealModelsFit: the bounds of the wire leave room for every
// geometry that an adapter has, on the largest node.
func TestSessionsOfRealModelsFit(t *testing.T) {
	for name, geometry := range map[string]dsv4.Geometry{"full": dsv4.Full(), "tiny": dsv4.Tiny()} {
		t.Run(name, func(t *testing.T) {
			c := geometry.Contract(strings.Repeat("0", 64), "simulator")
			layout := adapter.LayoutFor(&c, adapter.Sizing{
				Topology: pd.Topology{Ranks: pd.MaxRanks, TP: 1}, PoolTokens: 16 * pd.MaxModelTokens, StepTokens: 8192, Sequences: 16,
			})
			s := wire.Session{
				ProtocolVersion: 2, Role: pd.Decode, Peer: fence.Decode, Run: fence.Run, Nonce: strings.Repeat("0", 32),
				Contract: c, ContractDigest: must(wire.ContractDigest(&c)),
				Registry: pd.Registry{
					Topology: layout.Topology, PagesPerLayer: layout.PagesPerLayer, RingPeriods: layout.RingPeriods,
					BootstrapSlots: layout.BootstrapSlots, Build: "simulator/1",
				},
			}
			for rank := range pd.Rank(pd.MaxRanks) {
				r := pd.RankRegistration{Rank: rank, Epoch: 1, Endpoint: "10.0.0.1:15000"}
				for _, k := range c.Components {
					g, ok := c.Group(k.Group)
					require.True(t, ok)
					r.Regions = append(r.Regions, pd.Region{Component: k.ID, Bytes: c.RegionBytes(k, layout.PagesPerLayer[g.Name]), Envelope: fmt.Sprint(k.ID)})
				}
				r.Regions = append(r.Regions, pd.Region{Component: c.Bootstrap.Component, Bytes: int64(layout.BootstrapSlots * c.Bootstrap.SlotBytes()), Envelope: "b"})
				s.Registry.Ranks = append(s.Registry.Ranks, r)
			}
			b, err := wire.Encode(&s)
			require.NoError(t, err)
			_, err = wire.Decode[wire.Session](b)
			require.NoError(t, err)
		})
	}
}
