package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// Behaviour 136, 173: what prefill refuses is the client's answer as it is,
// before any stream, and decode, which waits for it, is free at once.
func TestWhatPrefillRefusesReachesTheClient(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	c := cluster.Start(t, cluster.Options{PLayout: "dp2tp1", DLayout: "dp2tp1", PrefillFlags: []string{"--max-model-len", "2048"}, DecodeFlags: []string{"--max-model-len", "2048"}})
	for _, bad := range []struct {
		name    string
		request cluster.Completion
		status  int
		code    string
		param   string
	}{
		{"temperature", cluster.Completion{Prompt: "a", Max: 4, Fields: map[string]any{"temperature": 1}}, 400, "unsupported", "temperature"},
		{"long prompt", cluster.Completion{Prompt: cluster.Prompt("a", 2100), Max: 4}, 400, "context_length_exceeded", "prompt"},
		{"long output", cluster.Completion{Prompt: cluster.Prompt("a", 1000), Max: 1049}, 400, "context_length_exceeded", "max_tokens"},
		{"empty prompt", cluster.Completion{Max: 4}, 400, "invalid_request", "prompt"},
		{"other model", cluster.Completion{Prompt: "a", Max: 4, Fields: map[string]any{"model": "other"}}, 404, "model_not_found", "model"},
	} {
		for _, stream := range []bool{false, true} {
			q := bad.request
			q.Stream = stream
			a, err := cluster.Complete(t.Context(), c.URL, q)
			require.NoError(t, err, bad.name)
			require.Equal(t, bad.status, a.Status, "%s: %s", bad.name, a.Raw)
			require.Contains(t, a.Header.Get("Content-Type"), "application/json", bad.name)
			require.NotNil(t, a.Failure, bad.name)
			require.Equal(t, bad.code, a.Failure.Code, "%s: %s", bad.name, a.Raw)
			require.Equal(t, bad.param, a.Failure.Param, "%s: %s", bad.name, a.Raw)
			require.NotEmpty(t, a.Failure.Message)
			var both struct{ Object, Message string }
			require.NoError(t, json.Unmarshal(a.Raw, &both))
			require.Equal(t, "error", both.Object)
			require.Equal(t, a.Failure.Message, both.Message)
			c.AssertIdle(t)
		}
	}
	for _, n := range c.Decode {
		require.Zero(t, n.Count(t, journal.HandoffReserved), "decode reserved memory for a request that prefill refused")
	}
	next := cluster.Completion{Prompt: cluster.Prompt("next", 100), Max: 8}
	require.Equal(t, combined.Text(t, next), cluster.MustComplete(t, c.URL, next).Text)
	c.AssertIdle(t)
}

// The router is the only way in: a node with a role refuses a generation that
// did not come through one, and a client cannot make up a route.
//
// Case B34: nor does a client that reaches a node itself.
func TestNodesWithARoleTakeRequestsFromTheirRouterOnly(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	c := cluster.Start(t, cluster.Options{PLayout: "dp2tp1", DLayout: "dp2tp1"})
	q := cluster.Completion{Prompt: cluster.Prompt("route", 50), Max: 8}
	for _, n := range c.Nodes() {
		a, err := cluster.Complete(t.Context(), n.URL(), q)
		require.NoError(t, err)
		require.Equal(t, 400, a.Status)
		require.Equal(t, "route_missing", a.Failure.Code)
	}
	m, err := http.NewRequestWithContext(t.Context(), http.MethodPost, c.URL+q.Path(), strings.NewReader(string(q.Body())))
	require.NoError(t, err)
	m.Close = true
	m.Header.Set("Content-Type", "application/json")
	for name, value := range map[string]string{
		"X-PD-Version": "1", "X-PD-Handoff-Id": strings.Repeat("0", 32), "X-PD-Peer": "elsewhere:1;" + strings.Repeat("0", 32), "x-pd-other": "x",
	} {
		m.Header.Set(name, value)
	}
	r, err := http.DefaultClient.Do(m)
	require.NoError(t, err)
	defer r.Body.Close()
	require.Equal(t, 200, r.StatusCode)
	var said struct{ Choices []struct{ Text string } }
	require.NoError(t, json.NewDecoder(r.Body).Decode(&said))
	require.Equal(t, combined.Text(t, q), said.Choices[0].Text)
	for name := range r.Header {
		require.False(t, strings.HasPrefix(strings.ToLower(name), "x-pd-"), "the client sees %s", name)
	}
	c.AssertIdle(t)
}

// nodeState is what the router's /health says of a node.
func nodeState(t *testing.T, c *cluster.Cluster, n *cluster.Node) (state, reason, boot string, h cluster.RouterHealth) {
	t.Helper()
	h, err := c.RouterHealth()
	require.NoError(t, err)
	for _, v := range h.Nodes {
		if v.Node == string(n.Entry.NodeID) {
			return v.State, v.Reason, v.Boot, h
		}
	}
	require.FailNow(t, "the router does not know the node")
	panic("unreachable")
}

// Behaviour 130, 174: without a pair the answer is 503 and /health says why; a
// node that comes back is another life and serves again.
func TestNodeThatComesBackServesAgain(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	c := cluster.Start(t, cluster.Options{PLayout: "dp2tp1", DLayout: "dp2tp1"})
	text := func(seed string) {
		t.Helper()
		q := cluster.Completion{Prompt: cluster.Prompt(seed, 200), Max: 8, Stream: true}
		require.Equal(t, combined.Text(t, q), cluster.MustComplete(t, c.URL, q).Text)
	}
	text("before")
	for _, n := range []*cluster.Node{c.Decode[0], c.Prefill[0]} {
		for _, end := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL} {
			t.Logf("%s ends with %v", n.Label, end)
			_, _, before, _ := nodeState(t, c, n)
			n.Signal(end)
			n.Wait(t)
			cluster.Eventually(t, func() error {
				state, reason, _, h := nodeState(t, c, n)
				if h.Code != 503 || h.Status != "error" || h.Reason == "" || h.Pairs != 0 || state != "UNREACHABLE" || reason == "" {
					return fmt.Errorf("/health is %+v", h)
				}
				return nil
			})
			for _, stream := range []bool{true, false} {
				a, err := cluster.Complete(t.Context(), c.URL, cluster.Completion{Prompt: "nobody", Max: 4, Stream: stream})
				require.NoError(t, err)
				require.Equal(t, 503, a.Status)
				require.Equal(t, "1", a.Header.Get("Retry-After"))
				require.Equal(t, "no_eligible_pair", a.Failure.Code, "%s", a.Raw)
			}
			n.Start(t)
			n.Ready(t)
			c.WaitPairs(t, 1)
			_, _, after, _ := nodeState(t, c, n)
			require.NotEqual(t, before, after, "the new life has the old boot id")
			text(fmt.Sprint("after ", n.Label, end))
			c.AssertIdle(t)
		}
	}
}
