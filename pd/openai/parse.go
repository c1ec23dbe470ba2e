package openai

import (
	"bytes"
	"errors"
	"io"
	"math"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/hw-native-sys/pypto-pd/pd"
)

const (
	// maxDepth bounds nesting: a schema inside a tool is the deepest thing that
	// people send.
	maxDepth = 64
	// maxMessages bounds a chat beside the body's own bound.
	maxMessages = 65536
	// maxShown is how much of a client's value an error repeats.
	maxShown = 40
)

// reader reads one body into facts.
type reader struct {
	d    *jsontext.Decoder
	f    *Facts
	full bool
}

// member is one understood field of a body and where its last value stands.
type member struct {
	name       string
	start, end int64
}

func read(kind Kind, body []byte, full bool) (*Facts, error) {
	if len(bytes.TrimLeft(body, " \t\r\n")) == 0 {
		return nil, invalid("", "the request body is empty, want a JSON object")
	}
	fields := completionFields
	if kind == Chat {
		fields = chatFields
	}
	r := &reader{f: &Facts{Kind: kind, N: 1, BestOf: 1}, full: full}
	r.d = jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true))
	members, err := r.members(fields)
	if err != nil {
		return nil, r.word(err)
	}
	for _, m := range members {
		// The value stands behind its colon.
		value := bytes.TrimLeft(body[m.start:m.end], ": \t\r\n")
		r.d.Reset(bytes.NewBuffer(value), jsontext.AllowDuplicateNames(true))
		if r.d.PeekKind() == 'n' {
			continue // null is absent
		}
		if err := fields[m.name](r, m.name); err != nil {
			return nil, r.word(err)
		}
	}
	if err := r.presence(); err != nil {
		return nil, err
	}
	if r.f.completionLimit > 0 {
		r.f.MaxTokens, r.f.completionLimit = r.f.completionLimit, 0
	}
	return r.f, nil
}

