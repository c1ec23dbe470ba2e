// Package engine is the contract of a model engine: tokenize and template,
// prefill in chunks, adopt what another node prefilled, decode in batches,
// release.
//
// The package starts no goroutine.
package engine

import (
	"context"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// Message is one turn of a chat.
type Message struct {
	Role    string
	Content string
	// Reasoning is what an assistant had thought before its content.
	Reasoning string
	// ToolCalls are what an assistant called, ToolCallID is which call a tool's
	// turn answers.
	ToolCalls  []ToolCall
	ToolCallID string
}

// ToolCall is one call of a tool; Arguments is a JSON text.
type ToolCall struct {
	ID, Name, Arguments string
}

// Prompt is what a client asked to continue: exactly one of Text, Tokens and
// Messages is set.
type Prompt struct {
	Text     *string
	Tokens   []pd.Token
	Messages []Message
	// Tools are what the model is told it may call; with Messages only.
	Tools []Tool
}

// Model is the part of an engine that needs no device: vocabulary, template,
// limits. Its methods are safe for concurrent use.
type Model interface {
	// Tokenize applies the chat template where Messages is set. The result is
	// never empty.
	Tokenize(p Prompt) ([]pd.Token, error)
	// EOS is the end-of-sequence token.
	EOS() pd.Token
	// MaxTokens bounds prompt plus output.
	MaxTokens() int
	// Revision identifies the weights.
	Revision() string
}

// Output is one piece of a generation. The last one has Finish set.
type Output struct {
	Tokens []pd.Token
	// Text is the rendered text of Tokens as far as it can be given away; text
	// that might become part of a stop string is held back.
	Text   string
	Finish pd.FinishReason
	// Err says why when Finish is FinishFailed or FinishAborted.
	Err error
	// Usage is set on the last output.
	Usage Usage
}

// Usage counts tokens as OpenAI does.
type Usage struct {
	PromptTokens     int
	CompletionTokens int
	// CachedTokens is how much of the prompt was not computed for this request.
	CachedTokens int
}

// Request is one generation.
type Request struct {
	ID pd.RequestID
	// Continuation is what to do. On a decode node PromptTokens is empty: decode
	// takes the prompt and the limits from prefill, and only Stream is compared.
	Continuation pd.Continuation
	// Fence is the route that a PD router chose; nil without a role.
	Fence *pd.Fence
}

// Generator runs requests: the combined engine, or one side of a pair.
type Generator interface {
	// Generate returns once it is decided that the request runs: admitted
	// (combined), reserved on both nodes (decode), prefilled, handed over and
	// retired (prefill, whose stream then yields one Output without tokens). A
	// done context before that cancels the request; after that Stream.Close does.
	Generate(ctx context.Context, r Request) (Stream, error)
}

// Stream is one generation in progress.
type Stream interface {
	// Next waits for the next output. After an output with Finish set it must
	// not be called again. A done context ends the waiting, and Close the
	// generation.
	Next(ctx context.Context) (Output, error)
	// Close asks the engine to stop; it is harmless after the end.
	Close()
}

// Reserved is the Stream of a decode node, which holds memory for the request.
type Reserved interface {
	Stream
	// HitTokens is how much of the prompt this node's own cache had.
	HitTokens() int
}

// ChunkComputed says that one chunk of a prompt is computed on every rank of
// the partition and that its pages may be read. The engine holds the request
// until Resume.
type ChunkComputed struct {
	Handoff   pd.HandoffID
	Partition pd.Partition
	Chunk     pd.ChunkID
	Span      pd.Span
	Final     bool
	// HitTokens is how much of the prompt came from this node's own cache.
	HitTokens int
	// BootstrapSlot and FirstToken are set when Final.
	BootstrapSlot int
	FirstToken    pd.Token
	// Began and Ended bound the compute step, for people and traces.
	Began, Ended time.Time
}

// Adoption is a request that another node prefilled.
type Adoption struct {
	Handoff      pd.HandoffID
	Request      pd.RequestID
	Continuation pd.Continuation
	FirstToken   pd.Token
	Partition    pd.Partition
	// HitTokens is how much of the prompt this node already had.
	HitTokens int
	// CachedTokens is how much of the prompt the prefill node had: the part
	// that nobody computed for this request, for usage.
	CachedTokens  int
	BootstrapSlot int
}

// Events are what an engine reports to the node. Calls come from the engine's
// own goroutine, must not block and must not call back into the engine.
type Events interface {
	ChunkComputed(ChunkComputed)
	// PrefillStopped: the request is out of the engine and its table is closed;
	// err is nil after a cancel or finish that was asked for.
	PrefillStopped(h pd.HandoffID, err error)
	// DecodeStopped: the engine reads and writes the request's pages no more
	// (the state-release acknowledgement). The pages are still leased.
	DecodeStopped(h pd.HandoffID, last Output)
	// DecodeOutput carries tokens as they come, without Finish.
	DecodeOutput(h pd.HandoffID, o Output)
}

// PD is the engine as a prefill or decode node drives it. Methods only queue
// work; answers come through Events.
type PD interface {
	// Prefill queues a prompt. The engine opens the handoff's table itself.
	Prefill(h pd.HandoffID, r Request)
	// Resume lets a held request compute its next chunk.
	Resume(h pd.HandoffID)
	// StopPrefill takes a request out, finished or not, and closes its table;
	// pinned pages stay. Answered by PrefillStopped.
	StopPrefill(h pd.HandoffID)
	// Adopt starts decoding over pages that the ledger leased for h.
	Adopt(a Adoption)
	// StopDecode cancels. Answered by DecodeStopped.
	StopDecode(h pd.HandoffID)
}
