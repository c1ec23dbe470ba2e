package fleet

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const serveTail = "--host 0.0.0.0 --port 8001 --show-startup-logs"

func oneHost(t *testing.T, fields string) (*Config, Slot) {
	t.Helper()
	c := mustParse(t, `{"hosts":[{"name":"n","model":"/m odel","devices":[0,1],"devices_per_replica":2`+fields+`}]}`)
	return c, c.Slots[0]
}

func TestLaunchCommandHere(t *testing.T) {
	for _, c := range []struct {
		name, fields string
		want         Command
	}{
		// Fleet behaviour 75
		// Fleet behaviour 78
		{"bare", `,"serve_args":["--tp","{device}"]`, Command{Args: []string{"pypto-serving", "--model", "/m odel", "--devices", "0,1", "--host", "0.0.0.0", "--port", "8001", "--show-startup-logs", "--tp", "{device}"}, Log: "/tmp/pypto-serving-router/n-d0.log"}},
		// Fleet behaviour 73
		{"module", `,"python":"python3","served_model_name":"q"`, Command{Args: []string{"python3", "-m", "pypto_serving.cli", "--model", "/m odel", "--devices", "0,1", "--host", "0.0.0.0", "--port", "8001", "--show-startup-logs", "--served-model-name", "q"}, Log: "/tmp/pypto-serving-router/n-d0.log"}},
		// Fleet behaviour 74
		// Fleet behaviour 79
		{"wrapper", `,"program":["serve me"],"launch_wrapper":["submit","--device","{device}","--all","{devices}"]`, Command{Args: []string{"submit", "--device", "0", "--all", "0,1", "'serve me' --model '/m odel' --devices 0,1 " + serveTail}, Log: "/tmp/pypto-serving-router/n-d0.log"}},
		// Fleet behaviour 76
		{"environment and places", `,"env":{"B":"x{device}","A":"{port}"},"workdir":"/w","log_dir":"/l"`, Command{Args: []string{"pypto-serving", "--model", "/m odel", "--devices", "0,1", "--host", "0.0.0.0", "--port", "8001", "--show-startup-logs"}, Env: []string{"A=8001", "B=x0"}, Dir: "/w", Log: "/l/n-d0.log"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, slot := oneHost(t, c.fields)
			assert.Equal(t, c.want, config.LaunchCommand(slot, "i1"))
		})
	}
}

