package strictjson

import (
	"fmt"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// UnknownName is how the text of a defect begins when a name is not a field.
const UnknownName = "the name is unknown here"

// Error is one defect of a JSON text: what is wrong and where.
type Error struct {
	// Path is the field path, such as runtime.prefill[0].port; "" is the whole
	// text.
	Path string
	// Line and Column count from one, columns in characters; both are 0 when
	// the place is not known.
	Line, Column int
	// Text says what is wrong, in words for people. It quotes at most a short
	// piece of the input.
	Text string
	// Final: nothing behind this place was looked at, and nothing was filled.
	Final bool
}

// Error prints "path (line 3, column 14): text".
func (e *Error) Error() string {
	var b strings.Builder
	b.WriteString(e.Path)
	if e.Line > 0 {
		if b.Len() > 0 {
			b.WriteByte(' ')
		}
		fmt.Fprintf(&b, "(line %d, column %d)", e.Line, e.Column)
	}
	if b.Len() > 0 {
		b.WriteString(": ")
	}
	b.WriteString(e.Text)
	return b.String()
}

// Errors are several defects of one text, in the order of the text.
type Errors []*Error

// Error prints one defect a line.
func (e Errors) Error() string { return strings.Join(texts(e), "\n") }

// Unwrap lets errors.As find the first defect.
func (e Errors) Unwrap() []error {
	out := make([]error, len(e))
	for i, d := range e {
		out[i] = d
	}
	return out
}

// Defects lists the defects that an error of Decode carries; nil for an error
// that is none of this package.
func Defects(err error) Errors {
	switch e := err.(type) {
	case *Error:
		return Errors{e}
	case Errors:
		return e
	}
	return nil
}

// FileDefects are everything that is wrong with one configuration file, in the
// order of the file.
type FileDefects []*Error

// Error prints all defects on one line.
func (d FileDefects) Error() string { return strings.Join(texts(d), "; ") }

// Unwrap gives pd.CodeInvalidConfig and each defect.
func (d FileDefects) Unwrap() []error {
	return append([]error{pd.CodeInvalidConfig}, Errors(d).Unwrap()...)
}

func texts(defects []*Error) []string {
	out := make([]string, len(defects))
	for i, d := range defects {
		out[i] = d.Error()
	}
	return out
}

// quoteBytes bounds how much of the input an error text repeats: enough to
// recognise it, too little to carry a prompt into a log.
const quoteBytes = 48

func quote(s string) string {
	if len(s) > quoteBytes {
		s = strings.ToValidUTF8(s[:quoteBytes], "") + "…"
	}
	return fmt.Sprintf("%q", s)
}

// textBytes bounds the error text of a custom type, which may quote its input.
const textBytes = 256

func clip(s string) string {
	if len(s) > textBytes {
		return strings.ToValidUTF8(s[:textBytes], "") + "…"
	}
	return s
}
