package engine

// Constrainer is a Model that can bind its output to a grammar and that calls
// tools. A model without it serves neither.
type Constrainer interface {
	// CheckConstraint compiles a constraint, the JSON text of a Constraint. Its
	// errors are *pd.Error with CodeUnsupported or CodeInvalidRequest; Param is
	// a path within the constraint.
	CheckConstraint(constraint string) error
	// OutputParser names the form of the model's reasoning and tool calls, for
	// pd.Continuation.
	OutputParser() string
}

// ParserTagged is the form of output that many models were trained on: reasoning,
// if it was asked for, then text, then any number of calls:
//
//	<think>TEXT</think>
//	<tool_call>{"name":NAME,"arguments":OBJECT}</tool_call>
const ParserTagged = "tagged"

// Constraint is what a grammar constraint says. Its JSON text travels from
// prefill to decode in pd.Continuation; both compile it alike. Schemas keep the
// client's order of names.
type Constraint struct {
	// Reasoning: the answer begins with reasoning; the rest binds what follows it.
	Reasoning bool `json:"reasoning,omitempty"`
	// Format binds the text; nil leaves it free.
	Format *Format `json:"format,omitempty"`
	// Calls, if set, are the tool calls beside or instead of the text.
	Calls *Calls `json:"calls,omitempty"`
}

// Format is the form of a text: any JSON object, or one JSON value by a schema.
type Format struct {
	// Schema is a JSON schema; null is any object.
	Schema RawJSON `json:"schema"`
}

// Calls are the tool calls of an answer.
type Calls struct {
	// Required: the answer is calls; otherwise the model chooses.
	Required bool `json:"required"`
	// Most is how many calls one answer holds at most.
	Most  int    `json:"most"`
	Tools []Tool `json:"tools"`
}

// Tool is a function that may be called.
type Tool struct {
	Name string `json:"name"`
	// Description is for the prompt only, and not part of a constraint.
	Description string `json:"-"`
	// Parameters is a JSON schema; null is an object without members.
	Parameters RawJSON `json:"parameters"`
}

// RawJSON is a JSON text that is kept as it is; "" is null.
type RawJSON string

// MarshalJSON implements json.Marshaler.
func (r RawJSON) MarshalJSON() ([]byte, error) {
	if r == "" {
		return []byte("null"), nil
	}
	return []byte(r), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (r *RawJSON) UnmarshalJSON(b []byte) error {
	if *r = RawJSON(b); *r == "null" {
		*r = ""
	}
	return nil
}
