package config

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

const example = "../../examples/pd.json"

func TestMinimalFileGetsTheDefaults(t *testing.T) {
	c, err := Load(example)
	require.NoError(t, err)
	assert.Equal(t, &Config{
		Prefill:        []Entry{{Role: pd.Prefill, NodeID: "10.1.0.1:8000", Host: "10.1.0.1", Port: 8000, ControlPort: 18000, TransferHostname: "10.1.0.1"}},
		Decode:         []Entry{{Role: pd.Decode, NodeID: "10.1.0.2:8000", Host: "10.1.0.2", Port: 8000, ControlPort: 18000, TransferHostname: "10.1.0.2"}},
		Provider:       "mooncake",
		Policy:         "round_robin",
		Capacity:       8,
		HandoffTimeout: 300 * time.Second,
		RequestTimeout: 3600 * time.Second,
		Observability:  Observability{Enabled: true, Root: filepath.Join("serving_log", "pd_disag")},
		run:            "pd-7563c15ba60c0820",
	}, c)
	assert.Equal(t, "10.1.0.1:8000", c.Prefill[0].HTTPAddress())
	assert.Equal(t, "10.1.0.1:18000", c.Prefill[0].ControlAddress())
}

// Behaviour 8.
func TestEveryField(t *testing.T) {
	c, err := Parse([]byte(`{
	 "runtime": {
	  "prefill": [{"host": "p", "port": 65535, "control_port": 9, "node_id": "one", "transfer_hostname": "10.9.9.9"}],
	  "decode": [{"host": "::1", "port": 8000}, {"host": "fe80::1%eth0", "port": 8000}],
	  "provider": "simulator", "policy": "round_robin", "capacity": 1,
	  "handoff_timeout": 0.25, "request_timeout": 7.2e3, "run_id": "night ünd"
	 },
	 "observability": {"enabled": false, "root": "/var/log//pd/"}
	}`))
	require.NoError(t, err)
	assert.Equal(t, &Config{
		Prefill: []Entry{{Role: pd.Prefill, NodeID: "one", Host: "p", Port: 65535, ControlPort: 9, TransferHostname: "10.9.9.9"}},
		Decode: []Entry{
			{Role: pd.Decode, NodeID: "[::1]:8000", Host: "::1", Port: 8000, ControlPort: 18000, TransferHostname: "::1"},
			{Role: pd.Decode, NodeID: "[fe80::1%eth0]:8000", Host: "fe80::1%eth0", Port: 8000, ControlPort: 18000, TransferHostname: "fe80::1%eth0"},
		},
		Provider: "simulator", Policy: "round_robin", Capacity: 1,
		HandoffTimeout: 250 * time.Millisecond, RequestTimeout: 2 * time.Hour,
		Observability: Observability{Enabled: false, Root: "/var/log/pd"},
		run:           "night ünd",
	}, c)
	assert.Equal(t, "[::1]:18000", c.Decode[0].ControlAddress())
	e, ok := c.Find("[::1]:8000")
	assert.True(t, ok)
	assert.Equal(t, c.Decode[0], e)
	_, ok = c.Find("p:65535")
	assert.False(t, ok, "the identity of that entry is its node_id")
	assert.Nil(t, c.Entries(0))
}

func parse(t *testing.T, prefill, decode, more string) (*Config, error) {
	t.Helper()
	return Parse([]byte(`{"runtime":{"prefill":[` + prefill + `],"decode":[` + decode + `]` + more + `}}`))
}

