package serve_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/serve"
)

var (
	prefillPeer = pd.Peer{Node: "10.1.0.1:8000", Boot: pd.BootID(strings.Repeat("a", 32))}
	decodePeer  = pd.Peer{Node: "d;odd", Boot: pd.BootID(strings.Repeat("b", 32))}
	hexID       = strings.Repeat("0123456789abcdef", 2)
)

// routed gives the headers that a router sends to self.
func routed(self, peer pd.Peer) map[string]string {
	return map[string]string{
		"X-PD-Version": "2", "X-PD-Request-Id": "cmpl-" + hexID, "X-PD-Handoff-Id": hexID, "X-PD-Run-Id": "run",
		"X-PD-Self": self.String(), "X-PD-Peer": peer.String(),
	}
}

func lines(headers map[string]string) []string {
	var out []string
	for n, v := range headers {
		out = append(out, n+": "+v)
	}
	return out
}

func role(t *testing.T, r pd.Role, g *scripted) *node {
	self := prefillPeer
	if r == pd.Decode {
		self = decodePeer
	}
	return start(t, serve.Config{Role: r, Self: self, Run: "run", Generator: g})
}

func TestPrefillTokenizesAndAnswersOnceRetired(t *testing.T) {
	g := &scripted{outputs: []engine.Output{{Finish: pd.FinishStop, Usage: engine.Usage{PromptTokens: 4, CachedTokens: 1}}}}
	n := role(t, pd.Prefill, g)
	r, body := n.ask(t, "POST", "/v1/completions", `{"prompt":"abc","stream":true,"max_tokens":5}`, lines(routed(prefillPeer, decodePeer))...)
	require.Equal(t, 200, r.StatusCode, body)
	require.JSONEq(t, `{"object":"pd.prefill","id":"cmpl-`+hexID+`","state":"RETIRED","handoff_id":"`+hexID+`",
		"usage":{"prompt_tokens":4,"completion_tokens":0,"total_tokens":4,"prompt_tokens_details":{"cached_tokens":1}}}`, body)
	got := g.last(t)
	require.Equal(t, &pd.Fence{Request: pd.RequestID("cmpl-" + hexID), Handoff: pd.HandoffID(hexID), Run: "run", Prefill: prefillPeer, Decode: decodePeer}, got.Fence)
	require.Equal(t, []pd.Token{1, 'a', 'b', 'c'}, got.Continuation.PromptTokens)
	require.True(t, got.Continuation.Stream)
}

func TestPrefillFailureIsAnHTTPError(t *testing.T) {
	g := &scripted{outputs: []engine.Output{{Finish: pd.FinishFailed, Err: pd.Errorf(pd.CodeTransferFailed, "transfer", "link down")}}}
	n := role(t, pd.Prefill, g)
	r, body := n.ask(t, "POST", "/v1/completions", `{"prompt":"abc"}`, lines(routed(prefillPeer, decodePeer))...)
	require.Equal(t, 503, r.StatusCode)
	_, code, _, _ := errorOf(t, body)
	require.Equal(t, "transfer_failed", code)
}

func TestDecodeTakesThePromptFromPrefill(t *testing.T) {
	g := &scripted{outputs: hello()}
	n := role(t, pd.Decode, g)
	// Case B33: what prefill would refuse or cut is not decode's business.
	_, body := n.ask(t, "POST", "/v1/completions", `{"prompt":"untokenizable","stream":true,"max_tokens":99}`, lines(routed(decodePeer, prefillPeer))...)
	list := events(t, body)
	require.Equal(t, "[DONE]", list[len(list)-1])
	require.Contains(t, list[0], `"id":"cmpl-`+hexID+`"`)
	got := g.last(t)
	require.Equal(t, pd.Continuation{Stream: true}, got.Continuation)
	require.Equal(t, &pd.Fence{Request: pd.RequestID("cmpl-" + hexID), Handoff: pd.HandoffID(hexID), Run: "run", Prefill: prefillPeer, Decode: decodePeer}, got.Fence)
}

// What decode's cache had is in the head of its answer, for the router.
func TestDecodeTellsWhatItsCacheHad(t *testing.T) {
	hit := 640
	for _, body := range []string{`{"prompt":"a"}`, `{"prompt":"a","stream":true}`} {
		n := role(t, pd.Decode, &scripted{outputs: hello(), hit: &hit})
		r, _ := n.ask(t, "POST", "/v1/completions", body, lines(routed(decodePeer, prefillPeer))...)
		require.Equal(t, "640", r.Header.Get("X-PD-Hit-Tokens"))
	}
}

func TestDecodeRefusalComesBeforeTheStream(t *testing.T) {
	n := role(t, pd.Decode, &scripted{refuse: pd.Errorf(pd.CodeCapacityExhausted, "reserve", "no pages")})
	r, body := n.ask(t, "POST", "/v1/completions", `{"prompt":"a","stream":true}`, lines(routed(decodePeer, prefillPeer))...)
	require.Equal(t, 503, r.StatusCode)
	require.Equal(t, "1", r.Header.Get("Retry-After"))
	require.NotContains(t, body, "data:")
}

// Case B34: a route that is not the router's is refused.
func TestNodesWithARoleRefuseWhatIsNotFromTheirRouter(t *testing.T) {
	other := pd.Peer{Node: prefillPeer.Node, Boot: pd.BootID(strings.Repeat("c", 32))}
	for name, c := range map[string]struct {
		change map[string]string
		status int
		code   string
	}{
		"no version":     {map[string]string{"X-PD-Version": ""}, 400, "route_missing"},
		"no handoff":     {map[string]string{"X-PD-Handoff-Id": ""}, 400, "route_missing"},
		"old version":    {map[string]string{"X-PD-Version": "1"}, 409, "version_mismatch"},
		"other boot":     {map[string]string{"X-PD-Self": other.String()}, 409, "stale_boot_identity"},
		"other node":     {map[string]string{"X-PD-Self": decodePeer.String()}, 409, "stale_boot_identity"},
		"odd self":       {map[string]string{"X-PD-Self": "me"}, 400, "route_missing"},
		"odd peer":       {map[string]string{"X-PD-Peer": "you;now"}, 400, "route_missing"},
		"own peer":       {map[string]string{"X-PD-Peer": prefillPeer.String()}, 400, "route_missing"},
		"odd handoff":    {map[string]string{"X-PD-Handoff-Id": "7"}, 400, "route_missing"},
		"chat id":        {map[string]string{"X-PD-Request-Id": "chatcmpl-" + hexID}, 400, "route_missing"},
		"other run":      {map[string]string{"X-PD-Run-Id": "else"}, 409, "identity"},
		"repeated":       {map[string]string{"x-pd-SELF": prefillPeer.String()}, 400, "route_missing"},
		"nothing at all": {map[string]string{"X-PD-Version": "", "X-PD-Request-Id": "", "X-PD-Handoff-Id": "", "X-PD-Run-Id": "", "X-PD-Self": "", "X-PD-Peer": ""}, 400, "route_missing"},
	} {
		t.Run(name, func(t *testing.T) {
			g := &scripted{outputs: hello()}
			n := role(t, pd.Prefill, g)
			headers := routed(prefillPeer, decodePeer)
			for k, v := range c.change {
				if v == "" {
					delete(headers, k)
				} else {
					headers[k] = v
				}
			}
			r, body := n.ask(t, "POST", "/v1/completions", `{"prompt":"a"}`, lines(headers)...)
			require.Equal(t, c.status, r.StatusCode, body)
			_, code, _, _ := errorOf(t, body)
			require.Equal(t, c.code, code)
			require.Empty(t, g.requests)
		})
	}
}
