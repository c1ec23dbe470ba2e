package strictjson

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// walker reads one text beside the type it is meant for.
type walker struct {
	data   []byte
	limits Limits
	// explain asks custom types to parse their values, for their reasons.
	explain bool

	in      *jsontext.Decoder
	path    []step
	defects Errors
	// stopped is the defect that ended the walk, if it is not of the schema.
	stopped *Error
}

// step is one element of a field path: an index, or a name when index is -1.
type step struct {
	name  string
	index int
}

func named(name string) step { return step{name: name, index: -1} }

// errStop ends a walk; the reason is in stopped or defects.
var errStop = errors.New("stop")

func (w *walker) run(s *shape) error {
	w.in = jsontext.NewDecoder(bytes.NewBuffer(w.data))
	if len(bytes.TrimLeft(w.data, " \t\r\n")) == 0 {
		w.stopped = &Error{Text: "the text is empty, want a JSON value", Final: true}
		return w.stopped
	}
	if w.value(s) == nil {
		w.end()
	}
	return w.err()
}

// end refuses anything but space after the value.
func (w *walker) end() {
	_, err := w.in.ReadToken()
	switch {
	case err == io.EOF:
	case err == nil:
		_ = w.stop(w.start(), "there is more after the JSON value")
	default:
		_ = w.syntax(err)
	}
}

// schemaOnly says that every defect is one of the schema.
func (w *walker) schemaOnly() bool { return w.stopped == nil && len(w.defects) < w.most() }

func (w *walker) most() int { return max(w.limits.Defects, 1) }

