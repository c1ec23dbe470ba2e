package fleet

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
)

const example = "../../examples/fleet.json"

// parseOne wants exactly one defect.
func parseOne(t *testing.T, text, want string) {
	t.Helper()
	_, err := Parse([]byte(text))
	require.ErrorContains(t, err, want)
	require.ErrorIs(t, err, pd.CodeInvalidConfig)
	var d Defects
	require.ErrorAs(t, err, &d)
	assert.Len(t, d, 1, "%v", err)
}

func TestParseFillsWhatItReads(t *testing.T) {
	// Fleet behaviour 1
	// Fleet behaviour 2
	// Fleet behaviour 3
	c, err := Parse([]byte(`{"replicas":[{"host":"10.0.0.2","port":8001},{"name":"b","scheme":"https","host":"fd00::1","port":65535}],
	 "hosts":[{"devices":[3],"model":"m"},
	  {"name":"far","ssh":"u@n2","identity_file":"~/.ssh/k","address":"10.1.1.1","devices":[0,1],"devices_per_replica":2,"port_base":9000,"model":"/m","served_model_name":"q",
	   "serve_args":["--tp","2"],"env":{"A":"{device}"},"launch_wrapper":["run"],"stop_command":["stop","{port}"],"python":"py","workdir":"/w","log_dir":"/l"}]}`))
	require.NoError(t, err)
	assert.Equal(t, &Config{
		Replicas: []Static{{Name: "10.0.0.2:8001", Scheme: "http", Host: "10.0.0.2", Port: 8001}, {Name: "b", Scheme: "https", Host: "fd00::1", Port: 65535}},
		Hosts: []Host{
			{Name: "host0", Address: "127.0.0.1", Devices: []int{3}, DevicesPerReplica: 1, PortBase: 8001, Model: "m", Program: []string{"pypto-serving"}, LogDir: "/tmp/pypto-serving-router"},
			{
				Name: "far", SSH: "u@n2", Address: "10.1.1.1", IdentityFile: "~/.ssh/k", Devices: []int{0, 1}, DevicesPerReplica: 2, PortBase: 9000, Model: "/m", ServedModelName: "q",
				ServeArgs: []string{"--tp", "2"}, Env: map[string]string{"A": "{device}"}, LaunchWrapper: []string{"run"}, StopCommand: []string{"stop", "{port}"}, Python: "py", Workdir: "/w", LogDir: "/l",
			},
		},
		Slots: []Slot{{Name: "host0-d3", HostName: "host0", Machine: localAddress, Host: 0, Devices: []int{3}, Address: "127.0.0.1", Port: 8004}, {Name: "far-d0", HostName: "far", Machine: "n2", Host: 1, Devices: []int{0, 1}, Address: "10.1.1.1", Port: 9000}},
	}, c)
	assert.Equal(t, "http://10.0.0.2:8001", c.Replicas[0].URL())
	assert.Equal(t, "https://[fd00::1]:65535", c.Replicas[1].URL())
	assert.Equal(t, "http://10.1.1.1:9000", c.Slots[1].URL())
}

func TestDefectsOfTheFile(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		// Fleet behaviour 4
		{"unknown keys", `{"replicas":[{"host":"a","port":1}],"zoo":1,"bar":2}`, "zoo (line 1, column 37): unknown top-level keys: bar, zoo"},
		// Fleet behaviour 5
		{"empty replicas", `{"replicas":[]}`, "neither a replica nor a launchable host"},
		// Fleet behaviour 6
		{"both empty", `{"replicas":[],"hosts":[]}`, "neither a replica nor a launchable host"},
		{"nothing", `{}`, "neither a replica nor a launchable host"},
		// Fleet behaviour 14
		{"bad JSON", `{"replicas":`, "is not valid JSON: the text ends too early"},
		{"empty", ``, "is not valid JSON: the text is empty"},
		{"trailing text", `{} {}`, "is not valid JSON: there is more"},
		{"duplicate key", `{"hosts":[],"hosts":[]}`, "is not valid JSON: the name occurs twice"},
		{"bare list", `[{"host":"a","port":1}]`, "must be a JSON object: want an object, found an array"},
		{"null", `null`, "must be a JSON object: null"},
		{"replicas no list", `{"replicas":{"host":"a"}}`, "replicas (line 1, column 13): 'replicas' and 'hosts' must be lists: want an array, found an object"},
		{"hosts no list", `{"hosts":"a"}`, "must be lists"},
		{"hosts null", `{"hosts":null}`, "must be lists"},
		{"too large", strings.Repeat(" ", pd.MaxConfigBytes+1), "the limit is 1048576"},
	} {
		t.Run(c.name, func(t *testing.T) { parseOne(t, c.in, c.want) })
	}
}

