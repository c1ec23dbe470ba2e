package node_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/node"
	"github.com/hw-native-sys/pypto-pd/pd/pages"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// play runs commands of the scenario language and gives what was printed.
func (c *pair) play(commands ...string) string {
	c.out.Reset()
	for _, line := range commands {
		c.do(strings.Fields(line))
		c.run()
	}
	return c.out.String()
}

// ask gives a control message to a node and returns its answer.
func (c *pair) ask(s *side, message any) (any, error) {
	var answer any
	var failure error
	c.deliver(s, message, func(a any, err error) { answer, failure = a, err })
	c.run()
	return answer, failure
}

func usage(s *side) map[pd.GroupName]pages.Usage { return s.alloc.Usage() }

// Behaviours 46 and 166: a reservation takes pages of every group, for the
// prompt only.
func TestReservationTakesThePromptsPages(t *testing.T) {
	c := newPair(t, nil)
	c.play("hold compute", "post d 1", "post p 1 prompt=300 max=4000")
	for g, u := range usage(c.d) {
		want := map[pd.GroupName]int{"ori": 9, "cmp_c128": 3, "cmp_c4": 3, "idx": 3, "hca_state": 33, "csa_state": 69, "csa_inner_state": 69}[g]
		require.Equal(t, want, u.Held, g)
	}
}

// Behaviours 47 and 48.
func TestAbortGivesEverythingBackOnce(t *testing.T) {
	c := newPair(t, nil)
	c.play("hold compute", "post d 1", "post p 1")
	abort := wire.Abort{Fence: c.fence("1"), From: "router", Reason: "client gone"}
	first, err := c.ask(c.d, abort)
	require.NoError(t, err)
	require.Equal(t, "Aborted", first.(wire.Status).State)
	require.Positive(t, first.(wire.Status).Released)
	second, err := c.ask(c.d, abort)
	require.NoError(t, err)
	require.Equal(t, first, second, "the first terminal fact wins")
	for g, u := range usage(c.d) {
		require.Zero(t, u.Held, g)
	}
	_, err = c.ask(c.d, wire.Reserve{Fence: c.fence("1"), PromptTokenCount: 1, Continuation: pd.Continuation{PromptTokens: []pd.Token{1}, MaxNewTokens: 1}})
	require.ErrorIs(t, err, pd.CodeHandoffTerminal)
}

// Behaviour 49.
func TestRefusedReservationChangesNoCount(t *testing.T) {
	c := newPair(t, map[string]int{"pool": 256})
	before := usage(c.d)
	require.Contains(t, c.play("post d 1", "post p 1 prompt=400"), "answer CAPACITY_EXHAUSTED")
	require.Equal(t, before, usage(c.d))
}

// Behaviours 40, 51 and 52.
func TestCommitMayBeRepeatedAfterTheEnd(t *testing.T) {
	c := newPair(t, nil)
	c.play("post d 1", "post p 1")
	status, err := c.ask(c.d, wire.StatusQuery{Fence: c.fence("1")})
	require.NoError(t, err)
	commit := wire.Commit{Fence: c.fence("1"), ManifestHash: status.(wire.Status).ManifestHash, FirstToken: 42}
	for _, when := range []string{"while decoding", "from the tombstone"} {
		answer, err := c.ask(c.d, commit)
		require.NoError(t, err, when)
		require.True(t, answer.(wire.Committed).Admitted, when)
		if when == "while decoding" {
			c.play("finish 1")
		}
	}
	status, err = c.ask(c.d, wire.StatusQuery{Fence: c.fence("1")})
	require.NoError(t, err)
	require.Equal(t, "Completed", status.(wire.Status).State)
	require.Zero(t, c.d.node.Snapshot().Capacity.Reservations)
	other := commit
	other.ManifestHash = strings.Repeat("0", 64)
	_, err = c.ask(c.d, other)
	require.ErrorIs(t, err, pd.CodeHandoffTerminal, "another commit is no replay")
}

