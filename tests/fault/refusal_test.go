package fault

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// Case B29: whoever fails, before the head of the answer or after it: the client has one
// JSON error or one error event as the end of its stream, at once, and nobody
// keeps anything of the request.
func TestFirstFailureIsTheClientsAnswer(t *testing.T) {
	t.Parallel()
	// Decode answers a stream with its head as soon as it has memory, a whole
	// answer with its text; so a stream has its head in every later stage.
	for _, row := range []struct {
		name string
		// fails makes the failure and gives its time.
		fails func(c *cluster.Cluster) time.Time
		// streamed is the status that a stream has begun with by then.
		streamed int
		codes    []any
	}{
		{
			name: "prefill is dead",
			fails: func(c *cluster.Cluster) time.Time {
				at := time.Now()
				c.Prefill[0].Kill()
				return at
			},
			streamed: 200, codes: []any{"peer_unreachable", "aborted"},
		},
		{
			name: "decode is dead",
			fails: func(c *cluster.Cluster) time.Time {
				at := time.Now()
				c.Decode[0].Kill()
				return at
			},
			streamed: 200, codes: []any{"peer_unreachable", "upstream_interrupted"},
		},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := computes.start(t, patient)
			for _, stream := range []bool{true, false} {
				f, _ := computes.fly(t, c, fmt.Sprint(row.name, stream), stream)
				at := row.fails(c)
				f.wantError(t)
				t.Logf("stream %t: %v after the failure: %d %v", stream, f.landed.Sub(at).Round(time.Millisecond), f.answer.Status, f.answer.Failure)
				require.Less(t, f.landed.Sub(at), soon)
				require.Equal(t, stream, f.answer.Status == row.streamed)
				require.Contains(t, row.codes, f.answer.Failure.Code)
				for _, n := range c.Nodes() {
					if !n.Alive() {
						n.Start(t)
						n.Ready(t)
					}
				}
				c.WaitPairs(t, 1)
				c.AssertIdle(t)
			}
		})
	}
}

// Case B02: a node that takes nothing, or is not there, when a request comes: the
// router hears it from the node itself, because it has not asked since. The
// client has a JSON error at once, stream or not; the other node's leg is ended.
func TestNodeThatTakesNothingIsTheClientsAnswerAtOnce(t *testing.T) {
	t.Parallel()
	order := func(name string, node func(*cluster.Cluster) *cluster.Node) func(*testing.T, *cluster.Cluster) {
		return func(t *testing.T, c *cluster.Cluster) {
			code, printed := pdctl(t, c, name, string(node(c).Entry.NodeID))
			require.Zero(t, code, "%s", printed)
		}
	}
	prefill := func(c *cluster.Cluster) *cluster.Node { return c.Prefill[0] }
	decode := func(c *cluster.Cluster) *cluster.Node { return c.Decode[0] }
	for _, row := range []struct {
		name   string
		before func(t *testing.T, c *cluster.Cluster)
		out    func(*cluster.Cluster) *cluster.Node
		code   string
	}{
		{"prefill is dead", func(_ *testing.T, c *cluster.Cluster) { c.Prefill[0].Kill() }, prefill, "peer_unreachable"},
		{"decode is dead", func(_ *testing.T, c *cluster.Cluster) { c.Decode[0].Kill() }, decode, "peer_unreachable"},
		{"prefill drains", order("drain", prefill), prefill, "draining"},
		{"decode drains", order("drain", decode), decode, "draining"},
		{"decode is gated", gateDecode, decode, "node_gated"},
	} {
		for _, stream := range []bool{true, false} {
			t.Run(fmt.Sprint(row.name, ", stream ", stream), func(t *testing.T) {
				t.Parallel()
				o := cluster.Options{
					PLayout: "dp2tp1", DLayout: "dp2tp1", HandoffSeconds: patient, ExpectErrors: true,
					// The router asks each node once, and again when it was refused.
					RouterFlags: []string{"--node-poll-interval", "1h"},
				}
				if row.code == "node_gated" {
					o.HandoffSeconds = hasty
					o.PrefillFaults = []simulator.Fault{{Kind: simulator.LateWriteAfterFailed}}
				}
				c := cluster.Start(t, o)
				row.before(t, c)
				at := time.Now()
				f := fly(t, c.URL, cluster.Completion{Prompt: cluster.Prompt("refused", 100), Max: 8, Stream: stream})
				f.wantError(t)
				t.Logf("%v after it was sent: %d %v", f.landed.Sub(at).Round(time.Millisecond), f.answer.Status, f.answer.Failure)
				require.Less(t, f.landed.Sub(at), soon)
				require.Equal(t, 503, f.answer.Status)
				require.Contains(t, []any{row.code, "no_eligible_pair"}, f.answer.Failure.Code, "%s", f.answer.Raw)
				for _, n := range c.Nodes() {
					if n != row.out(c) {
						wantOpen(t, n)
					}
				}
				// By now the router knows, whatever it was told by.
				c.WaitPairs(t, 0)
				at = time.Now()
				f = fly(t, c.URL, cluster.Completion{Prompt: "again", Max: 8, Stream: stream})
				f.wantError(t)
				require.Less(t, f.landed.Sub(at), soon)
				require.Equal(t, "no_eligible_pair", f.answer.Failure.Code)
				require.Equal(t, "1", f.answer.Header.Get("Retry-After"))
			})
		}
	}
}

