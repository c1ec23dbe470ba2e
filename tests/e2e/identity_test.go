package e2e

import (
	"bytes"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// Case B22: one HTTP request is one sequence with its own ids. What would be
// more is refused before any node hears of it; equal ids of clients and a request
// that is sent again after a cut never meet.
func TestNoTwoSequencesShareATransfer(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	c := cluster.Start(t, cluster.Options{PLayout: "dp2tp1", DLayout: "dp2tp1", DecodeFlags: []string{"--sim-decode-rate", "100"}})
	for name, fields := range map[string]map[string]any{
		"n 2": {"n": 2}, "n 3": {"n": 3}, "best_of": {"best_of": 2},
		"two prompts": {"prompt": []string{"a", "b"}}, "two lists of tokens": {"prompt": [][]int{{1, 2}, {3}}},
	} {
		for _, stream := range []bool{false, true} {
			a, err := cluster.Complete(t.Context(), c.URL, cluster.Completion{Prompt: "a", Max: 4, Stream: stream, Fields: fields})
			require.NoError(t, err, name)
			require.Equal(t, 400, a.Status, "%s: %s", name, a.Raw)
			require.Contains(t, fields, a.Failure.Param, "%s: the error names the field: %s", name, a.Raw)
		}
	}
	for _, n := range c.Nodes() {
		require.Zero(t, n.Count(t, journal.HandoffCreated), "%s heard of what the router refuses", n.Label)
	}

	// One client id on several requests at once.
	var all sync.WaitGroup
	for i := range 6 {
		q := cluster.Completion{Prompt: cluster.Prompt([]string{"same", "other"}[i%2], 60), Max: 20, Stream: i%3 == 0}
		want := combined.Text(t, q)
		all.Go(func() {
			m, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.URL+q.Path(), bytes.NewReader(q.Body()))
			if !assert.NoError(t, err) {
				return
			}
			m.Close = true
			m.Header.Set("Content-Type", "application/json")
			m.Header.Set("X-Request-Id", "the same for all")
			r, err := http.DefaultClient.Do(m)
			if !assert.NoError(t, err) {
				return
			}
			a, err := cluster.Read(r)
			if assert.NoError(t, err) && assert.NoError(t, a.Check(q)) {
				assert.Equal(t, want, a.Text)
			}
		})
	}
	all.Wait()

	// The same again right after a cut.
	q := cluster.Completion{Prompt: cluster.Prompt("again", 100), Max: 40, Stream: true}
	want := combined.Text(t, q)
	client := cluster.Dial(t, c.URL, q)
	client.Line(t, "data: ")
	client.Reset()
	require.Equal(t, want, cluster.MustComplete(t, c.URL, q).Text)
	c.AssertIdle(t)
	ids := map[string]bool{}
	for _, e := range c.Decode[0].Events(t) {
		if e.Event == journal.HandoffCreated {
			require.False(t, ids[e.Handoff], "two requests share handoff %s", e.Handoff)
			ids[e.Handoff] = true
		}
	}
	require.Len(t, ids, 8)
}

// Case B03: a client leaves a long prompt before its first token, and the short
// request behind it does not wait for what nobody wants any more.
func TestShortRequestBehindOneThatWasLeft(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp1tp1", DLayout: "dp1tp1", Capacity: 1, PrefillFlags: []string{"--sim-prefill-rate", "100"},
		RouterFlags: []string{"--queue-size", "4", "--queue-timeout", "60s"},
	})
	for i, stream := range []bool{true, false} {
		known := c.Prefill[0].Count(t, journal.HandoffCreated)
		// Chunks of 128 tokens, eighty seconds in all: more than anybody waits here.
		client := cluster.Dial(t, c.URL, cluster.Completion{Prompt: cluster.Prompt([]string{"long ", "large "}[i], 8000), Max: 4, Stream: stream})
		id := handoff(t, c.Prefill[0], known)
		await(t, c.Prefill[0], id, journal.Compute)
		client.Close()
		q := cluster.Completion{Prompt: "s", Max: 1, Stream: stream}
		require.Equal(t, cluster.SharedCombined(t).Text(t, q), cluster.MustComplete(t, c.URL, q).Text)
		await(t, c.Prefill[0], id, journal.HandoffFailed)
		for _, e := range c.Prefill[0].EventsOf(t, id) {
			require.False(t, e.Event == journal.Compute && e.Span.End == 8000, "prefill went on to the end for nobody")
		}
		c.AssertIdle(t)
	}
}