// Behaviour 3.
func TestRunIDIsAFunctionOfTheFile(t *testing.T) {
	run := func(prefill, decode, more string) pd.RunID {
		c, err := parse(t, prefill, decode, more)
		require.NoError(t, err)
		return c.Run()
	}
	base := run(`{"host":"a","port":1}`, `{"host":"b","port":2}`, ``)
	assert.Regexp(t, `^pd-[0-9a-f]{16}$`, string(base))
	assert.Equal(t, base, run(` {"port":1, "host":"a", "control_port":5}`, `{"host":"b","port":2,"node_id":"x"}`, `,"capacity":2,"provider":"mooncake"`))
	for _, other := range []pd.RunID{
		run(`{"host":"a","port":3}`, `{"host":"b","port":2}`, ``),
		run(`{"host":"b","port":2}`, `{"host":"a","port":1}`, ``),
		run(`{"host":"a","port":1}`, `{"host":"b","port":2}`, `,"provider":"simulator"`),
		run(`{"host":"a","port":1},{"host":"c","port":1}`, `{"host":"b","port":2}`, ``),
	} {
		assert.NotEqual(t, base, other)
	}
}

// Behaviour 10.
func TestSelect(t *testing.T) {
	c, err := parse(t, `{"host":"a","port":1}`, `{"host":"b","port":2,"node_id":"two"},{"host":"::1","port":3}`, ``)
	require.NoError(t, err)
	for _, s := range []struct {
		name string
		role pd.Role
		id   string
		want pd.NodeID
		err  string
	}{
		{"the only entry", pd.Prefill, "", "a:1", ""},
		{"the only entry by name", pd.Prefill, "a:1", "a:1", ""},
		{"a wrong name for the only entry", pd.Prefill, "a:2", "", `select node: --pd-node-id "a:2" must select exactly one prefill endpoint; it is one of a:1 (INVALID_CONFIG)`},
		{"none of several", pd.Decode, "", "", `select node: --pd-node-id is required when decode has multiple endpoints; it is one of two, [::1]:3 (INVALID_CONFIG)`},
		{"by node_id", pd.Decode, "two", "two", ""},
		{"by address although it has a node_id", pd.Decode, "b:2", "two", ""},
		{"IPv6", pd.Decode, "[::1]:3", "[::1]:3", ""},
		{"of the other role", pd.Decode, "a:1", "", `select node: --pd-node-id "a:1" must select exactly one decode endpoint; it is one of two, [::1]:3 (INVALID_CONFIG)`},
	} {
		t.Run(s.name, func(t *testing.T) {
			e, err := c.Select(s.role, s.id)
			if s.err != "" {
				require.EqualError(t, err, s.err)
				require.ErrorIs(t, err, pd.CodeInvalidConfig)
				return
			}
			require.NoError(t, err)
			assert.Equal(t, s.want, e.NodeID)
			assert.Equal(t, s.role, e.Role)
		})
	}
}

