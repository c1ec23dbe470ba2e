package pages_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
)

// cached is an allocator over three kinds of group with a boundary every 8
// tokens.
func cached(full, ring, states int) *pages.Allocator {
	return pages.New(pages.Config{
		Groups: []pd.CacheGroup{
			{Name: "full", Kind: pd.Full, PageTokens: 8},
			{Name: "ring", Kind: pd.Rolling, PageTokens: 4, WindowTokens: 8},
			{Name: "state", Kind: pd.FinalOnly, PageTokens: 2, WindowTokens: 4},
		},
		Partitions: 2, AlignmentTokens: 8, Slots: 4,
		PoolPages:   map[pd.GroupName]int{"full": full, "ring": ring, "state": states},
		RingPeriods: map[pd.GroupName]int{"ring": 5, "state": 9},
	})
}

// prefix names the pages of a prompt of n tokens that begins like every other
// prompt of the same seed.
func prefix(seed byte, n int) pd.PrefixHashes {
	out := pd.PrefixHashes{}
	for _, size := range []int{4, 8} {
		for i := range n / size {
			out[size] = append(out[size], pd.PageHash{seed, byte(size), byte(i)})
		}
	}
	return out
}

func demand(h pd.HandoffID, seed byte, n, limit int, resume bool) pages.Demand {
	d := pages.Demand{Owner: h, Tokens: n, Prefix: prefix(seed, n), HitLimit: limit, Resume: resume}
	if resume {
		d.Tokens = 0
	}
	return d
}

// received is what decode publishes of a whole prompt that it received.
func received(n int) map[pd.GroupName][]pd.Span {
	return map[pd.GroupName][]pd.Span{"full": {{End: n / 8}}, "ring": {{End: n / 4}}}
}

func mustOpen(t require.TestingT, a *pages.Allocator, d pages.Demand) pages.Grant {
	g, err := a.Open(d)
	require.NoError(t, err)
	require.NoError(t, a.Check())
	return g
}

// Behaviours 54 and 55.
func TestReceivedPagesAreFoundAgainAndShared(t *testing.T) {
	a := cached(20, 20, 30)
	first := mustOpen(t, a, demand("a", 1, 16, 16, false))
	require.Zero(t, first.HitTokens)
	a.Publish("a", received(16))
	second := mustOpen(t, a, demand("b", 1, 20, 16, false))
	require.Equal(t, 16, second.HitTokens)
	require.Equal(t, first.Partition, second.Partition, "the partition with the hit wins")
	require.Equal(t, first.Tables["full"][:2], second.Tables["full"][:2])
	require.Equal(t, first.Tables["ring"][2:4], second.Tables["ring"][2:4], "the window before the boundary")
	require.NotEqual(t, first.Tables["ring"][0], second.Tables["ring"][0], "older ring slots are fresh")
	require.Empty(t, second.Shared["state"], "states of a request are its own")
	for g, shared := range second.Shared {
		fresh := map[pd.Page]int{}
		for _, page := range second.Tables[g] {
			fresh[page]++
		}
		for _, page := range shared {
			require.Equal(t, 1, fresh[page], "a page stands in a table once")
		}
	}
	a.Close("a")
	a.Close("b")
	require.NoError(t, a.Check())
	require.Equal(t, 16, mustOpen(t, a, demand("c", 1, 16, 16, false)).HitTokens, "the cache outlives its owners")
	require.Zero(t, mustOpen(t, a, demand("d", 2, 16, 16, false)).HitTokens, "another prompt")
}

func TestHitIsTheLongestBoundaryWithItsWindow(t *testing.T) {
	a := cached(20, 20, 30)
	mustOpen(t, a, demand("a", 1, 24, 24, false))
	// Only the last window of the ring arrived, as under the tail policy.
	a.Publish("a", map[pd.GroupName][]pd.Span{"full": {{End: 3}}, "ring": {{Start: 4, End: 6}}})
	require.Equal(t, 24, mustOpen(t, a, demand("b", 1, 24, 24, false)).HitTokens)
	require.Zero(t, mustOpen(t, a, demand("c", 1, 24, 16, false)).HitTokens, "no window at 16")
}

