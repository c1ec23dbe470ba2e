package serve_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/serve"
)

// said is a chat's answer in parts, from one body or from its chunks.
type said struct{ Reasoning, Content, Calls, Finish string }

// saidBy adds up an answer, whole or streamed, and refuses a chunk that mixes parts.
func saidBy(t *testing.T, body string) (out said) {
	t.Helper()
	texts := []string{body}
	if strings.HasPrefix(body, "data: ") {
		texts = events(t, body)
		require.Equal(t, "[DONE]", texts[len(texts)-1])
		texts = texts[:len(texts)-1]
	}
	for _, text := range texts {
		var b struct {
			Choices []struct {
				Message, Delta struct {
					Reasoning string
					Content   string
					ToolCalls []struct {
						Function struct{ Name, Arguments string }
					} `json:"tool_calls"`
				}
				Finish string `json:"finish_reason"`
			}
		}
		require.NoError(t, json.Unmarshal([]byte(text), &b), text)
		for _, c := range b.Choices {
			require.False(t, c.Delta.Reasoning != "" && (c.Delta.Content != "" || c.Delta.ToolCalls != nil), text)
			out.Reasoning += c.Message.Reasoning + c.Delta.Reasoning
			out.Content += c.Message.Content + c.Delta.Content
			out.Finish += c.Finish
			for _, call := range append(c.Message.ToolCalls, c.Delta.ToolCalls...) {
				out.Calls += call.Function.Name + call.Function.Arguments
			}
		}
	}
	return out
}

// Behaviour 149: reasoning, content and calls stay apart, however the text is cut.
func TestReasoningStaysApart(t *testing.T) {
	const call = `<tool_call>{"name":"g","arguments":{"a":"</think>"}}</tool_call>`
	for name, c := range map[string]struct {
		ask    string
		text   string
		finish pd.FinishReason
		want   said
	}{
		"effort":         {`"reasoning_effort":"low"}`, "<think>why\n</think>\n\nso", pd.FinishStop, said{Reasoning: "why\n", Content: "\n\nso", Finish: "stop"}},
		"switch":         {`"chat_template_kwargs":{"enable_thinking":true}}`, "<think>\u4f60</think>\u597d", pd.FinishStop, said{Reasoning: "\u4f60", Content: "\u597d", Finish: "stop"}},
		"hidden":         {`"reasoning_effort":"high","include_reasoning":false}`, "<think>why</think>so", pd.FinishStop, said{Content: "so", Finish: "stop"}},
		"shown":          {`"reasoning_effort":"high","include_reasoning":true}`, "<think>why</think>so", pd.FinishStop, said{Reasoning: "why", Content: "so", Finish: "stop"}},
		"none":           {`"reasoning_effort":"none"}`, "<think>why</think>so", pd.FinishStop, said{Content: "<think>why</think>so", Finish: "stop"}},
		"switched off":   {`"reasoning_effort":"low","chat_template_kwargs":{"thinking":false}}`, "<think>why", pd.FinishStop, said{Content: "<think>why", Finish: "stop"}},
		"thought of not": {`"reasoning_effort":"low"}`, "so <think>", pd.FinishStop, said{Content: "so <think>", Finish: "stop"}},
		"nothing":        {`"reasoning_effort":"low"}`, "<thi", pd.FinishStop, said{Content: "<thi", Finish: "stop"}},
		"cut by length":  {`"reasoning_effort":"low"}`, "<think>why</thi", pd.FinishLength, said{Reasoning: "why</thi", Finish: "length"}},
		"cut by a stop":  {`"reasoning_effort":"low","stop":"!"}`, "<think>why", pd.FinishStop, said{Reasoning: "why", Finish: "stop"}},
		"and calls":      {`"reasoning_effort":"low","tools":[` + toolG + `]}`, "<think>" + call + "</think>x" + call, pd.FinishStop, said{Reasoning: `<tool_call>{"name":"g","arguments":{"a":"`, Content: "\"}}</tool_call></think>x", Calls: `g{"a":"</think>"}`, Finish: "tool_calls"}},
		"then calls":     {`"reasoning_effort":"low","tools":[` + toolG + `]}`, "<think>why</think>" + call, pd.FinishStop, said{Reasoning: "why", Calls: `g{"a":"</think>"}`, Finish: "tool_calls"}},
	} {
		for _, size := range []int{1, 3, 1000} {
			for _, stream := range []string{"", `"stream":true,`} {
				t.Run(name+stream, func(t *testing.T) {
					var pieces []string
					runes := []rune(c.text) // the engine never cuts a character
					for len(runes) > 0 {
						n := min(size, len(runes))
						pieces, runes = append(pieces, string(runes[:n])), runes[n:]
					}
					outputs := says(pieces...)
					outputs[len(outputs)-1].Finish = c.finish
					n := start(t, serve.Config{Generator: &scripted{outputs: outputs}, Model: boundModel{}})
					r, body := n.ask(t, "POST", "/v1/chat/completions", asks+stream+c.ask)
					require.Equal(t, 200, r.StatusCode, body)
					require.Equal(t, c.want, saidBy(t, body))
				})
			}
		}
	}
}

// A model that ends in the middle of its reasoning has not answered; the client is
// told so in either form.
func TestReasoningWithoutAnEndIsAnError(t *testing.T) {
	n := start(t, serve.Config{Generator: &scripted{outputs: says("<think>", "why")}, Model: boundModel{}})
	r, body := n.ask(t, "POST", "/v1/chat/completions", asks+`"reasoning_effort":"low"}`)
	require.Equal(t, 400, r.StatusCode, body)
	_, code, _, _ := errorOf(t, body)
	require.Equal(t, "invalid_model_output", code)
	_, body = n.ask(t, "POST", "/v1/chat/completions", asks+`"reasoning_effort":"low","stream":true}`)
	list := events(t, body)
	kind, code, _, _ := errorOf(t, list[len(list)-2])
	require.Equal(t, "invalid_model_output", kind)
	require.Equal(t, "invalid_model_output", code)
	require.Equal(t, "[DONE]", list[len(list)-1])
	require.Equal(t, 1, strings.Count(body, `"error":`))
}

// Behaviour 149: what was thought before reaches the template, and what is asked of
// the answer reaches the engine; without grammars it is refused.
func TestReasoningReachesTheEngine(t *testing.T) {
	g := &scripted{outputs: says("<think>a</think>b")}
	n := start(t, serve.Config{Generator: g, Model: boundModel{}})
	r, body := n.ask(t, "POST", "/v1/chat/completions", `{"messages":[{"role":"assistant","reasoning":"why","content":"so"},{"role":"user","content":"a"}],"reasoning_effort":"medium","response_format":{"type":"json_object"}}`)
	require.Equal(t, 200, r.StatusCode, body)
	got := g.last(t).Continuation
	require.Equal(t, `{"reasoning":true,"format":{"schema":null}}`, got.Constraint)
	require.Equal(t, engine.ParserTagged, got.OutputParser)
	n = start(t, serve.Config{Generator: &scripted{outputs: hello()}})
	r, body = n.ask(t, "POST", "/v1/chat/completions", asks+`"reasoning_effort":"low"}`)
	require.Equal(t, 400, r.StatusCode, body)
	_, code, param, _ := errorOf(t, body)
	require.Equal(t, "unsupported", code)
	require.Equal(t, "reasoning_effort", param)
}