// Behaviours 4, 5, 6, 7 and 8.
func TestDefects(t *testing.T) {
	a, b := `{"host":"a","port":1}`, `{"host":"b","port":2}`
	for _, c := range []struct{ name, prefill, decode, more, want string }{
		{"no prefill", ``, b, ``, "runtime.prefill (line 1, column 23): has 0 entries; want 1..256"},
		{"unknown provider", a, b, `,"provider":"nixl"`, `"nixl" is not supported; want mooncake or simulator`},
		{"empty provider", a, b, `,"provider":""`, `"" is not supported; want mooncake or simulator`},
		{"class path as policy", a, b, `,"policy":"pkg.mod.Class"`, `"pkg.mod.Class" is not supported; want round_robin or least_loaded or prefix_aware`},
		{"capacity 0", a, b, `,"capacity":0`, "0 is out of range; want 1..4096 requests"},
		{"capacity as bool", a, b, `,"capacity":true`, "runtime.capacity (line 1, column 91): want an integer, found true"},
		{"capacity as float", a, b, `,"capacity":1.0`, "want an integer, found a number with a fraction"},
		{"capacity as string", a, b, `,"capacity":"8"`, "want an integer, found a string"},
		{"capacity null", a, b, `,"capacity":null`, "null is not allowed"},
		{"timeout 0", a, b, `,"handoff_timeout":0`, "0 seconds is out of range; want 0.001..3.1536e+07 seconds"},
		{"negative timeout", a, b, `,"request_timeout":-1`, "-1 seconds is out of range"},
		{"infinite timeout", a, b, `,"request_timeout":1e999`, "the number is out of range"},
		{"huge timeout", a, b, `,"request_timeout":1e99`, "1e+99 seconds is out of range"},
		{"timeout with a unit", a, b, `,"request_timeout":"5m"`, "want a number, found a string"},
		{"run id is a path", a, b, `,"run_id":"a/b"`, `"a/b" names a folder: it must not be . or .. and must not contain /`},
		{"run id is the parent", a, b, `,"run_id":".."`, `".." names a folder`},
		{"empty run id", a, b, `,"run_id":""`, "it is empty"},
		{"long run id", a, b, `,"run_id":"` + strings.Repeat("r", 256) + `"`, "has 256 bytes; it names a folder, which holds 255"},
		{"zero byte in run id", a, b, `,"run_id":"a\u0000"`, "it holds a control character at byte 1"},
		{"duplicate key", a, b, `,"capacity":1,"capacity":2`, "runtime.capacity (line 1, column 93): the name occurs twice in one object"},
		{"misspelled", a, b, `,"capasity":1`, "the name is unknown here; did you mean capacity?"},
		{"removed", a, b, `,"prefix_cache_mode":"d_only"`, "runtime.prefix_cache_mode (line 1, column 80): there is no such field any more: prefix caching is a flag of each node: --no-enable-prefix-caching"},
		{"removed in an entry", `{"host":"a","port":1,"control_host":"c"}`, b, ``, "runtime.prefill[0].control_host (line 1, column 45): there is no such field any more: control listens at host; only control_port may be set"},
		{"no host", `{"port":1}`, b, ``, "runtime.prefill[0].host (line 1, column 24): is missing"},
		{"empty host", `{"host":"","port":1}`, b, ``, "has 0 bytes; want 1..256"},
		{"URL as host", `{"host":"http://a","port":1}`, b, ``, `"http://a" is a URL; give the name or address alone`},
		{"brackets", `{"host":"[::1]","port":1}`, b, ``, `"[::1]": write an IPv6 address without brackets`},
		{"port in the host", `{"host":"a:5","port":1}`, b, ``, `"a:5" is no address; the port has a field of its own`},
		{"space in the host", `{"host":"a b","port":1}`, b, ``, `"a b" holds a character that no host name has`},
		{"bad transfer host", `{"host":"a","port":1,"transfer_hostname":""}`, b, ``, "runtime.prefill[0].transfer_hostname (line 1, column 65): has 0 bytes; want 1..256"},
		{"port 0", `{"host":"a","port":0}`, b, ``, "runtime.prefill[0].port (line 1, column 43): 0 is no port; want 1..65535"},
		{"port 65536", `{"host":"a","port":65536}`, b, ``, "65536 is no port; want 1..65535"},
		{"port as string", `{"host":"a","port":"1"}`, b, ``, "want an integer, found a string"},
		{"control port out of range", `{"host":"a","port":55536}`, b, ``, "55536 + 10000 is no port; set control_port"},
		{"control port 0", `{"host":"a","port":1,"control_port":0}`, b, ``, "runtime.prefill[0].control_port (line 1, column 60): 0 is no port"},
		{"control port is the port", `{"host":"a","port":1,"control_port":1}`, b, ``, "is the same as port"},
		{"duplicate endpoint", a + `,` + a, b, ``, "runtime.prefill[1] (line 1, column 46): duplicate endpoints: a:1 is runtime.prefill[0] too"},
		{"duplicate endpoint in other letters", `{"host":"A","port":1},` + a, b, ``, "duplicate endpoints"},
		{"duplicate endpoint as mapped address", `{"host":"::ffff:10.0.0.1","port":1},{"host":"10.0.0.1","port":1}`, b, ``, "duplicate endpoints"},
		{"both roles", a, a, ``, "runtime.decode[0] (line 1, column 57): a:1 is runtime.prefill[0] too; one process cannot have both roles"},
		{"duplicate node id", `{"host":"a","port":1,"node_id":"x"},{"host":"c","port":1,"node_id":"x"}`, b, ``, `"x" is the identity of runtime.prefill[0] too`},
		{"duplicate node id across roles", `{"host":"a","port":1,"node_id":"x"}`, `{"host":"c","port":1,"node_id":"x"}`, ``, `runtime.decode[0].node_id (line 1, column 102): "x" is the identity of runtime.prefill[0] too`},
		{"node id is a later address", `{"host":"a","port":1,"node_id":"b:2"}`, b, ``, `runtime.prefill[0].node_id (line 1, column 55): "b:2" is the address of runtime.decode[0]`},
		{"node id is an earlier address", a, `{"host":"b","port":2,"node_id":"a:1"}`, ``, `"a:1" is the identity of runtime.prefill[0] too`},
		{"node id hides behind another", `{"host":"a","port":1,"node_id":"x"}`, `{"host":"b","port":2,"node_id":"a:1"}`, ``, `"a:1" is the address of runtime.prefill[0]`},
		{"empty node id", `{"host":"a","port":1,"node_id":""}`, b, ``, "it is empty"},
		{"control meets http", `{"host":"a","port":10001}`, `{"host":"a","port":1}`, ``, "runtime.decode[0].port (line 1, column 80): the control address a:10001 is the HTTP address of runtime.prefill[0]; set control_port"},
		{"http meets control", `{"host":"a","port":1}`, `{"host":"a","port":10001}`, ``, "runtime.decode[0].port (line 1, column 76): the HTTP address a:10001 is the control address of runtime.prefill[0]"},
		{"control meets control", `{"host":"a","port":1,"control_port":9}`, `{"host":"a","port":2,"control_port":9}`, ``, "runtime.decode[0].control_port (line 1, column 110): the control address a:9 is that of runtime.prefill[0] too"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(t, c.prefill, c.decode, c.more)
			require.ErrorContains(t, err, c.want)
			require.ErrorIs(t, err, pd.CodeInvalidConfig)
			var d Defects
			require.ErrorAs(t, err, &d)
			assert.Len(t, d, 1, "%v", err)
			assert.NotZero(t, d[0].Line)
		})
	}
}

