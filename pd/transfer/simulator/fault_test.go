package simulator_test

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// faulty is a source and a target under one fault; both have 64 KiB.
func faulty(t *testing.T, f simulator.Fault) (p *simulator.Provider, source, target *side) {
	p = provider(t, simulator.Config{Faults: []simulator.Fault{f}, Seed: 3})
	timeout := time.Minute
	switch f.Kind {
	case simulator.VerdictNever, simulator.VerdictAfterDeadline, simulator.VerdictLateNeverPosted:
		timeout = 400 * time.Millisecond
	}
	source, target = newSide(t, p, sideOptions{timeout: timeout}), newSide(t, p, sideOptions{rank: 1})
	noise(source.memory)
	return p, source, target
}

// pages is the whole region in segments of 4 KiB, each on its own place.
func pages(m memory) (segments []pd.Segment) {
	for at := int64(0); at < m.Len(); at += 4096 {
		segments = append(segments, pd.Segment{Component: "kv", SourceOffset: at, TargetOffset: at, Bytes: 4096})
	}
	return segments
}

func TestFlippedByte(t *testing.T) {
	p, source, target := faulty(t, simulator.Fault{Kind: simulator.FlippedByte, Component: "kv", Nth: 2, Offset: 4096 + 5})
	session := source.connect(t, target)
	require.Equal(t, pd.Done, source.write(t, session).Settlement)
	require.Equal(t, source.memory, target.memory, "only the second batch is hit")
	require.Equal(t, pd.Done, source.write(t, session).Settlement, "nobody notices a flipped byte")
	want := bytes.Clone(source.memory)
	want[4096+5] ^= 0xff
	require.Equal(t, memory(want), target.memory)
	require.Equal(t, map[string]int64{simulator.FlippedByte: 1}, p.AppliedFaults())
	require.Equal(t, pd.Done, source.write(t, session).Settlement)
	require.Equal(t, source.memory, target.memory, "the source itself was not touched")
}

func TestPartialApplyThenFailed(t *testing.T) {
	_, source, target := faulty(t, simulator.Fault{Kind: simulator.PartialApplyThenFailed})
	v := source.write(t, source.connect(t, target))
	require.Equal(t, pd.Uncertain, v.Settlement)
	// Only a fence makes it safe to look at what was written.
	require.NoError(t, target.Fence(t.Context()))
	half := len(target.memory) / 2
	require.Equal(t, source.memory[:half], target.memory[:half])
	require.Equal(t, newMemory(half), target.memory[half:])
	// The next session works: the fault was one connection.
	require.Equal(t, pd.Done, source.write(t, source.connect(t, target)).Settlement)
	require.Equal(t, source.memory, target.memory)
}

func TestCompletedShort(t *testing.T) {
	_, source, target := faulty(t, simulator.Fault{Kind: simulator.CompletedShort})
	session := source.connect(t, target)
	v := source.write(t, session)
	require.Equal(t, pd.Uncertain, v.Settlement)
	require.Equal(t, "acknowledged short", v.Detail)
	whole := len(target.memory)
	require.Equal(t, source.memory[:whole-64], target.memory[:whole-64])
	require.Equal(t, newMemory(64), target.memory[whole-64:])
	require.Equal(t, pd.Done, source.write(t, session).Settlement)
}

func TestVerdictNever(t *testing.T) {
	p, source, target := faulty(t, simulator.Fault{Kind: simulator.VerdictNever})
	v := source.write(t, source.connect(t, target))
	require.Equal(t, pd.Uncertain, v.Settlement)
	require.Equal(t, "timeout", v.Detail)
	require.Zero(t, p.LateAnswers())
	require.Equal(t, source.memory, target.memory, "the bytes were written all the same")
}

func TestVerdictAfterDeadlineChangesNothing(t *testing.T) {
	p, source, target := faulty(t, simulator.Fault{Kind: simulator.VerdictAfterDeadline})
	session := source.connect(t, target)
	v := source.write(t, session)
	require.Equal(t, pd.Uncertain, v.Settlement)
	require.Equal(t, pd.Done, source.write(t, session).Settlement, "the late answer is no verdict of the next batch")
	require.Equal(t, int64(1), p.LateAnswers())
}

func TestSubmitFailsForOneRankOnly(t *testing.T) {
	rank := pd.Rank(1)
	_, source, target := faulty(t, simulator.Fault{Kind: simulator.SubmitFailed, Target: &rank, Nth: 2})
	other := newSide(t, provider(t, simulator.Config{}), sideOptions{rank: 2})
	session := source.connect(t, target)
	require.Equal(t, pd.Done, source.write(t, source.connect(t, other)).Settlement)
	require.Equal(t, pd.Done, source.write(t, session).Settlement)
	clear(target.memory)
	_, err := session.Submit(pages(source.memory))
	require.ErrorIs(t, err, pd.CodeTransferFailed)
	require.Empty(t, source.Poll(nil))
	require.Equal(t, newMemory(len(target.memory)), target.memory)
	require.Equal(t, pd.Done, source.write(t, session).Settlement, "the third is well again")
}

// awaitDelayed waits until targets have written n batches late. There is no
// other sign of them, which is what makes them dangerous.
func awaitDelayed(t *testing.T, p *simulator.Provider, n int64) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for p.DelayedWrites() < n {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatal("the late write does not come")
		}
	}
}

func TestLateWriteAfterFailed(t *testing.T) {
	p, source, target := faulty(t, simulator.Fault{Kind: simulator.LateWriteAfterFailed})
	require.Equal(t, pd.Uncertain, source.write(t, source.connect(t, target)).Settlement)
	awaitDelayed(t, p, 1)
	require.Equal(t, source.memory, target.memory)
}