// An engine that goes on behind a hit needs the states there, too.
func TestResumeNeedsTheStatesOfTheBoundary(t *testing.T) {
	a := cached(20, 30, 60)
	mustOpen(t, a, demand("a", 1, 24, 16, true))
	for _, end := range []int{8, 12, 24} {
		require.NoError(t, a.Grow("a", end))
		a.PublishComputed("a", end)
		require.NoError(t, a.Check())
	}
	require.Equal(t, 8, mustOpen(t, a, demand("b", 1, 24, 16, true)).HitTokens, "states were kept at 8 and 24, not at 16")
	g := mustOpen(t, a, demand("c", 1, 32, 24, true))
	require.Equal(t, 24, g.HitTokens)
	require.Len(t, g.Tables["full"], 3)
	require.Len(t, g.Shared["state"], 2)
}

// Invariant I-18: a ring slot whose page has a name is given up, not written.
func TestNamedRingPageIsDetachedBeforeItIsWritten(t *testing.T) {
	a := cached(20, 20, 30)
	mustOpen(t, a, demand("a", 1, 16, 8, false))
	a.Publish("a", received(16))
	before := a.Tables("a")["ring"]
	require.NoError(t, a.Grow("a", 24)) // period 5: page 5 comes round to slot 0
	require.NoError(t, a.Check())
	require.NotEqual(t, before[0], a.Tables("a")["ring"][0])
	require.Equal(t, 8, mustOpen(t, a, demand("b", 1, 16, 8, false)).HitTokens, "the page keeps its name in the cache")
}

func TestCachedPagesGoOldestFirstAndLoseTheirNames(t *testing.T) {
	var poisoned []pd.Page
	a := pages.New(pages.Config{
		Groups: []pd.CacheGroup{{Name: "full", Kind: pd.Full, PageTokens: 8}}, Partitions: 1, AlignmentTokens: 8, Slots: 4,
		PoolPages: map[pd.GroupName]int{"full": 4},
		OnFree:    func(_ pd.Partition, _ pd.GroupName, page pd.Page) { poisoned = append(poisoned, page) },
	})
	for h, seed := range map[pd.HandoffID]byte{"a": 1} {
		mustOpen(t, a, demand(h, seed, 16, 16, false))
		a.Publish(h, received(16))
		a.Close(h)
	}
	require.Empty(t, poisoned, "named pages keep their bytes")
	mustOpen(t, a, demand("b", 2, 16, 16, false))
	require.Empty(t, poisoned, "unnamed pages go first: they are free the longest")
	mustOpen(t, a, demand("c", 3, 8, 8, false))
	require.Equal(t, []pd.Page{0}, poisoned)
	require.Zero(t, mustOpen(t, a, demand("d", 1, 8, 8, false)).HitTokens, "the oldest name went")
}

// Behaviours 58 and 167: a hit without room behind it is tried once more cold,
// and a refusal changes nothing.
func TestHitWithoutRoomIsTriedOnceCold(t *testing.T) {
	a := cached(4, 20, 60)
	first := mustOpen(t, a, demand("a", 1, 16, 16, false))
	a.Publish("a", received(16))
	mustOpen(t, a, demand("b", 2, 16, 16, false)) // the other partition
	mustOpen(t, a, demand("c", 3, 16, 16, false)) // fills the first one
	a.Close("b")
	g := mustOpen(t, a, demand("d", 1, 32, 16, false))
	require.True(t, g.ColdRetry)
	require.Zero(t, g.HitTokens)
	require.NotEqual(t, first.Partition, g.Partition)
	before := a.Usage()
	_, err := a.Open(demand("e", 1, 32, 16, false))
	require.ErrorIs(t, err, pd.CodeCapacityExhausted)
	require.Equal(t, before, a.Usage(), "shared references are rolled back")
	require.NoError(t, a.Check())
	a.Close("d")
	require.Equal(t, 16, mustOpen(t, a, demand("f", 1, 16, 16, false)).HitTokens, "the cache is still there")
}

// Behaviour 57: quarantine keeps exactly the writable pages.
func TestQuarantineKeepsWritablePagesOnly(t *testing.T) {
	a := cached(20, 20, 30)
	mustOpen(t, a, demand("a", 1, 16, 16, false))
	a.Publish("a", received(16))
	a.Close("a")
	g := mustOpen(t, a, demand("b", 1, 20, 16, false))
	want := 0
	for name, table := range g.Tables {
		want += len(table) - len(g.Shared[name])
	}
	require.Equal(t, want, a.Quarantine("b"))
	require.NoError(t, a.Check())
	require.Equal(t, 16, mustOpen(t, a, demand("c", 1, 16, 16, false)).HitTokens, "healthy shared pages stay usable")
	a.Close("b")
	require.NoError(t, a.Check())
}

