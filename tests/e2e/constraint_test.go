package e2e

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// weather is a tool whose arguments are not ASCII.
const weather = `{"type":"function","function":{"name":"weather","description":"Tells it.","parameters":{"type":"object","properties":{
	"城市":{"enum":["北京","Zürich"]},"days":{"type":"integer","minimum":1,"maximum":7},"note":{"type":"string"}},"required":["城市","days"]}}}`

const clock = `{"type":"function","function":{"name":"clock","parameters":{"type":"object","properties":{"zone":{"type":"string","minLength":3,"maxLength":5}},"required":["zone"]}}}`

// choice is what a chat's answer says, from one body or from its chunks.
type choice struct {
	ID, Content, Finish string
	Calls               []call
	Usages, Total       int
}

type call struct{ ID, Name, Arguments string }

type chatBody struct {
	ID      string
	Choices []struct {
		Message, Delta struct {
			Content   string
			ToolCalls []struct {
				Index    int
				ID       string
				Function struct{ Name, Arguments string }
			} `json:"tool_calls"`
		}
		Finish string `json:"finish_reason"`
	}
	Usage *struct {
		Total int `json:"total_tokens"`
	}
}

func choiceOf(t *testing.T, a cluster.Answer) choice {
	t.Helper()
	var c choice
	take := func(text []byte) {
		var b chatBody
		require.NoError(t, json.Unmarshal(text, &b), "%s", text)
		if b.Usage != nil {
			c.Usages, c.Total = c.Usages+1, b.Usage.Total
		}
		c.ID = b.ID
		for _, x := range b.Choices {
			c.Content += x.Message.Content + x.Delta.Content
			c.Finish += x.Finish
			for i, part := range append(x.Message.ToolCalls, x.Delta.ToolCalls...) {
				if part.ID != "" {
					require.Len(t, c.Calls, max(part.Index, i))
					c.Calls = append(c.Calls, call{ID: part.ID, Name: part.Function.Name})
				}
				c.Calls[max(part.Index, i)].Arguments += part.Function.Arguments
			}
		}
	}
	if !strings.HasPrefix(a.Header.Get("Content-Type"), "text/event-stream") {
		take(a.Raw)
		return c
	}
	for lines := bufio.NewScanner(bytes.NewReader(a.Raw)); lines.Scan(); {
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok && data != "[DONE]" {
			take([]byte(data))
		}
	}
	return c
}

func fits(t *testing.T, c call) {
	t.Helper()
	var arguments map[string]any
	require.NoError(t, json.Unmarshal([]byte(c.Arguments), &arguments), "%s", c.Arguments)
	if c.Name == "clock" {
		require.Regexp(t, `^\{"zone":"[a-z]{3,5}"\}$`, c.Arguments)
		return
	}
	require.Equal(t, "weather", c.Name)
	require.Regexp(t, `^\{"城市":"(北京|Zürich)","days":[1-7](,"note":"[^"]+")?\}$`, c.Arguments)
}

