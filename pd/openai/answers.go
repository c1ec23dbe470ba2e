package openai

import (
	"errors"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Done is the data of the event that ends every stream.
const Done = "[DONE]"

// Usage counts tokens of one request.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	// CachedTokens is how much of the prompt came from a cache.
	CachedTokens int
}

// Answer is what all bodies of one request have in common.
type Answer struct {
	Kind Kind
	ID   pd.RequestID
	// Created is in Unix seconds.
	Created int64
	Model   string
	// Usage: the stream ends with a usage, so every chunk before has a null one.
	Usage bool
}

// AppendWhole writes a whole answer.
func (a Answer) AppendWhole(b []byte, text string, finish pd.FinishReason, u Usage) []byte {
	object, before, after := "text_completion", `"text":`, ""
	if a.Kind == Chat {
		object, before, after = "chat.completion", `"message":{"role":"assistant","content":`, "}"
	}
	b = a.appendHead(b, object)
	b = append(b, `[{"index":0,`...)
	b = append(b, before...)
	b = appendString(b, text)
	b = append(b, after...)
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	b = appendFinish(b, finish)
	b = append(b, `}],"usage":`...)
	b = appendUsage(b, u)
	return append(b, '}')
}

// AppendRole writes the first chunk of a chat's stream.
func (a Answer) AppendRole(b []byte) []byte {
	b = a.appendHead(b, "chat.completion.chunk")
	b = append(b, `[{"index":0,"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null}]`...)
	return a.appendTail(b)
}

// AppendChunk writes one chunk of a stream; finish is zero except in the last.
func (a Answer) AppendChunk(b []byte, text string, finish pd.FinishReason) []byte {
	if a.Kind == Chat {
		b = a.appendHead(b, "chat.completion.chunk")
		b = append(b, `[{"index":0,"delta":{`...)
		if text != "" || finish == 0 {
			b = append(b, `"content":`...)
			b = appendString(b, text)
		}
		b = append(b, '}')
	} else {
		b = a.appendHead(b, "text_completion")
		b = append(b, `[{"index":0,"text":`...)
		b = appendString(b, text)
	}
	b = append(b, `,"logprobs":null,"finish_reason":`...)
	b = appendFinish(b, finish)
	return a.appendTail(append(b, `}]`...))
}

// appendTail ends a chunk behind its choices.
func (a Answer) appendTail(b []byte) []byte {
	if a.Usage {
		b = append(b, `,"usage":null`...)
	}
	return append(b, '}')
}

// AppendUsageChunk writes the chunk without choices that stream_options asks for.
func (a Answer) AppendUsageChunk(b []byte, u Usage) []byte {
	object := "text_completion"
	if a.Kind == Chat {
		object = "chat.completion.chunk"
	}
	b = a.appendHead(b, object)
	b = append(b, `[],"usage":`...)
	b = appendUsage(b, u)
	return append(b, '}')
}

// AppendRetired writes what a prefill node answers once it has handed a request
// over and given back everything; it holds no token.
func (a Answer) AppendRetired(b []byte, fence pd.Fence, u Usage) []byte {
	b = append(b, `{"object":"pd.prefill","id":`...)
	b = appendString(b, string(a.ID))
	b = append(b, `,"state":"RETIRED","handoff_id":`...)
	b = appendString(b, string(fence.Handoff))
	b = append(b, `,"usage":`...)
	b = appendUsage(b, u)
	return append(b, '}')
}

// appendHead writes everything up to the value of choices.
func (a Answer) appendHead(b []byte, object string) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, string(a.ID))
	b = append(b, `,"object":"`...)
	b = append(b, object...)
	b = append(b, `","created":`...)
	b = strconv.AppendInt(b, a.Created, 10)
	b = append(b, `,"model":`...)
	b = appendString(b, a.Model)
	return append(b, `,"choices":`...)
}

func appendFinish(b []byte, finish pd.FinishReason) []byte {
	if finish == 0 {
		return append(b, "null"...)
	}
	return appendString(b, finish.String())
}

func appendUsage(b []byte, u Usage) []byte {
	b = append(b, `{"prompt_tokens":`...)
	b = strconv.AppendInt(b, int64(u.PromptTokens), 10)
	b = append(b, `,"completion_tokens":`...)
	b = strconv.AppendInt(b, int64(u.CompletionTokens), 10)
	b = append(b, `,"total_tokens":`...)
	b = strconv.AppendInt(b, int64(u.PromptTokens+u.CompletionTokens), 10)
	b = append(b, `,"prompt_tokens_details":{"cached_tokens":`...)
	b = strconv.AppendInt(b, int64(u.CachedTokens), 10)
	return append(b, `}}`...)
}

// appendString writes a JSON string; invalid UTF-8 becomes U+FFFD.
func appendString(b []byte, s string) []byte {
	b, _ = jsontext.AppendQuote(b, s)
	return b
}

// Model is one entry of the model list.
type Model struct {
	ID string
	// Created is in Unix seconds.
	Created   int64
	MaxTokens int
}

// AppendModels writes the model list.
func AppendModels(b []byte, models ...Model) []byte {
	b = append(b, `{"object":"list","data":[`...)
	for i, m := range models {
		if i > 0 {
			b = append(b, ',')
		}
		b = AppendModel(b, m)
	}
	return append(b, `]}`...)
}

// AppendModel writes one entry.
func AppendModel(b []byte, m Model) []byte {
	b = append(b, `{"id":`...)
	b = appendString(b, m.ID)
	b = append(b, `,"object":"model","created":`...)
	b = strconv.AppendInt(b, m.Created, 10)
	b = append(b, `,"owned_by":"pypto-pd","max_model_len":`...)
	b = strconv.AppendInt(b, int64(m.MaxTokens), 10)
	return append(b, '}')
}

// AppendError writes an error as a body or as the data of an event, in both
// shapes at once: that of OpenAI and that of older engines.
func AppendError(b []byte, err error) []byte {
	code := pd.CodeOf(err)
	message, param := err.Error(), ""
	if e, ok := errors.AsType[*pd.Error](err); ok {
		message, param = e.Message(), e.Param
	}
	kind := typeServer
	if f, ok := table[code]; ok {
		kind = f.kind
	}
	b = append(b, `{"object":"error","message":`...)
	b = appendString(b, message)
	b = append(b, `,"error":{"message":`...)
	b = appendString(b, message)
	b = append(b, `,"type":`...)
	b = appendString(b, kind)
	b = append(b, `,"param":`...)
	if param == "" {
		b = append(b, "null"...)
	} else {
		b = appendString(b, param)
	}
	b = append(b, `,"code":`...)
	b = appendString(b, strings.ToLower(code.String()))
	return append(b, `}}`...)
}

// IsErrorData says that the data of an event, of which prefix is the beginning,
// is an error in the shape of AppendError or in OpenAI's.
func IsErrorData(prefix []byte) bool {
	s := string(prefix)
	return strings.HasPrefix(s, `{"object":"error"`) || strings.HasPrefix(s, `{"error":`) ||
		strings.HasPrefix(s, `{"error": `) || strings.HasPrefix(s, `{"object": "error"`)
}