func TestLateWriteAfterCompletedOverwritesTheNextOwner(t *testing.T) {
	p, source, target := faulty(t, simulator.Fault{Kind: simulator.LateWriteAfterCompleted, DelayMillis: 20})
	session := source.connect(t, target)
	require.Equal(t, pd.Done, source.write(t, session).Settlement)
	awaitDelayed(t, p, 1)
	require.Equal(t, source.memory, target.memory)
}

func TestFenceSilencesLateWrites(t *testing.T) {
	for _, kind := range []string{simulator.LateWriteAfterFailed, simulator.LateWriteAfterCompleted} {
		t.Run(kind, func(t *testing.T) {
			_, source, target := faulty(t, simulator.Fault{Kind: kind, DelayMillis: 3600_000})
			source.write(t, source.connect(t, target))
			require.NoError(t, target.Fence(t.Context()))
			// The next owner of the memory.
			for i := range target.memory {
				target.memory[i] = 0x55
			}
			again := bytes.Clone(target.memory)
			require.NoError(t, target.Close())
			require.Equal(t, memory(again), target.memory)
		})
	}
}

func TestDoubleApplyIsHarmless(t *testing.T) {
	p, source, target := faulty(t, simulator.Fault{Kind: simulator.DoubleApply})
	require.Equal(t, pd.Done, source.write(t, source.connect(t, target)).Settlement)
	require.Equal(t, source.memory, target.memory)
	require.Equal(t, int64(1), p.AppliedFaults()[simulator.DoubleApply])
}

func TestReorderedPagesAreHarmless(t *testing.T) {
	p, source, target := faulty(t, simulator.Fault{Kind: simulator.ReorderedPages})
	_, err := source.connect(t, target).Submit(pages(source.memory))
	require.NoError(t, err)
	require.Equal(t, pd.Done, source.next(t).Settlement)
	require.Equal(t, source.memory, target.memory)
	require.Equal(t, int64(1), p.AppliedFaults()[simulator.ReorderedPages])
}

func TestRouteFailsAllPending(t *testing.T) {
	_, source, target := faulty(t, simulator.Fault{Kind: simulator.RouteFailsAllPending, Nth: 2})
	session := source.connect(t, target)
	require.Equal(t, pd.Done, source.write(t, session).Settlement)
	require.Equal(t, pd.Uncertain, source.write(t, session).Settlement)
	_, err := session.Submit(pages(source.memory))
	require.ErrorIs(t, err, pd.CodePeerUnreachable)
}

func TestPausedTargetAppliesAfterTheSenderGaveUp(t *testing.T) {
	p := provider(t, simulator.Config{Faults: []simulator.Fault{{Kind: simulator.TargetPausedBuffered, DelayMillis: 1000}}})
	source, target := newSide(t, p, sideOptions{timeout: 400 * time.Millisecond}), newSide(t, p, sideOptions{rank: 1})
	noise(source.memory)
	v := source.write(t, source.connect(t, target))
	require.Equal(t, pd.Uncertain, v.Settlement, v.Detail)
	require.NoError(t, source.Close(), "the sender is gone")
	awaitDelayed(t, p, 1)
	require.Equal(t, source.memory, target.memory)
}

func TestVerdictLateNeverPosted(t *testing.T) {
	_, source, target := faulty(t, simulator.Fault{Kind: simulator.VerdictLateNeverPosted})
	session := source.connect(t, target)
	v := source.write(t, session)
	require.Equal(t, pd.Failed, v.Settlement, v.Detail)
	require.Equal(t, newMemory(len(target.memory)), target.memory)
	require.Equal(t, pd.Done, source.write(t, session).Settlement, "the session goes on")
}

func TestFenceHangs(t *testing.T) {
	rank := pd.Rank(1)
	p, source, target := faulty(t, simulator.Fault{Kind: simulator.FenceHangs, Target: &rank})
	session := source.connect(t, target)
	require.Equal(t, pd.Done, source.write(t, session).Settlement, "batches are not counted")
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.NoError(t, source.Fence(t.Context()), "the other rank is well")
	require.ErrorIs(t, target.Fence(ended), pd.CodeDeadline)
	require.Equal(t, pd.Epoch(1), target.Epoch())
	require.NoError(t, target.Fence(t.Context()), "the second is well")
	require.Equal(t, int64(1), p.AppliedFaults()[simulator.FenceHangs])
}

func TestFaultsAreValidated(t *testing.T) {
	far := pd.Rank(pd.MaxRanks)
	for want, f := range map[string]simulator.Fault{
		`faults[0].kind: "gremlin" is unknown; known are flipped_byte, partial_apply_then_failed`: {Kind: "gremlin"},
		"faults[0].target: 256: want a rank 0..255":                                               {Kind: simulator.FlippedByte, Target: &far},
		"faults[0].target: is required":                                                           {Kind: simulator.SubmitFailed},
		`faults[0].component: "kv": a fence has none`:                                             {Kind: simulator.FenceHangs, Component: "kv"},
		"faults[0].nth: -1":                                {Kind: simulator.FlippedByte, Nth: -1},
		"faults[0].times: -1":                              {Kind: simulator.FlippedByte, Times: -1},
		"faults[0].offset: -1":                             {Kind: simulator.FlippedByte, Offset: -1},
		"faults[0].delay_millis: 3600001: want 0..3600000": {Kind: simulator.DoubleApply, DelayMillis: 3600_001},
	} {
		require.ErrorContains(t, simulator.Validate([]simulator.Fault{f}), want)
	}
	for _, kind := range simulator.FaultKinds() {
		rank := pd.Rank(0)
		require.NoError(t, simulator.Validate([]simulator.Fault{{Kind: kind, Target: &rank, Nth: 3, Times: 2}}), kind)
	}
}