// Behaviours 37, 144 to 147 and 149: calls of tools and bound answers are those
// of one process, whole and streamed, and fit what the client asked for.
func TestBoundAnswersAreThoseOfOneProcess(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	c := cluster.Start(t, cluster.Options{PLayout: "dp2tp2", DLayout: "dp4tp1"})
	raw := func(text string) json.RawMessage { return json.RawMessage(text) }
	both := raw("[" + weather + "," + clock + "]")
	history := raw(`[{"role":"user","content":"Weather?"},{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"城市\":\"北京\",\"days\":1}"}}]},{"role":"tool","tool_call_id":"call_1","content":"晴"}]`)
	ids := map[string]bool{}
	for _, k := range []struct {
		name   string
		fields map[string]any
		calls  int // at least; -1: as the model likes
		most   int
	}{
		{"required", map[string]any{"tools": both, "tool_choice": "required"}, 1, 2},
		{"named", map[string]any{"tools": both, "tool_choice": raw(`{"type":"function","function":{"name":"clock"}}`)}, 1, 1},
		{"one at once", map[string]any{"tools": both, "tool_choice": "required", "parallel_tool_calls": false}, 1, 1},
		{"auto", map[string]any{"tools": both, "ignore_eos": nil}, -1, 2},
		{"after a call", map[string]any{"tools": both, "messages": history, "tool_choice": "required"}, 1, 2},
		{"none", map[string]any{"tools": both, "tool_choice": "none", "max_tokens": 20}, 0, 0},
		{"object", map[string]any{"response_format": raw(`{"type":"json_object"}`)}, 0, 0},
		{"schema", map[string]any{"response_format": raw(`{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"type":"object","properties":{"title":{"type":"string"},"tags":{"type":"array","items":{"enum":["a","ä"]},"minItems":1}},"required":["title","tags"],"additionalProperties":false}}}`)}, 0, 0},
	} {
		for round := range 3 {
			q := cluster.Completion{Prompt: fmt.Sprint("What about ", k.name, round), Max: 900, Chat: true, Fields: k.fields}
			want := choiceOf(t, combined.Answer(t, q))
			for _, stream := range []bool{false, true} {
				q.Stream = stream
				a, err := cluster.Complete(t.Context(), c.URL, q)
				require.NoError(t, err, k.name)
				require.Equal(t, 200, a.Status, "%s: %s", k.name, a.Raw)
				got := choiceOf(t, a)
				require.Equal(t, 1, got.Usages, "%s, stream %t", k.name, stream)
				require.Equal(t, want.Total, got.Total, "%s, stream %t", k.name, stream)
				require.Equal(t, want.Content, got.Content, "%s, stream %t", k.name, stream)
				require.Equal(t, want.Finish, got.Finish, "%s, stream %t", k.name, stream)
				require.Len(t, got.Calls, len(want.Calls), "%s, stream %t", k.name, stream)
				for i, one := range got.Calls {
					require.Equal(t, want.Calls[i].Name, one.Name)
					require.Equal(t, want.Calls[i].Arguments, one.Arguments, "%s, stream %t", k.name, stream)
					require.False(t, ids[one.ID], "the id %s comes twice", one.ID)
					ids[one.ID] = true
					fits(t, one)
				}
				switch {
				case len(got.Calls) > 0:
					require.Equal(t, "tool_calls", got.Finish)
					require.Empty(t, got.Content)
				case k.fields["response_format"] != nil:
					require.Equal(t, "stop", got.Finish)
					require.True(t, json.Valid([]byte(got.Content)), "%s", got.Content)
				}
				if k.calls >= 0 {
					require.GreaterOrEqual(t, len(got.Calls), k.calls, k.name)
				}
				require.LessOrEqual(t, len(got.Calls), k.most, k.name)
			}
		}
	}
	c.AssertIdle(t)
}

// Case B22: what a pair cannot do is refused in the form that clients read, with
// the client's own request id, and neither node hears of it.
func TestWhatAPairCannotDoReachesNoNode(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{PLayout: "dp2tp1", DLayout: "dp2tp1"})
	events := func() (n int) {
		for _, node := range c.Nodes() {
			n += len(node.Events(t))
		}
		return n
	}
	before := events()
	for param, q := range map[string]cluster.Completion{
		"n":               {Prompt: "a", Max: 1, Fields: map[string]any{"n": 2}},
		"best_of":         {Prompt: "a", Max: 1, Fields: map[string]any{"best_of": 2}},
		"echo":            {Prompt: "a", Max: 1, Fields: map[string]any{"echo": true}},
		"logprobs":        {Prompt: "a", Max: 1, Fields: map[string]any{"logprobs": 0}},
		"suffix":          {Prompt: "a", Max: 1, Fields: map[string]any{"suffix": "b"}},
		"prompt":          {Max: 1, Fields: map[string]any{"prompt": []string{"a", "b"}}},
		"use_beam_search": {Prompt: "a", Max: 1, Fields: map[string]any{"use_beam_search": true}},
		"functions":       {Prompt: "a", Max: 1, Chat: true, Fields: map[string]any{"functions": []any{map[string]any{"name": "f"}}}},
		"stream_options":  {Prompt: "a", Max: 1, Fields: map[string]any{"stream_options": map[string]any{"include_usage": true}}},
		"tool_choice":     {Prompt: "a", Max: 1, Chat: true, Fields: map[string]any{"tool_choice": "required"}},
	} {
		a, err := cluster.Complete(t.Context(), c.URL, q)
		require.NoError(t, err)
		require.Equal(t, 400, a.Status, "%s: %s", param, a.Raw)
		require.Equal(t, param, a.Failure.Param)
		require.Equal(t, "invalid_request_error", a.Failure.Type)
		require.NotEmpty(t, a.Header.Get("X-Request-Id"), param)
	}
	require.Equal(t, before, events(), "a node heard of a request that is refused")

	// What only the engine can judge is refused by prefill before decode has
	// reserved anything.
	a, err := cluster.Complete(t.Context(), c.URL, cluster.Completion{Prompt: "a", Max: 9, Chat: true, Stream: true, Fields: map[string]any{
		"response_format": json.RawMessage(`{"type":"json_schema","json_schema":{"name":"n","schema":{"type":"object","properties":{"a":{"type":"string","pattern":"a+"}},"required":["a"]}}}`),
	}})
	require.NoError(t, err)
	require.Equal(t, 400, a.Status, "%s", a.Raw)
	require.Equal(t, "response_format.json_schema.schema.properties.a.pattern", a.Failure.Param)
	c.AssertIdle(t)
}
