package pd

// Continuation is how decode goes on with a request that prefill prepared. It
// travels once, in reserve; decode neither tokenizes nor applies a template.
// Decimal numbers are strings, so that digests hold integers only.
type Continuation struct {
	PromptTokens []Token  `json:"prompt_tokens"`
	MaxNewTokens int      `json:"max_new_tokens"`
	Temperature  string   `json:"temperature"`
	TopP         string   `json:"top_p"`
	Seed         *int64   `json:"seed,omitempty"`
	Stop         []string `json:"stop"`
	// EOS is absent when the request ignores the end-of-sequence token.
	EOS    *Token `json:"eos,omitempty"`
	Stream bool   `json:"stream"`
	// OutputParser names the reasoning/tool parser ("" for none).
	OutputParser string `json:"output_parser,omitempty"`
	// Constraint is the canonical JSON of a grammar constraint ("" for none).
	Constraint string `json:"constraint,omitempty"`
}

// FinishReason is why a generation ended. The zero value means "not yet".
type FinishReason int

// The finish reasons.
const (
	// FinishStop: end-of-sequence token or stop string.
	FinishStop FinishReason = 1
	// FinishLength: the token limit was reached.
	FinishLength FinishReason = 2
	// FinishAborted: cancelled by the client or an operator.
	FinishAborted FinishReason = 3
	// FinishFailed: the request failed; the accompanying error says why.
	FinishFailed FinishReason = 4
)

// String gives the OpenAI spelling where there is one.
func (r FinishReason) String() string {
	switch r {
	case FinishStop:
		return "stop"
	case FinishLength:
		return "length"
	case FinishAborted:
		return "aborted"
	case FinishFailed:
		return "failed"
	}
	return ""
}
