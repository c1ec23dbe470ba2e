package pages_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
)

// A request that goes on behind a hit has ring slots for pages before the window
// of the hit. Nothing was written there, so they must not get a name, also when
// the page that had it has been evicted meanwhile.
func TestRingSlotsBehindAHitGetNoName(t *testing.T) {
	prefix := pd.PrefixHashes{4: hashes(12)}
	a := pages.New(pages.Config{
		Groups:     []pd.CacheGroup{{Name: "ring", Kind: pd.Rolling, PageTokens: 4, WindowTokens: 8}},
		Partitions: 1, PoolPages: map[pd.GroupName]int{"ring": 12}, RingPeriods: map[pd.GroupName]int{"ring": 6}, AlignmentTokens: 8, Slots: 4,
	})
	open := func(owner pd.HandoffID, limit int) pages.Grant {
		g, err := a.Open(pages.Demand{Owner: owner, Prefix: prefix, HitLimit: limit, Resume: true})
		require.NoError(t, err)
		return g
	}
	open("first", 0)
	require.NoError(t, a.Grow("first", 24))
	a.PublishComputed("first", 24)
	a.Close("first") // pages 0..5 of the prompt stand in the cache

	// Requests without names take the pages without a name, then those cached the
	// longest, and with them the names of the first pages of the prompt.
	_, err := a.Open(pages.Demand{Owner: "other", Tokens: 24})
	require.NoError(t, err)
	_, err = a.Open(pages.Demand{Owner: "another", Tokens: 16})
	require.NoError(t, err)
	a.Close("other")
	a.Close("another")

	require.Equal(t, 24, open("second", 24).HitTokens)
	require.NoError(t, a.Grow("second", 32))
	a.PublishComputed("second", 32)
	a.Close("second")

	require.Zero(t, open("third", 16).HitTokens, "pages 2 and 3 were evicted and never computed again")
	require.NoError(t, a.Check())
}

func hashes(n int) []pd.PageHash {
	out := make([]pd.PageHash, n)
	for i := range out {
		out[i][0] = byte(i + 1)
	}
	return out
}
