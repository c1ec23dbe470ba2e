package openai

import (
	"encoding/json"
	"fmt"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Behaviours 144 and 145.
func TestAnswersHaveTheShapesOfTheAPI(t *testing.T) {
	completion := Answer{Kind: Completion, ID: "cmpl-1", Created: 7, Model: "m\""}
	chat := Answer{Kind: Chat, ID: "chatcmpl-1", Created: 7, Model: "m"}
	withUsage := chat
	withUsage.Usage = true
	calls := []ToolCall{{ID: "call_1", Name: "f", Arguments: `{"a":"é"}`}, {ID: "call_2", Name: "g", Arguments: `{}`}}
	u := Usage{PromptTokens: 5, CompletionTokens: 2, CachedTokens: 3}
	usage := `{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7,"prompt_tokens_details":{"cached_tokens":3}}`
	for name, c := range map[string]struct {
		got  []byte
		want string
	}{
		"completion": {
			completion.AppendWhole(nil, "a\n\xff", pd.FinishLength, u),
			`{"id":"cmpl-1","object":"text_completion","created":7,"model":"m\"","choices":[{"index":0,"text":"a\n` + "\uFFFD" + `","logprobs":null,"finish_reason":"length"}],"usage":` + usage + `}`,
		},
		"chat": {
			chat.AppendWhole(nil, "é", pd.FinishStop, u),
			`{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"é"},"logprobs":null,"finish_reason":"stop"}],"usage":` + usage + `}`,
		},
		"completion chunk": {
			completion.AppendChunk(nil, "a", 0),
			`{"id":"cmpl-1","object":"text_completion","created":7,"model":"m\"","choices":[{"index":0,"text":"a","logprobs":null,"finish_reason":null}]}`,
		},
		"role": {
			chat.AppendRole(nil),
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]}`,
		},
		"chat chunk": {
			chat.AppendChunk(nil, "a", 0),
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}]}`,
		},
		"last chat chunk": {
			chat.AppendChunk(nil, "", pd.FinishStop),
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"stop"}]}`,
		},
		"chunk before a usage": {
			withUsage.AppendChunk(nil, "a", 0),
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"content":"a"},"logprobs":null,"finish_reason":null}],"usage":null}`,
		},
		"role before a usage": {
			withUsage.AppendRole(nil),
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"usage":null}`,
		},
		"calls": {
			chat.AppendWholeMessage(nil, Message{ToolCalls: calls}, true, pd.FinishStop, u),
			`{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":null,"tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":\"é\"}"}},{"id":"call_2","type":"function","function":{"name":"g","arguments":"{}"}}]},"logprobs":null,"finish_reason":"tool_calls"}],"usage":` + usage + `}`,
		},
		"cut calls": {
			chat.AppendWholeMessage(nil, Message{Content: "so", ToolCalls: calls}, false, pd.FinishLength, u),
			`{"id":"chatcmpl-1","object":"chat.completion","created":7,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"so","tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":\"é\"}"}},{"id":"call_2","type":"function","function":{"name":"g","arguments":"{}"}}]},"logprobs":null,"finish_reason":"length"}],"usage":` + usage + `}`,
		},
		"call begins": {
			chat.AppendCall(nil, 1, ToolCall{ID: "call_1", Name: "f"}),
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"id":"call_1","type":"function","function":{"name":"f","arguments":""}}]},"logprobs":null,"finish_reason":null}]}`,
		},
		"arguments": {
			chat.AppendArguments(nil, 1, `{"é`),
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{"tool_calls":[{"index":1,"function":{"arguments":"{\"é"}}]},"logprobs":null,"finish_reason":null}]}`,
		},
		"calls end": {
			withUsage.AppendCallsEnd(nil),
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[{"index":0,"delta":{},"logprobs":null,"finish_reason":"tool_calls"}],"usage":null}`,
		},
		"usage chunk": {
			chat.AppendUsageChunk(nil, u),
			`{"id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"m","choices":[],"usage":` + usage + `}`,
		},
		"retired": {
			completion.AppendRetired(nil, pd.Fence{Handoff: "h"}, u),
			`{"object":"pd.prefill","id":"cmpl-1","state":"RETIRED","handoff_id":"h","usage":` + usage + `}`,
		},
		"models": {
			AppendModels(nil, Model{ID: "m", Created: 7, MaxTokens: 9}),
			`{"object":"list","data":[{"id":"m","object":"model","created":7,"owned_by":"pypto-pd","max_model_len":9}]}`,
		},
		"error": {
			AppendError(nil, fmt.Errorf("serve: %w", &pd.Error{Op: "read", Code: pd.CodeInvalidRequest, Text: "bad \"n\"", Param: "n"})),
			`{"object":"error","message":"bad \"n\"","error":{"message":"bad \"n\"","type":"invalid_request_error","param":"n","code":"invalid_request"}}`,
		},
		"error without a code": {
			AppendError(nil, fmt.Errorf("odd")),
			`{"object":"error","message":"odd","error":{"message":"odd","type":"server_error","param":null,"code":"internal"}}`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.want, string(c.got))
			require.True(t, json.Valid(c.got))
		})
	}
}

