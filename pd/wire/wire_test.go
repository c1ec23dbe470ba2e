package wire

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

// The golden vectors are the good messages that the cases here spoil.
const vectors = "../../tests/conformance/testdata/wire"

var decoders = map[string]func([]byte) error{
	"node":           decoder[Node],
	"session":        decoder[Session],
	"reserve":        decoder[Reserve],
	"reserved":       decoder[Reserved],
	"chunk":          decoder[Chunk],
	"chunk_early":    decoder[Chunk],
	"chunk_ack":      decoder[ChunkAck],
	"results":        decoder[Results],
	"ack":            decoder[Ack],
	"commit":         decoder[Commit],
	"committed":      decoder[Committed],
	"abort":          decoder[Abort],
	"abort_router":   decoder[Abort],
	"status_query":   decoder[StatusQuery],
	"status":         decoder[Status],
	"source_stopped": decoder[SourceStopped],
	"failure":        decoder[Failure],
}

func decoder[T any, M message[T]](b []byte) error {
	_, err := Decode[T, M](b)
	return err
}

func vector(t testing.TB, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(vectors, name+".json"))
	require.NoError(t, err)
	return string(b)
}

func TestEveryVectorHasADecoder(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(vectors, "*.json"))
	require.NoError(t, err)
	require.Len(t, files, len(decoders)+1, "one more file holds the digests")
	for name, decode := range decoders {
		assert.NoError(t, decode([]byte(vector(t, name))), name)
	}
}

