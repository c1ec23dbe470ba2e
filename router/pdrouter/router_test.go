package pdrouter

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// Cases B08, B28, B34, B60: what passes and what does not.
//
// Behaviour 126.
func TestBothLegsGetTheClientsRequestAndTheRoutersRoute(t *testing.T) {
	s := newStand(t, settings{})
	body := `{"seed":9007199254740993, "x_big":12345678901234567890,"top_p":0.95,"temperature":1e-7,"logit_bias":{"50256":-0.0},` +
		`"chat_template_kwargs":{"enable_thinking":false},"x_vendor":{"a":[1.10,2.0]},"messages":[{"role":"user","content":"é ` + "\U0001F600" + `"}]}`
	r, got := s.ask("POST", "/v1/chat/completions?x=%20+", body,
		"x-pd-self: evil;1", "X-PD-Handoff-Id: evil", "x-PD-anything: evil", "X-Request-Id: mine", "Authorization: Bearer k",
		"X-Twice: 1", "X-Twice: 2", "Connection: keep-alive, X-Hop", "X-Hop: 1", "Proxy-Authorization: p", "Accept-Encoding: gzip")
	require.Equal(t, 200, r.StatusCode, got)
	require.Equal(t, `{"id":"x"}`, got)
	require.Equal(t, "mine", r.Header.Get("X-Request-Id"))
	p, d := take(t, s.prefills[0].posts), take(t, s.decodes[0].posts)
	id := p.header.Get("X-Pd-Request-Id")
	require.Regexp(t, "^chatcmpl-[0-9a-f]{32}$", id)
	self := map[pd.Role]string{}
	for role, x := range map[pd.Role]received{pd.Prefill: p, pd.Decode: d} {
		require.Equal(t, body, x.body)
		require.Equal(t, "/v1/chat/completions?x=%20+", x.target)
		self[role] = x.header.Get("X-Pd-Self")
		for name, want := range map[string]string{
			"X-Pd-Version": "2", "X-Pd-Request-Id": id, "X-Pd-Handoff-Id": p.header.Get("X-Pd-Handoff-Id"), "X-Pd-Run-Id": string(s.router.config.Run()),
			"Authorization": "Bearer k", "X-Request-Id": "mine", "X-Hop": "", "Proxy-Authorization": "", "X-Pd-Anything": "", "Accept-Encoding": "", "Connection": "close",
		} {
			require.Equal(t, want, x.header.Get(name), name)
		}
		require.Equal(t, []string{"1", "2"}, x.header.Values("X-Twice"))
		require.Len(t, x.header.Values("X-Pd-Self"), 1)
	}
	require.NoError(t, pd.CheckHexID("handoff", p.header.Get("X-Pd-Handoff-Id")))
	require.Equal(t, pd.Peer{Node: s.prefills[0].id, Boot: s.prefills[0].says.Boot}.String(), self[pd.Prefill])
	require.Equal(t, pd.Peer{Node: s.decodes[0].id, Boot: s.decodes[0].says.Boot}.String(), self[pd.Decode])
	require.Equal(t, self[pd.Decode], p.header.Get("X-Pd-Peer"))
	require.Equal(t, self[pd.Prefill], d.header.Get("X-Pd-Peer"))
	s.untilFree()
}

func TestStreamPassesAsDecodeSendsIt(t *testing.T) {
	s := newStand(t, settings{})
	r, body := s.ask("POST", "/v1/completions", streamed)
	require.Equal(t, oneEvent+doneEvent, body)
	require.Equal(t, openai.TypeEvents, r.Header.Get("Content-Type"))
	require.Regexp(t, "^cmpl-[0-9a-f]{32}$", r.Header.Get("X-Request-Id"))
	s.untilFree()
	require.Empty(t, s.decodes[0].aborts)
	require.Empty(t, s.prefills[0].aborts)
}

