package reference

import (
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
)

// The vocabulary: bytes, markers, words. Its size is the true model's, so that
// token ids of clients are checked against the real bound.
const (
	endOneIn = 211 // how rare the end is

	tokenBegin     pd.Token = 256
	tokenEnd       pd.Token = 257
	tokenUser      pd.Token = 258
	tokenAssistant pd.Token = 259
	tokenSystem    pd.Token = 260
	tokenTool      pd.Token = 261
	firstWord      pd.Token = 512
	vocabulary              = 129280
)

// words are what the engine speaks. A word that starts with a letter is joined
// with a space, punctuation is not.
var words = strings.Fields(`the of and to a in that it is was for on are with as at be this from have or by one had not but
 what all were when we there can an your which their said if do will each about how up out them then she many some so these
 would other into has more her two like him see time could no make than first been its who now people my made over did down
 only way find use may water long little very after words called just where most know get through back much go good new
 write our me man too any day same right look think also around another came come work three word must because does part
 even place well such here take why things help put years different away again off went old number great tell men say small
 every found still between name should home big give air line set own under read last never us left end along while might
 next sound below saw something thought both few those always looked show large often together asked house world going want
 school important until form food keep children feet land side without boy once animals life enough took sometimes four head
 above kind began almost live page got earth need far hand high year mother light parts country father let night following
 picture being study second eyes soon times story boys since white days ever paper hard near sentence better best across
 during today others however sure means knew try told young miles sun ways thing whole hear example heard several change
 answer room sea against top turned learn point city play toward five using himself usually palace garden river stone wall
 bridge gate tower market winter summer morning evening music letter mountain forest , , , . . .`)

// Tokenize implements engine.Model: one token per byte, and a fixed template
// for chats: begin, the tools, then each turn's marker and bytes with its calls,
// then the marker that asks the assistant to speak.
func (e *Engine) Tokenize(p engine.Prompt) ([]pd.Token, error) {
	var out []pd.Token
	switch {
	case p.Tokens != nil:
		for i, t := range p.Tokens {
			if t < 0 || t >= vocabulary {
				return nil, invalidPrompt("token %d at position %d is outside the vocabulary of %d", t, i, vocabulary)
			}
		}
		out = p.Tokens
	case p.Messages != nil:
		out = []pd.Token{tokenBegin}
		if len(p.Tools) > 0 {
			out = append(out, tokenTool)
			for _, t := range p.Tools {
				out = appendBytes(out, quote(t.Name)+" "+quote(t.Description)+" "+string(t.Parameters)+"\n")
			}
		}
		for i, m := range p.Messages {
			marker, ok := map[string]pd.Token{
				"user": tokenUser, "assistant": tokenAssistant, "system": tokenSystem, "developer": tokenSystem, "tool": tokenTool,
			}[m.Role]
			if !ok {
				return nil, invalidPrompt("messages[%d].role %q: want system, developer, user, assistant or tool", i, m.Role)
			}
			out = append(out, marker)
			if m.ToolCallID != "" {
				out = appendBytes(out, m.ToolCallID+"\n")
			}
			if m.Reasoning != "" {
				out = appendBytes(out, thoughtBegin+m.Reasoning+thoughtEnd)
			}
			out = appendBytes(out, m.Content)
			for _, c := range m.ToolCalls {
				out = appendBytes(out, c.ID+callBegin+quote(c.Name)+callMid+c.Arguments+callEnd)
			}
		}
		out = append(out, tokenAssistant)
	case p.Text != nil:
		out = appendBytes(nil, *p.Text)
	}
	if len(out) == 0 {
		return nil, invalidPrompt("the prompt is empty")
	}
	return out, nil
}

func invalidPrompt(format string, args ...any) error {
	return &pd.Error{Op: "tokenize", Code: pd.CodeInvalidRequest, Text: fmt.Sprintf(format, args...)}
}

func appendBytes(out []pd.Token, s string) []pd.Token {
	for i := range len(s) {
		out = append(out, pd.Token(s[i]))
	}
	return out
}

// EOS implements engine.Model.
func (e *Engine) EOS() pd.Token { return tokenEnd }

// choose turns a digest into an output token: mostly words, now and then the
// end.
func choose(v uint64) pd.Token {
	if v%endOneIn == 0 {
		return tokenEnd
	}
	return firstWord + pd.Token(v/endOneIn%uint64(len(words)))
}

// render is the text of one token after what was said before.
func render(t pd.Token, first bool) string {
	switch {
	case t >= 0 && t < 256:
		return string([]byte{byte(t)})
	case t >= firstWord && int(t-firstWord) < len(words):
		w := words[t-firstWord]
		if first || w == "," || w == "." {
			return w
		}
		return " " + w
	}
	return ""
}

// writer renders a generation and watches for its end.
type writer struct {
	stops []string
	eos   *pd.Token
	limit int

	count int
	// held is text that may become part of a stop string.
	held string
	said bool
	// quoted: a JSON string has just begun, whose first word follows without a
	// space.
	quoted bool
}

// add takes tokens in and says what may be given away; tokens beyond the end
// are dropped. finish is 0 while the generation goes on.
func (w *writer) add(tokens []pd.Token) (out []pd.Token, text string, finish pd.FinishReason) {
	for _, t := range tokens {
		w.count++
		out = append(out, t)
		if w.eos != nil && t == *w.eos {
			text, w.held = text+w.held, ""
			return out, text, pd.FinishStop
		}
		piece := render(t, !w.said || w.quoted)
		w.said, w.quoted = w.said || piece != "", t == '"'
		w.held += piece
		for _, stop := range w.stops {
			if i := strings.Index(w.held, stop); i >= 0 {
				return out, text + w.held[:i], pd.FinishStop
			}
		}
		keep := w.keep()
		text += w.held[:len(w.held)-keep]
		w.held = w.held[len(w.held)-keep:]
		if w.count >= w.limit {
			text, w.held = text+w.held, ""
			return out, text, pd.FinishLength
		}
	}
	return out, text, 0
}

// keep is the length of the longest end of held that a stop string or a
// character of several bytes begins with.
func (w *writer) keep() int {
	longest := 0
	for _, stop := range w.stops {
		for n := min(len(stop)-1, len(w.held)); n > longest; n-- {
			if strings.HasSuffix(w.held, stop[:n]) {
				longest = n
				break
			}
		}
	}
	return max(longest, unfinished(w.held))
}

// unfinished is how many bytes at the end of s are the beginning of a
// character.
func unfinished(s string) int {
	for n := 1; n < utf8.UTFMax && n <= len(s); n++ {
		if b := s[len(s)-n]; utf8.RuneStart(b) {
			if !utf8.FullRuneInString(s[len(s)-n:]) {
				return n
			}
			return 0
		}
	}
	return 0
}