// Behaviour 53: quarantine is left by proof only; a router's word is none.
func TestRouterCannotEndAQuarantine(t *testing.T) {
	c := newPair(t, nil)
	c.play("hold writes", "post d 1", "post p 1", "settle 1 0 uncertain")
	answer, err := c.ask(c.d, wire.Abort{Fence: c.fence("1"), From: "router", Reason: "again"})
	require.NoError(t, err)
	require.Equal(t, "Quarantined", answer.(wire.Status).State)
	require.Positive(t, answer.(wire.Status).Held)
	_, err = c.ask(c.d, wire.Commit{Fence: c.fence("1")})
	require.Error(t, err)
	require.Equal(t, 1, c.d.node.Snapshot().Capacity.Quarantined)
}

// Behaviour 59 under the tail policy: decode is found again where its window
// arrived, and nowhere in between.
func TestPublishedIsWhatArrived(t *testing.T) {
	c := newPair(t, map[string]int{"cache": 1, "pool": 4096, "slots": 8})
	c.play("post d 1", "post p 1 prompt=640", "finish 1")
	require.Contains(t, c.play("post d 2", "post p 2 prompt=640", "finish 2"), "hit=640")
	require.Contains(t, c.play("post d 3", "post p 3 prompt=400", "finish 3"), "hit=0", "no window at 384 was sent")
	require.Contains(t, c.play("post d 4", "post p 4 prompt=700", "finish 4"), "hit=640", "the next turn of a talk")
}

// Behaviours 18 and 79: handoffs share a session and nothing else.
func TestTwoHandoffsOverOneSession(t *testing.T) {
	c := newPair(t, map[string]int{"pool": 4096})
	out := c.play("hold compute", "post d 1", "post p 1 prompt=200", "post p 2 prompt=300", "post d 2",
		"compute 2", "compute 1", "compute 1", "compute 2", "compute 2", "finish 2", "finish 1")
	require.Equal(t, 1, strings.Count(out, "p session -> d"))
	for _, h := range []string{"1", "2"} {
		require.Contains(t, out, "d journal HANDOFF_COMPLETED "+h)
		require.Contains(t, out, "d free lease "+h)
	}
	require.True(t, c.p.node.Idle())
	require.True(t, c.d.node.Idle())
}

// Behaviour 20: what comes late for an ended handoff changes nothing.
func TestLateEventsOfEndedHandoffsAreNothing(t *testing.T) {
	c := newPair(t, nil)
	c.play("post d 1", "post p 1", "finish 1")
	before := fmt.Sprint(c.p.node.Snapshot(), c.d.node.Snapshot())
	h := handoffID("1")
	for _, e := range []node.Event{
		node.Returned{Handoff: h, Op: node.OpCommit, Answer: wire.Committed{}},
		node.ChunkComputed{Handoff: h},
		node.PrefillStopped{Handoff: h},
		node.DecodeStopped{Handoff: h},
		node.ChunkSettled{Handoff: h},
		node.SubmitRefused{Handoff: h, Err: pd.CodeInvalidPlan},
		node.Sealed{Handoff: h, Fact: pd.AllDone},
		node.PostClosed{Post: 1},
		node.Fenced{},
	} {
		for _, s := range []*side{c.p, c.d} {
			require.Empty(t, s.node.Step(e, c.now), "%T on %s", e, s.name)
			require.NoError(t, s.node.Check())
		}
	}
	after := fmt.Sprint(c.p.node.Snapshot(), c.d.node.Snapshot())
	require.Equal(t, stripSequence(before), stripSequence(after))
}

// stripSequence removes the one number that counts steps.
func stripSequence(s string) string {
	var out []string
	for _, word := range strings.Fields(s) {
		if !strings.HasSuffix(word, "}") || strings.Contains(word, "map") {
			out = append(out, word)
		}
	}
	return strings.Join(out, " ")
}
