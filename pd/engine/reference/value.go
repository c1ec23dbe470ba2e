package reference

import (
	"slices"
	"strconv"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// maxOpen is how often one reference may stand within itself.
const maxOpen = 2

// maxEnum bounds one list of values: each is a way that is followed at once.
const maxEnum = 1024

// value compiles one value by a schema, at a path for people.
func (k *compiler) value(s *schema, path string, next *node) (*node, error) {
	k.path = path
	if k.nodes++; k.nodes > maxNodes {
		panic(errTooLarge)
	}
	if next == nil {
		return nil, nil
	}
	switch {
	case s.unknown != "":
		return nil, unsupportedSchema(path+"."+s.unknown, "the keyword "+strconv.Quote(s.unknown)+" is not supported by this engine")
	case s.fixed != nil && !*s.fixed:
		return nil, nil
	case s.ref != "":
		return k.reference(s, path, next)
	case s.anyOf != nil:
		return k.anyOf(s, path, next)
	case s.enum != nil:
		return k.enum(s, path, next)
	}
	kinds := s.kinds()
	if kinds == nil {
		return k.anything(next), nil
	}
	var branches []*node
	for _, kind := range kinds {
		n, err := k.typed(s, kind, path, next)
		if err != nil {
			return nil, err
		}
		branches = append(branches, n)
	}
	return k.either(branches...), nil
}

func (k *compiler) anything(next *node) *node {
	return k.either(k.text(1, 4, next), k.integer(next), k.literal("true", next), k.literal("false", next), k.literal("null", next))
}

func (k *compiler) reference(s *schema, path string, next *node) (*node, error) {
	target, ok := k.root[s.ref]
	if !ok {
		return nil, &pd.Error{Op: "compile constraint", Code: pd.CodeInvalidRequest, Text: "the reference " + strconv.Quote(s.ref) + " leads nowhere", Param: path + ".$ref"}
	}
	if s.kinds() != nil || s.anyOf != nil || s.enum != nil {
		return nil, unsupportedSchema(path+".$ref", "a reference beside other bounds is not supported by this engine")
	}
	if k.open[s.ref] >= maxOpen {
		return nil, nil // deep enough: other ways remain, or none
	}
	k.open[s.ref]++
	defer func() { k.open[s.ref]-- }()
	return k.value(target, path, next)
}

func (k *compiler) anyOf(s *schema, path string, next *node) (*node, error) {
	if s.kinds() != nil && s.properties != nil || s.enum != nil {
		return nil, unsupportedSchema(path+".anyOf", "alternatives beside other bounds are not supported by this engine")
	}
	if s.exclusive && !s.discriminated && !apart(s.anyOf) {
		return nil, unsupportedSchema(path+".oneOf", "oneOf is supported for alternatives of different types only; use anyOf")
	}
	var branches []*node
	for i, one := range s.anyOf {
		n, err := k.value(one, path+".anyOf["+strconv.Itoa(i)+"]", next)
		if err != nil {
			return nil, err
		}
		branches = append(branches, n)
	}
	return k.either(branches...), nil
}

// apart says that no value can fit two of the schemas, by their types alone.
func apart(all []*schema) bool {
	seen := map[string]bool{}
	for _, s := range all {
		kinds := s.kinds()
		for _, v := range s.enum {
			kinds = append(kinds, kindOf(v))
		}
		if kinds == nil {
			return false
		}
		for _, kind := range kinds {
			if kind == "integer" {
				kind = "number"
			}
			if seen[kind] {
				return false
			}
			seen[kind] = true
		}
	}
	return true
}

func (k *compiler) enum(s *schema, path string, next *node) (*node, error) {
	if len(s.enum) > maxEnum {
		return nil, unsupportedSchema(path+".enum", "a list of more than "+strconv.Itoa(maxEnum)+" values is not supported by this engine")
	}
	var branches []*node
	for _, v := range s.enum {
		kind := kindOf(v)
		if len(s.types) == 0 || slices.Contains(s.types, kind) || kind == "integer" && slices.Contains(s.types, "number") {
			branches = append(branches, k.literal(v, next))
		}
	}
	return k.either(branches...), nil
}

func (k *compiler) typed(s *schema, kind, path string, next *node) (*node, error) {
	switch kind {
	case "object":
		return k.object(s, path, next)
	case "array":
		return k.array(s, path, next)
	case "string":
		return k.string(s, path, next)
	case "integer", "number":
		if s.low == nil && s.high == nil && s.step == nil {
			if kind == "integer" {
				return k.integer(next), nil
			}
			return k.either(k.integer(next), k.literal("0.5", next), k.literal("2.75", next), k.literal("-1.25", next)), nil
		}
		var branches []*node
		for _, x := range s.numbers(kind == "integer") {
			branches = append(branches, k.literal(x, next))
		}
		return k.either(branches...), nil
	case "boolean":
		return k.either(k.literal("true", next), k.literal("false", next)), nil
	case "null":
		return k.literal("null", next), nil
	}
	return nil, &pd.Error{Op: "compile constraint", Code: pd.CodeInvalidRequest, Text: "the type " + strconv.Quote(kind) + " does not exist", Param: path + ".type"}
}

// object has the members in the schema's order; those that are not required may
// be left out. There are no others.
func (k *compiler) object(s *schema, path string, next *node) (*node, error) {
	members := slices.Clone(s.properties)
	for _, name := range s.required {
		if !slices.ContainsFunc(members, func(p property) bool { return p.name == name }) {
			open := s.additional
			if open == nil {
				open = &schema{}
			}
			members = append(members, property{name, open})
		}
	}
	if least := s.minProperties; least != nil && *least > len(s.required) {
		return nil, unsupportedSchema(path+".minProperties", "minProperties beyond the required members is not supported by this engine")
	}
	if most := s.maxProperties; most != nil && *most < len(members) {
		members = slices.DeleteFunc(members, func(p property) bool { return !slices.Contains(s.required, p.name) })
		if *most < len(members) {
			return nil, nil
		}
	}
	if len(members) == 0 && s.additional != nil && s.additional.fixed == nil && s.maxProperties == nil {
		return k.dictionary(s.additional, path, next)
	}
	// first is how the rest goes on where no member was said yet, later where one
	// was.
	first := k.literal("}", next)
	later := first
	for _, m := range slices.Backward(members) {
		value, err := k.value(m.schema, path+".properties."+m.name, later)
		if err != nil {
			return nil, err
		}
		said := k.literal(quote(m.name)+":", value)
		if slices.Contains(s.required, m.name) {
			first, later = said, k.literal(",", said)
			continue
		}
		first, later = k.either(said, first), k.either(k.literal(",", said), later)
	}
	return k.literal("{", first), nil
}

// dictionary is an object with up to two members of free names.
func (k *compiler) dictionary(s *schema, path string, next *node) (*node, error) {
	end := k.literal("}", next)
	after := end
	for _, last := range []string{"b", "a"} {
		value, err := k.value(s, path+".additionalProperties", after)
		if err != nil {
			return nil, err
		}
		member := k.literal(`"`, k.run(letters, 2, 6, k.literal("_"+last+`":`, value)))
		if last == "a" {
			return k.literal("{", k.either(end, member)), nil
		}
		after = k.either(end, k.literal(",", member))
	}
	return nil, nil
}

// array has at most two elements more than it must.
func (k *compiler) array(s *schema, path string, next *node) (*node, error) {
	low, high := 0, 2
	if s.minItems != nil {
		low = max(*s.minItems, 0)
		high = low + 2
	}
	if high = max(high, len(s.prefix)); s.maxItems != nil {
		high = min(high, *s.maxItems)
	}
	if s.unique && high > 1 {
		if low > 1 {
			return nil, unsupportedSchema(path+".uniqueItems", "uniqueItems with more than one element is not supported by this engine")
		}
		high = 1
	}
	if low > high {
		return nil, nil
	}
	if low > maxNodes {
		panic(errTooLarge)
	}
	end := k.literal("]", next)
	after := end
	for i := high - 1; i >= 0; i-- {
		of, at := s.items, path+".items"
		if i < len(s.prefix) {
			of, at = s.prefix[i], path+".prefixItems["+strconv.Itoa(i)+"]"
		}
		if of == nil {
			of = &schema{}
		}
		item, err := k.value(of, at, after)
		if err != nil {
			return nil, err
		}
		if i > 0 {
			item = k.literal(",", item)
		}
		if after = item; i >= low {
			after = k.either(end, item)
		}
	}
	return k.literal("[", after), nil
}

// formats are some texts of each format that is known.
var formats = map[string][]string{
	"date":      {"2024-02-29", "1999-12-31", "2026-07-01"},
	"time":      {"08:15:30Z", "23:59:59Z"},
	"date-time": {"2024-02-29T08:15:30Z", "1999-12-31T23:59:59Z"},
	"duration":  {"P1D", "PT15M", "P3W"},
	"email":     {"garden@example.com", "river@example.org"},
	"hostname":  {"gate.example.com", "tower.example.org"},
	"ipv4":      {"192.0.2.1", "198.51.100.7"},
	"ipv6":      {"2001:db8::1", "2001:db8::2:1"},
	"uri":       {"https://example.com/garden", "https://example.org/river"},
	"uuid":      {"6f9619ff-8b86-4011-b42d-00c04fc964ff", "123e4567-e89b-42d3-a456-426614174000"},
}

func (k *compiler) string(s *schema, path string, next *node) (*node, error) {
	if s.format != "" {
		texts, ok := formats[s.format]
		if !ok || s.minLength != nil || s.maxLength != nil {
			return nil, unsupportedSchema(path+".format", "the format "+strconv.Quote(s.format)+", or a length beside a format, is not supported by this engine")
		}
		var branches []*node
		for _, text := range texts {
			branches = append(branches, k.literal(quote(text), next))
		}
		return k.either(branches...), nil
	}
	if s.minLength == nil && s.maxLength == nil {
		return k.text(1, 6, next), nil
	}
	const further = 8
	low := 0
	if s.minLength != nil {
		low = max(*s.minLength, 0)
	}
	high := low + further
	if s.maxLength != nil {
		high = min(high, *s.maxLength)
	}
	return k.literal(`"`, k.run(letters, low, high, k.literal(`"`, next))), nil
}

func decimal(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
