package owner_test

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/owner"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// Behaviours 64, 65, 97 and 101.
func TestBadChunksWriteNothingOnAnyRank(t *testing.T) {
	from := newSide(t, sideOptions{topology: pd.Topology{Ranks: 2, TP: 2}})
	to := newSide(t, sideOptions{name: "d0", topology: pd.Topology{Ranks: 2, TP: 2}})
	from.knows(to)
	want := to.snapshot()
	pairs := []pd.RankPair{{Source: 0, Target: 0}, {Source: 1, Target: 1}}
	good := func() owner.Write {
		segments, sums := chunkOf(from, to, 0, copyPages{"kv", 1, 2}, copyPages{"win", 3, 4})
		w := write(pd.NewHandoffID(), 0, to, pairs, segments, sums)
		// Each pair its own list, so that one can be spoiled.
		w.Writes[1].Segments = append([]pd.Segment(nil), segments...)
		return w
	}
	for name, c := range map[string]struct {
		code  pd.Code
		text  string
		spoil func(w *owner.Write)
	}{
		"handoff id":       {pd.CodeInvalidPlan, "handoff must be 32", func(w *owner.Write) { w.Handoff = "h" }},
		"negative chunk":   {pd.CodeInvalidPlan, "chunk -1", func(w *owner.Write) { w.Chunk = -1 }},
		"no writes":        {pd.CodeInvalidPlan, "0 writes", func(w *owner.Write) { w.Writes = nil }},
		"no units":         {pd.CodeInvalidPlan, "0 units", func(w *owner.Write) { w.Units = nil }},
		"source rank":      {pd.CodeInvalidPlan, "pair 2-1: this node has ranks 0..1", func(w *owner.Write) { w.Writes[1].Pair.Source = 2 }},
		"target rank":      {pd.CodeInvalidPlan, "pair 1-2: the peer has ranks 0..1", func(w *owner.Write) { w.Writes[1].Pair.Target = 2 }},
		"two sources":      {pd.CodeInvalidPlan, "has another source already", func(w *owner.Write) { w.Writes[1].Pair.Target = 0 }},
		"past the target":  {pd.CodeInvalidPlan, "pair 1-1: segment 0 of kv_cmp: target", func(w *owner.Write) { w.Writes[1].Segments[0].TargetOffset = 1 << 40 }},
		"past the source":  {pd.CodeInvalidPlan, "pair 1-1: segment 0 of kv_cmp: source", func(w *owner.Write) { w.Writes[1].Segments[0].SourceOffset = 1 << 40 }},
		"misaligned":       {pd.CodeInvalidPlan, "want multiples of 64", func(w *owner.Write) { w.Writes[1].Segments[0].TargetOffset++ }},
		"zero length":      {pd.CodeInvalidPlan, "want more than 0", func(w *owner.Write) { w.Writes[1].Segments[0].Bytes = 0 }},
		"too few bytes":    {pd.CodeInvalidPlan, "kv_cmp on target rank 1: segments add up to 1024 bytes, want 1536", func(w *owner.Write) { w.Writes[1].Segments = w.Writes[1].Segments[1:] }},
		"unit too large":   {pd.CodeInvalidPlan, "segments add up to", func(w *owner.Write) { w.Units[3].Bytes += 64 }},
		"unit twice":       {pd.CodeInvalidPlan, "unit 7: kv_cmp on target rank 1 is listed twice", func(w *owner.Write) { w.Units[7] = w.Units[4] }},
		"unit unknown":     {pd.CodeInvalidPlan, `component "zzz" is not in the contract`, func(w *owner.Write) { w.Units[0].Component = "zzz" }},
		"unit elsewhere":   {pd.CodeInvalidPlan, "target rank 7 has no write", func(w *owner.Write) { w.Units[0].Target = 7 }},
		"bytes of nobody":  {pd.CodeInvalidPlan, "segments of hidden belong to no unit", func(w *owner.Write) { w.Units = w.Units[:7] }},
		"not installed":    {pd.CodeRegistryMismatch, "registry is not installed", func(w *owner.Write) { w.Peer.Node = "d9" }},
		"other boot":       {pd.CodeStaleBoot, "the installed registry is of boot", func(w *owner.Write) { w.Peer.Boot = pd.NewBootID() }},
		"fenced meanwhile": {pd.CodeStaleBoot, "the peer was fenced after it acknowledged", func(w *owner.Write) { w.RegistryEpoch = 7 }},
	} {
		w := good()
		c.spoil(&w)
		err := from.Submit(w)
		require.ErrorIs(t, err, c.code, name)
		require.ErrorContains(t, err, c.text, name)
	}
	// A good one behind them: had they left anything, it would be on its way too.
	w := good()
	w.RegistryEpoch = epochOf(to.Registry())
	require.NoError(t, from.Submit(w))
	requireAll(t, pd.Done, from.settled(w))
	apply(want, from, w)
	to.requireMemory(want)
	require.Len(t, from.chunks, 1, "a refused chunk has no event")
}