// gateDecode makes the first write one that may land late. The router hears of
// that from the client's error only, and asks decode when it was gated already,
// or not yet.
func gateDecode(t *testing.T, c *cluster.Cluster) {
	t.Helper()
	fly(t, c.URL, cluster.Completion{Prompt: cluster.Prompt("gates", 100), Max: 8}).wantError(t)
	wantGated(t, c, c.Decode[0], handoff(t, c.Decode[0], 0))
}

// Case B27: a transfer that fails without a doubt is known before the head of a whole
// answer. Whether a stream has its head by then is a race between the nodes.
func TestFailedTransferIsTheClientsAnswer(t *testing.T) {
	t.Parallel()
	zero, one := pd.Rank(0), pd.Rank(1)
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1", HandoffSeconds: patient, ExpectErrors: true,
		PrefillFaults: []simulator.Fault{
			{Kind: simulator.SubmitFailed, Target: &zero, Times: 1 << 20}, {Kind: simulator.SubmitFailed, Target: &one, Times: 1 << 20},
		},
	})
	for i := range 6 {
		at := time.Now()
		f := fly(t, c.URL, cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("failed ", i), 100), Max: 8, Stream: i%2 == 0})
		f.wantError(t)
		require.Less(t, f.landed.Sub(at), soon)
		t.Logf("stream %t: %v: %d %v", f.q.Stream, f.landed.Sub(at).Round(time.Millisecond), f.answer.Status, f.answer.Failure)
		require.Contains(t, []any{"transfer_failed", "aborted"}, f.answer.Failure.Code, "%s", f.answer.Raw)
		c.AssertIdle(t)
	}
}

// Case B02: what a node refuses before anything began is a JSON error for streams, too,
// and costs the other node nothing.
func TestRefusalBeforeTheHeadIsJSON(t *testing.T) {
	t.Parallel()
	for _, row := range []struct {
		name            string
		prefill, decode []string
		q               cluster.Completion
		status          int
	}{
		{"prefill refuses a parameter", nil, nil, cluster.Completion{Prompt: "a", Max: 4, Fields: map[string]any{"temperature": 1}}, 400},
		{"prefill refuses the length", []string{"--max-model-len", "64"}, []string{"--max-model-len", "64"}, cluster.Completion{Prompt: cluster.Prompt("long", 100), Max: 4}, 400},
		{"decode has no memory for it", nil, []string{"--sim-pool-tokens", "1280"}, cluster.Completion{Prompt: cluster.Prompt("large", 1500), Max: 4}, 503},
	} {
		t.Run(row.name, func(t *testing.T) {
			t.Parallel()
			c := cluster.Start(t, cluster.Options{
				PLayout: "dp2tp1", DLayout: "dp2tp1", HandoffSeconds: patient, ExpectErrors: true, PrefillFlags: row.prefill, DecodeFlags: row.decode,
			})
			for _, stream := range []bool{true, false} {
				q := row.q
				q.Stream = stream
				at := time.Now()
				f := fly(t, c.URL, q)
				f.land(t)
				require.NoError(t, f.err)
				t.Logf("stream %t: %v: %d %v", stream, f.landed.Sub(at).Round(time.Millisecond), f.answer.Status, f.answer.Failure)
				require.Less(t, f.landed.Sub(at), soon)
				require.Equal(t, row.status, f.answer.Status, "%s", f.answer.Raw)
				require.Contains(t, f.answer.Header.Get("Content-Type"), "application/json")
				require.NotNil(t, f.answer.Failure)
				c.AssertIdle(t)
			}
			for _, n := range c.Nodes() {
				require.Zero(t, n.Count(t, journal.RecoveryRequired), n.Label)
			}
			tenOfTen(t, c, "after")
		})
	}
}
