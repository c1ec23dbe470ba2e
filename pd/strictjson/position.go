package strictjson

import (
	"bytes"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

// position turns an offset into a line and a column, both from one.
func position(data []byte, offset int) (line, column int) {
	offset = min(max(offset, 0), len(data))
	before := data[:offset]
	line = 1 + bytes.Count(before, []byte{'\n'})
	return line, 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
}

func pathText(path []step) string {
	var b strings.Builder
	for _, s := range path {
		switch {
		case s.index >= 0:
			fmt.Fprintf(&b, "[%d]", s.index)
		case plainName(s.name):
			if b.Len() > 0 {
				b.WriteByte('.')
			}
			b.WriteString(s.name)
		default:
			fmt.Fprintf(&b, "[%s]", quote(s.name))
		}
	}
	return b.String()
}

func plainName(s string) bool {
	if s == "" || len(s) > quoteBytes {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') && c != '_' && c != '-' {
			return false
		}
	}
	return true
}

// Locate finds where the value at a field path stands, for a defect that is
// found after Decode. The path is spelled as in Error.Path. ok is false when
// data has no such value.
func Locate(data []byte, path string) (line, column int, ok bool) {
	f := finder{data: data, want: path, in: jsontext.NewDecoder(bytes.NewBuffer(data))}
	if !f.value() {
		return 0, 0, false
	}
	line, column = position(data, f.at)
	return line, column, true
}

type finder struct {
	data []byte
	want string
	in   *jsontext.Decoder
	path []step
	at   int
}

// value reads one value and says whether it holds what is wanted. A text that
// is not JSON holds nothing.
func (f *finder) value() bool {
	here := pathText(f.path)
	kind := f.in.PeekKind()
	if here == f.want {
		w := walker{data: f.data, in: f.in}
		f.at = w.start()
		return true
	}
	if (kind != '{' && kind != '[') || !strings.HasPrefix(f.want, here) {
		_, _ = f.in.ReadValue() // after an error every kind is 0 and the loops end
		return false
	}
	if _, err := f.in.ReadToken(); err != nil {
		return false
	}
	for n := 0; ; n++ {
		next := f.in.PeekKind()
		if next == '}' || next == ']' || next == 0 {
			break
		}
		s := step{index: n}
		if kind == '{' {
			raw, err := f.in.ReadValue()
			if err != nil {
				return false
			}
			s = named(unquote(raw))
		}
		f.path = append(f.path, s)
		if f.value() {
			return true
		}
		f.path = f.path[:len(f.path)-1]
	}
	_, _ = f.in.ReadToken()
	return false
}