// Behaviour 73.
func TestAttemptsAreMadeOnce(t *testing.T) {
	from, to := newSide(t, sideOptions{}), newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	w := simple(pd.NewHandoffID(), 0, from, to)
	require.NoError(t, from.Submit(w))
	require.ErrorIs(t, from.Submit(w), pd.CodeConflict)
	from.settled(w)
	require.ErrorIs(t, from.Submit(w), pd.CodeConflict, "also after it settled")
	require.Len(t, from.chunks, 1)
}

// TestOneOfManyEqualSubmitsIsAccepted: the check of a long chunk runs unlocked,
// so equal chunks pass it at the same time.
//
// Behaviours 63 and 100.
func TestOneOfManyEqualSubmitsIsAccepted(t *testing.T) {
	from, to := newSide(t, sideOptions{}), newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	for range 5 {
		// One page, 100,000 times over, so that the check takes its time.
		w := longChunk(pd.NewHandoffID(), to, 1)
		w.Writes[0].Segments = slices.Repeat(w.Writes[0].Segments, 100_000)
		w.Units[0].Bytes *= 100_000
		errs := make([]error, 4)
		start := make(chan struct{})
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() {
				<-start
				errs[i] = from.Submit(w)
			})
		}
		close(start)
		all.Wait()
		accepted := 0
		for _, err := range errs {
			if err == nil {
				accepted++
			} else {
				require.ErrorIs(t, err, pd.CodeConflict)
			}
		}
		require.Equal(t, 1, accepted)
		requireAll(t, pd.Done, from.settled(w))
	}
}

func TestEmptyUnitsAreDoneWithoutTheProvider(t *testing.T) {
	from, to := newSide(t, sideOptions{}), newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	require.NoError(t, to.Close(t.Context()), "nobody is there to be written to")
	segments, sums := chunkOf(from, to, -1)
	require.Empty(t, segments)
	w := write(pd.NewHandoffID(), 0, to, []pd.RankPair{{}}, segments, sums)
	require.NoError(t, from.Submit(w))
	e := from.settled(w)
	requireAll(t, pd.Done, e)
	require.True(t, e.SourceFree)
	require.Equal(t, e.Began, e.Ended)
	require.Zero(t, e.Bytes)
	require.Equal(t, pd.AllDone, from.stopped(w.Handoff))
}

func TestUnreachablePeerFailsDefinitely(t *testing.T) {
	from, to := newSide(t, sideOptions{}), newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	w := simple(pd.NewHandoffID(), 0, from, to)
	require.NoError(t, to.Close(t.Context()))
	require.NoError(t, from.Submit(w))
	e := from.settled(w)
	requireAll(t, pd.Failed, e)
	require.Equal(t, "PEER_UNREACHABLE", e.Results[0].Detail)
	require.True(t, e.SourceFree)
	require.Equal(t, pd.DefiniteFailed, from.stopped(w.Handoff))
}

// TestLaterSubmitFails: rank 1 refuses after rank 0 accepted. Rank 1's units
// were never posted, rank 0's get their own verdicts.
func TestLaterSubmitFails(t *testing.T) {
	one := pd.Rank(1)
	p := simulated(t, simulator.Fault{Kind: simulator.SubmitFailed, Target: &one})
	from := newSide(t, sideOptions{provider: p})
	to := newSide(t, sideOptions{name: "d0", topology: pd.Topology{Ranks: 2, TP: 2}})
	from.knows(to)
	segments, sums := chunkOf(from, to, 0, copyPages{"kv", 0, 0})
	delete(sums, "ori")
	w := write(pd.NewHandoffID(), 0, to, []pd.RankPair{{Target: 0}, {Target: 1}}, segments, sums)
	want := to.snapshot()
	require.NoError(t, from.Submit(w))
	for _, r := range from.settled(w).Results {
		if r.Target == 1 {
			require.Equal(t, pd.Failed, r.Settlement)
			require.Equal(t, "TRANSFER_FAILED", r.Detail)
		} else {
			require.Equal(t, pd.Done, r.Settlement)
		}
	}
	w.Writes = w.Writes[:1]
	apply(want, from, w)
	to.requireMemory(want)
	require.Equal(t, pd.DefiniteFailed, from.stopped(w.Handoff))
	require.Equal(t, int64(1), p.AppliedFaults()[simulator.SubmitFailed], "no second attempt")
}

