package reference

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strings"
)

// schema is one JSON schema as far as it is understood. Keywords that only
// describe are dropped; one that binds and is not known is kept in unknown, so
// that it is refused rather than passed over.
type schema struct {
	fixed      *bool // the schema true or false
	types      []string
	properties []property
	required   []string
	additional *schema
	items      *schema
	prefix     []*schema
	enum       []string // JSON texts
	anyOf      []*schema
	ref        string
	format     string

	low, high, step                  *float64
	lowExcluded, highExcluded        bool
	minLength, maxLength             *int
	minItems, maxItems               *int
	minProperties, maxProperties     *int
	unique, exclusive, discriminated bool

	defs    []property
	unknown string
}

// property is a named schema, in the order of the text.
type property struct {
	name   string
	schema *schema
}

// describing are keywords that bind no value.
var describing = map[string]bool{
	"title": true, "description": true, "default": true, "examples": true, "example": true, "deprecated": true, "readOnly": true,
	"writeOnly": true, "$schema": true, "$id": true, "$comment": true, "$anchor": true, "strict": true,
}

func parseSchema(text string) (*schema, error) {
	return readSchema(json.RawMessage(text))
}

// eachMember runs f for every member of a JSON object, in order.
func eachMember(raw json.RawMessage, f func(name string, value json.RawMessage) error) error {
	d := json.NewDecoder(bytes.NewReader(raw))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return fmt.Errorf("want an object (%w)", errOr(err))
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return err
		}
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return err
		}
		if err := f(name.(string), value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

var errKind = fmt.Errorf("a value of another kind")

func errOr(err error) error {
	if err == nil {
		return errKind
	}
	return err
}

func readSchema(raw json.RawMessage) (*schema, error) {
	s := &schema{}
	if text := string(bytes.TrimSpace(raw)); text == "true" || text == "false" {
		fixed := text == "true"
		s.fixed = &fixed
		return s, nil
	}
	return s, eachMember(raw, s.keyword)
}

func (s *schema) keyword(name string, v json.RawMessage) (err error) {
	switch name {
	case "type":
		if v[0] == '[' {
			return json.Unmarshal(v, &s.types)
		}
		s.types = []string{""}
		return json.Unmarshal(v, &s.types[0])
	case "properties":
		s.properties, err = named(v)
	case "required":
		return json.Unmarshal(v, &s.required)
	case "additionalProperties":
		s.additional, err = readSchema(v)
	case "items":
		s.items, err = readSchema(v)
	case "prefixItems":
		s.prefix, err = listed(v)
	case "enum":
		var values []json.RawMessage
		err = json.Unmarshal(v, &values)
		s.enum = []string{}
		for _, one := range values {
			s.enum = append(s.enum, string(one))
		}
	case "const":
		s.enum = []string{string(v)}
	case "anyOf":
		s.anyOf, err = listed(v)
	case "oneOf":
		s.exclusive = true
		s.anyOf, err = listed(v)
	case "allOf":
		if s.anyOf, err = listed(v); err == nil && len(s.anyOf) != 1 {
			s.unknown = name // one alone is itself
		}
	case "discriminator":
		s.discriminated = true
	case "$ref":
		return json.Unmarshal(v, &s.ref)
	case "$defs", "definitions":
		defs, err := named(v)
		for _, d := range defs {
			s.defs = append(s.defs, property{"#/" + name + "/" + d.name, d.schema})
		}
		return err
	case "format":
		return json.Unmarshal(v, &s.format)
	case "minimum", "exclusiveMinimum":
		s.lowExcluded = name != "minimum"
		return json.Unmarshal(v, &s.low)
	case "maximum", "exclusiveMaximum":
		s.highExcluded = name != "maximum"
		return json.Unmarshal(v, &s.high)
	case "multipleOf":
		return json.Unmarshal(v, &s.step)
	case "minLength":
		return json.Unmarshal(v, &s.minLength)
	case "maxLength":
		return json.Unmarshal(v, &s.maxLength)
	case "minItems":
		return json.Unmarshal(v, &s.minItems)
	case "maxItems":
		return json.Unmarshal(v, &s.maxItems)
	case "minProperties":
		return json.Unmarshal(v, &s.minProperties)
	case "maxProperties":
		return json.Unmarshal(v, &s.maxProperties)
	case "uniqueItems":
		return json.Unmarshal(v, &s.unique)
	default:
		if !describing[name] && !strings.HasPrefix(name, "x-") && s.unknown == "" {
			s.unknown = name
		}
	}
	return err
}

func named(raw json.RawMessage) (out []property, err error) {
	err = eachMember(raw, func(name string, v json.RawMessage) error {
		s, err := readSchema(v)
		out = append(out, property{name, s})
		return err
	})
	return out, err
}

func listed(raw json.RawMessage) ([]*schema, error) {
	var values []json.RawMessage
	if err := json.Unmarshal(raw, &values); err != nil {
		return nil, err
	}
	out := make([]*schema, len(values))
	for i, v := range values {
		var err error
		if out[i], err = readSchema(v); err != nil {
			return nil, fmt.Errorf("%d: %w", i, err)
		}
	}
	return out, nil
}

// definitions lists what references may name.
func (s *schema) definitions() map[string]*schema {
	out := map[string]*schema{"#": s}
	for _, d := range s.defs {
		out[d.name] = d.schema
	}
	return out
}

// kinds are the types that a value may have; none stated and none implied is
// every type.
func (s *schema) kinds() []string {
	switch {
	case len(s.types) > 0:
		return s.types
	case s.properties != nil || s.required != nil || s.additional != nil || s.minProperties != nil || s.maxProperties != nil:
		return []string{"object"}
	case s.items != nil || s.prefix != nil || s.minItems != nil || s.maxItems != nil:
		return []string{"array"}
	case s.minLength != nil || s.maxLength != nil || s.format != "":
		return []string{"string"}
	case s.low != nil || s.high != nil || s.step != nil:
		return []string{"number"}
	}
	return nil
}

// kindOf is the type of a JSON text.
func kindOf(text string) string {
	switch text[0] {
	case '{':
		return "object"
	case '[':
		return "array"
	case '"':
		return "string"
	case 't', 'f':
		return "boolean"
	case 'n':
		return "null"
	}
	if strings.ContainsAny(text, ".eE") {
		return "number"
	}
	return "integer"
}

// numbers are some of the numbers that a schema allows.
func (s *schema) numbers(whole bool) []string {
	const most, exact = 8, float64(1 << 53)
	step := 1.0
	if s.step != nil && *s.step > 0 {
		step = *s.step
	}
	low, high := -exact, exact
	if s.low != nil {
		low = *s.low
	}
	if s.high != nil {
		high = *s.high
	}
	fits := func(x float64) bool {
		return (x > low || x == low && !s.lowExcluded) && (x < high || x == high && !s.highExcluded) && math.Abs(x) <= exact &&
			(!whole || x == math.Trunc(x))
	}
	first, last := math.Ceil(low/step), math.Floor(high/step)
	switch {
	case s.low == nil && s.high == nil:
		first, last = max(first, 0), min(last, 1000)
	case s.low == nil:
		first = max(first, last-1000)
	case s.high == nil:
		last = min(last, first+1000)
	}
	var out []string
	stride := max(1, math.Floor((last-first)/(most-1)))
	for i := range most + 2 {
		if x := (first + float64(i)*stride) * step; first+float64(i)*stride <= last && fits(x) {
			out = append(out, decimal(x))
		}
	}
	if len(out) == 0 && s.step == nil && !whole {
		if x := low + (high-low)/2; fits(x) {
			out = append(out, decimal(x))
		}
	}
	return out
}