func TestLaunchCommandOverSSH(t *testing.T) {
	// Fleet behaviour 77
	c, slot := oneHost(t, `,"ssh":"u@far","identity_file":"~/k","env":{"A":"a b"},"workdir":"/w d","log_dir":"/l d"`)
	got := c.LaunchCommand(slot, "i1")
	assert.Equal(t, []string{"ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "ConnectTimeout=10", "-i", "~/k", "-o", "IdentitiesOnly=yes", "--", "u@far"}, got.Args[:len(got.Args)-1])
	assert.Equal(t, `mkdir -p '/l d' && printf '%s\n' '=== launch i1: pypto-serving --model '\''/m odel'\'' --devices 0,1 `+serveTail+`' >>'/l d/n-d0.log' && cd '/w d' && `+
		`{ nohup setsid env 'A=a b' pypto-serving --model '/m odel' --devices 0,1 `+serveTail+` >>'/l d/n-d0.log' 2>&1 </dev/null & `+
		`echo "$! $(sed 's/.*) //' /proc/$!/stat | cut -d' ' -f20) i1" >'/l d/n-d0.pid'; }`, got.Args[len(got.Args)-1])
	assert.Empty(t, got.Env, "over ssh the variables are in the payload")
	assert.NoError(t, exec.Command("sh", "-n", "-c", got.Args[len(got.Args)-1]).Run())
}

func TestStopCommand(t *testing.T) {
	c, slot := oneHost(t, `,"stop_command":["halt","{device}","{port}","a b"]`)
	assert.Equal(t, Command{Args: []string{"halt", "0", "8001", "a b"}}, c.StopCommand(slot, 30*time.Second))
	c, slot = oneHost(t, `,"ssh":"far","stop_command":["halt","a b"]`)
	assert.Equal(t, "halt 'a b'", c.StopCommand(slot, 30*time.Second).Args[len(c.StopCommand(slot, 30*time.Second).Args)-1])

	c, slot = oneHost(t, ``)
	stop := c.StopCommand(slot, 30*time.Second)
	require.Equal(t, []string{"sh", "-c"}, stop.Args[:2])
	assert.NoError(t, exec.Command("sh", "-n", "-c", stop.Args[2]).Run())
	assert.Contains(t, stop.Args[2], "[ $i -lt 30 ]")
	assert.Contains(t, stop.Args[2], "[ $i -eq 15 ]")
}

func TestStopPattern(t *testing.T) {
	for _, c := range []struct {
		name, fields, line string
		want               bool
	}{
		{"the server", ``, "/usr/bin/pypto-serving --model /m --host 0.0.0.0 --port 8001 --show-startup-logs", true},
		{"port at the end", ``, "pypto-serving --port 8001", true},
		{"other port", ``, "pypto-serving --model /m --port 80011", false},
		{"the router", ``, "pypto-serving-router --replicas f --port 8001", false},
		{"the wrapper", `,"launch_wrapper":["submit"]`, "submit pypto-serving --model '/m odel' --port 8001 --show-startup-logs", true},
		{"the module", `,"python":"python3"`, "python3 -m pypto_serving.cli --model /m --port 8001 --x", true},
		{"a dot is a dot", `,"python":"python3"`, "python3 -m pypto_servingXcli --model /m --port 8001 --x", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			config, slot := oneHost(t, c.fields)
			pattern := slot.pattern(&config.Hosts[0])
			for _, l := range []struct {
				line string
				want bool
			}{{c.line, c.want}, {config.StopCommand(slot, 30*time.Second).String(), false}} {
				grep := exec.Command("grep", "-E", "-e", pattern)
				in, err := grep.StdinPipe()
				require.NoError(t, err)
				require.NoError(t, grep.Start())
				_, err = in.Write([]byte(l.line))
				require.NoError(t, err)
				require.NoError(t, in.Close())
				assert.Equal(t, l.want, grep.Wait() == nil, "%s on %s", pattern, l.line)
			}
		})
	}
}

func TestQuoteSurvivesAShell(t *testing.T) {
	words := []string{"a", "a b", "it's", "", "$HOME", "`x`", "a\nb", `\`, "*", "é", "-n", "a=b"}
	out, err := exec.Command("sh", "-c", "printf '%s\\0' "+quoteAll(words)).Output()
	require.NoError(t, err)
	var want []byte
	for _, w := range words {
		want = append(append(want, w...), 0)
	}
	assert.Equal(t, string(want), string(out))
}

func TestEnvironKeepsTheTokenBack(t *testing.T) {
	assert.Equal(t, []string{"A=1", "B=2"}, Command{Env: []string{"B=2"}}.Environ([]string{"A=1", TokenVariable + "=secret"}))
}

func TestPlan(t *testing.T) {
	c, err := Load(example)
	require.NoError(t, err)
	o, err := DefaultSettings().Resolve(c)
	require.NoError(t, err)
	p := c.Plan(o)
	assert.Equal(t, 5, p.Ceiling)
	require.Len(t, p.Slots, 5)
	assert.Equal(t, c.LaunchCommand(c.Slots[1], planInstance), p.Slots[1].Launch)
	text := p.String()
	for _, want := range []string{
		"pool: 5 slots, ceiling 5, 1 launched at start\n",
		"replica standby: http://10.0.0.9:8001, never stopped\n",
		"slot node01-d4: host node01 (this machine), devices 4, http://127.0.0.1:8005, log /scratch/router-logs/node01-d4.log\n",
		"  launch: env PYPTO_PROG_BUILD_DIR=/scratch/build_d4 pypto-serving --model /models/Qwen3-14B --devices 4 --host 0.0.0.0 --port 8005",
		"slot node02-d3: host node02 (over ssh), devices 3, http://node02:8004, log /tmp/pypto-serving-router/node02-d3.log\n",
	} {
		assert.Contains(t, text, want)
	}
}
