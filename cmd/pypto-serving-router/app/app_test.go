package app_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/hw-native-sys/pypto-pd/cmd/pypto-serving-router/app"
	"github.com/hw-native-sys/pypto-pd/router/fleet"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const patience = 20 * time.Second

func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

const hosts = `{"replicas":[{"name":"r","host":"10.0.0.2","port":8001}],"hosts":[{"name":"n","devices":[0,1,2,3],"devices_per_replica":2,"model":"/m"}]}`

func run(t *testing.T, env []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs strings.Builder
	code = app.Run(context.Background(), args, env, &out, &errs)
	return code, out.String(), errs.String()
}

// A command line that cannot be read is one line and exit code 2, before any file
// is opened.
func TestMistakesOfTheCommandLine(t *testing.T) {
	for want, args := range map[string][]string{
		"--replicas":                      {},
		"unknown flag --nope":             {"--replicas", "/nope", "--nope"},
		"given twice":                     {"--replicas", "/nope", "--port", "1", "--port", "2"},
		"unexpected argument":             {"--replicas", "/nope", "stray"},
		"--port":                          {"--replicas", "/nope", "--port", "x"},
		`"5s" is not a number of seconds`: {"--replicas", "/nope", "--session-ttl", "5s"},
		"--affinity-slack":                {"--replicas", "/nope", "--affinity-slack", "1.5"},
		"--log-format":                    {"--replicas", "/nope", "--log-format", "xml"},
	} {
		code, out, errs := run(t, nil, args...)
		assert.Equal(t, 2, code, want)
		assert.Empty(t, out)
		assert.Equal(t, 1, strings.Count(errs, "\n"), "%s", errs)
		assert.True(t, strings.HasPrefix(errs, "pypto-serving-router: "), "%s", errs)
		assert.Contains(t, errs, want)
	}
}

// Case B54: what is wrong with files and settings is told before anything is bound
// or launched, each defect on a line of its own.
func TestDefectsAreAllTold(t *testing.T) {
	good := write(t, "fleet.json", hosts)
	for name, c := range map[string]struct {
		args []string
		env  []string
		want []string
	}{
		"no file":  {[]string{"--replicas", "/does/not/exist"}, nil, []string{"cannot read replica file /does/not/exist: open /does/not/exist: no such file"}},
		"no JSON":  {[]string{"--replicas", write(t, "f", "{")}, nil, []string{"is not valid JSON"}},
		"a list":   {[]string{"--replicas", write(t, "f", "[]")}, nil, []string{"must be a JSON object"}},
		"BOM":      {[]string{"--replicas", write(t, "f", "\ufeff"+hosts)}, nil, []string{"is not valid JSON"}},
		"trailing": {[]string{"--replicas", write(t, "f", `{"replicas":[{"host":"a","port":1},]}`)}, nil, []string{"is not valid JSON"}},
		"file and flags at once": {
			[]string{"--replicas", write(t, "f", `{"replicas":[{"host":"a","port":true},{"port":2}],"zoo":1}`), "--session-ttl", "nan", "--request-timeout", "0", "--connect-timeout", "-1", "--max-body-bytes", "0", "--max-connections", "0", "--tls-key", "x", "--discard-state"},
			nil,
			[]string{
				"replicas[0].port (line 1, column", "replica 0 has an invalid port", "replica 1 needs 'host' and 'port'", "unknown top-level keys: zoo",
				"session_ttl_seconds must be positive", "request_timeout_seconds must be positive", "connect_timeout_seconds must be positive",
				"--max-body-bytes 0", "--max-connections 0", "--tls-cert and --tls-key go together", "--discard-state is given without --state-file",
			},
		},
		"infinity":         {[]string{"--replicas", good, "--drain-timeout", "inf", "--launch-timeout", "1e999"}, nil, []string{"drain_timeout_seconds must be at most", "launch_timeout_seconds must be at most"}},
		"initial":          {[]string{"--replicas", good, "--initial-replicas", "3"}, nil, []string{"initial_replicas=3 exceeds the pool ceiling 2 (declared devices)"}},
		"initial capped":   {[]string{"--replicas", good, "--max-replicas", "1", "--initial-replicas", "2"}, nil, []string{"initial_replicas=2 exceeds the pool ceiling 1 (declared devices, capped by max_replicas=1)"}},
		"tokens differ":    {[]string{"--replicas", good, "--admin-token", "secret-a"}, []string{fleet.TokenVariable + "=secret-b"}, []string{"hold different admin tokens"}},
		"token is empty":   {[]string{"--replicas", good}, []string{fleet.TokenVariable + "="}, []string{"is empty"}},
		"token file":       {[]string{"--replicas", good, "--admin-token-file", "/does/not/exist"}, nil, []string{"--admin-token-file: open /does/not/exist"}},
		"token file empty": {[]string{"--replicas", good, "--admin-token-file", write(t, "token", "\n")}, nil, []string{"--admin-token-file is empty"}},
		"ca file":          {[]string{"--replicas", good, "--ca-file", "/does/not/exist"}, nil, []string{"read the certification authorities"}},
		"certificate":      {[]string{"--replicas", good, "--tls-cert", "/does/not", "--tls-key", "/exist"}, nil, []string{"--tls-cert: read the certificate /does/not"}},
	} {
		for _, mode := range [][]string{nil, {"--check"}, {"--print-plan"}} {
			t.Run(name+strings.Join(mode, ""), func(t *testing.T) {
				code, out, errs := run(t, c.env, append(c.args, mode...)...)
				assert.Equal(t, 2, code)
				assert.Empty(t, out)
				for line := range strings.Lines(errs) {
					assert.True(t, strings.HasPrefix(line, "error: "), "%s", line)
				}
				for _, want := range c.want {
					assert.Contains(t, errs, want)
				}
				assert.NotContains(t, errs, "secret-")
			})
		}
	}
}