func (w *walker) err() error {
	all := w.defects
	if w.stopped != nil {
		all = append(all, w.stopped)
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	return all
}

// value reads one value and compares it with s.
func (w *walker) value(s *shape) error {
	for s.kind == kindPointer {
		s = s.elem
	}
	from := int64(-1)
	if w.explain && (s.kind == kindCustom || s.kind == kindText) {
		from = int64(w.start())
	}
	var err error
	switch k := w.in.PeekKind(); k {
	case '{':
		err = w.object(s)
	case '[':
		err = w.array(s)
	default:
		err = w.scalar(s, k)
	}
	if err == nil && from >= 0 {
		return w.ask(s, int(from))
	}
	return err
}

func (w *walker) object(s *shape) error {
	at := w.start()
	if err := w.open(); err != nil {
		return err
	}
	switch s.kind {
	case kindAny, kindCustom, kindMap, kindObject:
	default:
		if err := w.wrong(s, at, "an object"); err != nil {
			return err
		}
		s = anyShape
	}
	var seen []bool
	if s.kind == kindObject {
		seen = make([]bool, len(s.fields))
	}
	for {
		k := w.in.PeekKind()
		if k == '}' {
			break
		}
		if k != '"' && k != jsontext.KindInvalid {
			return w.stop(w.start(), "a name must be a string in double quotes")
		}
		raw, err := w.in.ReadValue()
		if err != nil {
			return w.syntax(err)
		}
		end := int(w.in.InputOffset())
		member := anyShape
		switch s.kind {
		case kindObject:
			i, ok := s.byName[string(raw[1:len(raw)-1])]
			if !ok {
				i, ok = s.byName[unquote(raw)] // an escaped spelling
			}
			if ok {
				seen[i], member = true, s.fields[i].shape
				w.path = append(w.path, named(s.fields[i].name))
				break
			}
			w.path = append(w.path, named(unquote(raw)))
			if !w.limits.AllowUnknown {
				if err := w.defect(end-len(raw), UnknownName+s.nearest(raw)); err != nil {
					return err
				}
			}
		default:
			if s.kind == kindMap {
				member = s.elem
			}
			w.path = append(w.path, named(unquote(raw)))
		}
		if err := w.value(member); err != nil {
			return err
		}
		w.path = w.path[:len(w.path)-1]
	}
	if _, err := w.in.ReadToken(); err != nil {
		return w.syntax(err)
	}
	for i, ok := range seen {
		if ok || !s.fields[i].required {
			continue
		}
		w.path = append(w.path, named(s.fields[i].name))
		if err := w.defect(at, "is missing"); err != nil {
			return err
		}
		w.path = w.path[:len(w.path)-1]
	}
	return nil
}

func (w *walker) array(s *shape) error {
	at := w.start()
	if s.kind == kindArray && s.length < 0 && s.elem.integers() && w.in.StackDepth() < pd.MaxJSONDepth && plainIntegers(w.data[at:]) {
		// A prompt has half a million token ids; the tokenizer still checks the
		// array, but as one value.
		if _, err := w.in.ReadValue(); err != nil {
			return w.syntax(err)
		}
		return nil
	}
	if err := w.open(); err != nil {
		return err
	}
	elem := anyShape
	length := -1
	switch s.kind {
	case kindArray:
		elem, length = s.elem, s.length
	case kindAny, kindCustom:
	default:
		if err := w.wrong(s, at, "an array"); err != nil {
			return err
		}
	}
	n := 0
	for ; w.in.PeekKind() != ']'; n++ {
		w.path = append(w.path, step{index: n})
		if err := w.value(elem); err != nil {
			return err
		}
		w.path = w.path[:len(w.path)-1]
	}
	if _, err := w.in.ReadToken(); err != nil {
		return w.syntax(err)
	}
	if length >= 0 && n != length {
		return w.defect(at, fmt.Sprintf("want exactly %d elements, found %d", length, n))
	}
	return nil
}

func (w *walker) open() error {
	if w.in.StackDepth() >= pd.MaxJSONDepth {
		return w.stop(w.start(), fmt.Sprintf("nested deeper than %d levels", pd.MaxJSONDepth))
	}
	if _, err := w.in.ReadToken(); err != nil {
		return w.syntax(err)
	}
	return nil
}

func (w *walker) scalar(s *shape, k jsontext.Kind) error {
	raw, err := w.in.ReadValue()
	if err != nil {
		return w.syntax(err)
	}
	at := int(w.in.InputOffset()) - len(raw)
	switch k {
	case 'n':
		return w.defect(at, "null is not allowed; leave the field out")
	case '"':
		switch s.kind {
		case kindString, kindText, kindAny, kindCustom:
			return nil
		}
		return w.wrong(s, at, "a string")
	case 't', 'f':
		switch s.kind {
		case kindBool, kindAny, kindCustom:
			return nil
		}
		return w.wrong(s, at, string(raw))
	}
	return w.number(s, at, raw)
}

// plainDigits is how many digits every 32-bit integer may have without a
// closer look.
const plainDigits = 9

func (w *walker) number(s *shape, at int, raw []byte) error {
	switch s.kind {
	case kindAny, kindCustom:
		return nil
	case kindFloat:
		if _, err := strconv.ParseFloat(string(raw), s.bits); err != nil {
			return w.defect(at, "the number is out of range")
		}
		return nil
	case kindInt, kindUint:
	default:
		return w.wrong(s, at, "a number")
	}
	if len(raw) <= plainDigits && s.bits >= 32 && raw[0] != '-' && isDigits(raw) {
		return nil
	}
	if bytes.ContainsAny(raw, ".eE") {
		return w.wrong(s, at, "a number with a fraction or an exponent")
	}
	var err error
	if s.kind == kindInt {
		_, err = strconv.ParseInt(string(raw), 10, s.bits)
	} else {
		_, err = strconv.ParseUint(string(raw), 10, s.bits)
	}
	if err != nil {
		return w.defect(at, "the integer is out of range")
	}
	return nil
}

// integers says that every plainDigits-long natural number fits.
func (s *shape) integers() bool { return (s.kind == kindInt || s.kind == kindUint) && s.bits >= 32 }

// plainIntegers says that text begins with a whole array of natural numbers of
// at most plainDigits digits, written without spaces after the bracket and with
// at most one between elements: the form that programs write.
func plainIntegers(text []byte) bool {
	digits := 0
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c >= '0' && c <= '9':
			if digits++; digits > plainDigits {
				return false
			}
		case c == ',' && digits > 0:
			digits = 0
		case c == ' ' && text[i-1] == ',':
		default:
			return c == ']' && (digits > 0 || i == 1)
		}
	}
	return false
}

