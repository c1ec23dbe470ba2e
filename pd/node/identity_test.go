package node_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// Behaviour 68: nodes start without each other; a session is opened when the
// first request needs it.
func TestNoSessionBeforeTheFirstNeed(t *testing.T) {
	c := newPair(t, nil)
	require.Empty(t, c.play("advance 10m"))
	require.Contains(t, c.play("post p 1"), "p session -> d")
}

// Behaviours 45, 69, 70 and 174: every field of the fence counts, in every
// message; what differs changes nothing.
func TestEveryFieldOfTheFenceCounts(t *testing.T) {
	for name, change := range map[string]func(*pd.Fence){
		"request":        func(f *pd.Fence) { f.Request = "cmpl-other" },
		"run":            func(f *pd.Fence) { f.Run = "other" },
		"prefill's node": func(f *pd.Fence) { f.Prefill.Node = "other" },
		"prefill's boot": func(f *pd.Fence) { f.Prefill.Boot = pd.BootID(strings.Repeat("9", 32)) },
		"decode's node":  func(f *pd.Fence) { f.Decode.Node = "other" },
		"decode's boot":  func(f *pd.Fence) { f.Decode.Boot = pd.BootID(strings.Repeat("9", 32)) },
	} {
		t.Run(name, func(t *testing.T) {
			c := newPair(t, nil)
			c.play("hold writes", "post d 1", "post p 1")
			f := c.fence("1")
			change(&f)
			before := c.d.node.Snapshot().Capacity
			for _, m := range []any{
				wire.Reserve{Fence: f, PromptTokenCount: 1, Continuation: pd.Continuation{PromptTokens: []pd.Token{1}, MaxNewTokens: 1}},
				wire.Chunk{Manifest: pd.Manifest{Fence: f}},
				wire.Results{Fence: f, Results: []pd.UnitResult{{Component: "ori", Settlement: pd.Uncertain}}},
				wire.Commit{Fence: f},
				wire.Abort{Fence: f, From: "prefill", Fact: pd.AllDone},
			} {
				_, err := c.ask(c.d, m)
				require.Contains(t, []pd.Code{pd.CodeIdentity, pd.CodeStaleBoot, pd.CodeSessionStale, pd.CodeContractMismatch}, pd.CodeOf(err), "%T: %v", m, err)
			}
			after := c.d.node.Snapshot().Capacity
			after.Sequence = before.Sequence
			require.Equal(t, before, after)
		})
	}
}

// Behaviour 41: what is committed cannot be aborted by prefill.
func TestAbortAfterCommitIsRefused(t *testing.T) {
	c := newPair(t, nil)
	c.play("post d 1", "post p 1")
	_, err := c.ask(c.d, wire.Abort{Fence: c.fence("1"), From: "prefill", Fact: pd.AllDone})
	require.ErrorIs(t, err, pd.CodeCommitted)
	require.ErrorContains(t, err, "committed handoff")
}

// Behaviour 75: the nodes of a pair may have arenas of different sizes.
func TestArenasMayDiffer(t *testing.T) {
	c := newPair(t, map[string]int{"pool_d": 4096, "slots_d": 7})
	require.Contains(t, c.play("post d 1", "post p 1 prompt=300", "finish 1"), "d journal HANDOFF_COMPLETED 1")
}

// Behaviour 78: a slow transfer of one handoff holds up no other.
func TestSlowTransferHoldsUpNoOther(t *testing.T) {
	c := newPair(t, map[string]int{"pool": 4096})
	c.play("hold writes", "post d 1", "post p 1", "free writes")
	out := c.play("post d 2", "post p 2", "finish 2")
	require.Contains(t, out, "d journal HANDOFF_COMPLETED 2")
	require.Contains(t, c.play("settle 1 0 done", "finish 1"), "d journal HANDOFF_COMPLETED 1")
}