func TestCheckSaysOK(t *testing.T) {
	code, out, errs := run(t, nil, "--replicas", write(t, "fleet.json", hosts), "--check")
	assert.Zero(t, code)
	assert.Regexp(t, `^ok .*fleet\.json: 1 replicas, 1 hosts, 2 launch slots, ceiling 2, 1 launched at start\n$`, out)
	assert.Contains(t, errs, "warning: no admin token is set")
	code, out, errs = run(t, []string{fleet.TokenVariable + "=t"}, "--replicas", "../../../examples/fleet.json", "--check")
	assert.Zero(t, code)
	assert.True(t, strings.HasPrefix(out, "ok "))
	assert.Empty(t, errs)
}

func TestPlanShowsSlotsPortsAndCommands(t *testing.T) {
	code, out, errs := run(t, nil, "--replicas", write(t, "fleet.json", hosts), "--max-replicas", "1", "--print-plan")
	assert.Zero(t, code)
	assert.Empty(t, errs)
	for _, want := range []string{
		"pool: 2 slots, ceiling 1, 1 launched at start\n", "replica r: http://10.0.0.2:8001, never stopped\n",
		"slot n-d0: host n (this machine), devices 0,1, http://127.0.0.1:8001, log /tmp/pypto-serving-router/n-d0.log\n",
		"slot n-d2: host n (this machine), devices 2,3, http://127.0.0.1:8003", "pypto-serving --model /m --devices 2,3 --host 0.0.0.0 --port 8003 --show-startup-logs",
	} {
		assert.Contains(t, out, want)
	}
}

func TestVersionAndHelpExit0(t *testing.T) {
	for _, arg := range []string{"--version", "--help"} {
		code, out, errs := run(t, nil, arg)
		assert.Zero(t, code)
		assert.Contains(t, out, "pypto-serving-router")
		assert.Empty(t, errs)
	}
}

func TestTakenPortExits1BeforeAnythingStarts(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	state := filepath.Join(t.TempDir(), "state.json")
	code, out, errs := run(t, nil, "--replicas", write(t, "fleet.json", hosts), "--host", "127.0.0.1", "--port", fmt.Sprint(l.Addr().(*net.TCPAddr).Port), "--state-file", state)
	assert.Equal(t, 1, code)
	assert.Empty(t, out)
	assert.Contains(t, errs, "error: listen on")
	assert.Contains(t, errs, "address already in use")
	_, err = os.Stat(state)
	assert.ErrorIs(t, err, os.ErrNotExist)
}

// Hazard 8, Case B32: a state file that cannot be understood may name cards that are held.
func TestStateFileThatCannotBeUnderstoodRefusesTheStart(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "half": `{"version":1,"replicas":[{"slot":"n-d0"`, "zeros": "\x00\x00\x00", "shape": `{"replicas":{}}`, "future": `{"version":9,"replicas":[]}`,
	} {
		t.Run(name, func(t *testing.T) {
			state := write(t, "state.json", text)
			args := []string{"--replicas", write(t, "fleet.json", hosts), "--host", "127.0.0.1", "--port", "0", "--state-file", state}
			code, out, errs := run(t, nil, args...)
			assert.Equal(t, 1, code)
			assert.Empty(t, out)
			assert.Contains(t, errs, "error: "+state)
			assert.Contains(t, errs, "--discard-state")
			kept, err := os.ReadFile(state)
			require.NoError(t, err)
			assert.Equal(t, text, string(kept))

			// The operator's word gets past it, and the file is kept aside.
			r := start(t, append(args[:2:2], "--state-file", state, "--discard-state", "--initial-replicas", "0")...)
			kept, err = os.ReadFile(state + ".discarded")
			require.NoError(t, err)
			assert.Equal(t, text, string(kept))
			assert.Contains(t, r.log.String(), "was discarded")
		})
	}
}

// Hazard 18: two routers over one pool would launch onto each other's cards.
func TestSecondRouterIsRefused(t *testing.T) {
	state := filepath.Join(t.TempDir(), "new", "state.json")
	file := write(t, "fleet.json", hosts)
	start(t, "--replicas", file, "--state-file", state, "--initial-replicas", "0")
	code, _, errs := run(t, nil, "--replicas", file, "--host", "127.0.0.1", "--port", "0", "--state-file", state)
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "error: lock state file "+state+": another router uses it")
}
