package strictjson

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
)

// kind is what a JSON value must be to fit a Go type.
type kind int

const (
	kindAny kind = iota + 1
	kindBool
	kindString
	kindInt
	kindUint
	kindFloat
	// kindText is a string that a type parses itself.
	kindText
	// kindCustom is any value that a type parses itself.
	kindCustom
	kindArray
	kindObject
	kindMap
	kindPointer
)

// shape is a Go type as the walk sees it.
type shape struct {
	kind kind
	typ  reflect.Type
	bits int
	// length is the exact length of an array type, -1 for a slice.
	length int
	elem   *shape
	fields []field
	byName map[string]int
}

type field struct {
	name     string
	index    int
	required bool
	// omit is set for omitempty, omitZero for omitzero.
	omit, omitZero bool
	shape          *shape
}

var (
	shapesMu sync.Mutex
	shapes   = map[reflect.Type]*shape{}

	unmarshalerType     = reflect.TypeFor[json.Unmarshaler]()
	textUnmarshalerType = reflect.TypeFor[encoding.TextUnmarshaler]()
	marshalerType       = reflect.TypeFor[json.Marshaler]()
	textMarshalerType   = reflect.TypeFor[encoding.TextMarshaler]()
)

// shapeOf compiles a type once. The set of types is fixed by the program, so
// the cache is bounded.
func shapeOf(t reflect.Type) *shape {
	shapesMu.Lock()
	defer shapesMu.Unlock()
	whole := false
	defer func() {
		if !whole {
			clear(shapes) // a panic left shapes behind that are half compiled
		}
	}()
	s := compileLocked(t)
	whole = true
	return s
}

func compileLocked(t reflect.Type) *shape {
	if s, ok := shapes[t]; ok {
		return s
	}
	s := &shape{typ: t, length: -1}
	shapes[t] = s // before the elements, so that a type may contain itself
	pt := reflect.PointerTo(t)
	custom := pt.Implements(unmarshalerType) || pt.Implements(marshalerType)
	text := pt.Implements(textUnmarshalerType) || pt.Implements(textMarshalerType)
	switch {
	case t.Kind() == reflect.Pointer:
		s.kind, s.elem = kindPointer, compileLocked(t.Elem())
	case custom:
		s.kind = kindCustom
	case text:
		s.kind = kindText
	default:
		s.plainLocked(t)
	}
	return s
}

func (s *shape) plainLocked(t reflect.Type) {
	switch t.Kind() {
	case reflect.Bool:
		s.kind = kindBool
	case reflect.String:
		s.kind = kindString
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		s.kind, s.bits = kindInt, t.Bits()
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		s.kind, s.bits = kindUint, t.Bits()
	case reflect.Float32, reflect.Float64:
		s.kind, s.bits = kindFloat, t.Bits()
	case reflect.Interface:
		s.kind = kindAny
	case reflect.Array:
		s.kind, s.length, s.elem = kindArray, t.Len(), compileLocked(t.Elem())
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			panic(fmt.Sprintf("strictjson: %v: bytes travel as a string of hex digits, not as base64", t))
		}
		s.kind, s.elem = kindArray, compileLocked(t.Elem())
	case reflect.Map:
		if t.Key().Kind() != reflect.String || reflect.PointerTo(t.Key()).Implements(textUnmarshalerType) {
			panic(fmt.Sprintf("strictjson: %v: map keys must be plain strings", t))
		}
		s.kind, s.elem = kindMap, compileLocked(t.Elem())
	case reflect.Struct:
		s.kind = kindObject
		s.fieldsLocked(t)
	default:
		panic(fmt.Sprintf("strictjson: %v cannot travel as JSON", t))
	}
}

func (s *shape) fieldsLocked(t reflect.Type) {
	s.byName = map[string]int{}
	for i := range t.NumField() {
		f := t.Field(i)
		tag, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		if tag == "-" && options == "" {
			continue
		}
		if f.Anonymous {
			panic(fmt.Sprintf("strictjson: %v: the embedded field %s is not supported", t, f.Name))
		}
		if !f.IsExported() {
			continue
		}
		name := f.Name
		if tag != "" {
			name = tag
		}
		opts := strings.Split(options, ",")
		if slices.Contains(opts, "string") {
			panic(fmt.Sprintf("strictjson: %v: the option ,string of %s is not supported", t, f.Name))
		}
		if _, ok := s.byName[name]; ok {
			panic(fmt.Sprintf("strictjson: %v: two fields are named %s", t, name))
		}
		omit, omitZero := slices.Contains(opts, "omitempty"), slices.Contains(opts, "omitzero")
		s.fields = append(s.fields, field{
			name: name, index: i, required: !omit && !omitZero, omit: omit, omitZero: omitZero,
			shape: compileLocked(f.Type),
		})
	}
	// Sorted once, so that the canonical form costs no sorting.
	slices.SortFunc(s.fields, func(a, b field) int { return strings.Compare(a.name, b.name) })
	for i, f := range s.fields {
		s.byName[f.name] = i
	}
}

// want names what a value must be.
func (s *shape) want() string {
	switch s.kind {
	case kindBool:
		return "true or false"
	case kindString, kindText:
		return "a string"
	case kindInt, kindUint:
		return "an integer"
	case kindFloat:
		return "a number"
	case kindArray:
		return "an array"
	case kindObject, kindMap:
		return "an object"
	}
	return "a value"
}
