package openai

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

func ptr[T any](v T) *T { return &v }

// Case B50: of equal keys the last counts, for routers and nodes alike.
func TestParseReadsTheFactsOfABody(t *testing.T) {
	for name, c := range map[string]struct {
		kind Kind
		body string
		want Facts
	}{
		"smallest completion": {
			Completion, `{"prompt":"hi"}`,
			Facts{Text: ptr("hi"), Prompts: 1},
		},
		"everything of a completion": {
			Completion,
			`{"model":"m","prompt":[1,2,2147483647],"max_tokens":128.0,"temperature":1e-7,"top_p":0.95,"seed":9007199254740993,
			  "stop":["a","b"],"ignore_eos":true,"stream":true,"stream_options":{"include_usage":true,"x":1},"n":2,"best_of":3,
			  "echo":true,"logprobs":0,"suffix":"s","user":"u","x_big":12345678901234567890,"x_vendor":{"a":[1.10,null]}}`,
			Facts{
				Model: "m", Tokens: []pd.Token{1, 2, 2147483647}, Prompts: 1, MaxTokens: 128, Temperature: ptr(1e-7), TopP: ptr(0.95),
				Seed: ptr(int64(9007199254740993)), Stop: []string{"a", "b"}, IgnoreEOS: true, Stream: true, IncludeUsage: true,
				N: 2, BestOf: 3, Echo: true, Logprobs: true, Suffix: true, User: "u",
			},
		},
		"chat": {
			Chat,
			`{"messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"a"},{"text":"b","type":"text"}]},
			  {"role":"assistant","content":null,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{\"a\":\"é\"}"}}]},
			  {"role":"tool","tool_call_id":"1","content":"r"}],"max_tokens":5,"max_completion_tokens":7,
			  "tools":[{"type":"function","function":{"name":"f","description":"d","strict":true,"parameters":{ "b":1.50, "a":[2] }}},{"function":{"name":"g","parameters":null}}],
			  "tool_choice":{"type":"function","function":{"name":"g"}},"parallel_tool_calls":false,"functions":[],"audio":null,"prompt_logprobs":0,
			  "response_format":{"type":"json_schema","json_schema":{"name":"n","strict":true,"schema":{"z": {}, "a":12345678901234567890}}},"logprobs":true,
			  "presence_penalty":0.5,"frequency_penalty":-1,"logit_bias":{"50256":-0.0},"min_tokens":3,"stop":"x"}`,
			Facts{
				Messages: []Message{{Role: "system", Content: "s"}, {Role: "user", Content: "a\nb"}, {Role: "assistant", ToolCalls: []ToolCall{{ID: "1", Name: "f", Arguments: `{"a":"é"}`}}}, {Role: "tool", Content: "r", ToolCallID: "1"}},
				Prompts:  1, MaxTokens: 7, Tools: 2, ToolChoice: "function", ToolName: "g", SingleToolCall: true, ResponseFormat: "json_schema", Logprobs: true,
				// Case B08: neither the order of names nor the spelling of numbers changes.
				Declared: []Tool{{Name: "f", Description: "d", Parameters: `{"b":1.50,"a":[2]}`}, {Name: "g"}}, ResponseSchema: `{"z":{},"a":12345678901234567890}`,
				PresencePenalty: 0.5, FrequencyPenalty: -1, LogitBias: true, MinTokens: 3, Stop: []string{"x"},
			},
		},
		"null is absent": {
			Completion, `{"prompt":"p","max_tokens":null,"temperature":null,"stop":null,"stream":null,"stream_options":null,"n":null,"best_of":null}`,
			Facts{Text: ptr("p"), Prompts: 1},
		},
		"the last of equal keys counts": {
			Completion, `{"prompt":"a","stream":false,"n":2,"stream":true,"prompt":[7],"n":null,"str\u0065am":true}`,
			Facts{Tokens: []pd.Token{7}, Prompts: 1, Stream: true},
		},
		"the last of equal keys counts within, too": {
			Chat,
			`{"messages":[{"role":"assistant","tool_calls":[{"function":{"name":"a"}}],"tool_calls":[{"function":{"name":"b"}}]}],
			  "tools":[{"function":{"name":"a","description":"d"},"function":{"name":"b"}}],"tools":[{"function":{"name":"c","description":"d"},"function":{"name":"e"}}]}`,
			Facts{
				Messages: []Message{{Role: "assistant", ToolCalls: []ToolCall{{Name: "b"}}}}, Prompts: 1, Tools: 1, Declared: []Tool{{Name: "e"}},
			},
		},
		"reasoning": {
			Chat,
			`{"messages":[{"role":"assistant","content":"so","reasoning":"why"},{"role":"assistant","content":"so","reasoning_content":"because"},{"role":"assistant","content":"so","reasoning":null}],
			  "reasoning_effort":"minimal","chat_template_kwargs":{"enable_thinking":false,"x":{"enable_thinking":true},"thinking":null},"include_reasoning":false}`,
			Facts{
				Messages: []Message{{Role: "assistant", Content: "so", Reasoning: "why"}, {Role: "assistant", Content: "so", Reasoning: "because"}, {Role: "assistant", Content: "so"}},
				Prompts:  1, ReasoningEffort: "minimal", Thinking: ptr(false), HideReasoning: true,
			},
		},
		"names are compared exactly": {
			Completion, `{"prompt":"a","Stream":true,"STOP":5}`,
			Facts{Text: ptr("a"), Prompts: 1},
		},
		"list of one prompt":  {Completion, `{"prompt":["a"]}`, Facts{Text: ptr("a"), Prompts: 1}},
		"list of one id list": {Completion, `{"prompt":[[1,2]]}`, Facts{Tokens: []pd.Token{1, 2}, Prompts: 1}},
		"list of two prompts": {Completion, `{"prompt":["a","b"]}`, Facts{Text: ptr("a"), Prompts: 2}},
		"two id lists":        {Completion, `{"prompt":[[1],[3]]}`, Facts{Tokens: []pd.Token{1}, Prompts: 2}},
		"list of no prompt":   {Completion, `{"prompt":[""]}`, Facts{Text: ptr(""), Prompts: 1}},
		"emoji and escapes":   {Completion, `{"prompt":"\ud83d\ude00 é\n"}`, Facts{Text: ptr("\U0001F600 é\n"), Prompts: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c.want.Kind = c.kind
			if c.want.N == 0 {
				c.want.N = 1
			}
			if c.want.BestOf == 0 {
				c.want.BestOf = 1
			}
			f, err := Parse(c.kind, []byte(c.body))
			require.NoError(t, err)
			require.Equal(t, &c.want, f)

			f, err = Scan(c.kind, []byte(c.body))
			require.NoError(t, err)
			c.want.Text, c.want.Tokens, c.want.Messages, c.want.Declared, c.want.ResponseSchema = nil, nil, nil, nil, ""
			require.Equal(t, &c.want, f)
		})
	}
}