// Behaviour 62.
func TestFactsFollowTheWorstUnit(t *testing.T) {
	for kind, want := range map[string]struct {
		settlement pd.Settlement
		fact       pd.StopFact
	}{
		simulator.PartialApplyThenFailed: {pd.Uncertain, pd.Unknown},
		simulator.CompletedShort:         {pd.Uncertain, pd.Unknown},
		simulator.LateWriteAfterFailed:   {pd.Uncertain, pd.Unknown},
		simulator.RouteFailsAllPending:   {pd.Uncertain, pd.Unknown},
		simulator.DoubleApply:            {pd.Done, pd.AllDone},
		simulator.ReorderedPages:         {pd.Done, pd.AllDone},
		simulator.FlippedByte:            {pd.Done, pd.AllDone},
	} {
		t.Run(kind, func(t *testing.T) {
			// The second of three chunks is hit.
			from := newSide(t, sideOptions{provider: simulated(t, simulator.Fault{Kind: kind, Nth: 2})})
			to := newSide(t, sideOptions{name: "d0"})
			from.knows(to)
			h := pd.NewHandoffID()
			for chunk := range pd.ChunkID(3) {
				// Each chunk its own pages: those of an uncertain one are lost.
				segments, sums := chunkOf(from, to, -1, copyPages{"kv", 0, int(chunk)}, copyPages{"win", 0, int(chunk)})
				w := write(h, chunk, to, []pd.RankPair{{}}, segments, sums)
				require.NoError(t, from.Submit(w))
				e := from.settled(w)
				require.True(t, e.SourceFree)
				if chunk == 1 {
					requireAll(t, want.settlement, e)
				} else {
					requireAll(t, pd.Done, e)
				}
			}
			require.Equal(t, want.fact, from.stopped(h))
		})
	}
}

func TestVerdictThatNeverComesIsUncertain(t *testing.T) {
	from := newSide(t, sideOptions{timeout: 300 * time.Millisecond, provider: simulated(t, simulator.Fault{Kind: simulator.VerdictNever})})
	to := newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	w := simple(pd.NewHandoffID(), 0, from, to)
	require.NoError(t, from.Submit(w))
	requireAll(t, pd.Uncertain, from.settled(w))
	require.Equal(t, pd.Unknown, from.stopped(w.Handoff))
}

// Behaviour 98.
func TestSealOfNothing(t *testing.T) {
	from, to := newSide(t, sideOptions{}), newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	h := pd.NewHandoffID()
	require.Equal(t, pd.NeverSubmitted, from.stopped(h))
	require.ErrorIs(t, from.Submit(simple(h, 0, from, to)), pd.CodeHandoffTerminal)
	// Asked again, it answers again.
	require.NoError(t, from.Seal(h))
	await(t, from.recorder, "the second answer", func() (any, bool) { return nil, len(from.stops) == 2 })
	require.Equal(t, []owner.HandoffStopped{{Handoff: h, Fact: pd.NeverSubmitted}, {Handoff: h, Fact: pd.NeverSubmitted}}, from.stops)
}

// longChunk is a chunk of many small segments over one pair.
func longChunk(h pd.HandoffID, to *side, pages int64) owner.Write {
	var segments []pd.Segment
	for i := range pages {
		segments = append(segments, pd.Segment{Component: "kv_scale", SourceOffset: i * 64, TargetOffset: i * 64, Bytes: 64})
	}
	return write(h, 0, to, []pd.RankPair{{}}, segments, map[pd.ComponentID]int64{"kv_scale": pages * 64, "ori": 0})
}

// TestSealDropsWhatIsQueued: the target answers the first batch and no other, so
// most of the chunk waits for the window. Seal ends the waiting; no fact comes
// before the posted part is settled, and nothing is posted after it.
func TestSealDropsWhatIsQueued(t *testing.T) {
	const pages = 4 * pd.MaxOutstandingTasks
	deafLater := deaf()
	deafLater.Nth = 2
	o := sideOptions{pages: map[pd.GroupName]int{"kv": pages, "win": 1}, provider: simulated(t, deafLater)}
	from := newSide(t, o)
	o.name, o.provider = "d0", nil
	to := newSide(t, o)
	from.knows(to)
	blocked, waiting := longChunk(pd.NewHandoffID(), to, pages), longChunk(pd.NewHandoffID(), to, 8)
	blocked.Writes[0].Segments = append([]pd.Segment{{Component: "ori", Bytes: 1024}}, blocked.Writes[0].Segments...)
	blocked.Units[1] = pd.Unit{Component: "ori", Bytes: 1024}
	require.NoError(t, from.Submit(blocked))
	require.NoError(t, from.Submit(waiting))
	await(t, from.recorder, "the unit of the first batch", func() (any, bool) {
		return nil, slices.ContainsFunc(from.units, func(e owner.UnitSettled) bool {
			return e.Handoff == blocked.Handoff && e.Results[0].Component == "ori"
		})
	})

	// The one that waits behind is never posted: its fact comes at once.
	require.Equal(t, pd.DefiniteFailed, from.stopped(waiting.Handoff))
	e := from.settled(waiting)
	require.Equal(t, pd.Failed, e.Results[0].Settlement)
	require.Equal(t, "sealed before it was posted", e.Results[0].Detail)
	require.Equal(t, pd.Done, e.Results[1].Settlement, "nothing to send is a fact")
	require.True(t, e.SourceFree)

	require.NoError(t, from.Seal(blocked.Handoff))
	require.ErrorIs(t, from.Submit(simple(blocked.Handoff, 1, from, to)), pd.CodeHandoffTerminal)
	from.mu.Lock()
	require.Len(t, from.stops, 1, "no fact while the posted part is open")
	from.mu.Unlock()
	require.NoError(t, to.Close(t.Context()))
	require.Contains(t, []pd.StopFact{pd.DefiniteFailed, pd.Unknown}, from.fact(blocked.Handoff))
	ended := from.settled(blocked)
	require.Equal(t, pd.Done, ended.Results[1].Settlement)
	require.NotEqual(t, pd.Done, ended.Results[0].Settlement)
	require.Less(t, ended.Bytes, int64(pd.MaxOutstandingTasks*64+1024), "nothing was posted after the seal")
}

