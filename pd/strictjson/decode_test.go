package strictjson

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

type leaf struct {
	Name string `json:"name"`
	Port uint16 `json:"port"`
	Seed *int64 `json:"seed,omitempty"`
}

type tree struct {
	Role    pd.Role                     `json:"role"`
	Leaves  []leaf                      `json:"leaves"`
	Tables  map[pd.GroupName]pd.PageRun `json:"tables"`
	Timeout float64                     `json:"timeout,omitempty"`
	Pair    [2]int                      `json:"pair,omitempty"`
	Next    *tree                       `json:"next,omitempty"`
	Extra   any                         `json:"extra,omitempty"`
	On      bool                        `json:"on,omitempty"`
	Skipped int                         `json:"-"`
}

const good = `{"role":"decode","leaves":[{"name":"a\u0062","port":80},{"name":"c","port":65535,"seed":-9007199254740993}],
 "tables":{"ori":[7,2]},"timeout":1.5,"pair":[1,2],"next":{"role":"prefill","leaves":[],"tables":{}},"extra":{"x":[1,"y"]},"on":true}`

func TestDecodeFillsWhatItReads(t *testing.T) {
	var v tree
	require.NoError(t, Decode([]byte(good), &v, Limits{}))
	seed := int64(-9007199254740993)
	assert.Equal(t, tree{
		Role:    pd.Decode,
		Leaves:  []leaf{{Name: "ab", Port: 80}, {Name: "c", Port: 65535, Seed: &seed}},
		Tables:  map[pd.GroupName]pd.PageRun{"ori": {First: 7, Count: 2}},
		Timeout: 1.5,
		Pair:    [2]int{1, 2},
		Next:    &tree{Role: pd.Prefill, Leaves: []leaf{}, Tables: map[pd.GroupName]pd.PageRun{}},
		Extra:   map[string]any{"x": []any{1.0, "y"}},
		On:      true,
	}, v)
}

func TestDecodeKeepsNothingOfTheBody(t *testing.T) {
	body := []byte(`{"name":"plain","port":1}`)
	var v leaf
	require.NoError(t, Decode(body, &v, Limits{}))
	for i := range body {
		body[i] = 'x'
	}
	assert.Equal(t, "plain", v.Name)
}

