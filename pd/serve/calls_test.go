package serve_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/serve"
)

// boundModel is charModel with grammars, of which it knows all but one.
type boundModel struct{ charModel }

func (boundModel) OutputParser() string { return engine.ParserTagged }
func (boundModel) MaxTokens() int       { return 1000 }
func (boundModel) CheckConstraint(c string) error {
	var v engine.Constraint
	if err := json.Unmarshal([]byte(c), &v); err != nil {
		return err
	}
	switch {
	case strings.Contains(c, "pattern") && v.Calls != nil:
		return &pd.Error{Op: "compile", Code: pd.CodeUnsupported, Text: "no patterns", Param: "calls.tools[0].properties.a.pattern"}
	case strings.Contains(c, "pattern"):
		return &pd.Error{Op: "compile", Code: pd.CodeUnsupported, Text: "no patterns", Param: "format.pattern"}
	}
	return nil
}

func (m boundModel) Tokenize(p engine.Prompt) ([]pd.Token, error) {
	for i, turn := range p.Messages {
		if turn.Content == "so" && turn.Reasoning != "why" {
			return nil, errors.New("the reasoning is not whole")
		}
		if turn.Content == "history" && (p.Messages[i+1].ToolCalls[0] != engine.ToolCall{ID: "1", Name: "f", Arguments: "{}"} || p.Messages[i+2].ToolCallID != "1") {
			return nil, errors.New("the history is not whole")
		}
	}
	for _, t := range p.Tools {
		if t.Name == "f" && (t.Description != "says f" || t.Parameters != `{"type":"object","properties":{"z":{},"a":{"type":"number","maximum":1.50}}}`) {
			return nil, errors.New("the tool is not whole")
		}
	}
	return m.charModel.Tokenize(p)
}

const (
	asks  = `{"messages":[{"role":"user","content":"a"}],`
	toolF = `{"type":"function","function":{"name":"f","description":"says f","parameters":{"type":"object", "properties":{"z":{},"a":{"type":"number","maximum":1.50}}}}}`
	toolG = `{"type":"function","function":{"name":"g"}}`
	// The order of names and the spelling of numbers are the client's.
	boundF = `{"name":"f","parameters":{"type":"object","properties":{"z":{},"a":{"type":"number","maximum":1.50}}}}`
	boundG = `{"name":"g","parameters":null}`
)

func says(pieces ...string) []engine.Output {
	var out []engine.Output
	for _, p := range pieces {
		out = append(out, engine.Output{Tokens: []pd.Token{3}, Text: p})
	}
	last := &out[len(out)-1]
	last.Finish, last.Usage = pd.FinishStop, engine.Usage{PromptTokens: 6, CompletionTokens: 3, CachedTokens: 2}
	return out
}

// Behaviours 146 and 149: what a client asks of the output goes to the engine
// whole.
func TestConstraintsReachTheEngine(t *testing.T) {
	g := &scripted{outputs: says("{}")}
	n := start(t, serve.Config{Generator: g, Model: boundModel{}})
	for name, c := range map[string]struct{ ask, constraint, parser string }{
		"nothing":      {asks + `"tool_choice":"none","tools":[` + toolG + `],"response_format":{"type":"text"}}`, "", ""},
		"object":       {asks + `"response_format":{"type":"json_object"}}`, `{"format":{"schema":null}}`, ""},
		"schema":       {asks + `"response_format":{"type":"json_schema","json_schema":{"name":"n","schema":{"b":1, "a":2e1}}}}`, `{"format":{"schema":{"b":1,"a":2e1}}}`, ""},
		"auto":         {asks + `"tools":[` + toolF + `]}`, `{"calls":{"required":false,"most":2,"tools":[` + boundF + `]}}`, "tagged"},
		"required":     {asks + `"tools":[` + toolF + `,` + toolG + `],"tool_choice":"required"}`, `{"calls":{"required":true,"most":2,"tools":[` + boundF + `,` + boundG + `]}}`, "tagged"},
		"one at once":  {asks + `"tools":[` + toolG + `],"parallel_tool_calls":false}`, `{"calls":{"required":false,"most":1,"tools":[` + boundG + `]}}`, "tagged"},
		"named":        {asks + `"tools":[` + toolF + `,` + toolG + `],"tool_choice":{"type":"function","function":{"name":"g"}}}`, `{"calls":{"required":true,"most":1,"tools":[` + boundG + `]}}`, "tagged"},
		"tools, forms": {asks + `"tools":[` + toolG + `],"response_format":{"type":"json_object"}}`, `{"format":{"schema":null},"calls":{"required":false,"most":2,"tools":[` + boundG + `]}}`, "tagged"},
		"history":      {`{"messages":[{"role":"user","content":"history"},{"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}]},{"role":"tool","tool_call_id":"1","content":"r"}]}`, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			r, body := n.ask(t, "POST", "/v1/chat/completions", c.ask)
			require.Equal(t, 200, r.StatusCode, body)
			require.Equal(t, c.constraint, g.last(t).Continuation.Constraint)
			require.Equal(t, c.parser, g.last(t).Continuation.OutputParser)
		})
	}
	_, body := n.ask(t, "POST", "/v1/completions", `{"prompt":"a","response_format":{"type":"json_object"}}`)
	require.Contains(t, body, `"text":"{}"`)
	require.Equal(t, `{"format":{"schema":null}}`, g.last(t).Continuation.Constraint)
}

