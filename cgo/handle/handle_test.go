package handle

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestHandlesAreNotReused(t *testing.T) {
	var table Table[string]
	first := table.Put("a")
	got, ok := table.Get(first)
	require.True(t, ok)
	require.Equal(t, "a", got)
	got, ok = table.Take(first)
	require.True(t, ok)
	require.Equal(t, "a", got)

	second := table.Put("b")
	require.NotEqual(t, first, second)
	_, ok = table.Get(first)
	require.False(t, ok, "the handle of an ended object")
	_, ok = table.Take(first)
	require.False(t, ok, "ended twice")
	require.Equal(t, 1, table.Len())

	for _, h := range []Handle{0, 1, second + 1, math.MaxUint64} {
		_, ok = table.Get(h)
		require.False(t, ok, "%#x", h)
	}
}

// TestSlotsRetire: a slot whose generations are used up never comes back.
func TestSlotsRetire(t *testing.T) {
	var table Table[int]
	h := table.Put(1)
	table.slots[0].generation = math.MaxUint32
	h = join(h.index(), math.MaxUint32)
	_, ok := table.Take(h)
	require.True(t, ok)
	next := table.Put(2)
	require.Equal(t, uint32(1), next.index())
}

// TestTableIsAMap compares with a map over any sequence of calls.
func TestTableIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var table Table[int]
		want, all := map[Handle]int{}, []Handle{0}
		for range rapid.IntRange(1, 60).Draw(t, "calls") {
			h := rapid.SampledFrom(all).Draw(t, "handle")
			value, live := want[h]
			switch rapid.IntRange(0, 2).Draw(t, "call") {
			case 0:
				n := rapid.Int().Draw(t, "value")
				h = table.Put(n)
				require.NotContains(t, all, h)
				want[h], all = n, append(all, h)
			case 1:
				got, ok := table.Get(h)
				require.Equal(t, live, ok)
				require.Equal(t, value, got)
			case 2:
				got, ok := table.Take(h)
				require.Equal(t, live, ok)
				require.Equal(t, value, got)
				delete(want, h)
			}
			require.Equal(t, len(want), table.Len())
		}
	})
}