func TestEveryCodeHasAStatusAndAType(t *testing.T) {
	for _, c := range pd.Codes() {
		f, ok := table[c]
		require.True(t, ok, "%v is missing in the table", c)
		require.NotEmpty(t, f.kind)
		if c.Retryable() {
			require.GreaterOrEqual(t, f.status, 409, "%v", c)
		}
	}
	require.Len(t, table, len(pd.Codes()))
	require.Equal(t, 500, HTTPStatus(pd.Code(9999)))
	require.True(t, RetryAfter(pd.CodeNoPair))
	require.False(t, RetryAfter(pd.CodeTransferFailed))
	for _, status := range []int{404, 405, 413, 503} {
		require.Equal(t, status, HTTPStatus(CodeOfStatus(status)))
	}
	require.Equal(t, pd.CodeMalformed, CodeOfStatus(431))
	require.Equal(t, pd.CodeInternal, CodeOfStatus(500))
}

func TestRequestIDsArePrefixedAndRandom(t *testing.T) {
	require.Regexp(t, regexp.MustCompile(`^cmpl-[0-9a-f]{32}$`), string(Completion.NewRequestID()))
	require.Regexp(t, regexp.MustCompile(`^chatcmpl-[0-9a-f]{32}$`), string(Chat.NewRequestID()))
	require.NotEqual(t, Chat.NewRequestID(), Chat.NewRequestID())
	require.NoError(t, Chat.CheckRequestID(Chat.NewRequestID()))
	require.Error(t, Chat.CheckRequestID(Completion.NewRequestID()))
	require.Error(t, Completion.CheckRequestID("cmpl-7"))
}

func TestErrorsAreRecognisedByTheirBeginning(t *testing.T) {
	require.True(t, IsErrorData(AppendError(nil, pd.CodeBusy)[:30]))
	require.True(t, IsErrorData([]byte(`{"error": {"message":`)))
	require.False(t, IsErrorData([]byte(`{"id":"error"`)))
	require.False(t, IsErrorData([]byte(Done)))
}

func TestErrorsOfNodesAreReadBack(t *testing.T) {
	sent := &pd.Error{Code: pd.CodeContextLength, Text: "too long \"x\"", Param: "prompt"}
	require.Equal(t, sent, ReadError(AppendError(nil, sent), "odd"))
	require.Equal(t, &pd.Error{Code: pd.CodeInternal, Text: "it"}, ReadError([]byte(`{"error":{"message":"it","code":503,"param":null}}`), "odd"))
	for _, body := range []string{"", "<html>", `{"error":`, `[]`, `{"detail":"x"}`} {
		require.Equal(t, &pd.Error{Code: pd.CodeInternal, Text: "odd"}, ReadError([]byte(body), "odd"), body)
	}
}