// Behaviours 16, 17 and 162.
func TestDecodeRefuses(t *testing.T) {
	const hex32, hex64 = "0123456789abcdef0123456789abcdef", "0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c0c"
	many := func(s string, n int) string { return strings.TrimSuffix(strings.Repeat(s+",", n), ",") }
	for _, c := range []struct {
		message, edit, into string
		code                pd.Code
		want                string
	}{
		{"status_query", `{"fence":{`, `{"fence":[`, pd.CodeMalformed, "read status query: fence (line 1, column 10): want an object, found an array (MALFORMED)"},
		{"status_query", `"run_id"`, `"run"`, pd.CodeMalformed, "the name is unknown here"},
		{"status_query", hex32, hex32[1:], pd.CodeInvalidRequest, "check status query: fence: handoff_id must be 32 lower-case hex digits, got 31 bytes (INVALID_REQUEST)"},
		{"status_query", `"10.1.0.1:8000"`, `"[fd00::2]:8000"`, pd.CodeInvalidRequest, "prefill.node and decode.node are both"},

		{"node", `"protocol_version":2,"reason"`, `"protocol_version":3,"reason"`, pd.CodeVersionMismatch, "read protocol version: the peer speaks protocol version 3, this node speaks 2 (VERSION_MISMATCH)"},
		{"node", `"protocol_version":2,"reason"`, `"reason"`, pd.CodeVersionMismatch, "the peer names no protocol version"},
		{"node", `"protocol_version":2,"reason"`, `"protocol_version":"2","reason"`, pd.CodeVersionMismatch, "the peer names no protocol version"},
		{"node", `"protocol_version":2,"provider"`, `"protocol_version":1,"provider"`, pd.CodeVersionMismatch, "the peer speaks protocol version 1"},
		{"node", `"http_address":"[fd00::2]:8000"`, `"http_address":"fd00::2:8000"`, pd.CodeInvalidRequest, "http_address must be host:port"},
		{"node", `"control_address":"[fd00::2]:18000"`, `"control_address":"[fd00::2]:0"`, pd.CodeInvalidRequest, "control_address must be host:port"},
		{"node", `"tp":4`, `"tp":3`, pd.CodeInvalidRequest, "tp 3 does not divide 16 ranks"},
		{"node", `"tp":4`, `"tp":0`, pd.CodeInvalidRequest, "tp 0 does not divide"},
		{"node", `"health":"READY"`, `"health":"OK"`, pd.CodeMalformed, `health "OK" is unknown`},
		{"node", `"active":3`, `"active":-1`, pd.CodeInvalidRequest, "capacity.active is -1"},
		{"node", `"limit":8`, `"limit":0`, pd.CodeInvalidRequest, "capacity.limit is 0, want 1..4096"},
		{"node", `"max_model_tokens":655360`, `"max_model_tokens":655361`, pd.CodeInvalidRequest, "max_model_tokens is 655361"},
		{"node", `"ring":9`, `"ring":0`, pd.CodeInvalidRequest, "ring_periods.ring is 0"},
		{"node", `"adapter_version":7`, `"adapter_version":8`, pd.CodeContractMismatch, "contract_digest is not that of the contract"},
		{"node", `"layers":[0,2,5]`, `"layers":[0,5,2]`, pd.CodeInvalidRequest, "contract.components[0].layers[2] is 2; layers ascend below 1024"},
		{"node", `"layers":[0,2,5]`, `"layers":[]`, pd.CodeInvalidRequest, "contract.components[0].layers has 0 elements"},
		{"node", `"id":"win"`, `"id":"kv"`, pd.CodeInvalidRequest, "contract.components[1]: the id kv occurs twice"},
		{"node", `"id":"win"`, `"id":"hidden"`, pd.CodeInvalidRequest, "contract.components[1]: the id hidden occurs twice"},
		{"node", `"group":"ring"`, `"group":"rings"`, pd.CodeInvalidRequest, `contract.components[1]: there is no group "rings"`},
		{"node", `"name":"ring"`, `"name":"full"`, pd.CodeInvalidRequest, "contract.groups[1]: the name full occurs twice"},
		{"node", `"kind":"rolling"`, `"kind":"full"`, pd.CodeInvalidRequest, "contract.groups[1]: a full group has a window of 128 tokens"},
		{"node", `"row_elements":512`, `"row_elements":262145`, pd.CodeInvalidRequest, "contract.components[0].row_elements is 262145, want 1..262144"},
		{"node", `"rows":128`, `"rows":0`, pd.CodeInvalidRequest, "contract.bootstrap.rows is 0"},

		{"session", `"protocol_version":2,"registry"`, `"protocol_version":1,"registry"`, pd.CodeVersionMismatch, "the peer speaks protocol version 1"},
		{"session", `"nonce":"3`, `"nonce":"x`, pd.CodeInvalidRequest, "nonce must be 32 lower-case hex digits"},
		{"session", `"rank":1`, `"rank":0`, pd.CodeRegistryMismatch, "registry.ranks[1] is rank 0; ranks stand in order"},
		{"session", `"ranks":2`, `"ranks":3`, pd.CodeRegistryMismatch, "registry.ranks has 2 elements for 3 ranks"},
		{"session", `"ranks":2`, `"ranks":257`, pd.CodeInvalidRequest, "ranks 257: want 1..256"},
		{"session", `"epoch":1`, `"epoch":0`, pd.CodeRegistryMismatch, "registry.ranks[0] has epoch 0"},
		{"session", `"epoch":1`, `"epoch":-1`, pd.CodeMalformed, "registry.ranks[0].epoch (line 1, column"},
		{"session", `"envelope":"e0"`, `"envelope":""`, pd.CodeInvalidRequest, "registry.ranks[0].regions[0].envelope has 0 bytes, want 1..4096"},
		{"session", `"full":100`, `"full":1048577`, pd.CodeInvalidRequest, "registry.pages_per_layer.full is 1048577, want 1..1048576"},
		{"session", `"build":"simulator/1"`, `"build":""`, pd.CodeInvalidRequest, "registry.build is empty"},

		{"reserve", `[0,1,2147483647]`, `[0,1,-1]`, pd.CodeInvalidRequest, "prompt_tokens[2] is -1"},
		{"reserve", `[0,1,2147483647]`, `[0,1]`, pd.CodeInvalidLength, "prompt_token_count is 3, the prompt has 2 tokens"},
		{"reserve", `[0,1,2147483647]`, `[]`, pd.CodeInvalidLength, "the prompt has 0 tokens, want 1..524288"},
		{"reserve", `[0,1,2147483647]`, `[` + many("7", pd.MaxPromptTokens+1) + `]`, pd.CodeInvalidLength, "the prompt has 524289 tokens"},
		{"reserve", `[0,1,2147483647]`, `[0,1,2]`, pd.CodeInvalidDigest, "metadata_hash is not that of the continuation"},
		{"reserve", `"prepared_digest":"7`, `"prepared_digest":"8`, pd.CodeInvalidDigest, "prepared_digest is not that of the metadata hash"},
		{"reserve", `"contract_digest":"4`, `"contract_digest":"X`, pd.CodeInvalidRequest, "contract_digest must be 64 lower-case hex digits"},
		{"reserve", `"max_new_tokens":128`, `"max_new_tokens":0`, pd.CodeInvalidLength, "max_new_tokens is 0, want 1..655357 after a prompt of 3"},
		{"reserve", `"max_new_tokens":128`, `"max_new_tokens":655358`, pd.CodeInvalidLength, "max_new_tokens is 655358"},
		{"reserve", `"temperature":"0"`, `"temperature":"nan"`, pd.CodeInvalidRequest, "temperature must be a decimal number that is not negative"},
		{"reserve", `"temperature":"0"`, `"temperature":"-1"`, pd.CodeInvalidRequest, "temperature must be"},
		{"reserve", `"temperature":"0"`, `"temperature":0`, pd.CodeMalformed, "continuation.temperature (line 1, column"},
		{"reserve", `"top_p":"0.95"`, `"top_p":"0x1p-2"`, pd.CodeInvalidRequest, "top_p must be"},
		{"reserve", `"</é>"`, `""`, pd.CodeInvalidRequest, "stop[1] has 0 bytes, want 1..1024"},
		{"reserve", `"</é>"`, many(`"x"`, 16), pd.CodeInvalidRequest, "stop has 17 elements, want 0..16"},
		{"reserve", `"eos":2`, `"eos":-2`, pd.CodeInvalidRequest, "eos is -2"},
		{"reserve", `"remaining_millis":299999`, `"remaining_millis":0`, pd.CodeDeadline, "the request's time was over when it was sent"},
		{"reserve", `"remaining_millis":299999`, `"remaining_millis":99999999999`, pd.CodeInvalidRequest, "remaining_millis is 99999999999"},

		{"reserved", `[[0,2],[9,1]]`, `[[0,16384],[9,1]]`, pd.CodeInvalidRequest, "tables.full: page table has more than 16384 pages"},
		{"reserved", `[[0,2],[9,1]]`, `[[0,0]]`, pd.CodeMalformed, "tables.full[0] (line 1, column"},
		{"reserved", `[[0,2],[9,1]]`, `[[2147483647,2]]`, pd.CodeMalformed, "out of range"},
		{"reserved", `"partition":3`, `"partition":-1`, pd.CodeInvalidRequest, "partition is -1"},
		{"reserved", `{"full":[[0,2],[9,1]],"ring":[]}`, `{}`, pd.CodeInvalidRequest, "tables has 0 elements, want 1..64"},

		{"chunk", `"end":300`, `"end":301`, pd.CodeInvalidPlan, "check chunk 0123456789abcdef0123456789abcdef: manifest_hash is not that of the manifest (INVALID_PLAN)"},
		{"chunk", `"end":300`, `"end":128`, pd.CodeInvalidPlan, "span [128,128), want a part of [0,524288)"},
		{"chunk", `"end":300`, `"end":524289`, pd.CodeInvalidPlan, "span [128,524289)"},
		{"chunk", `[[5,6],[4,7]]`, `[[5,6],[4,6]]`, pd.CodeInvalidPlan, "rank_map[1].target is 6, which another pair already feeds"},
		{"chunk", `[[5,6],[4,7]]`, `[[5,256],[4,6]]`, pd.CodeInvalidRequest, "rank_map[0].target is 256, want 0..255"},
		{"chunk", `[[5,6],[4,7]]`, `[]`, pd.CodeInvalidRequest, "rank_map has 0 elements"},
		{"chunk", `[[5,6],[4,7]]`, `[[5,6,7]]`, pd.CodeMalformed, "manifest.rank_map[0] (line 1, column"},
		{"chunk", `"count":2,"source":3`, `"count":0,"source":3`, pd.CodeInvalidRequest, "copies[0].count is 0"},
		{"chunk", `"count":2,"source":10`, `"count":2,"source":-10`, pd.CodeInvalidRequest, "copies[1].source is -10"},
		{"chunk", `"count":2,"source":10`, `"count":2,"source":2147483646`, pd.CodeInvalidRequest, "copies[1].source is 2147483646, want 0..2147483645"},
		{"chunk", `"component":"kv","target":6`, `"component":"acc","target":6`, pd.CodeInvalidPlan, "units[2].component is acc, which rank 6 already has"},
		{"chunk", `"bytes":0`, `"bytes":-1`, pd.CodeInvalidRequest, "units[2].bytes is -1"},
		{"chunk", `"first_token":0,`, ``, pd.CodeInvalidPlan, "the final chunk needs bootstrap, first_token, metadata_hash and prepared_digest"},
		{"chunk", `"final":true`, `"final":false`, pd.CodeInvalidPlan, "belong to the final chunk only"},
		{"chunk", hex64, "0C" + hex64[2:], pd.CodeInvalidRequest, "metadata_hash must be 64 lower-case hex digits"},
		{"chunk_early", `"source_hit_tokens":128`, `"source_hit_tokens":129`, pd.CodeInvalidRequest, "source_hit_tokens is 129, want 0..128"},

		{"results", `"settlement":"done"`, `"settlement":"fenced"`, pd.CodeMalformed, `settlement "fenced": want done, failed or uncertain`},
		{"results", `"settlement":"done"`, `"settlement":""`, pd.CodeMalformed, "results[0].settlement"},
		{"results", `"chunk":1,`, `"chunk":-1,`, pd.CodeInvalidRequest, "results[1].chunk is -1"},
		{"results", `"source":5`, `"source":256`, pd.CodeInvalidRequest, "results[1].source is 256, want 0..255"},
		{"results", `"component":"kv"`, `"component":""`, pd.CodeInvalidRequest, "results[0].component is empty"},
		{"commit", `"manifest_hash":"e`, `"manifest_hash":"`, pd.CodeInvalidRequest, "manifest_hash must be 64 lower-case hex digits"},
		{"commit", `"first_token":0,`, ``, pd.CodeMalformed, "first_token (line 1, column 1): is missing"},
		{"committed", `"admitted":true`, `"admitted":1`, pd.CodeMalformed, "admitted (line 1, column 13): want true or false, found a number"},
		{"abort", `"stop_fact":"definite_failed"`, `"stop_fact":"maybe"`, pd.CodeMalformed, `stop fact "maybe" is unknown`},
		{"abort", `"from":"10.1.0.1:8000"`, `"from":""`, pd.CodeInvalidRequest, "from is empty"},
		{"abort", `"reason":"client is gone"`, `"reason":"` + strings.Repeat("x", 1025) + `"`, pd.CodeInvalidRequest, "reason has 1025 bytes, want 0..1024"},
		{"status", `"progress":300`, `"progress":-1`, pd.CodeInvalidRequest, "progress is -1"},
		{"status", `"role":"prefill"`, `"role":"router"`, pd.CodeMalformed, `role "router": want prefill or decode`},
		{"source_stopped", `"all_done"`, `""`, pd.CodeInvalidRequest, "stop_fact is empty"},
		{"ack", `{}`, `{"ok":true}`, pd.CodeMalformed, "ok (line 1, column 2): the name is unknown here"},
		{"ack", `{}`, ``, pd.CodeMalformed, "the text is empty"},
		{"ack", `{}`, `{}{}`, pd.CodeMalformed, "there is more after the JSON value"},
		{"failure", `"code":"CAPACITY_EXHAUSTED"`, `"code":""`, pd.CodeInvalidRequest, "error.code has 0 bytes"},
	} {
		t.Run(c.message+" "+c.want, func(t *testing.T) {
			text := vector(t, c.message)
			require.Contains(t, text, c.edit)
			err := decoders[c.message]([]byte(strings.Replace(text, c.edit, c.into, 1)))
			require.ErrorContains(t, err, c.want)
			assert.Equal(t, c.code, pd.CodeOf(err), "%v", err)
			assert.LessOrEqual(t, len(err.Error()), 1024)
		})
	}
}

