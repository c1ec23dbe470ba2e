package transfertest

import (
	"context"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/transfer"
)

// stalled is a source with some batches to a target that answers none, small
// and large. strict says that none of them can have settled.
func stalled(t *testing.T, h Harness) (source, target *node, open []transfer.Ticket, strict bool) {
	p, strict := h.Stalled, true
	if p == nil {
		p, strict = h.Provider, false
	}
	source, target = frozen(t, h, p, 0), frozen(t, h, p, 1)
	session := source.connect(t, target)
	for _, c := range []pd.ComponentID{"scale", "kv", "scale"} {
		ticket, err := session.Submit(whole(c))
		require.NoError(t, err)
		open = append(open, ticket)
	}
	return source, target, open, strict
}

// requireUncertain awaits tickets of batches that their own engine cut. By the
// contract these are Uncertain, whether they had begun or not.
func requireUncertain(t *testing.T, h Harness, source *node, open []transfer.Ticket, strict bool) {
	t.Helper()
	requireCut(t, source, open, strict, h.Provider.Facts().TerminalFreesSource)
	for _, k := range open {
		if v := source.seen[k]; v.Settlement != pd.Done {
			require.Equal(t, pd.Uncertain, v.Settlement, "ticket %d: %s", k, v.Detail)
		}
	}
}

// requireCut awaits tickets of batches that the target or a time-out cut. A
// batch whose first byte had not left may be Failed; in strict tests none can
// be Done. free says that each must have freed its source.
func requireCut(t *testing.T, source *node, open []transfer.Ticket, strict, free bool) {
	t.Helper()
	source.await(t, open...)
	for _, k := range open {
		v := source.seen[k]
		if strict {
			require.NotEqual(t, pd.Done, v.Settlement, "ticket %d: nothing was applied", k)
		}
		if free {
			require.True(t, v.SourceFree, "ticket %d", k)
		}
	}
	require.Len(t, source.seen, len(open))
}

// uncertainAtLast repeats a cut until its first batch was on its way when it
// came. A provider that takes lost batches for Failed never gets there.
func uncertainAtLast(t *testing.T, cut func() pd.Settlement) {
	t.Helper()
	for range 20 {
		if cut() == pd.Uncertain {
			return
		}
	}
	require.Fail(t, "a batch that was on its way never settles Uncertain")
}

func testWindow(t *testing.T, h Harness) {
	if h.Stalled == nil {
		t.Skip("the provider cannot be stalled, so its window cannot be filled for sure")
	}
	source, target := frozen(t, h, h.Stalled, 0), frozen(t, h, h.Stalled, 1)
	session := source.connect(t, target)
	batch := make([]pd.Segment, pd.MaxSegmentTasks)
	for i := range batch {
		batch[i] = pd.Segment{Component: "kv", SourceOffset: int64(i) * 64, TargetOffset: int64(i) * 64, Bytes: 64}
	}
	for range pd.MaxOutstandingTasks / pd.MaxSegmentTasks {
		_, err := session.Submit(batch)
		require.NoError(t, err)
	}
	_, err := session.Submit(batch[:1])
	require.ErrorIs(t, err, pd.CodeBusy)
	// The bound is per session.
	_, err = source.connect(t, frozen(t, h, h.Stalled, 2)).Submit(batch)
	require.NoError(t, err)
}

func testTimeout(t *testing.T, h Harness) {
	if h.Stalled == nil {
		t.Skip("the provider cannot be stalled, so no batch is sure to meet its time-out")
	}
	uncertainAtLast(t, func() pd.Settlement {
		source := open(t, h, h.Stalled, 0, 100*time.Millisecond)
		require.NoError(t, source.engine.Freeze())
		ticket, err := source.connect(t, frozen(t, h, h.Stalled, 1)).Submit(whole("kv"))
		require.NoError(t, err)
		requireCut(t, source, []transfer.Ticket{ticket}, true, h.Provider.Facts().TerminalFreesSource && !h.TimeoutHoldsSource)
		return source.seen[ticket].Settlement
	})
}

