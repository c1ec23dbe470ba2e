package e2e

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// The regions whose bytes move: the eight of the cache and the hidden states.
var (
	historyRegions = []pd.ComponentID{"hca_cmp", "csa_cmp", "idx_k", "idx_scale"}
	allRegions     = append([]pd.ComponentID{"ori", "hca_state", "csa_state", "csa_inner_state", "dspark_hidden"}, historyRegions...)
)

// One wrong byte of a row that decode reads shows, in whatever region it is: the
// text is another one, or the request fails explicitly. With a prompt of 128
// tokens decode reads every row that moves; with 256, every history row of the
// first of two chunks.
func TestOneFlippedByteShows(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name    string
		dLayout string
		tokens  int
		regions []pd.ComponentID
		// batches is how many batches of one request hold each region: one per
		// chunk and target rank; hit is how many of them get the wrong byte.
		batches, hit int
		offset       int64
		fails        bool
	}{
		{name: "one replica", dLayout: "dp4tp1", tokens: 128, regions: allRegions, batches: 1, hit: 1},
		{name: "one replica, another row", dLayout: "dp4tp1", tokens: 128, regions: allRegions, batches: 1, hit: 1, offset: 63},
		{name: "all replicas", dLayout: "dp2tp4", tokens: 128, regions: allRegions, batches: 4, hit: 4},
		{name: "one of four replicas", dLayout: "dp2tp4", tokens: 128, regions: allRegions, batches: 4, hit: 1, fails: true},
		{name: "an earlier chunk", dLayout: "dp4tp1", tokens: 256, regions: historyRegions, batches: 2, hit: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var faults []simulator.Fault
			for i, region := range c.regions {
				faults = append(faults, simulator.Fault{
					Kind: simulator.FlippedByte, Component: region, Offset: c.offset, Nth: c.batches*(i+1) + 1, Times: c.hit,
				})
			}
			combined := cluster.SharedCombined(t)
			pair := cluster.Start(t, cluster.Options{PLayout: "dp2tp4", DLayout: c.dLayout, PrefillFaults: faults})
			ask := func(number int) (want string, got cluster.Answer) {
				t.Helper()
				q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprintf("%s %d ", c.name, number), c.tokens), Max: 12, Stream: number%2 == 0}
				got, err := cluster.Complete(t.Context(), pair.URL, q)
				require.NoError(t, err)
				return combined.Text(t, q), got
			}
			clean := func(number int) {
				t.Helper()
				want, got := ask(number)
				require.Equal(t, 200, got.Status, "%s", got.Raw)
				require.Equal(t, want, got.Text)
			}
			clean(0)
			for i, region := range c.regions {
				want, got := ask(i + 1)
				if c.fails {
					require.NotNil(t, got.Failure, "%s: %s", region, got.Raw)
					require.Equal(t, "integrity", got.Failure.Code, region)
					require.Empty(t, got.Finish)
				} else {
					require.Nil(t, got.Failure, "%s: %s", region, got.Raw)
					require.NotEqual(t, want, got.Text, "nobody saw the wrong byte in %s", region)
				}
				pair.AssertIdle(t)
			}
			clean(len(c.regions) + 1)
			pair.AssertIdle(t)
		})
	}
}