func TestDefectsOfAReplica(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		// Fleet behaviour 7
		{"no port", `{"host":"a"}`, "replicas[0].port (line 1, column 14): replica 0 needs 'host' and 'port'"},
		// Fleet behaviour 8
		{"no host", `{"port":1}`, "replica 0 needs 'host' and 'port'"},
		// Fleet behaviour 9
		{"no object", `"a:1"`, "replica 0 needs 'host' and 'port': want an object"},
		{"null", `null`, "replica 0 needs 'host' and 'port': null"},
		// Fleet behaviour 10
		{"string port", `{"host":"a","port":"1"}`, "replicas[0].port (line 1, column 33): replica 0 has an invalid port: want an integer, found a string"},
		// Fleet behaviour 11
		{"boolean port", `{"host":"a","port":true}`, "replica 0 has an invalid port: want an integer, found true"},
		{"float port", `{"host":"a","port":8000.0}`, "replica 0 has an invalid port: want an integer"},
		{"null port", `{"host":"a","port":null}`, "replica 0 has an invalid port: null"},
		// Fleet behaviour 12
		{"large port", `{"host":"a","port":70000}`, "replica 0 has an invalid port 70000"},
		{"zero port", `{"host":"a","port":0}`, "replica 0 has an invalid port 0"},
		{"huge port", `{"host":"a","port":99999999999999999999}`, "replica 0 has an invalid port"},
		// Fleet behaviour 13
		{"unknown fields", `{"host":"a","port":1,"zone":"x","rack":2}`, "replicas[0].zone (line 1, column 35): replica 0 has unknown fields: rack, zone"},
		{"other case", `{"host":"a","port":1,"Name":"x"}`, "replica 0 has unknown fields: Name"},
		// Fleet behaviour 2
		{"ftp", `{"host":"a","port":1,"scheme":"ftp"}`, `replica 0 has an invalid scheme "ftp"`},
		{"scheme as number", `{"host":"a","port":1,"scheme":1}`, `replica 0 has an invalid scheme: want a string`},
		{"ca_file of http", `{"host":"a","port":1,"ca_file":"/ca"}`, "replica 0 has a 'ca_file' and its scheme is http; want https"},
		{"empty ca_file", `{"host":"a","port":1,"scheme":"https","ca_file":""}`, "replica 0 'ca_file' must be a non-empty string"},
		// Fleet behaviour 17
		{"duplicate names", `{"host":"a","port":1,"name":"x"},{"host":"b","port":1,"name":"x"}`, `replica names must be unique: "x" is the name of replica 0 too`},
		{"duplicate defaults", `{"host":"a","port":1},{"host":"a","port":1}`, `replica names must be unique`},
		{"empty name", `{"host":"a","port":1,"name":""}`, "replica 0 'name' must be a non-empty string"},
		{"list as name", `{"host":"a","port":1,"name":["x"]}`, "replica 0 'name' must be a non-empty string: want a string, found an array"},
		{"null name", `{"host":"a","port":1,"name":null}`, "replica 0 'name' must be a non-empty string"},
		{"slash in name", `{"host":"a","port":1,"name":"a/b"}`, "it must hold no slash"},
		{"url as host", `{"host":"http://a","port":1}`, "give the name or address alone"},
		{"empty host", `{"host":"","port":1}`, "replica 0 'host' must be a non-empty string"},
		{"host as number", `{"host":1,"port":1}`, "replica 0 'host' must be a non-empty string"},
	} {
		t.Run(c.name, func(t *testing.T) { parseOne(t, `{"replicas":[`+c.in+`]}`, c.want) })
	}
}