func TestDecodeRefuses(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"empty", "", "the text is empty, want a JSON value"},
		{"only spaces", " \n\t", "the text is empty, want a JSON value"},
		{"cut", `{"name":"a"`, "(line 1, column 12): the text ends too early"},
		{"cut in a string", "{\"name\":\"a", "name (line 1, column 11): the text ends too early"},
		{"not json", "hello", `(line 1, column 1): invalid character 'h' at start of value`},
		{"trailing comma", "{\"name\":\"a\",\"port\":1,}", "(line 1, column 21): there is a comma before the closing bracket"},
		{"trailing value", "{\"name\":\"a\",\"port\":1}\n {}", "(line 2, column 3): there is more after the JSON value"},
		{"trailing junk", "{\"name\":\"a\",\"port\":1} x", "(line 1, column 23): invalid character 'x' at start of value"},
		{"byte order mark", "\ufeff{}", "(line 1, column 1): the text begins with a byte order mark; save it as plain UTF-8"},
		{"name without quotes", `{name:1}`, "(line 1, column 2): a name must be a string in double quotes"},
		{"number as name", `{1:1}`, "(line 1, column 2): a name must be a string in double quotes"},
		{"duplicate", `{"name":"a","port":1,"name":"b"}`, "name (line 1, column 22): the name occurs twice in one object"},
		{"escaped duplicate", `{"name":"a","port":1,"\u006eame":"b"}`, "name (line 1, column 22): the name occurs twice in one object"},
		{"invalid utf-8", "{\"name\":\"a\xff\",\"port\":1}", "name (line 1, column 11): invalid UTF-8"},
		{"lone surrogate", `{"name":"\ud800","port":1}`, "name (line 1, column 10): invalid surrogate pair `\\ud800\",\"por` in string"},
		{"control character", "{\"name\":\"a\nb\",\"port\":1}", "name (line 1, column 11): invalid character '\\n' in string (expecting non-control character)"},
		{"null", "{\"name\":null,\"port\":1}", "name (line 1, column 9): null is not allowed; leave the field out"},
		{"null of an optional field", `{"name":"a","port":1,"seed":null}`, "seed (line 1, column 29): null is not allowed; leave the field out"},
		{"null at the top", "null", "(line 1, column 1): null is not allowed; leave the field out"},
		{"unknown", `{"name":"a","port":1,"x.y":2}`, `["x.y"] (line 1, column 22): the name is unknown here`},
		{"other case", `{"name":"a","Port":1}`, "Port (line 1, column 13): the name is unknown here; did you mean port?"},
		{"missing", `{"name":"a"}`, "port (line 1, column 1): is missing"},
		{"missing integer is not zero", `{"port":1}`, "name (line 1, column 1): is missing"},
		{"string for an integer", `{"name":"a","port":"1"}`, "port (line 1, column 20): want an integer, found a string"},
		{"bool for an integer", `{"name":"a","port":true}`, "port (line 1, column 20): want an integer, found true"},
		{"float for an integer", `{"name":"a","port":1.0}`, "port (line 1, column 20): want an integer, found a number with a fraction or an exponent"},
		{"exponent for an integer", `{"name":"a","port":1e1}`, "port (line 1, column 20): want an integer, found a number with a fraction or an exponent"},
		{"too large", `{"name":"a","port":65536}`, "port (line 1, column 20): the integer is out of range"},
		{"negative", `{"name":"a","port":-1}`, "port (line 1, column 20): the integer is out of range"},
		{"huge", `{"name":"a","port":1,"seed":9223372036854775808}`, "seed (line 1, column 29): the integer is out of range"},
		{"object for a string", `{"name":{},"port":1}`, "name (line 1, column 9): want a string, found an object"},
		{"array for a string", `{"name":[],"port":1}`, "name (line 1, column 9): want a string, found an array"},
		{"number for a string", `{"name":5,"port":1}`, "name (line 1, column 9): want a string, found a number"},
		{"array at the top", `[]`, "(line 1, column 1): want an object, found an array"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var v leaf
			err := Decode([]byte(c.in), &v, Limits{})
			require.EqualError(t, err, c.want)
			var e *Error
			assert.ErrorAs(t, err, &e)
		})
	}
}

func TestDecodeRefusesDeepInTheTree(t *testing.T) {
	for _, c := range []struct{ name, edit, into, want string }{
		{"field of an element", `"port":65535`, `"port":[]`, "leaves[1].port (line 1, column 76): want an integer, found an array"},
		{"missing in an element", `"name":"c",`, ``, "leaves[1].name (line 1, column 57): is missing"},
		{"missing behind a pointer", `"role":"prefill",`, ``, "next.role (line 2, column 59): is missing"},
		{"word of a custom text type", `"decode"`, `"router"`, `role (line 1, column 9): role "router": want prefill or decode`},
		{"value of a custom JSON type", `[7,2]`, `[7]`, "tables.ori (line 2, column 18): page run: want [first,count]"},
		{"null inside a custom type", `[7,2]`, `[7,null]`, "tables.ori[1] (line 2, column 21): null is not allowed; leave the field out"},
		{"short array", `[1,2]`, `[1]`, "pair (line 2, column 46): want exactly 2 elements, found 1"},
		{"long array", `[1,2]`, `[1,2,3]`, "pair (line 2, column 46): want exactly 2 elements, found 3"},
		{"infinite number", `1.5`, `1e999`, "timeout (line 2, column 35): the number is out of range"},
		{"duplicate in a free value", `{"x":[1,"y"]}`, `{"x":1,"x":1}`, "extra.x (line 2, column 117): the name occurs twice in one object"},
		{"string for a bool", `true`, `"true"`, "on (line 2, column 129): want true or false, found a string"},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Contains(t, good, c.edit)
			var v tree
			require.EqualError(t, Decode([]byte(strings.Replace(good, c.edit, c.into, 1)), &v, Limits{}), c.want)
		})
	}
}