// Behaviour 16.
func TestBoundOfOneMessage(t *testing.T) {
	body := []byte(strings.Repeat(" ", pd.MaxControlBytes-2) + "{}")
	require.NoError(t, decoders["ack"](body))
	err := decoders["ack"](append(body, ' '))
	require.EqualError(t, err, "read ack: 16777217 bytes, the limit is 16777216 (BODY_TOO_LARGE)")

	m := Results{Results: make([]pd.UnitResult, pd.MaxResults+1)}
	m.Fence.Request = pd.RequestID(strings.Repeat("r", pd.MaxControlBytes))
	_, err = Encode(&m)
	require.Equal(t, pd.CodeInternal, pd.CodeOf(err), "a settlement of zero has no wire form: %v", err)
	for i := range m.Results {
		m.Results[i].Settlement = pd.Done
	}
	_, err = Encode(&m)
	require.Equal(t, pd.CodeBodyTooLarge, pd.CodeOf(err), "%v", err)
}

func TestCheckVersionIgnoresWhatIsNotItsBusiness(t *testing.T) {
	for in, want := range map[string]pd.Code{
		`{"protocol_version":2}`:                              0,
		`{"protocol_version":2,"x":null,"y":[null],"role":5}`: 0,
		`{"protocol_version":1,"x":null}`:                     pd.CodeVersionMismatch,
		`{}`:                                                  pd.CodeVersionMismatch,
		`[]`:                                                  pd.CodeVersionMismatch,
		`{"protocol_version":2.0}`:                            pd.CodeVersionMismatch,
		`{"protocol_version":2,"protocol_version":2}`: pd.CodeMalformed,
		`GET / HTTP/1.1`: pd.CodeMalformed,
		``:               pd.CodeMalformed,
	} {
		err := CheckVersion([]byte(in))
		if want == 0 {
			assert.NoError(t, err, in)
			continue
		}
		assert.Equal(t, want, pd.CodeOf(err), "%s: %v", in, err)
	}
}