func TestDefectsOfAHost(t *testing.T) {
	for _, c := range []struct{ name, in, want string }{
		{"no object", `1`, "host 0 must be a JSON object"},
		{"unknown", `{"devices":[0],"model":"m","gpu":1}`, "host 0 has unknown fields: gpu"},
		{"no devices", `{"model":"m"}`, "host 0 needs a non-empty 'devices' list"},
		{"empty devices", `{"model":"m","devices":[]}`, "host 0 needs a non-empty 'devices' list"},
		{"devices no list", `{"model":"m","devices":4}`, "host 0 needs a non-empty 'devices' list"},
		{"boolean device", `{"model":"m","devices":[0,true]}`, "hosts[0].devices[1] (line 1, column 37): host 0 has an invalid device id"},
		{"negative device", `{"model":"m","devices":[-1]}`, "host 0 has an invalid device id -1"},
		{"repeated device", `{"model":"m","devices":[1,2,1]}`, "repeats a device id"},
		// Fleet behaviour 70
		{"width 0", `{"model":"m","devices":[1],"devices_per_replica":0}`, "devices_per_replica' must be a positive integer"},
		{"width as string", `{"model":"m","devices":[1],"devices_per_replica":"8"}`, "devices_per_replica' must be a positive integer"},
		// Fleet behaviour 69
		{"6 at 8", `{"model":"m","devices":[0,1,2,3,4,5],"devices_per_replica":8}`, "declares 6 devices, which is not a multiple of devices_per_replica=8"},
		{"env values", `{"model":"m","devices":[1],"env":{"A":1}}`, "'env' must map strings to strings"},
		{"env list", `{"model":"m","devices":[1],"env":["A"]}`, "'env' must map strings to strings"},
		{"env name", `{"model":"m","devices":[1],"env":{"-i":"x"}}`, `invalid variable name "-i"`},
		{"serve_args", `{"model":"m","devices":[1],"serve_args":"x"}`, "host 0 'serve_args' must be a list of strings"},
		{"launch_wrapper", `{"model":"m","devices":[1],"launch_wrapper":[1]}`, "host 0 'launch_wrapper' must be a list of strings"},
		{"stop_command", `{"model":"m","devices":[1],"stop_command":{}}`, "host 0 'stop_command' must be a list of strings"},
		{"program", `{"model":"m","devices":[1],"program":"x"}`, "host 0 'program' must be a list of strings"},
		{"empty program", `{"model":"m","devices":[1],"program":[]}`, "begins with a command"},
		{"program and python", `{"model":"m","devices":[1],"program":["x"],"python":"p"}`, "both 'program' and 'python'"},
		{"port_base", `{"model":"m","devices":[1],"port_base":8001.5}`, "'port_base' must be an integer"},
		{"port above", `{"model":"m","devices":[1],"port_base":65535}`, "maps to invalid port"},
		{"port below", `{"model":"m","devices":[1],"port_base":-1}`, "maps to invalid port"},
		{"port wraps", `{"model":"m","devices":[9223372036854775807]}`, "maps to invalid port"},
		{"no model", `{"devices":[1]}`, "host 0 must declare a model path"},
		{"empty model", `{"devices":[1],"model":""}`, "host 0 must declare a model path"},
		{"empty name", `{"devices":[1],"model":"m","name":""}`, "host 0 'name' must be a non-empty string"},
		{"name in a path", `{"devices":[1],"model":"m","name":"a/b"}`, "host 0 has an invalid name"},
		{"duplicate names", `{"devices":[1],"model":"m","name":"x"},{"devices":[2],"model":"m","name":"x"}`, "host names must be unique"},
		{"option as destination", `{"devices":[1],"model":"m","ssh":"-oProxyCommand=x"}`, "invalid ssh destination"},
		{"url as destination", `{"devices":[1],"model":"m","ssh":"ssh://u@h:22"}`, "set 'address'"},
		{"key without ssh", `{"devices":[1],"model":"m","identity_file":"k"}`, "no 'ssh'"},
		{"tilde", `{"devices":[1],"model":"m","log_dir":"~/logs"}`, "begins with ~"},
		{"unknown placeholder", `{"devices":[1],"model":"m","launch_wrapper":["a","{x}"]}`, "hosts[0].launch_wrapper[1] (line 1, column 60): host 0 'launch_wrapper': unknown placeholder {x}; want {device}, {devices} or {port}, or {{x}} for the text itself"},
		{"attribute", `{"devices":[1],"model":"m","env":{"A":"{device.__class__}"}}`, "unknown placeholder {device.__class__}"},
		{"stop placeholder", `{"devices":[1],"model":"m","stop_command":["{pid}"]}`, "unknown placeholder {pid}"},
		{"two slots on a card", `{"devices":[1],"model":"m"},{"devices":[1],"model":"m","port_base":9001}`, "both use device 1"},
		{"two slots at a port", `{"devices":[1],"model":"m"},{"devices":[2],"model":"m","port_base":8000}`, "both listen at 127.0.0.1:8002"},
	} {
		t.Run(c.name, func(t *testing.T) { parseOne(t, `{"hosts":[`+c.in+`]}`, c.want) })
	}
}

func TestReplicasAndSlotsDoNotMeet(t *testing.T) {
	const host = `"hosts":[{"name":"node","devices":[0],"model":"m"}]`
	parseOne(t, `{"replicas":[{"host":"a","port":1,"name":"node-d0"}],`+host+`}`, `replica name "node-d0" collides with launch slot node-d0`)
	parseOne(t, `{"replicas":[{"host":"127.0.0.1","port":8001}],`+host+`}`, "is at the address of launch slot node-d0")
	parseOne(t, `{"replicas":[{"host":"localhost","port":8001}],`+host+`}`, "is at the address of launch slot node-d0")
}