func TestPairsTurnRoundAndCarryManyRequests(t *testing.T) {
	s := newStand(t, settings{prefills: 2, decodes: 3})
	count := func(nodes []*standNode) (out []int) {
		for _, n := range nodes {
			out = append(out, len(n.posts))
		}
		return out
	}
	for range 6 {
		r, _ := s.ask("POST", "/v1/completions", plain)
		require.Equal(t, 200, r.StatusCode)
	}
	s.untilFree() // decode's stand-in does not wait for prefill
	require.Equal(t, []int{3, 3}, count(s.prefills))
	require.Equal(t, []int{2, 2, 2}, count(s.decodes))
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			for range 9 {
				nc := s.send("POST", "/v1/completions", plain)
				s.read(nc)
				nc.Close()
			}
		})
	}
	wg.Wait()
	s.untilFree()
	require.Equal(t, []int{30, 30}, count(s.prefills))
	require.Equal(t, []int{20, 20, 20}, count(s.decodes))
}

// Case B22.
func TestClientsOwnMistakesAreRefusedBeforeAnyLeg(t *testing.T) {
	s := newStand(t, settings{})
	for body, want := range map[string]string{
		`{"prompt":"p","n":2}`:                                   "unsupported",
		`{"prompt":["a","b"]}`:                                   "unsupported",
		`{"prompt":[[1],[2]]}`:                                   "unsupported",
		`{"prompt":"p","best_of":2}`:                             "unsupported",
		`{"prompt":"p","echo":true}`:                             "unsupported",
		`{"prompt":"p","logprobs":1}`:                            "unsupported",
		`{"prompt":"p","suffix":"s"}`:                            "unsupported",
		`{"prompt":"p","guided_regex":"a"}`:                      "unsupported",
		`{"prompt":"p","stream_options":{"include_usage":true}}`: "invalid_request",
		`{"prompt":`:                                             "invalid_request",
		`{}`:                                                     "invalid_request",
		strings.Repeat("[", 100000):                              "invalid_request",
		`{"prompt":"a","stream":"yes"}`:                          "invalid_request",
	} {
		r, got := s.ask("POST", "/v1/completions", body)
		require.Equal(t, 400, r.StatusCode)
		require.Equal(t, want, codeOf(t, got))
		require.Regexp(t, "^cmpl-[0-9a-f]{32}$", r.Header.Get("X-Request-Id"))
	}
	for target, status := range map[string]int{"/v1/embeddings": 404, "/": 405, "/v1/../health": 404} {
		r, _ := s.ask("POST", target, plain)
		require.Equal(t, status, r.StatusCode)
	}
	r, _ := s.ask("GET", "/v1/completions", "")
	require.Equal(t, 405, r.StatusCode)
	require.Equal(t, "POST", r.Header.Get("Allow"))
	require.Empty(t, s.prefills[0].posts)
	require.Empty(t, s.decodes[0].posts)
	s.untilFree()
}

// Behaviour 129.
func TestFullPairsAre503AndSlotsComeBack(t *testing.T) {
	release := make(chan struct{})
	s := newStand(t, settings{capacity: 2, before: func(s *stand) {
		s.decodes[0].post = func(c *edge.Call) { <-release; answers(c) }
	}})
	first, second := s.send("POST", "/v1/completions", plain), s.send("POST", "/v1/completions", plain)
	take(t, s.decodes[0].posts)
	take(t, s.decodes[0].posts)
	r, body := s.ask("POST", "/v1/completions", plain)
	require.Equal(t, 503, r.StatusCode)
	require.Equal(t, "1", r.Header.Get("Retry-After"))
	require.Equal(t, "node_busy", codeOf(t, body))
	close(release)
	s.read(first)
	s.read(second)
	s.untilFree()
	r, _ = s.ask("POST", "/v1/completions", plain)
	require.Equal(t, 200, r.StatusCode)
}

func TestQueueServesInOrderAndIsBounded(t *testing.T) {
	turn := make(chan struct{})
	s := newStand(t, settings{capacity: 1, queue: QueueOptions{Size: 2, Timeout: patience}, before: func(s *stand) {
		s.decodes[0].post = func(c *edge.Call) { <-turn; answers(c) }
	}})
	running := s.send("POST", "/v1/completions?0", plain)
	take(t, s.decodes[0].posts)
	second := s.send("POST", "/v1/completions?1", plain)
	s.until("one waits", func(v poolView) bool { return v.Waiting == 1 })
	third := s.send("POST", "/v1/completions?2", plain)
	s.until("two wait", func(v poolView) bool { return v.Waiting == 2 })
	r, _ := s.ask("POST", "/v1/completions?3", plain)
	require.Equal(t, 503, r.StatusCode)
	turn <- struct{}{}
	s.read(running)
	require.Equal(t, "/v1/completions?1", take(t, s.decodes[0].posts).target)
	// A waiter that leaves gives up its place.
	third.Close()
	s.until("nobody waits", func(v poolView) bool { return v.Waiting == 0 })
	turn <- struct{}{}
	s.read(second)
	s.untilFree()
	require.Empty(t, s.decodes[0].posts)
}

