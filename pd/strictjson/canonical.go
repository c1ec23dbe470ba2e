package strictjson

import (
	"bytes"
	"crypto/sha256"
	"encoding"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// Canonical writes v in the one canonical form: object keys sorted by their
// UTF-8 bytes, no spaces, strings with the shortest escapes, integers only, nil
// slices and maps as [] and {}. Two equal values give equal bytes. It is also
// how a message is written on the wire. Errors: a float, a number with a
// fraction, invalid UTF-8, a nil pointer that is not omitted, or a custom type
// that refuses its value.
func Canonical(v any) ([]byte, error) {
	b, err := appendValue(nil, reflect.ValueOf(v))
	if err != nil {
		return nil, fmt.Errorf("write canonical JSON of %T: %w", v, err)
	}
	return b, nil
}

// Digest is the SHA-256 of the canonical form, as 64 hex digits.
func Digest(v any) (string, error) {
	b, err := Canonical(v)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:]), nil
}

func appendValue(dst []byte, v reflect.Value) ([]byte, error) {
	if !v.IsValid() {
		return nil, fmt.Errorf("nil has no canonical form")
	}
	return appendShape(dst, shapeOf(v.Type()), v)
}

func appendShape(dst []byte, s *shape, v reflect.Value) ([]byte, error) {
	switch s.kind {
	case kindPointer:
		if v.IsNil() {
			return nil, fmt.Errorf("a nil %v has no canonical form", v.Type())
		}
		return appendShape(dst, s.elem, v.Elem())
	case kindAny:
		return appendValue(dst, v.Elem())
	case kindCustom:
		return appendCustom(dst, v)
	case kindText:
		return appendText(dst, v)
	case kindBool:
		return strconv.AppendBool(dst, v.Bool()), nil
	case kindString:
		return appendString(dst, v.String())
	case kindInt:
		return strconv.AppendInt(dst, v.Int(), 10), nil
	case kindUint:
		return strconv.AppendUint(dst, v.Uint(), 10), nil
	case kindArray:
		return appendArray(dst, s, v)
	case kindMap:
		return appendMap(dst, s, v)
	case kindObject:
		return appendObject(dst, s, v)
	}
	return nil, fmt.Errorf("a %v has no canonical form; write decimals as strings", v.Type())
}

func appendArray(dst []byte, s *shape, v reflect.Value) ([]byte, error) {
	dst = append(dst, '[')
	for i := range v.Len() {
		if i > 0 {
			dst = append(dst, ',')
		}
		if s.elem.kind == kindInt { // token ids: half a million of them
			dst = strconv.AppendInt(dst, v.Index(i).Int(), 10)
			continue
		}
		var err error
		if dst, err = appendShape(dst, s.elem, v.Index(i)); err != nil {
			return nil, fmt.Errorf("[%d]: %w", i, err)
		}
	}
	return append(dst, ']'), nil
}

func appendMap(dst []byte, s *shape, v reflect.Value) ([]byte, error) {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return bytes.Compare([]byte(a.String()), []byte(b.String())) })
	dst = append(dst, '{')
	for i, k := range keys {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = appendString(dst, k.String()); err != nil {
			return nil, err
		}
		if dst, err = appendShape(append(dst, ':'), s.elem, v.MapIndex(k)); err != nil {
			return nil, fmt.Errorf("%s: %w", quote(k.String()), err)
		}
	}
	return append(dst, '}'), nil
}