// members checks the whole text and finds the last value of each understood
// field, in the order in which they first stand.
func (r *reader) members(fields map[string]fieldReader) ([]member, error) {
	if r.d.PeekKind() != '{' {
		if _, err := r.d.ReadToken(); err != nil {
			return nil, err
		}
		return nil, invalid("", "the request body must be a JSON object")
	}
	var out []member
	err := r.object("", func(name string) error {
		start := r.d.InputOffset()
		if err := r.skip(); err != nil {
			return err
		}
		if _, known := fields[name]; !known {
			return nil
		}
		m := member{name, start, r.d.InputOffset()}
		if i := slices.IndexFunc(out, func(o member) bool { return o.name == name }); i >= 0 {
			out[i] = m
			return nil
		}
		out = append(out, m)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if _, err := r.d.ReadToken(); err != io.EOF {
		if err != nil {
			return nil, err
		}
		return nil, invalid("", "there is more after the JSON object")
	}
	return out, nil
}

func (r *reader) presence() error {
	switch {
	case r.f.Kind == Chat && r.f.Prompts == 0:
		return invalid("messages", "messages is missing")
	case r.f.Kind == Completion && r.f.Prompts == 0:
		return invalid("prompt", "prompt is missing")
	case r.f.IncludeUsage && !r.f.Stream:
		return invalid("stream_options", "stream_options may be set only where stream is true")
	}
	return r.toolsAgree()
}

// word turns an error of the JSON reader into one for the client. The reader's
// own text may quote the prompt.
func (r *reader) word(err error) error {
	if e, ok := errors.AsType[*pd.Error](err); ok {
		return e
	}
	at := r.d.InputOffset()
	if s, ok := errors.AsType[*jsontext.SyntacticError](err); ok {
		at = s.ByteOffset
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return invalid("", "the request body is not valid JSON: it ends at byte %d in the middle", at)
	}
	return invalid("", "the request body is not valid JSON at byte %d", at)
}

func invalid(param, format string, args ...any) *pd.Error {
	e := pd.Errorf(pd.CodeInvalidRequest, "read request", format, args...)
	e.Param = param
	return e
}

// object runs member for each name; member reads the value.
func (r *reader) object(param string, member func(name string) error) error {
	if r.d.PeekKind() != '{' {
		return r.want(param, "an object")
	}
	if _, err := r.d.ReadToken(); err != nil {
		return err
	}
	for r.d.PeekKind() != '}' {
		token, err := r.d.ReadToken()
		if err != nil {
			return err
		}
		if err := member(token.String()); err != nil {
			return err
		}
	}
	_, err := r.d.ReadToken()
	return err
}

// array runs element for each index; element reads the value.
func (r *reader) array(param string, element func(i int) error) error {
	if r.d.PeekKind() != '[' {
		return r.want(param, "an array")
	}
	if _, err := r.d.ReadToken(); err != nil {
		return err
	}
	for i := 0; r.d.PeekKind() != ']'; i++ {
		if err := element(i); err != nil {
			return err
		}
	}
	_, err := r.d.ReadToken()
	return err
}

// skip passes over one value of any kind, no deeper than maxDepth.
func (r *reader) skip() error {
	depth := r.d.StackDepth()
	for {
		if _, err := r.d.ReadToken(); err != nil {
			return err
		}
		switch now := r.d.StackDepth(); {
		case now > maxDepth:
			return invalid("", "the request body is nested more than %d deep", maxDepth)
		case now == depth:
			return nil
		}
	}
}

// want reports a value of the wrong kind.
func (r *reader) want(param, what string) error {
	kind := r.d.PeekKind()
	if kind == 0 { // not even JSON
		_, err := r.d.ReadToken()
		return err
	}
	return invalid(param, "%s must be %s, got %s", param, what, kindText(kind))
}

func kindText(k jsontext.Kind) string {
	switch k {
	case 'n':
		return "null"
	case 't', 'f':
		return "a boolean"
	case '"':
		return "a string"
	case '0':
		return "a number"
	case '{':
		return "an object"
	case '[':
		return "an array"
	}
	return "nothing"
}

func (r *reader) string(param string) (string, error) {
	if r.d.PeekKind() != '"' {
		return "", r.want(param, "a string")
	}
	token, err := r.d.ReadToken()
	if err != nil {
		return "", err
	}
	return token.String(), nil
}

func (r *reader) bool(param string) (bool, error) {
	if k := r.d.PeekKind(); k != 't' && k != 'f' {
		return false, r.want(param, "a boolean")
	}
	token, err := r.d.ReadToken()
	if err != nil {
		return false, err
	}
	return token.Bool(), nil
}

// number gives the text of a number as a loan until the next read.
func (r *reader) number(param, what string) ([]byte, error) {
	if r.d.PeekKind() != '0' {
		return nil, r.want(param, what)
	}
	return r.d.ReadValue()
}

// int reads an integer within [low, high]. 128.0 is an integer, as in the
// engines; 128.5 is not.
func (r *reader) int(param string, low, high int64) (int64, error) {
	text, err := r.number(param, "an integer")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(string(text), 10, 64)
	if err != nil {
		x, ferr := strconv.ParseFloat(string(text), 64)
		if ferr != nil || x != math.Trunc(x) || math.Abs(x) > 1<<53 {
			return 0, invalid(param, "%s must be an integer, got %s", param, shown(text))
		}
		n = int64(x)
	}
	if n < low || n > high {
		return 0, invalid(param, "%s must be between %d and %d, got %d", param, low, high, n)
	}
	return n, nil
}

func (r *reader) float(param string, low, high float64) (float64, error) {
	text, err := r.number(param, "a number")
	if err != nil {
		return 0, err
	}
	x, err := strconv.ParseFloat(string(text), 64)
	if err != nil || x < low || x > high {
		return 0, invalid(param, "%s must be between %v and %v, got %s", param, low, high, shown(text))
	}
	return x, nil
}

func shown(text []byte) string {
	if len(text) > maxShown {
		return string(text[:maxShown]) + "..."
	}
	return string(text)
}

// token reads one vocabulary id.
func (r *reader) token(param func() string) (pd.Token, error) {
	if r.d.PeekKind() != '0' {
		return 0, r.want(param(), "an integer")
	}
	text, err := r.d.ReadValue()
	if err != nil {
		return 0, err
	}
	n := 0
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, invalid(param(), "%s must be a token id, got %s", param(), shown(text))
		}
		if n = n*10 + int(c-'0'); n > math.MaxInt32 {
			return 0, invalid(param(), "%s must be a token id, got %s", param(), shown(text))
		}
	}
	return pd.Token(n), nil
}

