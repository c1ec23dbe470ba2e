package openai

import (
	"github.com/hw-native-sys/pypto-pd/pd"
)

// Message is one turn of a chat. Parts of type text are joined by line breaks.
type Message struct {
	Role    string
	Content string
	// Reasoning is what an assistant's turn had thought before its content.
	Reasoning string
	// ToolCalls are the calls of tools that the turn holds beside its content.
	ToolCalls []ToolCall
	// ToolCallID is which call a turn of role tool answers.
	ToolCallID string
}

// ToolCall is one call of a tool.
type ToolCall struct {
	ID, Name string
	// Arguments is a JSON text, as the model wrote it.
	Arguments string
}

// Tool is a function that the model may call.
type Tool struct {
	Name, Description string
	// Parameters is a JSON schema without spaces, in the client's order; "" if
	// absent.
	Parameters string
}

// Facts are what one request body says.
type Facts struct {
	Kind  Kind
	Model string

	// Exactly one of Text, Tokens and Messages is set by Parse; none by Scan.
	Text     *string
	Tokens   []pd.Token
	Messages []Message
	// Prompts is how many prompts a completion asks for; 1 for a chat.
	Prompts int

	// MaxTokens is max_completion_tokens, else max_tokens; 0 if absent.
	MaxTokens   int
	MinTokens   int
	Temperature *float64
	TopP        *float64
	Seed        *int64
	Stop        []string
	IgnoreEOS   bool

	Stream       bool
	IncludeUsage bool

	// N and BestOf are 1 if absent.
	N        int
	BestOf   int
	Echo     bool
	Logprobs bool
	Suffix   bool

	PresencePenalty  float64
	FrequencyPenalty float64
	LogitBias        bool

	// Tools counts tools; ToolChoice is "", "none", "auto", "required" or
	// "function" for a named one, which is ToolName. Declared is set by Parse.
	Tools      int
	Declared   []Tool
	ToolChoice string
	ToolName   string
	// SingleToolCall is parallel_tool_calls false.
	SingleToolCall bool
	// ReasoningEffort is reasoning_effort, "" if absent. Thinking is what
	// chat_template_kwargs says of thinking, nil if nothing.
	ReasoningEffort string
	Thinking        *bool
	// HideReasoning is include_reasoning false: the model may think, the client does
	// not want to read it.
	HideReasoning bool
	// ResponseFormat is response_format.type; "" if absent. ResponseSchema is
	// the schema of type json_schema, a JSON text like Tool.Parameters.
	ResponseFormat string
	ResponseSchema string

	User string
	// Unserved is the first field of the body that nothing here can serve and
	// that must not be passed over; "" without one.
	Unserved string

	completionLimit int // max_completion_tokens, until it has become MaxTokens
}

// Parse reads a whole body. Its errors are *pd.Error with CodeInvalidRequest
// and the offending field in Param.
func Parse(kind Kind, body []byte) (*Facts, error) { return read(kind, body, true) }

// Scan is Parse for a router: prompts and messages are checked for their kind
// only, and not copied.
func Scan(kind Kind, body []byte) (*Facts, error) { return read(kind, body, false) }

// One reports what makes a request more than one plain generation; a pair of
// nodes hands over one sequence per request.
func (f *Facts) One() error {
	switch {
	case f.Prompts != 1:
		return unsupported("prompt", "a request takes one prompt, got %d; send one request for each", f.Prompts)
	case f.N != 1:
		return unsupported("n", "n must be 1, got %d; send one request for each", f.N)
	case f.BestOf != 1:
		return unsupported("best_of", "best_of must be 1, got %d", f.BestOf)
	case f.Echo:
		return unsupported("echo", "echo is not supported: the prompt is not generated here")
	case f.Logprobs:
		return unsupported("logprobs", "logprobs are not supported: they are not kept on the way from prefill to decode")
	case f.Suffix:
		return unsupported("suffix", "suffix is not supported")
	case f.Unserved != "":
		return unsupported(f.Unserved, "%s is not supported", f.Unserved)
	}
	return nil
}

// CallsTools says that the answer may hold tool calls.
func (f *Facts) CallsTools() bool { return f.Tools > 0 && f.ToolChoice != "none" }

// Thinks says that the answer begins with reasoning: the template's own switch
// decides, else an effort that is not none asks for it.
func (f *Facts) Thinks() bool {
	if f.Thinking != nil {
		return *f.Thinking
	}
	return f.ReasoningEffort != "" && f.ReasoningEffort != effortNone
}

// Greedy reports what asks for anything but greedy decoding.
func (f *Facts) Greedy() error {
	switch {
	case f.Temperature != nil && *f.Temperature != 0:
		return unsupported("temperature", "only greedy decoding is supported: temperature must be 0 or absent, got %v", *f.Temperature)
	case f.PresencePenalty != 0:
		return unsupported("presence_penalty", "only greedy decoding is supported: presence_penalty must be 0 or absent")
	case f.FrequencyPenalty != 0:
		return unsupported("frequency_penalty", "only greedy decoding is supported: frequency_penalty must be 0 or absent")
	case f.LogitBias:
		return unsupported("logit_bias", "only greedy decoding is supported: logit_bias must be empty or absent")
	}
	return nil
}

func unsupported(param, format string, args ...any) error {
	e := pd.Errorf(pd.CodeUnsupported, "read request", format, args...)
	e.Param = param
	return e
}
