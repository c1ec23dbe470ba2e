package strictjson

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

type raw string

func (r raw) MarshalJSON() ([]byte, error)  { return []byte(r), nil }
func (r *raw) UnmarshalJSON(b []byte) error { *r = raw(b); return nil }

func TestCanonicalForm(t *testing.T) {
	seed := int64(-5)
	var none *leaf
	for _, c := range []struct {
		name string
		in   any
		want string
	}{
		{"sorted fields and omitted ones", leaf{Name: "a", Port: 1}, `{"name":"a","port":1}`},
		{"a set optional field", &leaf{Name: "a", Seed: &seed}, `{"name":"a","port":0,"seed":-5}`},
		{"nil slices and maps", struct {
			A []int          `json:"a"`
			B map[string]int `json:"b"`
		}{}, `{"a":[],"b":{}}`},
		{"map keys by bytes", map[string]int{"é": 3, "z": 2, "B": 1, "a": 0}, `{"B":1,"a":0,"z":2,"é":3}`},
		{"strings", "é\u2028<\"\\\n\x01\U0001F600", "\"é\u2028<\\\"\\\\\\n\\u0001\U0001F600\""},
		{"large integers keep every digit", []any{int64(-9223372036854775808), uint64(18446744073709551615)}, `[-9223372036854775808,18446744073709551615]`},
		{"custom types", map[pd.GroupName]pd.PageRun{"ori": {First: 1, Count: 2}}, `{"ori":[1,2]}`},
		{"text types", []any{pd.Decode, pd.Uncertain}, `["decode","uncertain"]`},
		{"raw JSON is rewritten", raw(` {"b" : [ 1, "\u0061" ], "a":{}, "c":[true,false]} `), `{"a":{},"b":[1,"a"],"c":[true,false]}`},
		{"standard raw JSON too", json.RawMessage(`[ 7 ]`), `[7]`},
	} {
		t.Run(c.name, func(t *testing.T) {
			b, err := Canonical(c.in)
			require.NoError(t, err)
			assert.Equal(t, c.want, string(b))
		})
	}
	for _, c := range []struct {
		name string
		in   any
		want string
	}{
		{"float", struct {
			A []float64 `json:"a"`
		}{[]float64{1}}, "a: [0]: a float64 has no canonical form; write decimals as strings"},
		{"nil", nil, "nil has no canonical form"},
		{"nil pointer", none, "a nil *strictjson.leaf has no canonical form"},
		{"nil in any", []any{nil}, "[0]: nil has no canonical form"},
		{"invalid UTF-8", "a\xff", `"a\xff" is not valid UTF-8`},
		{"invalid enum", map[string]pd.Role{"r": 7}, `"r": invalid role 7`},
		{"raw float", raw(`[1.5]`), `strictjson.raw writes JSON that has no canonical form: the number "1.5" is not a plain integer`},
		{"raw null", raw(`null`), `strictjson.raw writes JSON that has no canonical form: null`},
		{"raw of two", raw(`1 2`), `strictjson.raw writes more than one JSON value`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Canonical(c.in)
			require.ErrorContains(t, err, c.want)
			_, err = Digest(c.in)
			require.Error(t, err)
		})
	}
}

func TestDigest(t *testing.T) {
	d, err := Digest(map[string]int{})
	require.NoError(t, err)
	assert.Equal(t, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a", d, "sha256 of {}")
}

func BenchmarkCanonical4MB(b *testing.B) {
	tokens := make([]pd.Token, pd.MaxPromptTokens)
	for i := range tokens {
		tokens[i] = pd.Token(100000 + i%29000)
	}
	out, _ := Canonical(tokens)
	b.SetBytes(int64(len(out)))
	for b.Loop() {
		if _, err := Canonical(tokens); err != nil {
			b.Fatal(err)
		}
	}
}
