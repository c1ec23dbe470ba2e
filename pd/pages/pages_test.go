package pages_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
)

var groups = []pd.CacheGroup{
	{Name: "full", Kind: pd.Full, PageTokens: 4},
	{Name: "ring", Kind: pd.Rolling, PageTokens: 2, WindowTokens: 4},
}

func config(full, ring int) pages.Config {
	return pages.Config{
		Groups: groups, Partitions: 2,
		PoolPages:   map[pd.GroupName]int{"full": full, "ring": ring},
		RingPeriods: map[pd.GroupName]int{"ring": 4},
		Slots:       2,
	}
}

func open(t *testing.T, a *pages.Allocator, h pd.HandoffID, tokens int) pages.Grant {
	t.Helper()
	g, err := a.Open(pages.Demand{Owner: h, Tokens: tokens})
	require.NoError(t, err)
	require.NoError(t, a.Check())
	return g
}

func TestOpenSpreadsOverPartitions(t *testing.T) {
	a := pages.New(config(8, 8))
	require.Equal(t, pd.Partition(0), open(t, a, "a", 8).Partition)
	require.Equal(t, pd.Partition(1), open(t, a, "b", 8).Partition)
	a.Close("b")
	require.Equal(t, pd.Partition(1), open(t, a, "c", 8).Partition, "fewest owners first")
}

func TestRefusalNamesGroupsAndChangesNothing(t *testing.T) {
	a := pages.New(config(3, 3))
	before := a.Usage()
	_, err := a.Open(pages.Demand{Owner: "a", Tokens: 16})
	require.ErrorIs(t, err, pd.CodeCapacityExhausted)
	require.ErrorContains(t, err, "full: need 4, free 3; ring: need 4, free 3")
	require.Equal(t, before, a.Usage())
	require.NoError(t, a.Check())
}

func TestGenerationRisesWithEveryUseOfASlot(t *testing.T) {
	cfg := config(8, 8)
	cfg.Partitions, cfg.Slots = 1, 1
	a := pages.New(cfg)
	first := open(t, a, "a", 1)
	_, err := a.Open(pages.Demand{Owner: "b", Tokens: 1})
	require.ErrorIs(t, err, pd.CodeBootstrapExhausted)
	a.Close("a")
	second := open(t, a, "b", 1)
	require.Equal(t, first.Slot, second.Slot)
	require.Equal(t, first.Generation+1, second.Generation)
}

// Behaviour 85: a snapshot is a copy and never changes.
func TestRingIsWrittenInPlaceUnlessPinned(t *testing.T) {
	a := pages.New(config(8, 8))
	open(t, a, "a", 8)
	before := a.Tables("a")["ring"]
	require.NoError(t, a.Grow("a", 10))
	require.Equal(t, before, a.Tables("a")["ring"], "nobody else holds the page")

	snapshot, err := a.Pin(pages.PinKey{Owner: "a", Chunk: 0})
	require.NoError(t, err)
	require.NoError(t, a.Grow("a", 12))
	after := a.Tables("a")["ring"]
	require.NotEqual(t, before[1], after[1], "the pinned page was detached")
	require.Equal(t, before[1], snapshot.Tables["ring"][1], "the snapshot keeps it")
	require.NoError(t, a.Check())

	a.Close("a")
	require.NoError(t, a.Check())
	require.Equal(t, 4, a.Usage()["ring"].Held, "the pin outlives the owner")
	a.Unpin(pages.PinKey{Owner: "a", Chunk: 0})
	require.NoError(t, a.Check())
	require.Zero(t, a.Usage()["ring"].Held)
}

func TestGrowIsAllOrNothing(t *testing.T) {
	a := pages.New(config(2, 8))
	open(t, a, "a", 8)
	before := a.Tables("a")
	require.ErrorIs(t, a.Grow("a", 12), pd.CodeCapacityExhausted)
	require.Equal(t, before, a.Tables("a"))
	require.NoError(t, a.Check())
}

func TestReceivingTakesAtMostItsShare(t *testing.T) {
	cfg := config(8, 100)
	cfg.Partitions = 1
	a := pages.New(cfg)
	_, err := a.Open(pages.Demand{Owner: "a", Tokens: 12, Receiving: true})
	require.NoError(t, err)
	_, err = a.Open(pages.Demand{Owner: "b", Tokens: 8, Receiving: true})
	require.ErrorContains(t, err, "full: need 2, receiving 3 of 4")
	a.Received("a")
	_, err = a.Open(pages.Demand{Owner: "b", Tokens: 8, Receiving: true})
	require.NoError(t, err)
}

// Invariant I-05 under random use: nothing is lost and nothing is held twice.
func TestRandomUseConservesCapacity(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		freed := 0
		cfg := config(10, 14)
		cfg.OnFree = func(pd.Partition, pd.GroupName, pd.Page) { freed++ }
		a := pages.New(cfg)
		tokens := map[pd.HandoffID]int{}
		pins := map[pages.PinKey]bool{}
		any := func(name string) pd.HandoffID {
			return pd.HandoffID(fmt.Sprint(rapid.IntRange(0, 4).Draw(t, name)))
		}
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				h, n := any("owner"), rapid.IntRange(0, 20).Draw(t, "tokens")
				if _, err := a.Open(pages.Demand{Owner: h, Tokens: n, Receiving: rapid.Bool().Draw(t, "receiving")}); err == nil {
					tokens[h] = n
				}
			},
			"grow": func(t *rapid.T) {
				h := any("owner")
				if _, ok := tokens[h]; !ok {
					t.Skip("no owner")
				}
				n := tokens[h] + rapid.IntRange(0, 12).Draw(t, "more")
				if a.Grow(h, n) == nil {
					tokens[h] = n
					require.Len(t, a.Tables(h)["full"], groups[0].Pages(n))
					require.Len(t, a.Tables(h)["ring"], min(4, groups[1].Pages(n)))
				}
			},
			"close": func(t *rapid.T) {
				if h := any("owner"); tokens[h] > 0 {
					a.Close(h)
					delete(tokens, h)
				}
			},
			"pin": func(t *rapid.T) {
				key := pages.PinKey{Owner: any("owner"), Chunk: pd.ChunkID(rapid.IntRange(0, 2).Draw(t, "chunk"))}
				if _, err := a.Pin(key); err == nil {
					pins[key] = true
				}
			},
			"unpin": func(t *rapid.T) {
				key := pages.PinKey{Owner: any("owner"), Chunk: pd.ChunkID(rapid.IntRange(0, 2).Draw(t, "chunk"))}
				if pins[key] {
					a.Unpin(key)
					delete(pins, key)
				}
			},
			"": func(t *rapid.T) { require.NoError(t, a.Check()) },
		})
	})
}