func TestWhatTheEngineCannotBindIsRefusedWithItsPlaceInTheBody(t *testing.T) {
	n := start(t, serve.Config{Generator: &scripted{}, Model: boundModel{}})
	pattern := `{"type":"object","properties":{"a":{"pattern":"x"}}}`
	for ask, want := range map[string]string{
		asks + `"response_format":{"type":"json_schema","json_schema":{"schema":{"pattern":"x"}}}}`:                                                        "response_format.json_schema.schema.pattern",
		asks + `"tools":[{"function":{"name":"h","parameters":` + pattern + `}}]}`:                                                                         "tools[0].function.parameters.properties.a.pattern",
		asks + `"tools":[` + toolG + `,{"function":{"name":"h","parameters":` + pattern + `}}],"tool_choice":{"type":"function","function":{"name":"h"}}}`: "tools.h.parameters.properties.a.pattern",
		asks + `"response_format":{"type":"grammar"}}`:                                                                                                     "response_format.type",
		asks + `"functions":[{"name":"f"}]}`:                                                                                                               "functions",
		asks + `"tools":[{"function":{"name":"h","parameters":{"description":"` + strings.Repeat("x", pd.MaxConstraintBytes) + `"}}}]}`:                    "tools",
	} {
		r, body := n.ask(t, "POST", "/v1/chat/completions", ask)
		require.Equal(t, 400, r.StatusCode)
		_, _, param, _ := errorOf(t, body)
		require.Equal(t, want, param)
	}
}

// The grammar's seed needs a grammar: decode compiles before it reserves.
func TestDecodeRefusesEarlyWhatItCannotBind(t *testing.T) {
	g := &scripted{outputs: says("{}")}
	n := start(t, serve.Config{Role: pd.Decode, Self: decodePeer, Run: "run", Generator: g, Model: boundModel{}})
	headers := routed(decodePeer, prefillPeer)
	headers["X-PD-Request-Id"] = "chatcmpl-" + hexID
	schema := func(keyword string) string {
		return asks + `"response_format":{"type":"json_schema","json_schema":{"schema":{"` + keyword + `":"x"}}}}`
	}
	r, body := n.ask(t, "POST", "/v1/chat/completions", schema("pattern"), lines(headers)...)
	require.Equal(t, 400, r.StatusCode, body)
	_, _, param, _ := errorOf(t, body)
	require.Equal(t, "response_format.json_schema.schema.pattern", param)
	require.Empty(t, g.requests)

	r, body = n.ask(t, "POST", "/v1/chat/completions", schema("title"), lines(headers)...)
	require.Equal(t, 200, r.StatusCode, body)
	require.Equal(t, pd.Continuation{}, g.last(t).Continuation, "what decode obeys is prefill's text")
}

// callText is what a model says that calls f with arguments beyond ASCII, and
// then g.
var callText = []string{
	"well <", "tool_call>{\"na", "me\": \"f\", \"arguments\": ", "{\"é", "}<\":[\"\\\"}\",", "{}]}", "}\n</tool_", "call>\n<tool_call>{\"name\":\"g\",\"arguments\":{}}</tool_call>\n",
}

const argumentsF = `{"é}<":["\"}",{}]}`