func TestAllDefectsAtOnceInOrder(t *testing.T) {
	_, err := Parse([]byte(`{
 "replicas": [{"host": "a", "port": "1", "zone": 2}, {"port": 2}],
 "hosts": [{"devices": [0, 0], "env": {"A": 1}, "port_base": true}],
 "router": 1
}`))
	require.EqualError(t, err, strings.Join([]string{
		`replicas[0].port (line 2, column 37): replica 0 has an invalid port: want an integer, found a string`,
		`replicas[0].zone (line 2, column 42): replica 0 has unknown fields: zone`,
		`replicas[1].host (line 2, column 54): replica 1 needs 'host' and 'port'`,
		`hosts[0].model (line 3, column 12): host 0 must declare a model path`,
		`hosts[0].devices[1] (line 3, column 28): host 0 repeats a device id: 0`,
		`hosts[0].env.A (line 3, column 45): host 0 'env' must map strings to strings: want a string, found a number`,
		`hosts[0].port_base (line 3, column 62): host 0 'port_base' must be an integer: want an integer, found true`,
		`router (line 4, column 2): unknown top-level keys: router`,
	}, "; "))
}

func TestLoadNamesTheFile(t *testing.T) {
	// Fleet behaviour 15
	dir := t.TempDir()
	missing := filepath.Join(dir, "none.json")
	_, err := Load(missing)
	require.ErrorContains(t, err, "cannot read replica file "+missing+": open "+missing+": no such file or directory")
	require.Equal(t, pd.CodeInvalidConfig, pd.CodeOf(err))
	_, err = Load(dir)
	require.ErrorContains(t, err, "cannot read replica file "+dir)
	bad := filepath.Join(dir, "bad.json")
	require.NoError(t, os.WriteFile(bad, []byte("{"), 0o600))
	_, err = Load(bad)
	require.ErrorContains(t, err, bad+": (line 1, column 2): the fleet file is not valid JSON")
	_, err = Load(example)
	require.NoError(t, err)
}

func names(slots []Slot) (out []string) {
	for _, s := range slots {
		out = append(out, hostPort(s.Name, s.Port))
	}
	return out
}

func TestSlotsAreCutFromDevices(t *testing.T) {
	const eight = `"devices":[0,1,2,3,4,5,6,7],"model":"m"`
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		// Fleet behaviour 62
		{"local first, then the file's order", `{"name":"far","ssh":"u@far","devices":[1,0],"model":"m"},{"name":"near","devices":[5],"model":"m"},{"name":"more","ssh":"more","devices":[0],"model":"m"}`, []string{"near-d5:8006", "far-d1:8002", "far-d0:8001", "more-d0:8001"}},
		// Fleet behaviour 66
		{"ports derive from the device", `{"name":"n","devices":[3,9],"port_base":7000,"model":"m"}`, []string{"n-d3:7003", "n-d9:7009"}},
		// Fleet behaviour 67
		{"8 at 8", `{"name":"n",` + eight + `,"devices_per_replica":8}`, []string{"n-d0:8001"}},
		// Fleet behaviour 68
		{"16 at 8", `{"name":"dsv4","devices":[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15],"model":"m","devices_per_replica":8}`, []string{"dsv4-d0:8001", "dsv4-d8:8009"}},
		// Fleet behaviour 71
		{"mixed widths", `{"name":"a","ssh":"a",` + eight + `,"devices_per_replica":8},{"name":"b","devices":[2],"model":"m"}`, []string{"b-d2:8003", "a-d0:8001"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := Parse([]byte(`{"hosts":[` + c.in + `]}`))
			require.NoError(t, err)
			assert.Equal(t, c.want, names(got.Slots))
		})
	}
}

func TestExpand(t *testing.T) {
	s := Slot{Devices: []int{4, 5}, Port: 8005}
	for in, want := range map[string]string{
		// Fleet behaviour 79
		"{device}": "4", "{devices}": "4,5", "a{port}b{device}": "a8005b4",
		"{{device}}": "{device}", `{"a":{"b":1}}`: `{"a":{"b":1}}`, `{{"a":{device}}}`: `{"a":4}`, "{}": "{}", "{0}": "{0}", "}{": "}{", "": "",
	} {
		assert.Equal(t, want, s.expand(in), in)
	}
	assert.Panics(t, func() { s.expand("{x}") })
}

func FuzzParse(f *testing.F) {
	text, err := os.ReadFile(example)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(text)
	f.Add([]byte(`{"hosts":[{"devices":[1,2],"devices_per_replica":2,"model":"m","env":{"A":"{{}}"}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse(data)
		if err != nil {
			var d Defects
			require.ErrorAs(t, err, &d)
			require.NotEmpty(t, d)
			return
		}
		for _, s := range c.Slots {
			require.True(t, s.Port > 0 && s.Port < 65536)
			l := Launch{Slot: s, Host: &c.Hosts[s.Host], Instance: "i", Grace: time.Second}
			l.LaunchCommand()
			l.StopCommand()
		}
	})
}