func testFence(t *testing.T, h Harness) {
	source, target, open, strict := stalled(t, h)
	old := target.target()
	before := target.snapshot()
	require.NoError(t, target.engine.Fence(t.Context()))
	if !h.Provider.Facts().FenceProves {
		t.Skip("the provider does not claim that a fence proves anything")
	}
	if strict {
		// Nothing was applied before the fence, so nothing is there after it.
		requireMemory(t, before, target)
	}
	after := target.snapshot()
	requireCut(t, source, open, strict, h.Provider.Facts().TerminalFreesSource)
	require.Equal(t, old.Identity.Epoch+1, target.engine.Epoch())
	require.NotEqual(t, old.Endpoint, target.engine.Endpoint(), "the fence takes fresh ports")

	_, err := source.engine.Connect(t.Context(), old)
	require.Error(t, err, "the old epoch is gone")
	stale := target.target()
	stale.Identity.Epoch--
	_, err = source.engine.Connect(t.Context(), stale)
	require.ErrorIs(t, err, pd.CodeStaleBoot)

	// A new source, because the stalled one stays so.
	fresh := frozen(t, h, h.Provider, 5)
	ticket, err := fresh.connect(t, target).Submit([]pd.Segment{{Component: "scale", Bytes: 128}})
	require.NoError(t, err)
	fresh.requireAll(t, pd.Done, ticket)
	apply(after, fresh, []pd.Segment{{Component: "scale", Bytes: 128}})
	requireMemory(t, after, target)
}

// testFenceUnderLoad fences a target while a source writes as fast as it can.
func testFenceUnderLoad(t *testing.T, h Harness) {
	if !h.Provider.Facts().FenceProves {
		t.Skip("the provider does not claim that a fence proves anything")
	}
	source, target := frozen(t, h, h.Provider, 0), frozen(t, h, h.Provider, 1)
	for round := range 5 {
		session := source.connect(t, target)
		var open []transfer.Ticket
		for range 16 {
			ticket, err := session.Submit(whole("kv"))
			require.NoError(t, err)
			open = append(open, ticket)
		}
		source.await(t, open[0])
		require.NoError(t, target.engine.Fence(t.Context()))
		after := target.snapshot()
		// Whatever the source still had on its way has ended when it is settled.
		source.await(t, open...)
		requireMemory(t, after, target)
		require.Equal(t, pd.Epoch(round+2), target.engine.Epoch())
		source.fill(uint64(round + 100))
	}
}

func testFenceSource(t *testing.T, h Harness) {
	source, target, open, strict := stalled(t, h)
	session := source.connect(t, target)
	require.NoError(t, source.engine.Fence(t.Context()))
	requireUncertain(t, h, source, open, strict)
	_, err := session.Submit(whole("scale"))
	require.Error(t, err, "a session ends with the engine it belongs to")
	require.NotSame(t, session, source.connect(t, target))
}

func testClose(t *testing.T, h Harness) {
	source, _, open, strict := stalled(t, h)
	require.NoError(t, source.engine.Close())
	requireUncertain(t, h, source, open, strict)
}

func testDeath(t *testing.T, h Harness) {
	if h.Stalled == nil {
		t.Skip("the provider cannot be stalled, so no batch is sure to meet the death")
	}
	uncertainAtLast(t, func() pd.Settlement {
		source, target, open, strict := stalled(t, h)
		to := target.target()
		require.NoError(t, target.engine.Close())
		requireCut(t, source, open, strict, h.Provider.Facts().TerminalFreesSource)
		_, err := source.engine.Connect(t.Context(), to)
		require.ErrorIs(t, err, pd.CodePeerUnreachable)
		return source.seen[open[0]].Settlement
	})
}

func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(entries)
}

func testLeaks(t *testing.T, h Harness) {
	if runtime.GOOS != "linux" {
		t.Skip("descriptors are counted in /proc")
	}
	cycle := func() {
		// A subtest, so that its cleanup has closed everything when it returns.
		t.Run("cycle", func(t *testing.T) {
			source, target, open, _ := stalled(t, h)
			require.NoError(t, target.engine.Fence(context.Background()))
			source.await(t, open...)
			ticket, err := source.connect(t, target).Submit(whole("scale"))
			require.NoError(t, err)
			require.NoError(t, source.engine.Close())
			source.await(t, ticket)
		})
	}
	cycle() // what a process opens once, such as its poller
	before := descriptors(t)
	ignore := goleak.IgnoreCurrent()
	for range 3 {
		cycle()
	}
	require.Equal(t, before, descriptors(t))
	goleak.VerifyNone(t, ignore)
}