func isDigits(raw []byte) bool {
	for _, c := range raw {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

// ask lets a custom type parse the value that began at from.
func (w *walker) ask(s *shape, from int) error {
	raw := w.data[from:w.in.InputOffset()]
	v := reflect.New(s.typ).Interface()
	var err error
	if u, ok := v.(json.Unmarshaler); ok {
		err = u.UnmarshalJSON(raw)
	} else if u, ok := v.(encoding.TextUnmarshaler); ok {
		err = u.UnmarshalText([]byte(unquote(raw)))
	}
	if err != nil {
		return w.defect(from, clip(err.Error()))
	}
	return nil
}

func (w *walker) wrong(s *shape, at int, found string) error {
	return w.defect(at, fmt.Sprintf("want %s, found %s", s.want(), found))
}

// defect notes a schema defect at the current path and ends the walk when
// enough were found.
func (w *walker) defect(at int, text string) error {
	w.defects = append(w.defects, w.at(at, text))
	if len(w.defects) >= w.most() {
		return errStop
	}
	return nil
}

func (w *walker) stop(at int, text string) error {
	w.stopped = w.at(at, text)
	w.stopped.Final = true
	return errStop
}

func (w *walker) at(offset int, text string) *Error {
	line, column := position(w.data, offset)
	return &Error{Path: pathText(w.path), Line: line, Column: column, Text: text}
}

// start is the offset of the next token.
func (w *walker) start() int {
	i := int(w.in.InputOffset())
	for i < len(w.data) && bytes.IndexByte([]byte(" \t\r\n,:"), w.data[i]) >= 0 {
		i++
	}
	return i
}

// syntax words an error of the tokenizer.
func (w *walker) syntax(err error) error {
	var s *jsontext.SyntacticError
	if !errors.As(err, &s) {
		if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
			return w.stop(len(w.data), "the text ends too early")
		}
		return w.stop(int(w.in.InputOffset()), "the text cannot be read as JSON")
	}
	at := int(s.ByteOffset)
	switch {
	case errors.Is(s.Err, jsontext.ErrDuplicateName):
		w.path = append(w.path, named(s.JSONPointer.LastToken()))
		return w.stop(at, "the name occurs twice in one object")
	case errors.Is(s.Err, io.ErrUnexpectedEOF):
		return w.stop(len(w.data), "the text ends too early")
	case at < len(w.data) && w.data[at] == ',' && w.closes(at+1):
		return w.stop(at, "there is a comma before the closing bracket")
	case at == 0 && bytes.HasPrefix(w.data, []byte("\xef\xbb\xbf")):
		return w.stop(0, "the text begins with a byte order mark; save it as plain UTF-8")
	}
	return w.stop(at, clip(s.Err.Error()))
}

// closes says that the next token from offset on is a closing bracket.
func (w *walker) closes(offset int) bool {
	rest := bytes.TrimLeft(w.data[offset:], " \t\r\n")
	return len(rest) > 0 && (rest[0] == '}' || rest[0] == ']')
}

// nearest suggests the field that was probably meant.
func (s *shape) nearest(raw []byte) string {
	name := unquote(raw)
	if len(name) > quoteBytes {
		return ""
	}
	best, distance := "", 3 // two typing errors
	for _, f := range s.fields {
		if strings.EqualFold(f.name, name) {
			best = f.name
			break
		}
		if d := edits(f.name, name); d < distance && d < len(name) {
			best, distance = f.name, d
		}
	}
	if best == "" {
		return ""
	}
	return "; did you mean " + best + "?"
}

// edits is the Levenshtein distance of two short names.
func edits(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func unquote(raw []byte) string {
	b, _ := jsontext.AppendUnquote(nil, raw)
	return string(b)
}

var anyShape = &shape{kind: kindAny, length: -1}
