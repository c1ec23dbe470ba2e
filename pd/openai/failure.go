package openai

import (
	"bytes"
	"strings"

	"github.com/go-json-experiment/json/jsontext"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// ReadError reads the error body of another node. What it does not understand
// becomes CodeInternal with fallback as its text.
func ReadError(body []byte, fallback string) *pd.Error {
	r := &reader{d: jsontext.NewDecoder(bytes.NewBuffer(body), jsontext.AllowDuplicateNames(true)), f: &Facts{}}
	e := &pd.Error{Code: pd.CodeInternal, Text: fallback}
	inner := func(name string) error {
		if r.d.PeekKind() != '"' {
			return r.skip()
		}
		s, err := r.string(name)
		switch name {
		case "message":
			e.Text = s
		case "param":
			e.Param = s
		case "code":
			if code, ok := pd.ParseCode(strings.ToUpper(s)); ok {
				e.Code = code
			}
		}
		return err
	}
	err := r.object("", func(name string) error {
		if name == "error" && r.d.PeekKind() == '{' {
			return r.object(name, inner)
		}
		return r.skip()
	})
	if err != nil {
		return &pd.Error{Code: pd.CodeInternal, Text: fallback}
	}
	return e
}