func appendObject(dst []byte, s *shape, v reflect.Value) ([]byte, error) {
	dst = append(dst, '{')
	first := true
	for _, f := range s.fields {
		value := v.Field(f.index)
		if (f.omit && empty(value)) || (f.omitZero && value.IsZero()) {
			continue
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		var err error
		if dst, err = appendString(dst, f.name); err != nil {
			return nil, err
		}
		if dst, err = appendShape(append(dst, ':'), f.shape, value); err != nil {
			return nil, fmt.Errorf("%s: %w", f.name, err)
		}
	}
	return append(dst, '}'), nil
}

// empty is what omitempty leaves out, as in encoding/json.
func empty(v reflect.Value) bool {
	switch v.Kind() {
	case reflect.Array, reflect.Map, reflect.Slice, reflect.String:
		return v.Len() == 0
	case reflect.Struct:
		return false
	}
	return v.IsZero()
}

func appendString(dst []byte, s string) ([]byte, error) {
	out, err := jsontext.AppendQuote(dst, s)
	if err != nil {
		return nil, fmt.Errorf("%s is not valid UTF-8", quote(s))
	}
	return out, nil
}

// addressable gives methods with a pointer receiver their receiver.
func addressable(v reflect.Value) any {
	if v.CanAddr() {
		return v.Addr().Interface()
	}
	p := reflect.New(v.Type())
	p.Elem().Set(v)
	return p.Interface()
}

func appendText(dst []byte, v reflect.Value) ([]byte, error) {
	m, ok := addressable(v).(encoding.TextMarshaler)
	if !ok {
		return nil, fmt.Errorf("%v reads text but does not write it", v.Type())
	}
	b, err := m.MarshalText()
	if err != nil {
		return nil, err
	}
	return appendString(dst, string(b))
}

func appendCustom(dst []byte, v reflect.Value) ([]byte, error) {
	m, ok := addressable(v).(json.Marshaler)
	if !ok {
		return nil, fmt.Errorf("%v reads JSON but does not write it", v.Type())
	}
	b, err := m.MarshalJSON()
	if err != nil {
		return nil, err
	}
	in := jsontext.NewDecoder(bytes.NewBuffer(b))
	out, err := appendRaw(dst, in)
	if err != nil {
		return nil, fmt.Errorf("%v writes JSON that has no canonical form: %w", v.Type(), err)
	}
	if _, err := in.ReadToken(); err == nil {
		return nil, fmt.Errorf("%v writes more than one JSON value", v.Type())
	}
	return out, nil
}

// appendRaw brings one value of a JSON text into canonical form.
func appendRaw(dst []byte, in *jsontext.Decoder) ([]byte, error) {
	switch in.PeekKind() {
	case '[':
		return appendRawArray(dst, in)
	case '{':
		return appendRawObject(dst, in)
	case 'n':
		return nil, fmt.Errorf("null")
	}
	raw, err := in.ReadValue()
	if err != nil {
		return nil, err
	}
	switch raw.Kind() {
	case '"':
		return appendString(dst, unquote(raw))
	case '0':
		if bytes.ContainsAny(raw, ".eE") || string(raw) == "-0" {
			return nil, fmt.Errorf("the number %s is not a plain integer", quote(string(raw)))
		}
	}
	return append(dst, raw...), nil
}

func appendRawArray(dst []byte, in *jsontext.Decoder) ([]byte, error) {
	if _, err := in.ReadToken(); err != nil {
		return nil, err
	}
	dst = append(dst, '[')
	for n := 0; in.PeekKind() != ']'; n++ {
		if n > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = appendRaw(dst, in); err != nil {
			return nil, err
		}
	}
	_, err := in.ReadToken()
	return append(dst, ']'), err
}

func appendRawObject(dst []byte, in *jsontext.Decoder) ([]byte, error) {
	if _, err := in.ReadToken(); err != nil {
		return nil, err
	}
	type member struct {
		name  string
		value []byte
	}
	var members []member
	for in.PeekKind() != '}' {
		raw, err := in.ReadValue()
		if err != nil {
			return nil, err
		}
		name := unquote(raw)
		value, err := appendRaw(nil, in)
		if err != nil {
			return nil, err
		}
		members = append(members, member{name, value})
	}
	if _, err := in.ReadToken(); err != nil {
		return nil, err
	}
	slices.SortFunc(members, func(a, b member) int { return bytes.Compare([]byte(a.name), []byte(b.name)) })
	dst = append(dst, '{')
	for i, m := range members {
		if i > 0 {
			dst = append(dst, ',')
		}
		var err error
		if dst, err = appendString(dst, m.name); err != nil {
			return nil, err
		}
		dst = append(append(dst, ':'), m.value...)
	}
	return append(dst, '}'), nil
}
