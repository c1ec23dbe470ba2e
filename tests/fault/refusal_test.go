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

// Whoever fails, before the head of the answer or after it: the client has one
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

// A transfer that fails without a doubt is known before the head of a whole
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

// What a node refuses before anything began is a JSON error for streams, too,
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