func TestSeveralDefectsAtOnce(t *testing.T) {
	text := "{\"role\":\"decode\",\n\"leaves\":[{\"name\":5,\"prot\":1}],\n\"tables\":{},\"on\":true,\"timeout\":\"x\"}"
	var v tree
	err := Decode([]byte(text), &v, Limits{Defects: 16})
	require.EqualError(t, err, `leaves[0].name (line 2, column 19): want a string, found a number
leaves[0].prot (line 2, column 21): the name is unknown here; did you mean port?
leaves[0].port (line 2, column 11): is missing
timeout (line 3, column 33): want a number, found a string`)
	assert.Len(t, Defects(err), 4)
	assert.Equal(t, pd.Decode, v.Role, "what has no defect is filled")
	assert.True(t, v.On)

	err = Decode([]byte(text), &v, Limits{Defects: 2})
	assert.Len(t, Defects(err), 2, "the walk gives up at the limit")
	var first *Error
	require.ErrorAs(t, err, &first)
	assert.Equal(t, "leaves[0].name", first.Path)
	assert.Nil(t, Defects(errors.New("another")))
}

func TestErrorsQuoteLittle(t *testing.T) {
	secret := strings.Repeat("s", 4096)
	var v tree
	err := Decode([]byte(`{"role":"`+secret+`","leaves":[],"tables":{}}`), &v, Limits{})
	require.Error(t, err)
	assert.Less(t, len(err.Error()), 400)
	err = Decode([]byte(`{"`+secret+`":1}`), &v, Limits{})
	require.Error(t, err)
	assert.Less(t, len(err.Error()), 200)
}

func TestTooLongIsNotRead(t *testing.T) {
	var v leaf
	require.EqualError(t, Decode([]byte(`{"name":"a","port":1}`), &v, Limits{Bytes: 20}), "the text has 21 bytes, the limit is 20")
	require.NoError(t, Decode([]byte(`{"name":"a","port":1}`), &v, Limits{Bytes: 21}))
}

func TestAllowUnknownStillChecksTheRest(t *testing.T) {
	l := Limits{AllowUnknown: true}
	var v struct {
		Version int `json:"protocol_version"`
	}
	require.NoError(t, Decode([]byte(`{"role":"x","protocol_version":3,"y":{"z":[1]}}`), &v, l))
	assert.Equal(t, 3, v.Version)
	require.EqualError(t, Decode([]byte(`{"role":"x"}`), &v, l), "protocol_version (line 1, column 1): is missing")
	require.Error(t, Decode([]byte(`{"protocol_version":3,"y":{"z":[null]}}`), &v, l))
	require.Error(t, Decode([]byte(`{"protocol_version":3,"y":1,"y":1}`), &v, l))
}

// Case B37: depth is bounded before anything recurses.
func TestMillionBracketsDoNotEndTheProcess(t *testing.T) {
	var v any
	err := Decode([]byte(strings.Repeat("[", 3_000_000)), &v, Limits{})
	require.ErrorContains(t, err, "nested deeper than 32 levels")
	fits := strings.Repeat("[", pd.MaxJSONDepth) + strings.Repeat("]", pd.MaxJSONDepth)
	require.NoError(t, Decode([]byte(fits), &v, Limits{}))
	require.EqualError(t, Decode([]byte(`{"x":`+fits+`}`), &v, Limits{}), "x"+strings.Repeat("[0]", pd.MaxJSONDepth-1)+
		" (line 1, column 37): nested deeper than 32 levels")
	require.EqualError(t, Decode([]byte("[1 ,\n]"), &v, Limits{}), "[1] (line 1, column 4): there is a comma before the closing bracket")
}

// TestStructWithoutFields: the fast decoder once looked for unknown names in
// such a struct past the end of the text.
func TestStructWithoutFields(t *testing.T) {
	var v struct{}
	spaces := strings.Repeat(" ", 1<<20)
	require.NoError(t, Decode([]byte(spaces+"{}"), &v, Limits{}))
	require.ErrorContains(t, Decode([]byte(spaces+`{"a":1}`), &v, Limits{}), "a (line 1, column 1048578): the name is unknown here")
	require.NoError(t, Decode([]byte(spaces+`{"a":1}`), &v, Limits{AllowUnknown: true}))
}

