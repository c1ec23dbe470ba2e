package serve

import (
	"cmp"
	"errors"
	"strconv"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// read turns a body into a continuation. A decode node reads what shapes the
// answer and leaves the rest to prefill, so that nothing is read in two ways.
func (s *Server) read(kind openai.Kind, body []byte) (*openai.Facts, pd.Continuation, error) {
	parse := openai.Parse
	if s.config.Role == pd.Decode {
		parse = openai.Scan
	}
	f, err := parse(kind, body)
	if err != nil {
		return nil, pd.Continuation{}, err
	}
	if err := s.check(f); err != nil {
		return nil, pd.Continuation{}, err
	}
	if s.config.Role == pd.Decode {
		return f, pd.Continuation{Stream: f.Stream}, s.checkBound(f, body)
	}
	c, err := s.prepare(f)
	return f, c, err
}

// check refuses what this engine cannot do, rather than do something else.
func (s *Server) check(f *openai.Facts) error {
	if f.Model != "" && f.Model != s.config.ServedModel {
		return modelNotFound(f.Model)
	}
	if err := f.One(); err != nil {
		return err
	}
	if err := f.Greedy(); err != nil {
		return err
	}
	if f.MinTokens > 0 {
		return unsupported("min_tokens", "min_tokens is not supported by this engine; ignore_eos is")
	}
	return s.checkForm(f)
}

func unsupported(param, text string) error {
	return &pd.Error{Op: "read request", Code: pd.CodeUnsupported, Text: text, Param: param}
}

// prepare applies template and vocabulary, and settles the limits.
func (s *Server) prepare(f *openai.Facts) (pd.Continuation, error) {
	m := s.config.Model
	prompt := engine.Prompt{Text: f.Text, Tokens: f.Tokens}
	field := "prompt"
	if f.Kind == openai.Chat {
		field = "messages"
		prompt.Messages = make([]engine.Message, len(f.Messages))
		for i, t := range f.Messages {
			prompt.Messages[i] = engine.Message{Role: t.Role, Content: t.Content, Reasoning: t.Reasoning, ToolCallID: t.ToolCallID}
			for _, c := range t.ToolCalls {
				prompt.Messages[i].ToolCalls = append(prompt.Messages[i].ToolCalls, engine.ToolCall(c))
			}
		}
		if f.CallsTools() {
			prompt.Tools = tools(f)
		}
	}
	tokens, err := m.Tokenize(prompt)
	if err != nil {
		if e, ok := errors.AsType[*pd.Error](err); ok {
			named := *e
			named.Param = cmp.Or(e.Param, field)
			return pd.Continuation{}, &named
		}
		return pd.Continuation{}, &pd.Error{Op: "tokenize", Code: pd.CodeInvalidRequest, Text: field, Err: err, Param: field}
	}
	room := m.MaxTokens() - len(tokens)
	if room < 1 {
		e := pd.Errorf(pd.CodeContextLength, "read request", "the prompt has %d tokens and the model's limit is %d for prompt and output", len(tokens), m.MaxTokens())
		e.Param = field
		return pd.Continuation{}, e
	}
	limit := f.MaxTokens
	switch {
	case limit > room:
		e := pd.Errorf(pd.CodeContextLength, "read request", "the prompt has %d tokens and %d are asked for, the model's limit is %d for both", len(tokens), limit, m.MaxTokens())
		e.Param = "max_tokens"
		return pd.Continuation{}, e
	case limit == 0 && s.config.DefaultMaxTokens > 0:
		limit = min(s.config.DefaultMaxTokens, room)
	case limit == 0:
		limit = room
	}
	c := pd.Continuation{
		PromptTokens: tokens, MaxNewTokens: limit, Temperature: "0", TopP: "1", Seed: f.Seed, Stop: f.Stop, Stream: f.Stream,
	}
	if f.TopP != nil {
		c.TopP = strconv.FormatFloat(*f.TopP, 'g', -1, 64)
	}
	if !f.IgnoreEOS {
		eos := m.EOS()
		c.EOS = &eos
	}
	return c, s.constrain(f, &c)
}