func TestCheckPath(t *testing.T) {
	for path, want := range map[string]string{
		PathNode:                  "",
		PathSourceStopped:         "",
		"/pd/v1/reserve":          "read path: the peer speaks protocol version 1, this node speaks 2 (VERSION_MISMATCH)",
		"/pd/v3/x":                "read path: the peer speaks protocol version 3, this node speaks 2 (VERSION_MISMATCH)",
		"/pd/v22":                 "read path: the peer speaks protocol version 22, this node speaks 2 (VERSION_MISMATCH)",
		"/pd/v2/":                 `read path: "/pd/v2/" is no path of the control protocol (NOT_FOUND)`,
		"/pd/v2/node/":            `read path: "/pd/v2/node/" is no path of the control protocol (NOT_FOUND)`,
		"/pd/vx/node":             `read path: "/pd/vx/node" is no path of the control protocol (NOT_FOUND)`,
		"/v1/completions":         `read path: "/v1/completions" is no path of the control protocol (NOT_FOUND)`,
		strings.Repeat("/x", 999): `read path: "` + strings.Repeat("/x", 32) + `" is no path of the control protocol (NOT_FOUND)`,
	} {
		if err := CheckPath(path); want == "" {
			assert.NoError(t, err, path)
		} else {
			assert.EqualError(t, err, want)
		}
	}
}

