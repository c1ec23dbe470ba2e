package serve_test

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/edge"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
	"github.com/hw-native-sys/pypto-pd/pd/serve"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 10 * time.Second

// charModel has one token per byte and 100 tokens in all.
type charModel struct{}

func (charModel) Tokenize(p engine.Prompt) ([]pd.Token, error) {
	var text string
	switch {
	case p.Text != nil:
		text = *p.Text
	case p.Messages != nil:
		for _, m := range p.Messages {
			text += m.Role + ":" + m.Content + "\n"
		}
	default:
		return p.Tokens, nil
	}
	if text == "untokenizable" {
		return nil, errors.New("no such characters")
	}
	if text == "refused" {
		return nil, pd.Errorf(pd.CodeInvalidRequest, "tokenize", "the prompt is refused")
	}
	out := make([]pd.Token, 0, len(text)+1)
	out = append(out, 1)
	for _, b := range []byte(text) {
		out = append(out, pd.Token(b))
	}
	return out, nil
}
func (charModel) EOS() pd.Token    { return 2 }
func (charModel) MaxTokens() int   { return 100 }
func (charModel) Revision() string { return "chars" }

// scripted is a generator that plays outputs and then waits for the context.
type scripted struct {
	refuse  error
	hit     *int // what the stream says of the node's cache, if anything
	outputs []engine.Output

	mu       sync.Mutex
	requests []engine.Request
	closed   chan struct{}
	waiting  chan struct{}
}

func (s *scripted) Generate(ctx context.Context, r engine.Request) (engine.Stream, error) {
	s.mu.Lock()
	s.requests = append(s.requests, r)
	s.mu.Unlock()
	if s.refuse != nil {
		return nil, s.refuse
	}
	if s.hit != nil {
		return reservedStream{&scriptedStream{script: s}, *s.hit}, nil
	}
	return &scriptedStream{script: s}, nil
}

type reservedStream struct {
	*scriptedStream
	hit int
}

func (r reservedStream) HitTokens() int { return r.hit }

func (s *scripted) last(t *testing.T) engine.Request {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	require.NotEmpty(t, s.requests)
	return s.requests[len(s.requests)-1]
}

type scriptedStream struct {
	script *scripted
	next   int
}

func (s *scriptedStream) Next(ctx context.Context) (engine.Output, error) {
	if s.next < len(s.script.outputs) {
		s.next++
		return s.script.outputs[s.next-1], nil
	}
	if s.script.waiting != nil {
		close(s.script.waiting)
	}
	<-ctx.Done()
	return engine.Output{}, ctx.Err()
}

func (s *scriptedStream) Close() {
	if s.script.closed != nil {
		close(s.script.closed)
	}
}

type node struct {
	address string
	results chan serve.Result
	server  *edge.Server
}

func start(t *testing.T, c serve.Config) *node {
	t.Helper()
	n := &node{results: make(chan serve.Result, 64)}
	if c.ServedModel = "m"; c.Model == nil {
		c.Model = charModel{}
	}
	c.Done = func(r serve.Result) { n.results <- r }
	if c.Health == nil {
		c.Health = func() (bool, []byte) { return true, []byte(`{"status":"ok"}`) }
	}
	s := serve.New(c)
	e, err := edge.Listen(edge.ServerConfig{Address: "127.0.0.1:0", Refuse: serve.Refuse})
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- e.Serve(s.Handle) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		e.Shutdown(ctx)
		require.NoError(t, <-done)
	})
	n.address, n.server = e.Addr().String(), e
	return n
}

// ask sends one request over a connection of its own.
func (n *node) ask(t *testing.T, method, path, body string, header ...string) (*http.Response, string) {
	t.Helper()
	nc := n.send(t, method, path, body, header...)
	defer nc.Close()
	r, err := http.ReadResponse(bufio.NewReader(nc), &http.Request{Method: method})
	require.NoError(t, err)
	all, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	return r, string(all)
}

func (n *node) send(t *testing.T, method, path, body string, header ...string) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", n.address)
	require.NoError(t, err)
	nc.SetDeadline(time.Now().Add(patience))
	lines := ""
	for _, h := range header {
		lines += h + "\r\n"
	}
	_, err = fmt.Fprintf(nc, "%s %s HTTP/1.1\r\nHost: h\r\n%sContent-Length: %d\r\n\r\n%s", method, path, lines, len(body), body)
	require.NoError(t, err)
	return nc
}