func TestTypesThatCannotBeReadPanicOnce(t *testing.T) {
	type embedded struct{ leaf }
	for name, v := range map[string]any{
		"embedded field": new(embedded),
		"string option": new(struct {
			A int `json:"a,string"`
		}),
		"map of ints": new(map[int]string),
		"channel":     new(chan int),
		"bytes":       new([]byte),
		"no pointer":  leaf{},
	} {
		assert.Panics(t, func() { _ = Decode([]byte(`{}`), v, Limits{}) }, name)
		assert.Panics(t, func() { _ = Decode([]byte(`{}`), v, Limits{}) }, "%s, second use", name)
	}
}

// Case B53: the library keeps no state between its users.
func TestDecodeFromManyGoroutines(t *testing.T) {
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 50 {
				var v tree
				if err := Decode([]byte(good), &v, Limits{}); err != nil || v.Leaves[1].Port != 65535 {
					t.Errorf("decode: %v, %+v", err, v)
				}
			}
		})
	}
	wg.Wait()
}

func TestLocate(t *testing.T) {
	text := []byte("{\"a\": {\"b\":[1,\n  22,{\"\":true}]}, \"x.y\" :\t{\"é\":7}}")
	for _, c := range []struct {
		path         string
		line, column int
		ok           bool
	}{
		{"", 1, 1, true},
		{"a", 1, 7, true},
		{"a.b[1]", 2, 3, true},
		{`a.b[2][""]`, 2, 10, true},
		{`["x.y"]`, 2, 27, true},
		{`["x.y"]["é"]`, 2, 32, true},
		{"a.c", 0, 0, false},
		{"a.b[3]", 0, 0, false},
	} {
		line, column, ok := Locate(text, c.path)
		assert.Equal(t, []any{c.line, c.column, c.ok}, []any{line, column, ok}, c.path)
	}
	_, _, ok := Locate([]byte(`{"a":[1,`), "b")
	assert.False(t, ok)
}

// FuzzDecode holds the reader against encoding/json: what is accepted here is
// accepted there with the same value, and nothing crashes.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{good, `{}`, `{"role":"x"}`, `{"a":1,"\u0061":2}`, "[[", `{"role":null}`, "\xff", `{"extra":1e999}`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var ours tree
		err := Decode(data, &ours, Limits{Defects: 4})
		for _, d := range Defects(err) {
			if d.Text == "" || len(d.Error()) > 4096 {
				t.Fatalf("unhelpful defect %q", d.Error())
			}
		}
		if err != nil {
			return
		}
		var theirs tree
		if err := json.Unmarshal(data, &theirs); err != nil {
			t.Fatalf("accepted %q, encoding/json says %v", data, err)
		}
		require.Equal(t, theirs, ours)
		ours.Extra, ours.Timeout = nil, 0
		first, err := Canonical(ours)
		if err != nil {
			t.Fatalf("canonical form of %q: %v", data, err)
		}
		var again tree
		if err := Decode(first, &again, Limits{}); err != nil {
			t.Fatalf("own form %s: %v", first, err)
		}
		second, err := Canonical(again)
		require.NoError(t, err)
		require.Equal(t, string(first), string(second))
	})
}

func BenchmarkDecode4MB(b *testing.B) {
	var v struct {
		Tokens []pd.Token `json:"prompt_tokens"`
		Name   string     `json:"name"`
	}
	var s strings.Builder
	s.WriteString(`{"name":"n","prompt_tokens":[`)
	for i := range pd.MaxPromptTokens {
		if i > 0 {
			s.WriteByte(',')
		}
		fmt.Fprint(&s, 100000+i%29000)
	}
	s.WriteString(`]}`)
	body := []byte(s.String())
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if err := Decode(body, &v, Limits{}); err != nil {
			b.Fatal(err)
		}
	}
}