func TestQuarantineWithdrawsWhatWasPublished(t *testing.T) {
	a := cached(20, 20, 30)
	mustOpen(t, a, demand("a", 1, 16, 16, false))
	a.Publish("a", received(16))
	a.Quarantine("a")
	require.Zero(t, mustOpen(t, a, demand("b", 1, 16, 16, false)).HitTokens)
}

// Invariants I-05, I-17 and I-18 under random use: a page found by its name
// always holds what was published under it.
func TestRandomUseNeverMixesContents(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := cached(rapid.IntRange(6, 12).Draw(t, "full"), rapid.IntRange(10, 16).Draw(t, "ring"), rapid.IntRange(18, 30).Draw(t, "state"))
		// content[page] is what a writer last put there, per group and partition.
		type place struct {
			p pd.Partition
			g pd.GroupName
			n pd.Page
		}
		content := map[place]pd.PageHash{}
		type live struct {
			grant  pages.Grant
			seed   byte
			tokens int
		}
		owners := map[pd.HandoffID]live{}
		pick := func() pd.HandoffID { return pd.HandoffID(rune('a' + rapid.IntRange(0, 3).Draw(t, "owner"))) }
		t.Repeat(map[string]func(*rapid.T){
			"open, receive, publish": func(t *rapid.T) {
				h, seed := pick(), byte(rapid.IntRange(1, 3).Draw(t, "seed"))
				n := rapid.IntRange(1, 40).Draw(t, "tokens")
				g, err := a.Open(demand(h, seed, n, pd.FloorTo(n, 8), false))
				if err != nil {
					return
				}
				hashes := prefix(seed, n)
				for l := range n / 8 { // what the hit promises, and what is written
					at := place{g.Partition, "full", g.Tables["full"][l]}
					if l < g.HitTokens/8 {
						require.Equal(t, hashes[8][l], content[at], "full page %d of a hit", l)
					} else {
						content[at] = hashes[8][l]
					}
				}
				pages4 := (n + 3) / 4
				for l := max(0, pages4-5); l < pages4; l++ {
					at := place{g.Partition, "ring", g.Tables["ring"][l%5]}
					switch {
					case l*4 >= g.HitTokens-8 && (l+1)*4 <= g.HitTokens:
						require.Equal(t, hashes[4][l], content[at], "ring page %d of a hit", l)
					case l < n/4:
						content[at] = hashes[4][l]
					default:
						content[at] = pd.PageHash{}
					}
				}
				a.Publish(h, map[pd.GroupName][]pd.Span{"full": {{Start: g.HitTokens / 8, End: n / 8}}, "ring": {{Start: max(g.HitTokens/4, pages4-5, 0), End: n / 4}}})
				owners[h] = live{g, seed, n}
			},
			"grow": func(t *rapid.T) {
				h := pick()
				o, ok := owners[h]
				if !ok {
					return
				}
				n := o.tokens + rapid.IntRange(1, 6).Draw(t, "more")
				before := a.Tables(h)
				if a.Grow(h, n) != nil {
					return
				}
				after := a.Tables(h)
				for _, g := range []struct {
					name pd.GroupName
					size int
				}{{"full", 8}, {"ring", 4}} {
					for l := (o.tokens + g.size - 1) / g.size; l < (n+g.size-1)/g.size; l++ {
						slot := l
						if g.name == "ring" {
							slot = l % 5
						}
						content[place{o.grant.Partition, g.name, after[g.name][slot]}] = pd.PageHash{} // written anew
					}
				}
				require.GreaterOrEqual(t, len(after["full"]), len(before["full"]))
				o.tokens = n
				owners[h] = o
			},
			"close": func(t *rapid.T) {
				if h := pick(); owners[h].tokens > 0 {
					a.Close(h)
					delete(owners, h)
				}
			},
			"": func(t *rapid.T) { require.NoError(t, a.Check()) },
		})
	})
}