func (n *node) result(t *testing.T) serve.Result {
	t.Helper()
	select {
	case r := <-n.results:
		return r
	case <-time.After(patience):
		require.FailNow(t, "the generation did not end")
		panic("unreachable")
	}
}

func events(t *testing.T, body string) []string {
	t.Helper()
	require.True(t, strings.HasSuffix(body, "\n\n"), "%q", body)
	out := strings.Split(strings.TrimSuffix(body, "\n\n"), "\n\n")
	for i := range out {
		var ok bool
		out[i], ok = strings.CutPrefix(out[i], "data: ")
		require.True(t, ok, "%q", out[i])
	}
	return out
}

func errorOf(t *testing.T, body string) (kind, code, param, message string) {
	t.Helper()
	var e struct {
		Object  string
		Message string
		Error   struct{ Message, Type, Code, Param string }
	}
	require.NoError(t, json.Unmarshal([]byte(body), &e), "%s", body)
	require.Equal(t, "error", e.Object)
	require.Equal(t, e.Message, e.Error.Message)
	return e.Error.Type, e.Error.Code, e.Error.Param, e.Message
}

func hello() []engine.Output {
	return []engine.Output{
		{Tokens: []pd.Token{3}, Text: "he"},
		{Tokens: []pd.Token{4}}, // held back
		{Tokens: []pd.Token{5}, Text: "llo", Finish: pd.FinishLength, Usage: engine.Usage{PromptTokens: 6, CompletionTokens: 3, CachedTokens: 2}},
	}
}

const wantUsage = `{"prompt_tokens":6,"completion_tokens":3,"total_tokens":9,"prompt_tokens_details":{"cached_tokens":2}}`