// Case B37: a deep body is refused, and ends nothing.
func TestParseErrorsNameTheField(t *testing.T) {
	for name, c := range map[string]struct {
		kind  Kind
		body  string
		param string
		text  string
	}{
		"empty":                  {Completion, " \n", "", "the request body is empty, want a JSON object"},
		"array":                  {Completion, `[]`, "", "the request body must be a JSON object"},
		"cut":                    {Completion, `{"prompt":"a"`, "", "the request body is not valid JSON: it ends at byte 13 in the middle"},
		"garbage":                {Completion, `{"prompt":x}`, "", "the request body is not valid JSON at byte 10"},
		"trailing":               {Completion, `{"prompt":"a"}{}`, "", "there is more after the JSON object"},
		"invalid UTF-8":          {Completion, "{\"prompt\":\"\xff\"}", "", "the request body is not valid JSON at byte 11"},
		"no prompt":              {Completion, `{}`, "prompt", "prompt is missing"},
		"no messages":            {Chat, `{"prompt":"a"}`, "messages", "messages is missing"},
		"empty messages":         {Chat, `{"messages":[]}`, "messages", "messages is empty"},
		"message kind":           {Chat, `{"messages":["a"]}`, "messages[0]", "messages[0] must be an object, got a string"},
		"message role":           {Chat, `{"messages":[{"content":"a"}]}`, "messages[0].role", "messages[0].role is missing"},
		"message content":        {Chat, `{"messages":[{"role":"user"}]}`, "messages[0].content", "messages[0].content is missing"},
		"image":                  {Chat, `{"messages":[{"role":"user","content":[{"type":"image_url"}]}]}`, "messages[0].content[0].type", `messages[0].content[0].type must be text, got "image_url"`},
		"empty prompt list":      {Completion, `{"prompt":[]}`, "prompt", "prompt is empty"},
		"empty id list":          {Completion, `{"prompt":[[]]}`, "prompt[0]", "prompt[0] is empty"},
		"mixed prompt":           {Completion, `{"prompt":[1,"a"]}`, "prompt[1]", "prompt[1] must be of the same kind as the element before, got a string"},
		"negative id":            {Completion, `{"prompt":[-1]}`, "prompt[0]", "prompt[0] must be a token id, got -1"},
		"large id":               {Completion, `{"prompt":[2147483648]}`, "prompt[0]", "prompt[0] must be a token id, got 2147483648"},
		"prompt kind":            {Completion, `{"prompt":true}`, "prompt", "prompt must be a string, an array of token ids, or an array of one of them, got a boolean"},
		"max_tokens kind":        {Completion, `{"prompt":"a","max_tokens":"5"}`, "max_tokens", "max_tokens must be an integer, got a string"},
		"max_tokens fraction":    {Completion, `{"prompt":"a","max_tokens":1.5}`, "max_tokens", "max_tokens must be an integer, got 1.5"},
		"max_tokens zero":        {Completion, `{"prompt":"a","max_tokens":0}`, "max_tokens", "max_tokens must be between 1 and 655360, got 0"},
		"max_tokens huge":        {Completion, `{"prompt":"a","max_tokens":1e300}`, "max_tokens", "max_tokens must be an integer, got 1e300"},
		"temperature":            {Completion, `{"prompt":"a","temperature":-1}`, "temperature", "temperature must be between 0 and 2, got -1"},
		"temperature overflow":   {Completion, `{"prompt":"a","temperature":1e999}`, "temperature", "temperature must be between 0 and 2, got 1e999"},
		"stop kind":              {Completion, `{"prompt":"a","stop":5}`, "stop", "stop must be a string or an array of strings, got a number"},
		"effort":                 {Chat, `{"messages":[{"role":"user","content":"a"}],"reasoning_effort":"some"}`, "reasoning_effort", `reasoning_effort must be none, minimal, low, medium, high, xhigh or max, got "some"`},
		"thinking":               {Chat, `{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"thinking":1}}`, "chat_template_kwargs.thinking", "chat_template_kwargs.thinking must be a boolean, got a number"},
		"empty stop":             {Completion, `{"prompt":"a","stop":["x",""]}`, "stop", "stop[1] is empty, which would stop at once"},
		"many stops":             {Completion, `{"prompt":"a","stop":[` + strings.Repeat(`"x",`, 16) + `"x"]}`, "stop", "stop holds more than 16 strings"},
		"long stop":              {Completion, `{"prompt":"a","stop":"` + strings.Repeat("x", 1025) + `"}`, "stop", "stop[0] has 1025 bytes, the limit is 1024"},
		"stream kind":            {Completion, `{"prompt":"a","stream":1}`, "stream", "stream must be a boolean, got a number"},
		"stream options":         {Completion, `{"prompt":"a","stream":true,"stream_options":{"include_usage":"yes"}}`, "stream_options.include_usage", "stream_options.include_usage must be a boolean, got a string"},
		"tool choice":            {Chat, `{"messages":[{"role":"u","content":""}],"tool_choice":"maybe"}`, "tool_choice", `tool_choice must be none, auto, required or an object, got "maybe"`},
		"tool kind":              {Chat, `{"messages":[{"role":"u","content":""}],"tools":[{"type":"retrieval"}]}`, "tools[0].type", `tools[0].type must be function, got "retrieval"`},
		"tool without function":  {Chat, `{"messages":[{"role":"u","content":""}],"tools":[{"type":"function"}]}`, "tools[0].function", `tools[0].function is missing`},
		"tool no object":         {Chat, `{"messages":[{"role":"u","content":""}],"tools":["f"]}`, "tools[0]", `tools[0] must be an object, got a string`},
		"tool name":              {Chat, `{"messages":[{"role":"u","content":""}],"tools":[{"function":{"name":"a b"}}]}`, "tools[0].function.name", `tools[0].function.name must have 1 to 64 letters, digits, points, dashes or underscores, got "a b"`},
		"tool twice":             {Chat, `{"messages":[{"role":"u","content":""}],"tools":[{"function":{"name":"a"}},{"function":{"name":"a"}}]}`, "tools[1].function.name", `tools[1].function.name: the tool a is there twice`},
		"tool parameters":        {Chat, `{"messages":[{"role":"u","content":""}],"tools":[{"function":{"name":"a","parameters":[]}}]}`, "tools[0].function.parameters", `tools[0].function.parameters must be an object, got an array`},
		"schema name twice":      {Chat, `{"messages":[{"role":"u","content":""}],"tools":[{"function":{"name":"a","parameters":{"a":1,"a":2}}}]}`, "tools[0].function.parameters", `tools[0].function.parameters holds a name twice`},
		"choice without tools":   {Chat, `{"messages":[{"role":"u","content":""}],"tool_choice":"required"}`, "tool_choice", `tool_choice asks for a call, and there are no tools`},
		"choice of another tool": {Chat, `{"messages":[{"role":"u","content":""}],"tools":[{"function":{"name":"a"}}],"tool_choice":{"type":"function","function":{"name":"b"}}}`, "tool_choice", `tool_choice names "b", which is not among the tools`},
		"parallel kind":          {Chat, `{"messages":[{"role":"u","content":""}],"parallel_tool_calls":1}`, "parallel_tool_calls", `parallel_tool_calls must be a boolean, got a number`},
		"format without type":    {Chat, `{"messages":[{"role":"u","content":""}],"response_format":{}}`, "response_format.type", `response_format.type is missing`},
		"format without schema":  {Chat, `{"messages":[{"role":"u","content":""}],"response_format":{"type":"json_schema","json_schema":{"name":"n"}}}`, "response_format.json_schema.schema", `response_format.json_schema.schema is missing`},
		"usage without stream":   {Chat, `{"messages":[{"role":"u","content":""}],"stream_options":{"include_usage":true}}`, "stream_options", `stream_options may be set only where stream is true`},
		"n":                      {Completion, `{"prompt":"a","n":0}`, "n", "n must be between 1 and 128, got 0"},
		"deep":                   {Completion, `{"prompt":"a","x":` + strings.Repeat("[", 100000), "", "the request body is nested more than 64 deep"},
		"deep objects":           {Chat, `{"messages":` + strings.Repeat(`{"a":`, 3000000), "", "the request body is nested more than 64 deep"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse(c.kind, []byte(c.body))
			e, ok := errors.AsType[*pd.Error](err)
			require.True(t, ok, "%v", err)
			require.Equal(t, c.text, e.Message())
			require.Equal(t, c.param, e.Param)
			require.Equal(t, 400, HTTPStatus(e.Code))
		})
	}
}

