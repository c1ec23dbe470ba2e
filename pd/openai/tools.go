package openai

import (
	"bytes"
	"regexp"
	"strconv"

	"github.com/go-json-experiment/json/jsontext"
)

// maxTools bounds one request's tools, as OpenAI does.
const maxTools = 128

// toolNames are the names that OpenAI accepts. A name stands in the model's
// text, so it must need no escaping.
var toolNames = regexp.MustCompile(`^[a-zA-Z0-9_.-]{1,64}$`)

// unserved notes a field that asks for something. The API's ways to ask for
// nothing are null, false, 0 and the empty list, object and string.
func (r *reader) unserved(name string) error {
	v, err := r.value()
	if err != nil {
		return err
	}
	switch string(v) {
	case "false", "0", `""`, "[]", "{}":
		return nil
	}
	if r.f.Unserved == "" {
		r.f.Unserved = name
	}
	return nil
}

func (r *reader) topLogprobs(name string) error {
	n, err := r.int(name, 0, 1000)
	r.f.Logprobs = r.f.Logprobs || n > 0
	return err
}

func (r *reader) parallelToolCalls(name string) error {
	parallel, err := r.bool(name)
	r.f.SingleToolCall = !parallel
	return err
}

// value copies one value without its spaces; the order of names is kept.
func (r *reader) value() (jsontext.Value, error) {
	raw, err := r.d.ReadValue()
	if err != nil {
		return nil, err
	}
	v := jsontext.Value(bytes.Clone(raw))
	return v, v.Compact(jsontext.AllowDuplicateNames(true))
}

// schema reads a JSON schema: an object without duplicate names, because
// readers would not agree on what it says.
func (r *reader) schema(param string) (string, error) {
	if r.d.PeekKind() != '{' {
		return "", r.want(param, "an object")
	}
	v, err := r.value()
	if err != nil {
		return "", err
	}
	if !v.IsValid() {
		return "", invalid(param, "%s holds a name twice", param)
	}
	return string(v), nil
}

func (r *reader) responseFormat(name string) error {
	hasSchema := false
	err := r.object(name, func(field string) (err error) {
		switch field {
		case "type":
			r.f.ResponseFormat, err = r.string(name + ".type")
			return err
		case "json_schema":
			if !r.full || r.d.PeekKind() != '{' {
				return r.skip()
			}
			param := name + ".json_schema"
			return r.object(param, func(field string) (err error) {
				if field != "schema" || r.d.PeekKind() == 'n' {
					return r.skip()
				}
				hasSchema = true
				r.f.ResponseSchema, err = r.schema(param + ".schema")
				return err
			})
		}
		return r.skip()
	})
	switch {
	case err != nil:
		return err
	case r.f.ResponseFormat == "":
		return invalid(name+".type", "%s.type is missing", name)
	case r.full && r.f.ResponseFormat == "json_schema" && !hasSchema:
		return invalid(name+".json_schema.schema", "%s.json_schema.schema is missing", name)
	}
	return nil
}

func (r *reader) tools(name string) error {
	err := r.array(name, func(i int) error {
		if r.f.Tools = i + 1; r.f.Tools > maxTools {
			return invalid(name, "%s holds more than %d tools", name, maxTools)
		}
		at := indexed(name, i)
		if r.d.PeekKind() != '{' {
			return r.want(at, "an object")
		}
		if !r.full {
			return r.skip()
		}
		return r.tool(at)
	})
	return err
}

func (r *reader) tool(at string) error {
	var t Tool
	kind, seen := "function", false
	err := r.object(at, func(field string) (err error) {
		switch field {
		case "type":
			kind, err = r.string(at + ".type")
			return err
		case "function":
			seen, t = true, Tool{}
			return r.function(at+".function", &t)
		}
		return r.skip()
	})
	switch {
	case err != nil:
		return err
	case kind != "function":
		return unsupported(at+".type", "%s.type must be function, got %s", at, strconv.Quote(shown([]byte(kind))))
	case !seen:
		return invalid(at+".function", "%s.function is missing", at)
	}
	for _, other := range r.f.Declared {
		if other.Name == t.Name {
			return invalid(at+".function.name", "%s.function.name: the tool %s is there twice", at, t.Name)
		}
	}
	r.f.Declared = append(r.f.Declared, t)
	return nil
}

func (r *reader) function(at string, t *Tool) error {
	err := r.object(at, func(field string) (err error) {
		if r.d.PeekKind() == 'n' {
			return r.skip()
		}
		switch field {
		case "name":
			t.Name, err = r.string(at + ".name")
		case "description":
			t.Description, err = r.string(at + ".description")
		case "parameters":
			t.Parameters, err = r.schema(at + ".parameters")
		default:
			err = r.skip()
		}
		return err
	})
	if err == nil && !toolNames.MatchString(t.Name) {
		return invalid(at+".name", "%s.name must have 1 to 64 letters, digits, points, dashes or underscores, got %s", at, strconv.Quote(shown([]byte(t.Name))))
	}
	return err
}

func (r *reader) toolChoice(name string) error {
	switch r.d.PeekKind() {
	case '{':
		r.f.ToolChoice = "function"
		return r.namedTool(name)
	case '"':
	default:
		return r.want(name, "a string or an object")
	}
	s, err := r.string(name)
	if err != nil {
		return err
	}
	switch s {
	case "none", "auto", "required":
		r.f.ToolChoice = s
		return nil
	}
	return invalid(name, "%s must be none, auto, required or an object, got %s", name, strconv.Quote(shown([]byte(s))))
}

func (r *reader) namedTool(name string) error {
	return r.object(name, func(field string) error {
		if field != "function" || r.d.PeekKind() != '{' {
			return r.skip()
		}
		at := name + ".function"
		return r.object(at, func(field string) (err error) {
			if field != "name" {
				return r.skip()
			}
			r.f.ToolName, err = r.string(at + ".name")
			return err
		})
	})
}

// toolsAgree checks what tools and tool_choice say of each other.
func (r *reader) toolsAgree() error {
	f := r.f
	switch f.ToolChoice {
	case "required", "function":
		if f.Tools == 0 {
			return invalid("tool_choice", "tool_choice asks for a call, and there are no tools")
		}
	}
	if f.ToolChoice != "function" || !r.full {
		return nil
	}
	for _, t := range f.Declared {
		if t.Name == f.ToolName {
			return nil
		}
	}
	return invalid("tool_choice", "tool_choice names %s, which is not among the tools", strconv.Quote(shown([]byte(f.ToolName))))
}

// toolCall reads one call in the history of a chat.
func (r *reader) toolCall(at string) error {
	var c ToolCall
	err := r.object(at, func(field string) (err error) {
		switch {
		case field == "id" && r.d.PeekKind() == '"':
			c.ID, err = r.string(at + ".id")
			return err
		case field != "function":
			return r.skip()
		}
		return r.object(at+".function", func(field string) (err error) {
			switch field {
			case "name":
				c.Name, err = r.string(at + ".function.name")
			case "arguments":
				c.Arguments, err = r.string(at + ".function.arguments")
			default:
				err = r.skip()
			}
			return err
		})
	})
	if err == nil && c.Name == "" {
		return invalid(at+".function.name", "%s.function.name is missing", at)
	}
	if err == nil {
		m := &r.f.Messages[len(r.f.Messages)-1]
		m.ToolCalls = append(m.ToolCalls, c)
	}
	return err
}
