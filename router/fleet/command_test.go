package fleet

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

const serveTail = "--host 0.0.0.0 --port 8001 --show-startup-logs"

func oneHost(t *testing.T, fields string) Launch {
	t.Helper()
	c := mustParse(t, `{"hosts":[{"name":"n","model":"/m odel","devices":[0,1],"devices_per_replica":2`+fields+`}]}`)
	return Launch{Slot: c.Slots[0], Host: &c.Hosts[0], Instance: "i1", Grace: 30 * time.Second}
}

func payload(c Command) string { return c.Args[len(c.Args)-1] }

func TestLaunchCommandHere(t *testing.T) {
	bare := []string{"pypto-serving", "--model", "/m odel", "--devices", "0,1", "--host", "0.0.0.0", "--port", "8001", "--show-startup-logs"}
	for _, c := range []struct {
		name, fields string
		args, env    []string
		dir, folder  string
		header       string
	}{
		// Fleet behaviour 75
		// Fleet behaviour 78
		{
			name: "bare", fields: `,"serve_args":["--tp","{device}"]`, args: append(slices.Clone(bare), "--tp", "{device}"),
			header: "pypto-serving --model '/m odel' --devices 0,1 " + serveTail + " --tp '{device}'",
		},
		// Fleet behaviour 73
		{
			name: "module", fields: `,"python":"python3","served_model_name":"q"`,
			args:   []string{"python3", "-m", "pypto_serving.cli", "--model", "/m odel", "--devices", "0,1", "--host", "0.0.0.0", "--port", "8001", "--show-startup-logs", "--served-model-name", "q"},
			header: "python3 -m pypto_serving.cli --model '/m odel' --devices 0,1 " + serveTail + " --served-model-name q",
		},
		// Fleet behaviour 74
		// Fleet behaviour 79
		{
			name: "wrapper", fields: `,"program":["serve me"],"launch_wrapper":["submit","--device","{device}","--all","{devices}"]`,
			args:   []string{"submit", "--device", "0", "--all", "0,1", "'serve me' --model '/m odel' --devices 0,1 " + serveTail},
			header: `submit --device 0 --all 0,1 ''\''serve me'\'' --model '\''/m odel'\'' --devices 0,1 ` + serveTail + `'`,
		},
		// Fleet behaviour 76
		{
			name: "environment and places", fields: `,"env":{"B":"x{device}","A":"{port}"},"workdir":"/w","log_dir":"/l"`, args: bare, env: []string{"A=8001", "B=x0"}, dir: "/w", folder: "/l",
			header: "pypto-serving --model '/m odel' --devices 0,1 " + serveTail,
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			folder := cmp.Or(c.folder, DefaultLogDir)
			assert.Equal(t, Command{
				Args: c.args, Env: append(c.env, "PYPTO_FLEET_SLOT="+folder+"/n-d0.pid"), Dir: c.dir,
				Log: folder + "/n-d0.log", Header: "launch i1: " + c.header, Pid: folder + "/n-d0.pid",
			}, oneHost(t, c.fields).LaunchCommand())
		})
	}
}

func TestLaunchCommandOverSSH(t *testing.T) {
	// Fleet behaviour 77
	got := oneHost(t, `,"ssh":"u@far","identity_file":"~/k","env":{"A":"a b"},"workdir":"/w d","log_dir":"/l d"`).LaunchCommand()
	options := []string{"ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new", "-o", "ConnectTimeout=10"}
	assert.Equal(t, append(slices.Clone(options), "-i", "~/k", "-o", "IdentitiesOnly=yes", "--", "u@far"), got.Args[:len(got.Args)-1])
	assert.Equal(t, Command{Args: got.Args}, got, "the line does all of it over there")
	words, err := exec.Command("sh", "-c", "printf '%s\\0' "+payload(got)).Output()
	require.NoError(t, err)
	line := strings.Split(string(words), "\x00")
	require.Equal(t, []string{"env", "PYPTO_FLEET_SLOT=/l d/n-d0.pid", "sh", "-c"}, line[:4])
	assert.Equal(t, `mkdir -p '/l d' && { { [ -O '/l d' ] && [ -z "$(find '/l d'/. -maxdepth 0 -perm -2)" ]; } || { echo log_dir is not this user\'s alone >&2; exit 1; }; } && { ! grep -qxF -e i1 '/l d/n-d0.stopped' 2>/dev/null || { echo stopped meanwhile >&2; exit 1; }; }`+
		` && printf '=== %s %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" 'launch i1: pypto-serving --model '\''/m odel'\'' --devices 0,1 `+serveTail+`' >>'/l d/n-d0.log'`+
		` && cd '/w d'`+
		` && { command -v setsid >/dev/null || { printf '%s: command not found\n' setsid >&2; exit 127; }; }`+
		` && { command -v pypto-serving >/dev/null || { printf '%s: command not found\n' pypto-serving >&2; exit 127; }; }`+
		` && { nohup setsid env 'A=a b' pypto-serving --model '/m odel' --devices 0,1 `+serveTail+` >>'/l d/n-d0.log' 2>&1 </dev/null &`+
		` start=$(sed 's/.*) //' /proc/$!/stat 2>/dev/null | cut -d' ' -f20); echo "$! ${start:-0} i1" >'/l d/n-d0.pid' || exit 255; }`, line[4])
	got = oneHost(t, `,"ssh":"far","env":{"PATH":"/opt"}`).LaunchCommand()
	assert.Equal(t, append(options, "--", "far"), got.Args[:len(got.Args)-1])
	assert.NotContains(t, payload(got), "command -v pypto-serving", "only its own PATH would find it")
}