func TestScanLeavesContentsAlone(t *testing.T) {
	f, err := Scan(Completion, []byte(`{"prompt":[1,-5,7]}`))
	require.NoError(t, err)
	require.Equal(t, 1, f.Prompts)
	_, err = Scan(Chat, []byte(`{"messages":[5]}`))
	require.ErrorIs(t, err, pd.CodeInvalidRequest)
}

// Case B22: what would share one transfer is refused.
func TestOneAndGreedyNameWhatIsNotSupported(t *testing.T) {
	for body, param := range map[string]string{
		`{"prompt":["a","b"]}`:                 "prompt",
		`{"prompt":"a","n":2}`:                 "n",
		`{"prompt":"a","best_of":2}`:           "best_of",
		`{"prompt":"a","echo":true}`:           "echo",
		`{"prompt":"a","logprobs":0}`:          "logprobs",
		`{"prompt":"a","suffix":"b"}`:          "suffix",
		`{"prompt":"a","guided_regex":"a+"}`:   "guided_regex",
		`{"prompt":"a","temperature":0.5}`:     "temperature",
		`{"prompt":"a","presence_penalty":1}`:  "presence_penalty",
		`{"prompt":"a","frequency_penalty":1}`: "frequency_penalty",
		`{"prompt":"a","logit_bias":{"1":1}}`:  "logit_bias",
	} {
		f, err := Scan(Completion, []byte(body))
		require.NoError(t, err, body)
		err = errors.Join(f.One(), f.Greedy())
		require.ErrorIs(t, err, pd.CodeUnsupported, body)
		e, ok := errors.AsType[*pd.Error](err)
		require.True(t, ok)
		require.Equal(t, param, e.Param, body)
	}
	f, err := Scan(Completion, []byte(`{"prompt":"a","temperature":0,"top_p":0.5,"presence_penalty":0,"logit_bias":{}}`))
	require.NoError(t, err)
	require.NoError(t, f.One())
	require.NoError(t, f.Greedy())
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"prompt":[1,2],"stop":["a"],"stream_options":{"include_usage":true},"n":1,"n":2}`))
	f.Add([]byte(`{"messages":[{"role":"user","content":[{"type":"text","text":"a"}]}],"tools":[{}],"tool_choice":{}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for _, kind := range []Kind{Completion, Chat} {
			whole, err := Parse(kind, body)
			light, lightErr := Scan(kind, body)
			if err != nil {
				if pd.CodeOf(err) == pd.CodeInternal {
					t.Fatalf("error without a code: %v", err)
				}
				continue
			}
			// What a node accepts, its router must not have refused, and both
			// must have read the same.
			if lightErr != nil {
				t.Fatalf("scan refused what parse accepted: %v", lightErr)
			}
			if whole.Stream != light.Stream || whole.Prompts != light.Prompts || whole.N != light.N || whole.MaxTokens != light.MaxTokens {
				t.Fatalf("parse %+v, scan %+v", whole, light)
			}
		}
	})
}
