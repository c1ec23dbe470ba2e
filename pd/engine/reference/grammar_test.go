package reference

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/engine"
)

func constraintOf(t *testing.T, c engine.Constraint) string {
	t.Helper()
	b, err := json.Marshal(c)
	require.NoError(t, err)
	return string(b)
}

// speak draws one answer of a grammar, and follows it with a second matcher as
// decode does.
func speak(t *testing.T, g *grammar, seed uint64) string {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	prefill, decode := g.matcher(), g.matcher()
	w := writer{limit: 1 << 20}
	end := tokenEnd
	w.eos = &end
	var text strings.Builder
	for range 4096 {
		token := prefill.pick(random.Uint64())
		require.True(t, prefill.accept(token))
		require.True(t, decode.accept(token))
		_, piece, finish := w.add([]pd.Token{token})
		require.True(t, utf8.ValidString(piece), "%q", piece)
		text.WriteString(piece)
		if finish != 0 {
			require.True(t, decode.over)
			require.False(t, decode.accept('"'), "nothing follows the end")
			return text.String()
		}
	}
	t.Fatalf("no end: %.200s", text.String())
	return ""
}

// valid is a validator of its own, as far as the tests' schemas go.
func valid(s map[string]any, root map[string]any, v any) error {
	if ref, ok := s["$ref"].(string); ok {
		target := root
		for _, part := range strings.Split(strings.TrimPrefix(strings.TrimPrefix(ref, "#"), "/"), "/") {
			if part != "" {
				target = target[part].(map[string]any)
			}
		}
		return valid(target, root, v)
	}
	if branches, ok := s["anyOf"].([]any); ok {
		for _, one := range branches {
			if valid(one.(map[string]any), root, v) == nil {
				return nil
			}
		}
		return fmt.Errorf("%v fits no alternative", v)
	}
	if enum, ok := s["enum"].([]any); ok && !slices.ContainsFunc(enum, func(e any) bool { return fmt.Sprint(e) == fmt.Sprint(v) }) {
		return fmt.Errorf("%v is none of %v", v, enum)
	}
	number := func(name string, absent float64) float64 {
		if x, ok := s[name].(float64); ok {
			return x
		}
		return absent
	}
	within := func(x float64, low, high string) error {
		if x < number(low, -1e300) || x > number(high, 1e300) {
			return fmt.Errorf("%v is outside %s and %s", x, low, high)
		}
		return nil
	}
	switch v := v.(type) {
	case map[string]any:
		properties, _ := s["properties"].(map[string]any)
		required, _ := s["required"].([]any)
		for _, name := range required {
			if _, ok := v[name.(string)]; !ok {
				return fmt.Errorf("%v lacks %v", v, name)
			}
		}
		for name, member := range v {
			of, ok := properties[name].(map[string]any)
			if !ok {
				if of, ok = s["additionalProperties"].(map[string]any); !ok {
					return fmt.Errorf("unknown member %q", name)
				}
			}
			if err := valid(of, root, member); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return kindFits(s, "object")
	case []any:
		for _, item := range v {
			if err := valid(s["items"].(map[string]any), root, item); err != nil {
				return err
			}
		}
		return errors.Join(kindFits(s, "array"), within(float64(len(v)), "minItems", "maxItems"))
	case string:
		return errors.Join(kindFits(s, "string"), within(float64(utf8.RuneCountInString(v)), "minLength", "maxLength"))
	case float64:
		if x, ok := s["exclusiveMinimum"].(float64); ok && v <= x {
			return fmt.Errorf("%v is not above %v", v, x)
		}
		kind := "number"
		if v == float64(int64(v)) {
			kind = "integer"
		}
		return errors.Join(kindFits(s, kind), within(v, "minimum", "maximum"))
	case bool:
		return kindFits(s, "boolean")
	}
	return kindFits(s, "null")
}

func kindFits(s map[string]any, kind string) error {
	switch want := s["type"].(type) {
	case nil:
		return nil
	case string:
		if want == kind || want == "number" && kind == "integer" {
			return nil
		}
	case []any:
		if slices.Contains(want, any(kind)) || kind == "integer" && slices.Contains(want, any("number")) {
			return nil
		}
	}
	return fmt.Errorf("%s is not %v", kind, s["type"])
}

var schemas = map[string]string{
	"flat":       `{"type":"object","properties":{"city":{"type":"string"},"days":{"type":"integer","minimum":1,"maximum":7},"unit":{"enum":["c","f","kelvin"]},"exact":{"type":"boolean"}},"required":["city","days"],"additionalProperties":false}`,
	"non-ASCII":  `{"type":"object","properties":{"城市":{"enum":["北京","北海","Zürich \"Hbf\" <1>"]},"é":{"const":"😀"}},"required":["城市","é"]}`,
	"nested":     `{"type":"object","properties":{"a":{"type":"array","items":{"type":"object","properties":{"x":{"type":["number","null"]}},"required":["x"]},"minItems":2,"maxItems":3},"b":{"type":"array","items":{"type":"string","minLength":2,"maxLength":3}}},"required":["a","b"]}`,
	"optional":   `{"type":"object","properties":{"a":{"type":"null"},"b":{"type":"boolean"},"c":{"type":"integer"}}}`,
	"recursive":  `{"$defs":{"node":{"type":"object","properties":{"v":{"type":"integer"},"next":{"anyOf":[{"$ref":"#/$defs/node"},{"type":"null"}]},"kids":{"type":"array","items":{"$ref":"#/$defs/node"}}},"required":["v","next","kids"]}},"$ref":"#/$defs/node"}`,
	"root":       `{"type":"object","properties":{"again":{"$ref":"#"},"end":{"type":"boolean"}},"required":["end"]}`,
	"dictionary": `{"type":"object","additionalProperties":{"type":"number","exclusiveMinimum":0.25,"maximum":0.75}}`,
	"prefixes":   `{"enum":[1,12,123,"1","12"]}`,
	"array":      `{"type":"array","items":{"type":"integer","minimum":-3,"maximum":-3},"minItems":1}`,
	"annotated":  `{"title":"T","description":"d","type":"object","properties":{"d":{"type":"string","format":"date","default":"x"}},"required":["d"]}`,
}

func TestConstrainedTextIsValidUnderItsSchema(t *testing.T) {
	for name, text := range schemas {
		t.Run(name, func(t *testing.T) {
			g, err := compile(constraintOf(t, engine.Constraint{Format: &engine.Format{Schema: engine.RawJSON(text)}}))
			require.NoError(t, err)
			var root map[string]any
			require.NoError(t, json.Unmarshal([]byte(text), &root))
			for seed := range uint64(100) {
				said := speak(t, g, seed)
				var v any
				require.NoError(t, json.Unmarshal([]byte(said), &v), "%s", said)
				require.NoError(t, valid(root, root, v), "%s", said)
			}
		})
	}
}

func TestAnswersOfOneGrammarDiffer(t *testing.T) {
	g, err := compile(constraintOf(t, engine.Constraint{Format: &engine.Format{Schema: engine.RawJSON(schemas["flat"])}}))
	require.NoError(t, err)
	said := map[string]bool{}
	for seed := range uint64(50) {
		said[speak(t, g, seed)] = true
	}
	require.Greater(t, len(said), 25)
}

func TestAnyObjectHasNoNameTwice(t *testing.T) {
	g, err := compile(`{"format":{"schema":null}}`)
	require.NoError(t, err)
	for seed := range uint64(200) {
		said := speak(t, g, seed)
		require.NoError(t, eachMember([]byte(said), func(string, json.RawMessage) error { return nil }))
		seen := map[string]bool{}
		d := json.NewDecoder(bytes.NewReader([]byte(said)))
		d.Token()
		for d.More() {
			name, err := d.Token()
			require.NoError(t, err)
			require.False(t, seen[name.(string)], "%s", said)
			seen[name.(string)] = true
			var v any
			require.NoError(t, d.Decode(&v))
		}
	}
}

func TestCallsAreRequiredOrChosen(t *testing.T) {
	tools := []engine.Tool{{Name: "weather", Parameters: engine.RawJSON(schemas["flat"])}, {Name: "now"}}
	for _, required := range []bool{true, false} {
		g, err := compile(constraintOf(t, engine.Constraint{Calls: &engine.Calls{Required: required, Most: 2, Tools: tools}}))
		require.NoError(t, err)
		calls := map[int]int{}
		for seed := range uint64(100) {
			said := speak(t, g, seed)
			n := strings.Count(said, "<tool_call>")
			calls[n]++
			if n > 0 {
				require.Regexp(t, `^(<tool_call>\{"name":"(now","arguments":\{\}|weather","arguments":\{"city":"[^"]+","days":[1-7].*)\}</tool_call>)+$`, said)
			}
		}
		require.Equal(t, required, calls[0] == 0, "%v", calls)
		require.NotZero(t, calls[1])
		require.NotZero(t, calls[2])
		require.Zero(t, calls[3])
	}
}

func TestWhatNoGrammarCanBindIsNamed(t *testing.T) {
	_, err := compile(`{"format":{"schema":{"description":"` + strings.Repeat("x", maxConstraintBytes) + `"}}}`)
	require.ErrorIs(t, err, pd.CodeUnsupported)
	for schema, param := range map[string]string{
		`{"type":"string","pattern":"a+"}`:                                 "format.pattern",
		`{"type":"object","properties":{"a":{"not":{}}},"required":["a"]}`: "format.properties.a.not",
		`{"type":"array","items":{"if":{}},"minItems":1}`:                  "format.items.if",
		`{"type":"text"}`:                                               "format.type",
		`{"$ref":"#/$defs/none"}`:                                       "format.$ref",
		`{"oneOf":[{"type":"integer"},{"type":"number"}]}`:              "format.oneOf",
		`{"type":"string","format":"regex"}`:                            "format.format",
		`{"type":"object","minProperties":1}`:                           "format.minProperties",
		`{"type":"integer","minimum":5,"maximum":4}`:                    "",
		`{"$ref":"#"}`:                                                  "",
		`{"type":5}`:                                                    "format",
		`{"type":"array","items":{"type":"integer"},"minItems":100000}`: "format",
		`{"$defs":{"a":{"anyOf":[{"$ref":"#/$defs/b"},{"$ref":"#/$defs/b"},{"$ref":"#/$defs/b"}]},"b":{"anyOf":[{"$ref":"#/$defs/c"},{"$ref":"#/$defs/c"},{"$ref":"#/$defs/c"}]},"c":{"anyOf":[{"$ref":"#/$defs/a"},{"$ref":"#/$defs/a"},{"$ref":"#/$defs/b"}]}},"$ref":"#/$defs/a"}`: "*",
	} {
		_, err := compile(`{"format":{"schema":` + schema + `}}`)
		e, ok := errors.AsType[*pd.Error](err)
		require.True(t, ok, "%s: %v", schema, err)
		require.Contains(t, []pd.Code{pd.CodeUnsupported, pd.CodeInvalidRequest}, e.Code)
		if param != "*" {
			require.Equal(t, param, e.Param, "%s: %v", schema, err)
		}
	}
}

// Case B37: a schema from outside ends nothing.
func FuzzCompile(f *testing.F) {
	for _, s := range schemas {
		f.Add(s, uint64(1))
	}
	f.Fuzz(func(t *testing.T, schema string, seed uint64) {
		if !json.Valid([]byte(schema)) || len(schema) > 4096 {
			return
		}
		g, err := compile(`{"format":{"schema":` + schema + `}}`)
		if err != nil {
			if pd.CodeOf(err) == pd.CodeInternal {
				t.Fatalf("error without a code: %v", err)
			}
			return
		}
		random := rand.New(rand.NewPCG(seed, 1))
		m := g.matcher()
		var text []byte
		for range 2000 {
			token := m.pick(random.Uint64())
			if !m.accept(token) {
				t.Fatalf("the grammar refuses its own token %d after %q", token, text)
			}
			if m.over {
				if !json.Valid(text) {
					t.Fatalf("%q is no JSON", text)
				}
				return
			}
			text = append(text, render(token, true)...)
		}
	})
}