func indexed(param string, i int) string { return param + "[" + strconv.Itoa(i) + "]" }

// stops reads a string or an array of strings.
func (r *reader) stops(param string) ([]string, error) {
	if r.d.PeekKind() == '"' {
		s, err := r.string(param)
		if err != nil {
			return nil, err
		}
		return checkStops(param, []string{s})
	}
	var out []string
	if r.d.PeekKind() != '[' {
		return nil, r.want(param, "a string or an array of strings")
	}
	err := r.array(param, func(i int) error {
		s, err := r.string(indexed(param, i))
		if len(out) <= pd.MaxStopStrings {
			out = append(out, s)
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	return checkStops(param, out)
}

func checkStops(param string, stops []string) ([]string, error) {
	if len(stops) > pd.MaxStopStrings {
		return nil, invalid(param, "%s holds more than %d strings", param, pd.MaxStopStrings)
	}
	for i, s := range stops {
		switch {
		case s == "":
			return nil, invalid(param, "%s is empty, which would stop at once", indexed(param, i))
		case len(s) > pd.MaxStopBytes:
			return nil, invalid(param, "%s has %d bytes, the limit is %d", indexed(param, i), len(s), pd.MaxStopBytes)
		}
	}
	return stops, nil
}

// prompt reads a string, an array of token ids, or an array of either.
func (r *reader) prompt(param string) error {
	switch r.d.PeekKind() {
	case '"':
		r.f.Prompts = 1
		return r.text(param)
	case '[':
	default:
		return r.want(param, "a string, an array of token ids, or an array of one of them")
	}
	count := 0
	list := false
	err := r.array(param, func(i int) error {
		count++
		kind := r.d.PeekKind()
		switch {
		case kind == '0' && !list:
			if i > pd.MaxModelTokens {
				return invalid(param, "%s holds more than %d token ids", param, pd.MaxModelTokens)
			}
			if !r.full {
				return r.skip()
			}
			token, err := r.token(func() string { return indexed(param, i) })
			r.f.Tokens = append(r.f.Tokens, token)
			return err
		case kind == '"' && (list || i == 0):
			list = true
			if i > 0 {
				return r.skip()
			}
			return r.text(indexed(param, i))
		case kind == '[' && (list || i == 0):
			list = true
			if i > 0 {
				return r.skip()
			}
			return r.tokens(indexed(param, i))
		}
		return r.want(indexed(param, i), "of the same kind as the element before")
	})
	if err != nil {
		return err
	}
	r.f.Prompts = 1
	if list {
		r.f.Prompts = count
	} else if count == 0 {
		return invalid(param, "%s is empty", param)
	}
	return nil
}

func (r *reader) text(param string) error {
	if !r.full {
		return r.skip()
	}
	s, err := r.string(param)
	r.f.Text = &s
	return err
}

func (r *reader) tokens(param string) error {
	if !r.full {
		return r.skip()
	}
	r.f.Tokens = []pd.Token{}
	err := r.array(param, func(i int) error {
		if i > pd.MaxModelTokens {
			return invalid(param, "%s holds more than %d token ids", param, pd.MaxModelTokens)
		}
		token, err := r.token(func() string { return indexed(param, i) })
		r.f.Tokens = append(r.f.Tokens, token)
		return err
	})
	if err == nil && len(r.f.Tokens) == 0 {
		return invalid(param, "%s is empty", param)
	}
	return err
}
