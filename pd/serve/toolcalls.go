package serve

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// The marks of engine.ParserTagged.
const (
	callOpens  = "<tool_call>"
	callCloses = "</tool_call>"
)

var (
	callHead = regexp.MustCompile(`^\s*\{\s*"name"\s*:\s*"([a-zA-Z0-9_.-]{1,64})"\s*,\s*"arguments"\s*:\s*`)
	callTail = regexp.MustCompile(`^\s*\}\s*` + callCloses)
)

// Bounds of what is held back before it must have become the head or the tail
// of a call.
const (
	maxCallHead = 512
	maxCallTail = 128
)

// place is where in the model's text a parser stands.
type place int

const (
	inText place = iota
	inHead
	inArguments
	inTail
)

// piece is what became of some text: reasoning, content, the beginning of a call
// (with a name), or more of its arguments.
type piece struct {
	reasoning string
	content   string
	call      int
	name      string
	arguments string
}

// callParser reads calls of tools out of a text that comes in pieces. Arguments
// pass as they are, byte for byte.
type callParser struct {
	// single: only the first call is given away.
	single bool

	place place
	held  string
	// begun and whole count calls.
	begun, whole int
	depth        int
	quoted       bool
	escaped      bool
	out          []piece
}

// feed takes text in and says what it is; the result is valid until the next
// call.
func (p *callParser) feed(text string) ([]piece, error) {
	p.out = p.out[:0]
	p.held += text
	for {
		more, err := p.step()
		if err != nil || !more {
			return p.out, err
		}
	}
}

// end gives what was held back in case a call began there, and says whether the
// text ends with whole calls.
func (p *callParser) end() ([]piece, bool) {
	p.out = p.out[:0]
	if p.place == inText {
		p.say(p.trim(p.held))
		p.held = ""
	}
	return p.out, p.place == inText && p.whole > 0
}

// step reads on within one place; more says that the next one may go on.
func (p *callParser) step() (more bool, err error) {
	switch p.place {
	case inText:
		before, after, opens := strings.Cut(p.held, callOpens)
		if opens {
			p.say(p.trim(before))
			p.held, p.place = after, inHead
			return true, nil
		}
		now := p.trim(p.held[:len(p.held)-overlap(p.held, callOpens)])
		p.say(now)
		p.held = p.held[len(now):]
	case inHead:
		m := callHead.FindStringSubmatch(p.held)
		if m == nil || len(m[0]) == len(p.held) {
			return false, p.tooLong(maxCallHead, p.begun, "head")
		}
		p.held = p.held[len(m[0]):]
		if p.held[0] != '{' {
			return false, badCall(p.begun, "its arguments are no object")
		}
		p.begun++
		p.give(piece{call: p.begun - 1, name: m[1]})
		p.place, p.depth, p.quoted, p.escaped = inArguments, 0, false, false
		return true, nil
	case inArguments:
		n, over := p.arguments()
		if n > 0 {
			p.give(piece{call: p.begun - 1, arguments: p.held[:n]})
		}
		if p.held = p.held[n:]; over {
			p.place = inTail
			return true, nil
		}
	case inTail:
		m := callTail.FindString(p.held)
		if m == "" {
			return false, p.tooLong(maxCallTail, p.begun-1, "end")
		}
		p.held, p.place = p.held[len(m):], inText
		p.whole++
		return true, nil
	}
	return false, nil
}

func (p *callParser) tooLong(limit, call int, what string) error {
	if len(p.held) > limit {
		return badCall(call, "its "+what+" has another form")
	}
	return nil
}

func badCall(index int, why string) error {
	return pd.Errorf(pd.CodeInvalidModelOutput, "read output", "the model's tool call %s is not readable: %s", strconv.Itoa(index), why)
}

// arguments is how much of the held text belongs to the arguments, and whether
// they are over.
func (p *callParser) arguments() (n int, over bool) {
	for i := range len(p.held) {
		c := p.held[i]
		switch {
		case p.escaped:
			p.escaped = false
		case p.quoted:
			p.escaped = c == '\\'
			p.quoted = c != '"'
		case c == '"':
			p.quoted = true
		case c == '{' || c == '[':
			p.depth++
		case c == '}' || c == ']':
			if p.depth--; p.depth == 0 {
				return i + 1, true
			}
		}
	}
	return len(p.held), false
}

// trim leaves out space at the end of a text behind a call: it belongs to the
// form, unless more text follows.
func (p *callParser) trim(text string) string {
	if p.begun == 0 {
		return text
	}
	return strings.TrimRight(text, " \t\r\n")
}

func (p *callParser) say(text string) {
	if text != "" {
		p.out = append(p.out, piece{content: text})
	}
}

func (p *callParser) give(x piece) {
	if p.single && x.call > 0 {
		return
	}
	p.out = append(p.out, x)
}

// overlap is the length of the longest end of s that mark begins with.
func overlap(s, mark string) int {
	for n := min(len(s), len(mark)-1); n > 0; n-- {
		if strings.HasSuffix(s, mark[:n]) {
			return n
		}
	}
	return 0
}