func TestWholeAnswers(t *testing.T) {
	g := &scripted{outputs: hello()}
	n := start(t, serve.Config{Generator: g, Now: func() time.Time { return time.Unix(7, 0) }})
	r, body := n.ask(t, "POST", "/v1/completions", `{"model":"m","prompt":"abc","max_tokens":9,"stop":["x"],"seed":5,"top_p":0.9}`)
	id := r.Header.Get("X-Request-Id")
	require.Regexp(t, "^cmpl-[0-9a-f]{32}$", id)
	require.Equal(t, 200, r.StatusCode)
	require.JSONEq(t, `{"id":"`+id+`","object":"text_completion","created":7,"model":"m","choices":[{"index":0,"text":"hello","logprobs":null,"finish_reason":"length"}],"usage":`+wantUsage+`}`, body)
	eos, seed := pd.Token(2), int64(5)
	require.Equal(t, engine.Request{ID: pd.RequestID(id), Continuation: pd.Continuation{
		PromptTokens: []pd.Token{1, 'a', 'b', 'c'}, MaxNewTokens: 9, Temperature: "0", TopP: "0.9", Seed: &seed, Stop: []string{"x"}, EOS: &eos,
	}}, g.last(t))

	r, body = n.ask(t, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"ignore_eos":true}`, "X-PD-Version: 1", "X-PD-Self: whatever")
	require.JSONEq(t, `{"id":"`+r.Header.Get("X-Request-Id")+`","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"logprobs":null,"finish_reason":"length"}],"usage":`+wantUsage+`}`, body)
	require.Equal(t, 100-len("?user:a\n"), g.last(t).Continuation.MaxNewTokens)
	require.Nil(t, g.last(t).Continuation.EOS)
	require.Nil(t, g.last(t).Fence, "without a role X-PD-* mean nothing")
}

func TestStreamedChatHasRoleFirstOneFinishUsageAndDoneOnce(t *testing.T) {
	n := start(t, serve.Config{Generator: &scripted{outputs: hello()}, Now: func() time.Time { return time.Unix(7, 0) }})
	r, body := n.ask(t, "POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"stream":true,"stream_options":{"include_usage":true}}`)
	id := r.Header.Get("X-Request-Id")
	require.Equal(t, openai.TypeEvents, r.Header.Get("Content-Type"))
	head := `{"id":"` + id + `","object":"chat.completion.chunk","created":7,"model":"m","choices":`
	require.Equal(t, []string{
		head + `[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}`,
		head + `[{"index":0,"delta":{"content":"he"},"logprobs":null,"finish_reason":null}],"usage":null}`,
		head + `[{"index":0,"delta":{"content":"llo"},"logprobs":null,"finish_reason":"length"}],"usage":null}`,
		head + `[],"usage":` + wantUsage + `}`,
		"[DONE]",
	}, events(t, body))
	result := n.result(t)
	require.Equal(t, pd.FinishLength, result.Finish)
	require.Zero(t, result.Code)
	require.Equal(t, 200, result.Status)
}

func TestStreamedCompletionWithoutUsage(t *testing.T) {
	n := start(t, serve.Config{Generator: &scripted{outputs: hello()}})
	_, body := n.ask(t, "POST", "/v1/completions", `{"prompt":[5,6],"stream":true}`)
	list := events(t, body)
	require.Len(t, list, 3)
	require.Contains(t, list[0], `"text":"he"`)
	require.Contains(t, list[1], `"finish_reason":"length"`)
	require.Equal(t, "[DONE]", list[2])
	require.NotContains(t, body, "usage")
}

// Behaviour 35.
func TestRefusalsNameFieldAndCode(t *testing.T) {
	n := start(t, serve.Config{Generator: &scripted{outputs: hello()}})
	long := strings.Repeat("x", 99)
	for name, c := range map[string]struct {
		method, path, body string
		status             int
		code, param        string
	}{
		"temperature":     {"POST", "/v1/completions", `{"prompt":"a","temperature":0.7}`, 400, "unsupported", "temperature"},
		"n":               {"POST", "/v1/completions", `{"prompt":"a","n":2}`, 400, "unsupported", "n"},
		"prompts":         {"POST", "/v1/completions", `{"prompt":["a","b"]}`, 400, "unsupported", "prompt"},
		"tools":           {"POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"tools":[{"function":{"name":"f"}}]}`, 400, "unsupported", "tools"},
		"tool calls":      {"POST", "/v1/chat/completions", `{"messages":[{"role":"assistant","tool_calls":[{}]}]}`, 400, "invalid_request", "messages[0].tool_calls[0].function.name"},
		"response format": {"POST", "/v1/chat/completions", `{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_object"}}`, 400, "unsupported", "response_format"},
		"min tokens":      {"POST", "/v1/completions", `{"prompt":"a","min_tokens":5}`, 400, "unsupported", "min_tokens"},
		"json":            {"POST", "/v1/completions", `{"prompt":`, 400, "invalid_request", ""},
		"model":           {"POST", "/v1/completions", `{"model":"other","prompt":"a"}`, 404, "model_not_found", "model"},
		"long prompt":     {"POST", "/v1/completions", `{"prompt":"` + long + `"}`, 400, "context_length_exceeded", "prompt"},
		"long output":     {"POST", "/v1/completions", `{"prompt":"a","max_tokens":99}`, 400, "context_length_exceeded", "max_tokens"},
		"tokenizer":       {"POST", "/v1/completions", `{"prompt":"untokenizable"}`, 400, "invalid_request", "prompt"},
		"tokenizer code":  {"POST", "/v1/completions", `{"prompt":"refused"}`, 400, "invalid_request", "prompt"},
		"method":          {"GET", "/v1/completions", ``, 405, "method_not_allowed", ""},
		"post to health":  {"POST", "/health", ``, 405, "method_not_allowed", ""},
		"path":            {"GET", "/v1/embeddings", ``, 404, "not_found", ""},
		"unclean path":    {"GET", "/v1/../health", ``, 404, "not_found", ""},
		"other model":     {"GET", "/v1/models/other", ``, 404, "model_not_found", "model"},
	} {
		t.Run(name, func(t *testing.T) {
			r, body := n.ask(t, c.method, c.path, c.body)
			require.Equal(t, c.status, r.StatusCode, body)
			_, code, param, _ := errorOf(t, body)
			require.Equal(t, c.code, code)
			require.Equal(t, c.param, param)
			require.Empty(t, r.Header.Get("Retry-After"))
		})
	}
}

func TestGeneratorRefusalKeepsItsCodeAndMayBeRetried(t *testing.T) {
	g := &scripted{refuse: pd.Errorf(pd.CodeBusy, "admit", "8 of 8 requests run")}
	n := start(t, serve.Config{Generator: g})
	r, body := n.ask(t, "POST", "/v1/completions", `{"prompt":"a","stream":true}`)
	require.Equal(t, 503, r.StatusCode)
	require.Equal(t, "1", r.Header.Get("Retry-After"))
	kind, code, _, message := errorOf(t, body)
	require.Equal(t, []string{"service_unavailable_error", "node_busy", "8 of 8 requests run"}, []string{kind, code, message})
	require.Equal(t, pd.CodeBusy, n.result(t).Code)
}

func TestInternalErrorsKeepTheirTextInside(t *testing.T) {
	n := start(t, serve.Config{Generator: &scripted{refuse: errors.New("page 0x7f00 of 10.0.0.1")}})
	r, body := n.ask(t, "POST", "/v1/completions", `{"prompt":"a"}`)
	require.Equal(t, 500, r.StatusCode)
	require.NotContains(t, body, "0x7f00")
	_, code, _, _ := errorOf(t, body)
	require.Equal(t, "internal", code)
}

// Behaviour 148.
func TestLateFailureIsOneErrorEventThenTheEnd(t *testing.T) {
	fail := pd.Errorf(pd.CodeDecodeExhausted, "decode", "no page is left")
	outputs := []engine.Output{{Tokens: []pd.Token{3}, Text: "he"}, {Finish: pd.FinishFailed, Err: fail}}
	n := start(t, serve.Config{Generator: &scripted{outputs: outputs}})
	r, body := n.ask(t, "POST", "/v1/completions", `{"prompt":"a","stream":true,"stream_options":{"include_usage":true}}`)
	require.Equal(t, 200, r.StatusCode)
	list := events(t, body)
	require.Len(t, list, 3)
	kind, code, _, message := errorOf(t, list[1])
	require.Equal(t, []string{"pd_decode_error", "decode_exhausted", "no page is left"}, []string{kind, code, message})
	require.Equal(t, "[DONE]", list[2])
	require.NotContains(t, body, `"finish_reason":"`)

	r, body = n.ask(t, "POST", "/v1/completions", `{"prompt":"a"}`)
	require.Equal(t, 503, r.StatusCode)
	_, code, _, _ = errorOf(t, body)
	require.Equal(t, "decode_exhausted", code)
}

func TestClientThatLeavesClosesTheGeneration(t *testing.T) {
	for name, body := range map[string]string{
		"whole":  `{"prompt":"a"}`,
		"stream": `{"prompt":"a","stream":true}`,
	} {
		t.Run(name, func(t *testing.T) {
			g := &scripted{outputs: hello()[:1], closed: make(chan struct{}), waiting: make(chan struct{})}
			n := start(t, serve.Config{Generator: g})
			nc := n.send(t, "POST", "/v1/completions", body)
			<-g.waiting
			nc.Close()
			<-g.closed
			require.Equal(t, pd.CodeClientGone, n.result(t).Code)
		})
	}
}

func TestHealthModelsAndRoutes(t *testing.T) {
	var ready atomic.Bool
	n := start(t, serve.Config{
		Generator: &scripted{},
		Health:    func() (bool, []byte) { return ready.Load(), fmt.Appendf(nil, `{"ok":%t}`, ready.Load()) },
		Routes:    map[string]edge.Handler{"/metrics": func(c *edge.Call) { c.Reply(200, "text/plain", []byte("up 1\n")) }},
		Now:       func() time.Time { return time.Unix(7, 0) },
	})
	r, body := n.ask(t, "GET", "/health", "")
	require.Equal(t, 503, r.StatusCode)
	require.Equal(t, `{"ok":false}`, body)
	ready.Store(true)
	r, body = n.ask(t, "GET", "/health", "")
	require.Equal(t, 200, r.StatusCode)
	require.Equal(t, `{"ok":true}`, body)
	_, body = n.ask(t, "GET", "/metrics", "")
	require.Equal(t, "up 1\n", body)
	const one = `{"id":"m","object":"model","created":7,"owned_by":"pypto-pd","max_model_len":100}`
	_, body = n.ask(t, "GET", "/v1/models", "")
	require.Equal(t, `{"object":"list","data":[`+one+`]}`, body)
	_, body = n.ask(t, "GET", "/v1/models/m", "")
	require.Equal(t, one, body)
}