func TestNames(t *testing.T) {
	assert.Equal(t, "chunk ack", Name(ChunkAck{}))
	assert.Equal(t, "reserve", Name(&Reserve{}))
}

func TestFailuresKeepTheirCode(t *testing.T) {
	for _, code := range pd.Codes() {
		sent := &pd.Error{Op: "reserve", Code: code, Text: "why", Err: errors.New("cause")}
		status, f := FailureOf(fmt.Errorf("wrapped: %w", sent))
		assert.GreaterOrEqual(t, status, 400)
		assert.Equal(t, code.Retryable(), f.Error.Retryable)
		require.NoError(t, f.Check())
		back := f.Err("ask decode", "10.1.0.2:8000")
		assert.ErrorIs(t, back, code)
		assert.Equal(t, code, pd.CodeOf(back))
		assert.Equal(t, "ask decode at 10.1.0.2:8000: why: cause ("+code.String()+")", back.Error())
		if status == 500 || code == pd.CodeUncertain || code == pd.CodeConflict || code == pd.CodeDeadline {
			assert.False(t, f.Error.Definite, "%v cannot promise that nothing happened", code)
		}
	}
	status, f := FailureOf(errors.New("bare"))
	assert.Equal(t, 500, status)
	assert.Equal(t, FailureBody{Code: "INTERNAL", Message: "bare"}, f.Error)

	status, f = FailureOf(pd.CodeBusy)
	assert.Equal(t, 503, status)
	assert.Equal(t, FailureBody{Code: "NODE_BUSY", Message: "NODE_BUSY", Retryable: true, Definite: true}, f.Error)

	_, f = FailureOf(errors.New(strings.Repeat("é", 5000) + "\xff"))
	assert.LessOrEqual(t, len(f.Error.Message), maxText)
	require.NoError(t, f.Check())
	_, err := Encode(&f)
	require.NoError(t, err)

	f = Failure{Error: FailureBody{Code: "NEWER_CODE", Message: "m", Retryable: true}}
	back := f.Err("op", "n")
	assert.Equal(t, pd.CodeInternal, pd.CodeOf(back))
	assert.EqualError(t, back, "op at n: unknown code NEWER_CODE: m (INTERNAL)")
}