func TestDefectsOfTheWholeFile(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"empty", "", "the text is empty, want a JSON value"},
		{"no runtime", "{}", "runtime (line 1, column 1): is missing"},
		{"unknown at the root", `{"runtime":{"prefill":[{"host":"a","port":1}],"decode":[{"host":"b","port":1}]},"router":{}}`, "router (line 1, column 81): the name is unknown here"},
		{"unknown in observability", `{"runtime":{"prefill":[{"host":"a","port":1}],"decode":[{"host":"b","port":1}]},"observability":{"level":1}}`, "observability.level (line 1, column 98): the name is unknown here"},
		{"enabled as a word", `{"runtime":{"prefill":[{"host":"a","port":1}],"decode":[{"host":"b","port":1}]},"observability":{"enabled":"yes"}}`, "observability.enabled (line 1, column 108): want true or false, found a string"},
		{"long root", `{"runtime":{"prefill":[{"host":"a","port":1}],"decode":[{"host":"b","port":1}]},"observability":{"root":"` + strings.Repeat("x", 4097) + `"}}`, "observability.root (line 1, column 105): the path has 4097 bytes, the limit is 4096"},
		{"zero byte in root", `{"runtime":{"prefill":[{"host":"a","port":1}],"decode":[{"host":"b","port":1}]},"observability":{"root":"a\u0000"}}`, "observability.root (line 1, column 105): the path holds a zero byte"},
		{"trailing text", `{"runtime":{"prefill":[{"host":"a","port":1}],"decode":[{"host":"b","port":1}]}} {}`, "(line 1, column 83): there is more after the JSON value"},
		{"byte order mark", "\ufeff{}", "byte order mark"},
		{"too large", strings.Repeat(" ", pd.MaxConfigBytes+1), "the text has 1048577 bytes, the limit is 1048576"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse([]byte(c.in))
			var d Defects
			require.ErrorAs(t, err, &d)
			require.Len(t, d, 1, "%v", err)
			require.ErrorContains(t, err, c.want)
		})
	}
}

