package reference

import (
	"encoding/json"
	"errors"
	"strconv"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
)

// The marks around reasoning and around a tool call in the engine's text, and how
// many words of reasoning there are.
const (
	thoughtBegin = "<think>"
	thoughtEnd   = "</think>"
	thoughtLeast = 3
	thoughtMost  = 24

	callBegin = `<tool_call>{"name":`
	callMid   = `,"arguments":`
	callEnd   = `}</tool_call>`
)

// CheckConstraint implements engine.Constrainer.
func (e *Engine) CheckConstraint(constraint string) error {
	_, err := compile(constraint)
	return err
}

// OutputParser implements engine.Constrainer.
func (e *Engine) OutputParser() string { return engine.ParserTagged }

// compile turns a constraint into a grammar. The grammar's language is smaller
// than what the constraint allows: JSON has no spaces, members stand in the
// schema's order, lists and strings are short.
func compile(constraint string) (*grammar, error) {
	if len(constraint) > maxConstraintBytes {
		return nil, unsupportedSchema("", "the schemas are larger than this engine compiles")
	}
	var c engine.Constraint
	if err := json.Unmarshal([]byte(constraint), &c); err != nil {
		return nil, &pd.Error{Op: "compile constraint", Code: pd.CodeInvalidRequest, Text: "the constraint is not readable", Err: err}
	}
	k := &compiler{}
	end := &node{kind: finished}
	start, err := k.answer(&c, end)
	if c.Reasoning && start != nil {
		start = &node{kind: literal, text: thoughtBegin, next: &node{
			kind: spoken, min: thoughtLeast, max: thoughtMost,
			next: &node{kind: literal, text: thoughtEnd, next: start},
		}}
	}
	switch {
	case err != nil:
		return nil, err
	case start == nil:
		return nil, unsupportedSchema("", "the schema allows no value that is short enough")
	}
	return &grammar{start}, nil
}

func unsupportedSchema(param, text string) error {
	return &pd.Error{Op: "compile constraint", Code: pd.CodeUnsupported, Text: text, Param: param}
}

// maxConstraintBytes bounds what is compiled while other requests wait for the
// step loop.
const maxConstraintBytes = 256 << 10

// maxNodes bounds a compiled grammar.
const maxNodes = 1 << 13

// compiler builds a grammar from its end: what comes next is known when a step
// is made. A nil node is a step that cannot be made; its alternatives remain.
type compiler struct {
	nodes int
	// root is the schema that references are resolved in, at its path.
	root map[string]*schema
	// path is where in the constraint a defect is reported.
	path string
	// open counts the references that are being followed, by name.
	open map[string]int
}

// errTooLarge ends a compilation; the caller puts the path to it.
var errTooLarge = errors.New("the schema is too large")

func (k *compiler) make(n node) *node {
	if k.nodes++; k.nodes > maxNodes {
		panic(errTooLarge)
	}
	return &n
}

func (k *compiler) literal(text string, next *node) *node {
	if next == nil || text == "" {
		return next
	}
	return k.make(node{kind: literal, text: text, next: next})
}

func (k *compiler) run(of kind, low, high int, next *node) *node {
	if next == nil || high >= 0 && high < low {
		return nil
	}
	return k.make(node{kind: of, min: low, max: high, next: next})
}

func (k *compiler) either(branches ...*node) *node {
	kept := branches[:0:0]
	for _, b := range branches {
		if b != nil {
			kept = append(kept, b)
		}
	}
	switch len(kept) {
	case 0:
		return nil
	case 1:
		return kept[0]
	}
	return k.make(node{kind: choice, branches: kept})
}

// answer is the whole answer: a text, calls, or either.
func (k *compiler) answer(c *engine.Constraint, end *node) (n *node, err error) {
	defer func() {
		if r := recover(); r != nil {
			if r != errTooLarge {
				panic(r)
			}
			n, err = nil, unsupportedSchema(k.path, errTooLarge.Error())
		}
	}()
	var branches []*node
	if c.Calls != nil {
		calls, err := k.calls(c.Calls, end)
		if err != nil {
			return nil, err
		}
		branches = append(branches, calls)
	}
	switch {
	case c.Calls != nil && c.Calls.Required:
	case c.Format == nil:
		branches = append(branches, k.run(spoken, 1, -1, end))
	default:
		k.path = "format"
		text, err := k.document(string(c.Format.Schema), anyObject, end)
		if err != nil {
			return nil, err
		}
		branches = append(branches, text)
	}
	return k.either(branches...), nil
}

// calls are one call after the other, each of any tool.
func (k *compiler) calls(c *engine.Calls, end *node) (*node, error) {
	after := end
	for range max(c.Most, 1) {
		var branches []*node
		for i, t := range c.Tools {
			k.path = "calls.tools[" + strconv.Itoa(i) + "]"
			arguments, err := k.document(string(t.Parameters), noMembers, k.literal(callEnd, after))
			if err != nil {
				return nil, err
			}
			branches = append(branches, k.literal(callBegin+quote(t.Name)+callMid, arguments))
		}
		one := k.either(branches...)
		if one == nil {
			return nil, unsupportedSchema(k.path, "the schema allows no value that is short enough")
		}
		after = k.either(end, one)
	}
	// The answer begins with a call: the last choice without its end.
	return k.either(after.branches[1:]...), nil
}

// document is one JSON value by a schema of its own; without one it is by
// fallback.
func (k *compiler) document(text string, fallback func(*compiler, *node) *node, next *node) (*node, error) {
	if text == "" {
		return fallback(k, next), nil
	}
	s, err := parseSchema(text)
	if err != nil {
		return nil, &pd.Error{Op: "compile constraint", Code: pd.CodeInvalidRequest, Text: "the schema is not readable", Err: err, Param: k.path}
	}
	k.root, k.open = s.definitions(), map[string]int{}
	return k.value(s, k.path, next)
}

func noMembers(k *compiler, next *node) *node { return k.literal("{}", next) }

// anyObject is what "any JSON object" looks like here: one to three members.
func anyObject(k *compiler, next *node) *node {
	after := k.literal("}", next)
	for i := range 3 {
		value := k.either(
			k.text(0, 4, after), k.integer(after), k.literal("true", after), k.literal("false", after), k.literal("null", after),
			k.literal("[", k.text(1, 2, k.literal("]", after))),
		)
		// Names differ by their last letter: a name that comes twice is no JSON
		// that two readers agree on.
		member := k.literal(`"`, k.run(letters, 2, 6, k.literal("_"+string(rune('c'-i))+`":`, value)))
		if i == 2 {
			return k.literal("{", member)
		}
		after = k.either(k.literal("}", next), k.literal(",", member))
	}
	return nil
}

// text is a JSON string of low to high words.
func (k *compiler) text(low, high int, next *node) *node {
	return k.literal(`"`, k.run(spoken, low, high, k.literal(`"`, next)))
}

// integer is any short integer.
func (k *compiler) integer(next *node) *node {
	var branches []*node
	for _, first := range []string{"0", "1", "7", "12", "42", "100", "365", "1024", "-3"} {
		branches = append(branches, k.literal(first, next))
	}
	return k.either(branches...)
}

func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string always has a JSON form
	}
	return string(b)
}