func TestForget(t *testing.T) {
	from, to := newSide(t, sideOptions{provider: simulated(t, deaf())}), newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	w := simple(pd.NewHandoffID(), 0, from, to)
	require.NoError(t, from.Submit(w))
	from.Forget(w.Handoff)
	require.ErrorIs(t, from.Submit(simple(w.Handoff, 1, from, to)), pd.CodeHandoffTerminal)
	require.NoError(t, to.Close(t.Context()))
	from.settled(w)
	require.ErrorIs(t, from.Submit(simple(w.Handoff, 1, from, to)), pd.CodeHandoffTerminal, "the record is gone, the refusal stays")

	unknown := pd.NewHandoffID()
	from.Forget(unknown)
	require.ErrorIs(t, from.Submit(simple(unknown, 0, from, to)), pd.CodeHandoffTerminal)
	for range pd.MaxTombstones + 1 {
		from.Forget(pd.NewHandoffID())
	}
	require.Empty(t, from.stops)
}

// Behaviour 98.
func TestRecordIsBounded(t *testing.T) {
	from, to := newSide(t, sideOptions{}), newSide(t, sideOptions{name: "d0"})
	from.knows(to)
	var ids []pd.HandoffID
	for range 2 * pd.MaxCapacity {
		ids = append(ids, pd.NewHandoffID())
		require.NoError(t, from.Seal(ids[len(ids)-1]))
	}
	w := simple(pd.NewHandoffID(), 0, from, to)
	require.ErrorIs(t, from.Submit(w), pd.CodeBusy)
	require.NoError(t, from.Seal(pd.NewHandoffID()), "a handoff can be stopped all the same")
	from.Forget(ids[0])
	from.Forget(ids[1])
	require.NoError(t, from.Submit(w))
	requireAll(t, pd.Done, from.settled(w))
	for range 2*pd.MaxCapacity + 8 {
		if err := from.Seal(pd.NewHandoffID()); err != nil {
			require.ErrorIs(t, err, pd.CodeBusy)
			return
		}
	}
	t.Fatal("nothing bounds the record")
}

// TestManyCallersAtOnce submits, seals and forgets from several goroutines.
func TestManyCallersAtOnce(t *testing.T) {
	from := newSide(t, sideOptions{topology: pd.Topology{Ranks: 2, TP: 2}})
	to := newSide(t, sideOptions{name: "d0", topology: pd.Topology{Ranks: 2, TP: 2}})
	from.knows(to)
	const callers, rounds = 4, 20
	var all sync.WaitGroup
	errs := make([]error, callers)
	handoffs := [callers][rounds]pd.HandoffID{}
	for i := range callers {
		all.Go(func() {
			for k := range rounds {
				// Every caller has target pages of its own.
				segments, sums := chunkOf(from, to, -1, copyPages{"kv", k % 12, i}, copyPages{"win", k, i})
				w := write(pd.NewHandoffID(), 0, to, []pd.RankPair{{Source: 0, Target: 0}, {Source: 1, Target: 1}}, segments, sums)
				handoffs[i][k] = w.Handoff
				if errs[i] = from.Submit(w); errs[i] != nil {
					return
				}
				if errs[i] = from.Seal(w.Handoff); errs[i] != nil {
					return
				}
			}
		})
	}
	all.Wait()
	for i := range callers {
		require.NoError(t, errs[i])
		for _, h := range handoffs[i] {
			require.Contains(t, []pd.StopFact{pd.AllDone, pd.DefiniteFailed}, from.fact(h))
			from.Forget(h)
		}
	}
	require.Len(t, from.chunks, callers*rounds)
	require.Len(t, from.stops, callers*rounds)
}