func TestQueueTimeoutIsARefusal(t *testing.T) {
	s := newStand(t, settings{capacity: 1, queue: QueueOptions{Size: 1, Timeout: 1}, before: func(s *stand) {
		s.decodes[0].post = hangs
	}})
	running := s.send("POST", "/v1/completions", plain)
	take(t, s.decodes[0].posts)
	r, body := s.ask("POST", "/v1/completions", plain)
	require.Equal(t, 503, r.StatusCode)
	require.Equal(t, "node_busy", codeOf(t, body))
	running.Close()
	s.untilFree()
}

// healthOf reads /health.
func (s *stand) healthOf() (int, healthBody) {
	s.t.Helper()
	r, body := s.ask("GET", "/health", "")
	var h healthBody
	require.NoError(s.t, json.Unmarshal([]byte(body), &h))
	return r.StatusCode, h
}

// Behaviour 130.
func TestHealthIsOKOnlyWhileAPairServes(t *testing.T) {
	s := newStand(t, settings{unready: true, before: func(s *stand) { s.prefills[0].says.Health = pd.Starting }})
	s.until("decode is there", func(v poolView) bool { return v.Nodes[1].State == "READY" })
	s.until("prefill is there", func(v poolView) bool { return v.Nodes[0].State == "STARTING" })
	status, h := s.healthOf()
	require.Equal(t, 503, status)
	require.Equal(t, "error", h.Status)
	r, body := s.ask("POST", "/v1/completions", plain)
	require.Equal(t, 503, r.StatusCode)
	require.Equal(t, "no_eligible_pair", codeOf(t, body))
	require.Equal(t, "1", r.Header.Get("Retry-After"))

	s.prefills[0].change(func() { s.prefills[0].says.Health = pd.Ready })
	s.until("a pair serves", func(v poolView) bool { return v.Pairs == 1 })
	status, h = s.healthOf()
	require.Equal(t, 200, status)
	require.Equal(t, healthBody{
		Status: "ok", ProtocolVersion: 2, Run: s.router.config.Run(), Boot: s.router.options.Boot, Pairs: 1, Nodes: []nodeView{
			{Role: pd.Prefill, Node: s.prefills[0].id, Boot: s.prefills[0].says.Boot, State: "READY", Capacity: 8},
			{Role: pd.Decode, Node: s.decodes[0].id, Boot: s.decodes[0].says.Boot, State: "READY", Capacity: 8},
		},
	}, h)

	s.decodes[0].change(func() {
		s.decodes[0].says.Health, s.decodes[0].says.Reason = pd.RecoveryRequired, "uncertain writes of boot 7"
	})
	s.until("the gate is seen", func(v poolView) bool { return v.Pairs == 0 })
	status, h = s.healthOf()
	require.Equal(t, 503, status)
	require.Equal(t, "RECOVERY_REQUIRED", h.Nodes[1].State)
	require.Equal(t, "uncertain writes of boot 7", h.Nodes[1].Reason)

	s.router.Drain()
	status, h = s.healthOf()
	require.Equal(t, 503, status)
	require.Equal(t, "draining", h.Status)
	r, body = s.ask("POST", "/v1/completions", plain)
	require.Equal(t, 503, r.StatusCode)
	require.Equal(t, "draining", codeOf(t, body))
}

// Behaviours 127 and 162.
func TestNodesThatDoNotFitAreNamedAndPassed(t *testing.T) {
	s := newStand(t, settings{prefills: 2, decodes: 2, unready: true, before: func(s *stand) {
		s.prefills[1].says.Run = "another"
		k := &s.decodes[1].says
		k.Contract.ModelRevision = "other"
		digest, err := wire.ContractDigest(&k.Contract)
		require.NoError(t, err)
		k.ContractDigest = digest
	}})
	s.until("all have answered", func(v poolView) bool {
		return v.Pairs == 1 && strings.Contains(v.Nodes[1].Reason, `is of run "another"`) && v.Nodes[3].State == "READY"
	})
	for range 4 {
		r, _ := s.ask("POST", "/v1/completions", plain)
		require.Equal(t, 200, r.StatusCode)
	}
	require.Empty(t, s.prefills[1].posts)
	require.Empty(t, s.decodes[1].posts)
	s.prefills[0].change(func() { s.prefills[0].says.Health = pd.Draining })
	s.until("no pair is left", func(v poolView) bool { return v.Pairs == 0 })
}

