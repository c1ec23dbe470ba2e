package transfertest

import (
	"math"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// drawBatch is a batch whose target ranges do not overlap each other.
func drawBatch(t *rapid.T) []pd.Segment {
	var segments []pd.Segment
	for _, c := range components {
		slots := extents[c] / transfer.Alignment
		at := int64(0)
		for range rapid.IntRange(0, 24).Draw(t, "segments of "+string(c)) {
			at += rapid.Int64Range(0, slots/16).Draw(t, "gap")
			length := rapid.Int64Range(1, slots/32).Draw(t, "length")
			if at+length > slots {
				break
			}
			segments = append(segments, pd.Segment{
				Component:    c,
				SourceOffset: rapid.Int64Range(0, slots-length).Draw(t, "source") * transfer.Alignment,
				TargetOffset: at * transfer.Alignment,
				Bytes:        length * transfer.Alignment,
			})
			at += length
		}
	}
	if len(segments) == 0 {
		return whole("scale")
	}
	return rapid.Permutation(segments).Draw(t, "order")
}

func testExact(t *testing.T, h Harness) {
	source, target := frozen(t, h, h.Provider, 0), frozen(t, h, h.Provider, 1)
	session := source.connect(t, target)
	sourceBefore := source.snapshot()
	rapid.Check(t, func(t *rapid.T) {
		want := target.snapshot()
		// One batch at a time: the order between batches is not promised.
		for range rapid.IntRange(1, 3).Draw(t, "batches") {
			batch := drawBatch(t)
			ticket, err := session.Submit(batch)
			require.NoError(t, err)
			source.requireAll(t, pd.Done, ticket)
			apply(want, source, batch)
		}
		requireMemory(t, want, target)
	})
	requireMemory(t, sourceBefore, source)
}

func testManySmall(t *testing.T, h Harness) {
	source, target := frozen(t, h, h.Provider, 0), frozen(t, h, h.Provider, 1)
	session := source.connect(t, target)
	want := target.snapshot()
	// Every smallest piece of the larger region, reversed: 16,384 segments.
	slots := extents["kv"] / transfer.Alignment
	var batch []pd.Segment
	var open []transfer.Ticket
	for i := range slots {
		batch = append(batch, pd.Segment{
			Component: "kv", SourceOffset: i * transfer.Alignment,
			TargetOffset: (slots - 1 - i) * transfer.Alignment, Bytes: transfer.Alignment,
		})
		if len(batch) < pd.MaxSegmentTasks {
			continue
		}
		if len(open) == pd.MaxOutstandingTasks/pd.MaxSegmentTasks {
			source.requireAll(t, pd.Done, open[0])
			open = open[1:]
		}
		ticket, err := session.Submit(batch)
		require.NoError(t, err)
		apply(want, source, batch)
		// The slice is the caller's again.
		clear(batch)
		batch, open = batch[:0], append(open, ticket)
	}
	source.requireAll(t, pd.Done, open...)
	requireMemory(t, want, target)
}

func testLarge(t *testing.T, h Harness) {
	source, target := frozen(t, h, h.Provider, 0), frozen(t, h, h.Provider, 1)
	ticket, err := source.connect(t, target).Submit(append(whole("kv"), whole("scale")...))
	require.NoError(t, err)
	source.requireAll(t, pd.Done, ticket)
	requireMemory(t, source.snapshot(), target)
}

func testRefused(t *testing.T, h Harness) {
	source, target := frozen(t, h, h.Provider, 0), frozen(t, h, h.Provider, 1)
	session := source.connect(t, target)
	want := target.snapshot()
	end := extents["kv"]
	for name, bad := range map[string]pd.Segment{
		"zero length":        {Component: "kv"},
		"negative length":    {Component: "kv", Bytes: -64},
		"misaligned length":  {Component: "kv", Bytes: 65},
		"misaligned source":  {Component: "kv", SourceOffset: 1, Bytes: 64},
		"misaligned target":  {Component: "kv", TargetOffset: 32, Bytes: 64},
		"negative source":    {Component: "kv", SourceOffset: -64, Bytes: 64},
		"negative target":    {Component: "kv", TargetOffset: -64, Bytes: 64},
		"past the source":    {Component: "kv", SourceOffset: end, Bytes: 64},
		"past the target":    {Component: "kv", TargetOffset: end, Bytes: 64},
		"straddles the end":  {Component: "kv", TargetOffset: end - 64, Bytes: 128},
		"offset overflows":   {Component: "kv", TargetOffset: math.MaxInt64 - 63, Bytes: 64},
		"length overflows":   {Component: "kv", TargetOffset: 64, Bytes: math.MaxInt64 - 63},
		"unknown component":  {Component: "nobody", Bytes: 64},
		"component is empty": {Bytes: 64},
	} {
		// Good neighbours on both sides must not be written either.
		batch := []pd.Segment{{Component: "kv", Bytes: 4096}, bad, {Component: "scale", Bytes: 4096}}
		_, err := session.Submit(batch)
		require.ErrorIs(t, err, pd.CodeInvalidPlan, name)
	}
	_, err := session.Submit(nil)
	require.ErrorIs(t, err, pd.CodeInvalidPlan, "no segments")
	many := make([]pd.Segment, pd.MaxSegmentTasks+1)
	for i := range many {
		many[i] = pd.Segment{Component: "kv", SourceOffset: int64(i) * 64, TargetOffset: int64(i) * 64, Bytes: 64}
	}
	_, err = session.Submit(many)
	require.ErrorIs(t, err, pd.CodeInvalidPlan, "too many segments")

	// A good batch behind them shows that nothing of the above was on its way.
	good := []pd.Segment{{Component: "kv", TargetOffset: end - 64, Bytes: 64}}
	ticket, err := session.Submit(good)
	require.NoError(t, err)
	source.requireAll(t, pd.Done, ticket)
	require.Len(t, source.seen, 1, "a refused batch has no verdict")
	apply(want, source, good)
	requireMemory(t, want, target)
}

func testVerdicts(t *testing.T, h Harness) {
	source := frozen(t, h, h.Provider, 0)
	targets := []*node{frozen(t, h, h.Provider, 1), frozen(t, h, h.Provider, 2), frozen(t, h, h.Provider, 3)}
	var all []transfer.Ticket
	for i := range 60 {
		ticket, err := source.connect(t, targets[i%len(targets)]).Submit(whole("scale"))
		require.NoError(t, err)
		require.NotContains(t, all, ticket)
		all = append(all, ticket)
	}
	source.requireAll(t, pd.Done, all...)
	require.Len(t, source.seen, len(all))
	require.NoError(t, source.engine.Close())
	require.Empty(t, source.engine.Poll(nil), "Close settles nothing twice")
}

// testConcurrent: every source writes its own quarter of every target, all at
// once, each engine from its own goroutine.
func testConcurrent(t *testing.T, h Harness) {
	const n = 4
	var sources, targets [n]*node
	for i := range n {
		sources[i], targets[i] = frozen(t, h, h.Provider, pd.Rank(i)), frozen(t, h, h.Provider, pd.Rank(n+i))
	}
	want := [n]map[pd.ComponentID][]byte{}
	for i, target := range targets {
		want[i] = target.snapshot()
	}
	quarter := func(i, round int) []pd.Segment {
		size := extents["kv"] / n
		return []pd.Segment{{Component: "kv", SourceOffset: int64(round%n) * size, TargetOffset: int64(i) * size, Bytes: size}}
	}
	const rounds = 8
	var all sync.WaitGroup
	errs := make([]error, n)
	tickets := make([][]transfer.Ticket, n)
	for i, source := range sources {
		sessions := [n]transfer.Session{}
		for k, target := range targets {
			sessions[k] = source.connect(t, target)
		}
		all.Go(func() {
			for round := range rounds {
				for k := range sessions {
					ticket, err := sessions[k].Submit(quarter(i, round))
					if err != nil {
						errs[i] = err
						return
					}
					tickets[i] = append(tickets[i], ticket)
				}
				// The next round writes the same places: wait for this one.
				last := tickets[i][len(tickets[i])-n:]
				for len(last) > 0 {
					if _, ok := source.seen[last[0]]; ok {
						last = last[1:]
						continue
					}
					<-source.engine.Wake()
					for _, v := range source.engine.Poll(nil) {
						source.seen[v.Ticket] = v
					}
				}
			}
		})
	}
	all.Wait()
	for i, source := range sources {
		require.NoError(t, errs[i])
		source.requireAll(t, pd.Done, tickets[i]...)
		for k := range targets {
			apply(want[k], source, quarter(i, rounds-1))
		}
	}
	for k, target := range targets {
		requireMemory(t, want[k], target)
	}
}
