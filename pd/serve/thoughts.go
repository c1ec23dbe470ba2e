package serve

import (
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// The marks of engine.ParserTagged around reasoning.
const (
	thoughtOpens  = "<think>"
	thoughtCloses = "</think>"
)

// thoughts takes the reasoning off the beginning of a text that comes in pieces.
// Both parts pass as they are, byte for byte, without the marks.
type thoughts struct {
	// cut: a stop string of the client's may end the text anywhere.
	cut   bool
	stage thoughtStage
	held  string
}

type thoughtStage int

const (
	beforeThought thoughtStage = iota
	inThought
	behindThought
)

// feed takes text in and says how much of it is reasoning, and what the rest is.
func (p *thoughts) feed(text string) (reasoning, rest string) {
	p.held += text
	if p.stage == beforeThought {
		switch after, opens := strings.CutPrefix(p.held, thoughtOpens); {
		case opens:
			p.held, p.stage = after, inThought
		case strings.HasPrefix(thoughtOpens, p.held):
			return "", "" // it may become the mark
		default:
			p.stage = behindThought
		}
	}
	if p.stage == inThought {
		before, after, closes := strings.Cut(p.held, thoughtCloses)
		if !closes {
			now := p.held[:len(p.held)-overlap(p.held, thoughtCloses)]
			p.held = p.held[len(now):]
			return now, ""
		}
		reasoning, p.held, p.stage = before, after, behindThought
	}
	rest, p.held = p.held, ""
	return reasoning, rest
}

// end gives what was held back. A model that ends by itself in the middle of its
// reasoning has not answered.
func (p *thoughts) end(finish pd.FinishReason) (reasoning, rest string, err error) {
	held := p.held
	p.held = ""
	switch {
	case p.stage == inThought && finish == pd.FinishStop && !p.cut:
		return "", "", pd.Errorf(pd.CodeInvalidModelOutput, "read output", "the model's reasoning has no end, and there is no answer behind it")
	case p.stage == inThought:
		return held, "", nil
	}
	return "", held, nil
}

// outputParser tells reasoning, content and calls of tools apart.
type outputParser struct {
	thoughts *thoughts // nil where the text has no reasoning
	// silent: the client wants no reasoning; it is read and dropped.
	silent bool
	calls  *callParser // nil where the text has no calls
	out    []piece
}

// outputParser is nil where the text is the content.
func (g *generation) outputParser() *outputParser {
	f := g.facts
	if !f.CallsTools() && !f.Thinks() {
		return nil
	}
	p := &outputParser{}
	if f.Thinks() {
		p.thoughts, p.silent = &thoughts{cut: len(f.Stop) > 0}, f.HideReasoning
	}
	if f.CallsTools() {
		p.calls = &callParser{single: f.SingleToolCall}
	}
	return p
}

// feed takes text in and says what it is; the result is valid until the next call.
func (p *outputParser) feed(text string) ([]piece, error) {
	p.out = p.out[:0]
	if p.thoughts == nil {
		return p.out, p.content(text)
	}
	reasoning, rest := p.thoughts.feed(text)
	p.reason(reasoning)
	return p.out, p.content(rest)
}

// end gives what was held back, and says whether the text ends with whole calls.
func (p *outputParser) end(finish pd.FinishReason) (pieces []piece, called bool, err error) {
	p.out = p.out[:0]
	if p.thoughts != nil {
		reasoning, rest, err := p.thoughts.end(finish)
		if err != nil {
			return nil, false, err
		}
		p.reason(reasoning)
		if err := p.content(rest); err != nil {
			return p.out, false, err
		}
	}
	if p.calls != nil {
		var last []piece
		last, called = p.calls.end()
		p.out = append(p.out, last...)
	}
	return p.out, called && finish == pd.FinishStop, nil
}

func (p *outputParser) reason(text string) {
	if text != "" && !p.silent {
		p.out = append(p.out, piece{reasoning: text})
	}
}

func (p *outputParser) content(text string) error {
	switch {
	case text == "":
		return nil
	case p.calls == nil:
		p.out = append(p.out, piece{content: text})
		return nil
	}
	pieces, err := p.calls.feed(text)
	p.out = append(p.out, pieces...)
	return err
}

// read collects the pieces of a whole text.
func (p *outputParser) read(text string, finish pd.FinishReason, a openai.Answer) (openai.Message, bool, error) {
	m := openai.Message{Role: "assistant"}
	take := func(pieces []piece) {
		for _, x := range pieces {
			switch {
			case x.reasoning != "":
				m.Reasoning += x.reasoning
			case x.content != "":
				m.Content += x.content
			case x.name != "":
				m.ToolCalls = append(m.ToolCalls, openai.ToolCall{ID: a.CallID(x.call), Name: x.name})
			default:
				m.ToolCalls[len(m.ToolCalls)-1].Arguments += x.arguments
			}
		}
	}
	pieces, err := p.feed(text)
	if err != nil {
		return openai.Message{}, false, err
	}
	take(pieces)
	pieces, called, err := p.end(finish)
	if err != nil {
		return openai.Message{}, false, err
	}
	take(pieces)
	return m, called, nil
}