func TestMismatchIsTheReasonOfHealth(t *testing.T) {
	s := newStand(t, settings{unready: true, before: func(s *stand) { s.decodes[0].says.RingPeriods = map[pd.GroupName]int{"ori": 7} }})
	s.until("both are ready", func(v poolView) bool { return v.Nodes[0].State == "READY" && v.Nodes[1].State == "READY" })
	_, h := s.healthOf()
	require.Contains(t, h.Reason, "ring_periods[ori]: decode has 7, a transfer may need 8")
	for _, n := range h.Nodes {
		require.Contains(t, n.Reason, "never paired: differs from")
	}
}

// Case B25: a node that is silent for a while is out for that while.
func TestSilentNodeIsLeftOutAndComesBack(t *testing.T) {
	s := newStand(t, settings{decodes: 2})
	s.decodes[0].change(func() { s.decodes[0].silent = true })
	s.until("it is lost", func(v poolView) bool { return v.Nodes[1].State == stateUnreachable })
	for range 3 {
		r, _ := s.ask("POST", "/v1/completions", plain)
		require.Equal(t, 200, r.StatusCode)
	}
	require.Empty(t, s.decodes[0].posts)
	s.decodes[0].change(func() { s.decodes[0].silent = false })
	s.until("it is back", func(v poolView) bool { return v.Pairs == 2 })
}

func TestModelsAndMetrics(t *testing.T) {
	s := newStand(t, settings{})
	s.ask("POST", "/v1/completions", streamed)
	s.untilFree()
	_, body := s.ask("GET", "/v1/models", "")
	require.Contains(t, body, `"id":"m"`)
	_, body = s.ask("GET", "/v1/models/m", "")
	require.Contains(t, body, `"max_model_len":1000`)
	r, _ := s.ask("GET", "/v1/models/x", "")
	require.Equal(t, 404, r.StatusCode)
	_, body = s.ask("GET", "/metrics", "")
	for _, line := range []string{
		`pypto_router_requests_total{state="completed"} 1`, `pypto_router_serving_pairs 1`, `pypto_router_first_byte_seconds_count{kind="completion"} 1`,
		fmt.Sprintf(`pypto_router_node_active_requests{node="%s",role="prefill"} 0`, s.prefills[0].id),
	} {
		require.Contains(t, body, line)
	}
	r, body = s.ask("GET", "/", "")
	require.Equal(t, "text/html; charset=utf-8", r.Header.Get("Content-Type"))
	require.Contains(t, body, "PD router: <span class=\"ok\">serving</span>")
	require.Contains(t, body, string(s.prefills[0].id))
	_, body = s.ask("GET", "/metrics/json", "")
	var m snapshotBody
	require.NoError(t, json.Unmarshal([]byte(body), &m))
	require.EqualValues(t, 1, m.Counters["requests.completed"])
	require.EqualValues(t, 1, m.Durations["request.ttft"].Count)
	require.Len(t, m.Recent, 1)
	require.Equal(t, "completed", m.Recent[0].State)
	require.Positive(t, m.Process.RSS)
}

func TestSettleWaitsForRunningRequests(t *testing.T) {
	release := make(chan struct{})
	s := newStand(t, settings{before: func(s *stand) {
		s.decodes[0].post = func(c *edge.Call) { <-release; answers(c) }
	}})
	nc := s.send("POST", "/v1/completions", plain)
	take(t, s.decodes[0].posts)
	s.router.Drain()
	now, cancel := context.WithCancel(context.Background())
	cancel()
	require.ErrorIs(t, s.router.Settle(now), context.Canceled)
	settled := make(chan error, 1)
	go func() { settled <- s.router.Settle(context.Background()) }()
	close(release)
	r, _ := s.read(nc)
	require.Equal(t, 200, r.StatusCode)
	require.NoError(t, take(t, settled))
}
