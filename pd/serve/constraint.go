package serve

import (
	"encoding/json"
	"errors"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
	"github.com/hw-native-sys/pypto-pd/pd/openai"
)

// maxCalls is how many calls one answer may hold where the client allows more
// than one.
const maxCalls = 2

// constrainer is the model as one that obeys grammars, or nil.
func (s *Server) constrainer() engine.Constrainer {
	c, _ := s.config.Model.(engine.Constrainer)
	return c
}

// checkForm refuses tools and forms of output that this engine does not have.
func (s *Server) checkForm(f *openai.Facts) error {
	able := s.constrainer() != nil
	if f.CallsTools() && !able {
		return unsupported("tools", "tools are not supported by this engine; leave them out or set tool_choice to none")
	}
	if f.Thinks() && !able {
		return unsupported("reasoning_effort", "reasoning is not supported by this engine; leave out reasoning_effort and thinking, or set them to none and false")
	}
	switch f.ResponseFormat {
	case "", "text":
		return nil
	case "json_object", "json_schema":
		if able {
			return nil
		}
	}
	if able {
		return unsupported("response_format.type", "response_format.type must be text, json_object or json_schema")
	}
	return unsupported("response_format", "response_format must be text, this engine has no output constraints")
}

// constrain adds to a continuation what binds its output, and how the output is
// read.
func (s *Server) constrain(f *openai.Facts, c *pd.Continuation) error {
	var bound engine.Constraint
	switch f.ResponseFormat {
	case "json_object":
		bound.Format = &engine.Format{}
	case "json_schema":
		bound.Format = &engine.Format{Schema: engine.RawJSON(f.ResponseSchema)}
	}
	if f.CallsTools() {
		c.OutputParser = s.constrainer().OutputParser()
		bound.Calls = &engine.Calls{Required: f.ToolChoice == "required" || f.ToolChoice == "function", Most: maxCalls}
		if f.SingleToolCall || f.ToolChoice == "function" {
			bound.Calls.Most = 1
		}
		for _, t := range tools(f) {
			if f.ToolChoice != "function" || t.Name == f.ToolName {
				bound.Calls.Tools = append(bound.Calls.Tools, t)
			}
		}
	}
	if f.Thinks() {
		c.OutputParser, bound.Reasoning = s.constrainer().OutputParser(), true
	}
	if bound.Format == nil && bound.Calls == nil && !bound.Reasoning {
		return nil
	}
	text, err := json.Marshal(bound)
	if err != nil {
		return &pd.Error{Op: "read request", Code: pd.CodeInvalidRequest, Text: "the schemas of the request are not readable", Err: err}
	}
	if len(text) > pd.MaxConstraintBytes {
		return &pd.Error{Op: "read request", Code: pd.CodeInvalidRequest, Text: "the schemas of tools and response_format are larger than 2 MiB", Param: formParam(f, "")}
	}
	c.Constraint = string(text)
	err = s.constrainer().CheckConstraint(c.Constraint)
	if e, ok := errors.AsType[*pd.Error](err); ok {
		named := *e
		named.Param = formParam(f, e.Param)
		return &named
	}
	return err
}

// checkBound compiles on a decode node what prefill will send it, so that a
// constraint which this node cannot obey is refused before any memory is
// reserved. What decode obeys is prefill's text all the same.
func (s *Server) checkBound(f *openai.Facts, body []byte) error {
	if !f.CallsTools() && !f.Thinks() && (f.ResponseFormat == "" || f.ResponseFormat == "text") {
		return nil
	}
	whole, err := openai.Parse(f.Kind, body)
	if err != nil {
		return err
	}
	return s.constrain(whole, &pd.Continuation{})
}

// tools are the tools that a request declares, for prompt and grammar.
func tools(f *openai.Facts) []engine.Tool {
	var out []engine.Tool
	for _, t := range f.Declared {
		out = append(out, engine.Tool{Name: t.Name, Description: t.Description, Parameters: engine.RawJSON(t.Parameters)})
	}
	return out
}

// formParam turns a path within a constraint into one within the body. A named
// choice leaves one tool in the constraint, whose place in the body is another.
func formParam(f *openai.Facts, path string) string {
	if rest, ok := strings.CutPrefix(path, "format"); ok {
		return "response_format.json_schema.schema" + rest
	}
	rest, ok := strings.CutPrefix(path, "calls.")
	switch {
	case ok && f.ToolChoice == "function":
		_, rest, _ = strings.Cut(rest, "]")
		return "tools." + f.ToolName + ".parameters" + rest
	case ok:
		return strings.Replace(rest, "]", "].function.parameters", 1)
	case f.ResponseFormat == "json_schema":
		return "response_format"
	}
	return "tools"
}