// Behaviour 4.
func TestAllDefectsAreReportedInOrder(t *testing.T) {
	_, err := Parse([]byte(`{
 "runtime": {
  "capacity": 0,
  "prefill": [{"host": "http://a", "port": "1", "tp": 4}],
  "decode": [{"host": "b", "port": 60000}, {"port": 7}],
  "policy": "best"
 },
 "observability": {"enabled": 1}
}`))
	require.EqualError(t, err, strings.Join([]string{
		`runtime.capacity (line 3, column 15): 0 is out of range; want 1..4096 requests`,
		`runtime.prefill[0].host (line 4, column 24): "http://a" is a URL; give the name or address alone`,
		`runtime.prefill[0].port (line 4, column 44): want an integer, found a string`,
		`runtime.prefill[0].tp (line 4, column 49): there is no such field any more: the topology is a flag of each node: --tp`,
		`runtime.decode[0].port (line 5, column 36): 60000 + 10000 is no port; set control_port`,
		`runtime.decode[1].host (line 5, column 44): is missing`,
		`runtime.policy (line 6, column 13): "best" is not supported; want round_robin or least_loaded or prefix_aware`,
		`observability.enabled (line 8, column 31): want true or false, found a number`,
	}, "; "))
	var first *strictjson.Error
	require.ErrorAs(t, err, &first)
	assert.Equal(t, "runtime.capacity", first.Path)
}

func TestWarnings(t *testing.T) {
	c, err := parse(t, `{"host":"0.0.0.0","port":1}`, `{"host":"b","port":2}`, `,"handoff_timeout":10,"request_timeout":5`)
	require.NoError(t, err)
	assert.Equal(t, []string{
		"runtime.request_timeout 5s is shorter than runtime.handoff_timeout 10s: a request ends before one of its operations may",
		"runtime.prefill[0].host 0.0.0.0 is an address to listen on, not one that other machines can reach",
	}, c.Warnings)
}

func TestLoadNamesTheFile(t *testing.T) {
	dir := t.TempDir()
	missing := filepath.Join(dir, "none.json")
	_, err := Load(missing)
	require.EqualError(t, err, "cannot load PD config "+missing+": open "+missing+": no such file or directory")
	require.Equal(t, pd.CodeInvalidConfig, pd.CodeOf(err))
	_, err = Load(dir)
	require.ErrorContains(t, err, "cannot load PD config "+dir+": ")

	bad := filepath.Join(dir, "bad.json")
	require.NoError(t, os.WriteFile(bad, []byte(`{"runtime":{`), 0o600))
	_, err = Load(bad)
	require.EqualError(t, err, "cannot load PD config "+bad+": runtime (line 1, column 13): the text ends too early")
	require.Equal(t, pd.CodeInvalidConfig, pd.CodeOf(err))

	big := filepath.Join(dir, "big.json")
	require.NoError(t, os.WriteFile(big, []byte(strings.Repeat(" ", 2*pd.MaxConfigBytes)), 0o600))
	_, err = Load(big)
	require.ErrorContains(t, err, "the limit is 1048576")
}

// FuzzParse: no text crashes, and what is accepted can be selected and found.
func FuzzParse(f *testing.F) {
	text, err := os.ReadFile(example)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"runtime":{"prefill":[{"host":"::1","port":1,"node_id":"x"}],"decode":[{"host":"b","port":55535}],"handoff_timeout":1e-3}}`))
	f.Add([]byte(`{"runtime":{"prefill":[{"host":"a","port":1},{"host":"a","port":1}],"decode":null}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			var d Defects
			require.ErrorAs(t, err, &d)
			return
		}
		require.NoError(t, pd.CheckID("run", string(c.Run())))
		for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
			for _, e := range c.Entries(role) {
				for _, id := range []string{string(e.NodeID), e.HTTPAddress()} {
					got, err := c.Select(role, id)
					require.NoError(t, err)
					require.Equal(t, e, got)
				}
				got, ok := c.Find(e.NodeID)
				require.True(t, ok)
				require.Equal(t, e, got)
			}
		}
	})
}