// Hazard 4: a template that cannot be expanded was found at launch, when the slot
// was taken already. Whatever is read can be launched and stopped, and braces
// that are no placeholder arrive as they are.
func TestBadTemplateIsFoundBeforeASlotIsTaken(t *testing.T) {
	for _, bad := range []string{`{x}`, `{device.__class__}`, `a {ports} b`} {
		for _, field := range []string{`"launch_wrapper":["w",%q]`, `"stop_command":["s",%q]`, `"env":{"A":%q}`} {
			_, err := Parse(fmt.Appendf(nil, `{"hosts":[{"model":"m","devices":[0],`+field+`}]}`, bad))
			require.ErrorContains(t, err, "unknown placeholder", field)
		}
	}
	for _, good := range []string{`{`, `}`, `{}`, `{0}`, `{"a":1}`, `{{x}}`, `%s`, `{device`} {
		text, err := json.Marshal(good)
		require.NoError(t, err)
		l := oneHost(t, fmt.Sprintf(`,"launch_wrapper":["w",%s],"stop_command":["s",%s],"env":{"A":%s}`, text, text, text))
		want := strings.NewReplacer("{{", "{", "}}", "}").Replace(good)
		assert.Equal(t, want, l.LaunchCommand().Args[1])
		assert.Equal(t, "A="+want, l.LaunchCommand().Env[0])
		assert.Equal(t, []string{"s", want}, l.StopCommand().Args)
	}
}

func TestWhichStatusesAreUncertain(t *testing.T) {
	for status, want := range map[int]bool{1: false, 2: false, 127: false, 255: true} {
		assert.Equal(t, want, oneHost(t, `,"ssh":"far"`).Uncertain(status), status)
		assert.False(t, oneHost(t, ``).Uncertain(status), "here a program has started or has not")
	}
}

func TestStopCommand(t *testing.T) {
	here := `"stop_command":["halt","{device}","{port}","a b"]`
	assert.Equal(t, Command{Args: []string{"halt", "0", "8001", "a b"}}, oneHost(t, ","+here).StopCommand())
	assert.Equal(t, `mkdir -p '/l d' && { tail -n 100 '/l d/n-d0.stopped' 2>/dev/null; echo i1; } >'/l d/n-d0.stopped.new' && mv '/l d/n-d0.stopped.new' '/l d/n-d0.stopped' && halt 0 8001 'a b'`,
		payload(oneHost(t, `,"ssh":"far","log_dir":"/l d",`+here).StopCommand()))

	stop := oneHost(t, ``).StopCommand()
	require.Equal(t, []string{"sh", "-c"}, stop.Args[:2])
	assert.Contains(t, stop.Args[2], "[ $age -lt 30 ]")
	assert.Contains(t, stop.Args[2], "[ $age -ge 15 ]")
	assert.Empty(t, regexp.MustCompile("PIDFILE|MARK|VARIABLE|SERVER|WRAPPED|PORT|HALF|GRACE").FindString(stop.Args[2][:strings.Index(stop.Args[2], "elsewhere")]))
	assert.True(t, strings.HasSuffix(payload(oneHost(t, `,"ssh":"far"`).StopCommand()), " && sh -c "+quote(stop.Args[2])))
}

func TestLogCommand(t *testing.T) {
	assert.Equal(t, "tail -c 800 '/l d/n-d0.log'", payload(oneHost(t, `,"ssh":"far","log_dir":"/l d"`).LogCommand(800)))
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
	assert.Equal(t, Launch{Slot: c.Slots[1], Host: &c.Hosts[c.Slots[1].Host], Instance: planInstance}.LaunchCommand(), p.Slots[1].Launch)
	text := p.String()
	for _, want := range []string{
		"pool: 5 slots, ceiling 5, 1 launched at start\n",
		"replica standby: http://10.0.0.9:8001, never stopped\n",
		"slot node01-d4: host node01 (this machine), devices 4, http://127.0.0.1:8005, log /scratch/router-logs/node01-d4.log\n",
		"  launch: env PYPTO_PROG_BUILD_DIR=/scratch/build_d4 PYPTO_FLEET_SLOT=/scratch/router-logs/node01-d4.pid pypto-serving --model /models/Qwen3-14B --devices 4 --host 0.0.0.0 --port 8005",
		"slot node02-d3: host node02 (over ssh), devices 3, http://node02:8004, log /tmp/pypto-serving-router/node02-d3.log\n",
	} {
		assert.Contains(t, text, want)
	}
}