type streamed struct {
	Choices []struct {
		Delta struct {
			Content   *string
			ToolCalls []struct {
				Index    int
				ID, Type string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		Finish *string `json:"finish_reason"`
	}
	Usage *struct {
		Total int `json:"total_tokens"`
	}
}

// Behaviours 144, 145 and 147.
func TestToolCallsOfAnAnswer(t *testing.T) {
	for _, parallel := range []bool{true, false} {
		ask := asks + `"tools":[` + toolF + `,` + toolG + `]`
		if !parallel {
			ask += `,"parallel_tool_calls":false`
		}
		n := start(t, serve.Config{Generator: &scripted{outputs: says(callText...)}, Model: boundModel{}})
		r, body := n.ask(t, "POST", "/v1/chat/completions", ask+`}`)
		require.Equal(t, 200, r.StatusCode, body)
		id := "call_" + strings.TrimPrefix(r.Header.Get("X-Request-Id"), "chatcmpl-")[:24]
		calls := `{"id":"` + id + `0","type":"function","function":{"name":"f","arguments":` + jsonOf(t, argumentsF) + `}}`
		if parallel {
			calls += `,{"id":"` + id + `1","type":"function","function":{"name":"g","arguments":"{}"}}`
		}
		require.Contains(t, body, `"message":{"role":"assistant","content":"well ","tool_calls":[`+calls+`]},"logprobs":null,"finish_reason":"tool_calls"}]`)

		r, body = n.ask(t, "POST", "/v1/chat/completions", ask+`,"stream":true,"stream_options":{"include_usage":true}}`)
		id = "call_" + strings.TrimPrefix(r.Header.Get("X-Request-Id"), "chatcmpl-")[:24]
		content, finish, usages := "", "", 0
		var names, arguments []string
		list := events(t, body)
		for i, e := range list[:len(list)-1] {
			var v streamed
			require.NoError(t, json.Unmarshal([]byte(e), &v), e)
			if v.Usage != nil {
				usages++
				require.Empty(t, v.Choices)
				require.Equal(t, 9, v.Usage.Total)
				require.Equal(t, len(list)-2, i, "the usage is the last chunk")
				continue
			}
			d := v.Choices[0].Delta
			if d.Content != nil {
				content += *d.Content
			}
			for _, c := range d.ToolCalls {
				if c.ID != "" { // the first piece of a call has its id and name, and no other has
					require.Equal(t, len(names), c.Index)
					require.Equal(t, id+string(rune('0'+c.Index)), c.ID)
					require.Equal(t, "function", c.Type)
					names, arguments = append(names, c.Function.Name), append(arguments, "")
				} else {
					require.Empty(t, c.Function.Name)
				}
				arguments[c.Index] += c.Function.Arguments
			}
			if v.Choices[0].Finish != nil {
				require.Empty(t, finish)
				finish = *v.Choices[0].Finish
			}
		}
		require.Equal(t, "[DONE]", list[len(list)-1])
		require.Equal(t, "well ", content)
		require.Equal(t, "tool_calls", finish)
		require.Equal(t, 1, usages)
		if parallel {
			require.Equal(t, []string{"f", "g"}, names)
			require.Equal(t, []string{argumentsF, "{}"}, arguments)
		} else {
			require.Equal(t, []string{"f"}, names)
			require.Equal(t, []string{argumentsF}, arguments)
		}
	}
}

func jsonOf(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	require.NoError(t, err)
	return strings.NewReplacer(`\u003c`, "<", `\u003e`, ">").Replace(string(b))
}

func TestTextWithoutCallsIsContent(t *testing.T) {
	for _, pieces := range [][]string{{"a <tool", "_box> b <"}, {"<"}, {"plain"}} {
		n := start(t, serve.Config{Generator: &scripted{outputs: says(pieces...)}, Model: boundModel{}})
		_, body := n.ask(t, "POST", "/v1/chat/completions", asks+`"tools":[`+toolG+`]}`)
		require.Contains(t, body, `"content":`+jsonOf(t, strings.Join(pieces, "")))
		require.Contains(t, body, `"finish_reason":"stop"`)
		_, body = n.ask(t, "POST", "/v1/chat/completions", asks+`"tools":[`+toolG+`],"stream":true}`)
		require.Contains(t, body, `"finish_reason":"stop"`)
		require.NotContains(t, body, "tool_calls")
	}
}

func TestCutCallsAreNoToolCalls(t *testing.T) {
	cut := says(`<tool_call>{"name":"g","arguments":{"a`)
	cut[0].Finish = pd.FinishLength
	n := start(t, serve.Config{Generator: &scripted{outputs: cut}, Model: boundModel{}})
	for _, stream := range []string{"", `,"stream":true`} {
		_, body := n.ask(t, "POST", "/v1/chat/completions", asks+`"tools":[`+toolG+`]`+stream+`}`)
		require.Contains(t, body, `"finish_reason":"length"`)
		require.NotContains(t, body, `"finish_reason":"tool_calls"`)
		require.Contains(t, body, `{\"a`)
	}
}

// Case B29: what cannot be read as a call is one explicit error.
func TestUnreadableCallsAreErrors(t *testing.T) {
	for _, text := range []string{
		`<tool_call>{"name":"g","arguments":[]}</tool_call>`, `<tool_call>` + strings.Repeat(" x", 300), `<tool_call>{"name":"g","arguments":{}` + strings.Repeat(" ", 200),
	} {
		n := start(t, serve.Config{Generator: &scripted{outputs: says(text)}, Model: boundModel{}})
		r, body := n.ask(t, "POST", "/v1/chat/completions", asks+`"tools":[`+toolG+`]}`)
		require.Equal(t, 400, r.StatusCode, body)
		_, body = n.ask(t, "POST", "/v1/chat/completions", asks+`"tools":[`+toolG+`],"stream":true}`)
		list := events(t, body)
		kind, _, _, message := errorOf(t, list[len(list)-2])
		require.Equal(t, "invalid_model_output", kind)
		require.Contains(t, message, "tool call 0")
		require.Equal(t, "[DONE]", list[len(list)-1])
	}
}

func TestRequestIDOfTheClientComesBack(t *testing.T) {
	n := start(t, serve.Config{Generator: &scripted{outputs: hello()}})
	r, body := n.ask(t, "POST", "/v1/completions", `{"prompt":"a"}`, "X-Request-Id: mine-7")
	require.Equal(t, "mine-7", r.Header.Get("X-Request-Id"))
	require.Contains(t, body, `"id":"cmpl-`)
	r, _ = n.ask(t, "POST", "/v1/completions", `{"prompt":"a","n":2}`, "X-Request-Id: mine-8")
	require.Equal(t, "mine-8", r.Header.Get("X-Request-Id"), "on errors, too")
}
