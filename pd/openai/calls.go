package openai

import (
	"strconv"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// finishCalls is the finish reason of an answer whose calls are complete.
const finishCalls = "tool_calls"

// CallID names one call of an answer: unique as the answer's own id is.
func (a Answer) CallID(index int) string {
	_, hex, _ := strings.Cut(string(a.ID), "-")
	return "call_" + hex[:min(len(hex), 24)] + strconv.Itoa(index)
}

// AppendWholeMessage writes a whole chat whose message may hold reasoning and calls
// of tools. Called: the model ended with calls, and every one is whole; otherwise
// finish says how it ended.
func (a Answer) AppendWholeMessage(b []byte, m Message, called bool, finish pd.FinishReason, u Usage) []byte {
	b = a.appendHead(b, "chat.completion")
	b = append(b, `[{"index":0,"message":{"role":"assistant"`...)
	if m.Reasoning != "" {
		b = append(b, `,"reasoning":`...)
		b = appendString(b, m.Reasoning)
	}
	b = append(b, `,"content":`...)
	if m.Content == "" && len(m.ToolCalls) > 0 {
		b = append(b, "null"...)
	} else {
		b = appendString(b, m.Content)
	}
	if len(m.ToolCalls) > 0 {
		b = append(b, `,"tool_calls":[`...)
		for i, c := range m.ToolCalls {
			if i > 0 {
				b = append(b, ',')
			}
			b = append(b, `{"id":`...)
			b = appendString(b, c.ID)
			b = append(b, `,"type":"function","function":{"name":`...)
			b = appendString(b, c.Name)
			b = append(b, `,"arguments":`...)
			b = appendString(b, c.Arguments)
			b = append(b, "}}"...)
		}
		b = append(b, ']')
	}
	b = append(b, `},"logprobs":null,"finish_reason":`...)
	if called {
		b = appendString(b, finishCalls)
	} else {
		b = appendFinish(b, finish)
	}
	b = append(b, `}],"usage":`...)
	b = appendUsage(b, u)
	return append(b, '}')
}

// AppendReasoning writes a chunk of the reasoning before the content.
func (a Answer) AppendReasoning(b []byte, text string) []byte {
	b = a.appendHead(b, "chat.completion.chunk")
	b = append(b, `[{"index":0,"delta":{"reasoning":`...)
	b = appendString(b, text)
	return a.appendTail(append(b, `},"logprobs":null,"finish_reason":null}]`...))
}

// AppendCall writes the first chunk of a call, which has its id and name.
func (a Answer) AppendCall(b []byte, index int, c ToolCall) []byte {
	b = a.appendCallHead(b, index)
	b = append(b, `,"id":`...)
	b = appendString(b, c.ID)
	b = append(b, `,"type":"function","function":{"name":`...)
	b = appendString(b, c.Name)
	b = append(b, `,"arguments":`...)
	b = appendString(b, c.Arguments)
	return a.appendCallTail(b)
}

// AppendArguments writes a further piece of a call's arguments.
func (a Answer) AppendArguments(b []byte, index int, piece string) []byte {
	b = a.appendCallHead(b, index)
	b = append(b, `,"function":{"arguments":`...)
	b = appendString(b, piece)
	return a.appendCallTail(b)
}

// AppendCallsEnd writes the last chunk of an answer whose calls are complete.
func (a Answer) AppendCallsEnd(b []byte) []byte {
	b = a.appendHead(b, "chat.completion.chunk")
	b = append(b, `[{"index":0,"delta":{},"logprobs":null,"finish_reason":"`+finishCalls+`"}]`...)
	return a.appendTail(b)
}

func (a Answer) appendCallHead(b []byte, index int) []byte {
	b = a.appendHead(b, "chat.completion.chunk")
	b = append(b, `[{"index":0,"delta":{"tool_calls":[{"index":`...)
	return strconv.AppendInt(b, int64(index), 10)
}

func (a Answer) appendCallTail(b []byte) []byte {
	return a.appendTail(append(b, `}}]},"logprobs":null,"finish_reason":null}]`...))
}