// TestNoMessageIsRefusedForItsWording: an abort that its peer refuses would hold
// memory, so what is written for people always fits.
func TestNoMessageIsRefusedForItsWording(t *testing.T) {
	long := strings.Repeat("é", 4000) + "\xff"
	a, err := Decode[Abort]([]byte(vector(t, "abort")))
	require.NoError(t, err)
	a.Reason, a.Results[0].Detail = long, long
	n, err := Decode[Node]([]byte(vector(t, "node")))
	require.NoError(t, err)
	n.Reason = long
	s, err := Decode[Status]([]byte(vector(t, "status")))
	require.NoError(t, err)
	s.Why = "\xff"
	r := Results{Fence: a.Fence, Results: a.Results}
	c, err := Decode[Commit]([]byte(vector(t, "commit")))
	require.NoError(t, err)
	c.Results = a.Results
	for name, m := range map[string]Message{"abort": &a, "node": &n, "status": &s, "results": &r, "commit": &c} {
		b, err := Encode(m)
		require.NoError(t, err, name)
		assert.NoError(t, decoders[name](b), name)
	}
	assert.Equal(t, long, a.Reason, "the message itself is not changed")
	assert.Equal(t, long, a.Results[0].Detail)
}

// TestLongestPromptFits: the reference launch's longest prompt travels in one
// reserve, and its pages in one manifest.
func TestLongestPromptFits(t *testing.T) {
	text := vector(t, "reserve")
	r, err := Decode[Reserve]([]byte(text))
	require.NoError(t, err)
	r.Continuation.PromptTokens = make([]pd.Token, pd.MaxPromptTokens)
	for i := range r.Continuation.PromptTokens {
		r.Continuation.PromptTokens[i] = 129279
	}
	r.PromptTokenCount, r.Continuation.MaxNewTokens = pd.MaxPromptTokens, pd.MaxModelTokens-pd.MaxPromptTokens
	r.MetadataHash, err = MetadataHash(&r.Continuation)
	require.NoError(t, err)
	r.PreparedDigest, err = PreparedDigest(r.MetadataHash)
	require.NoError(t, err)
	b, err := Encode(&r)
	require.NoError(t, err)
	require.NoError(t, decoder[Reserve](b))
}

// FuzzDecode: no bytes crash a decoder, and what one accepts is written back as
// something that it accepts again.
func FuzzDecode(f *testing.F) {
	names := []string{}
	for name := range decoders {
		names = append(names, name)
		f.Add(name, []byte(vector(f, name)))
	}
	f.Add("status_query", []byte(`{"fence":null}`))
	f.Fuzz(func(t *testing.T, name string, data []byte) {
		decode := decoders[name]
		if decode == nil {
			decode = decoders[names[len(name)%len(names)]]
		}
		if err := decode(data); err != nil {
			var e *pd.Error
			require.ErrorAs(t, err, &e)
			require.LessOrEqual(t, len(err.Error()), 8192)
		}
	})
}

// FuzzManifest: a manifest that is accepted keeps its hash over the wire.
func FuzzManifest(f *testing.F) {
	f.Add([]byte(vector(f, "chunk")))
	f.Add([]byte(vector(f, "chunk_early")))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := Decode[Chunk](data)
		if err != nil {
			return
		}
		b, err := Encode(&m)
		require.NoError(t, err)
		again, err := Decode[Chunk](b)
		require.NoError(t, err)
		require.Equal(t, m, again)
	})
}

func BenchmarkReserve(b *testing.B) {
	r, err := Decode[Reserve]([]byte(vector(b, "reserve")))
	require.NoError(b, err)
	r.Continuation.PromptTokens = make([]pd.Token, pd.MaxPromptTokens)
	r.PromptTokenCount = pd.MaxPromptTokens
	r.MetadataHash, _ = MetadataHash(&r.Continuation)
	r.PreparedDigest, _ = PreparedDigest(r.MetadataHash)
	body, err := Encode(&r)
	require.NoError(b, err)
	b.SetBytes(int64(len(body)))
	for b.Loop() {
		if err := decoder[Reserve](body); err != nil {
			b.Fatal(err)
		}
	}
}
