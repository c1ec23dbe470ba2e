package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// mistake is a command line that must not start anything.
type mistake struct {
	name    string
	program string
	args    []string
	code    int
	// says are parts of the one line on stderr.
	says []string
}

// file writes a file with a text.
func file(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "pd.json")
	require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
	return path
}

// taken is a port on which somebody listens until the test ends.
func taken(t *testing.T) int {
	t.Helper()
	port := cluster.Ports(t, 1)[0]
	l, err := net.Listen("tcp", cluster.Address(port))
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	return port
}

// pair is a pd.json text of one pair with these ports.
func pair(http, control int, rest string) string {
	return fmt.Sprintf(`{"runtime":{"prefill":[{"host":"127.0.0.1","port":%d,"control_port":%d}],"decode":[{"host":"127.0.0.1","port":1,"control_port":2}]%s}}`, http, control, rest)
}

// Behaviour 3, 10, 175, 176: a mistake is one line that names its cause, and
// nothing is started.
func TestMistakesEndWithOneLineAndNothingStarts(t *testing.T) {
	t.Parallel()
	free := cluster.Ports(t, 4)
	good := file(t, pair(free[0], free[1], `,"provider":"simulator"`))
	several, _ := cluster.WriteConfig(t, cluster.Options{Prefills: 2})
	defects := file(t, `{"runtime":{"prefill":[{"host":"","port":70000}],"decode":[{"host":"10.0.0.1","port":8000}],"capacity":0,"policy":"random","handoff_timeout":-1},"extra":1}`)
	node := func(config string, more ...string) []string {
		return append([]string{"--pd-role", "prefill", "--pd-config", config}, more...)
	}
	for _, m := range []mistake{
		{"unknown flag", cluster.Serving, []string{"--nope"}, 2, []string{"unknown flag --nope"}},
		{"flag twice", cluster.Serving, []string{"--port", "1", "--port", "2"}, 2, []string{"--port is given twice"}},
		{"several bad flags", cluster.Serving, []string{"--tp", "3", "--block-size", "64", "--max-num-seqs", "0"}, 2, []string{"--ep 16 --tp 3", "--block-size 64", "--max-num-seqs 0"}},
		{"NaN rate", cluster.Serving, []string{"--sim-decode-rate", "NaN"}, 2, []string{"--sim-decode-rate"}},
		{"bad JSON flag", cluster.Serving, []string{"--speculative-config", "{"}, 2, []string{"--speculative-config"}},
		{"other speculation", cluster.Serving, []string{"--speculative-config", `{"method":"eagle","num_speculative_tokens":7}`}, 2, []string{"dspark"}},
		{"unknown role", cluster.Serving, []string{"--pd-role", "both"}, 2, []string{"--pd-role", "both"}},
		{"role without config", cluster.Serving, []string{"--pd-role", "prefill"}, 2, []string{"--pd-role needs --pd-config"}},
		{"npu", cluster.Serving, []string{"--backend", "npu"}, 2, []string{"--backend npu"}},
		{"missing pd.json", cluster.Serving, node("/does/not/exist"), 2, []string{"/does/not/exist"}},
		{
			"pd.json with several defects", cluster.Serving, node(defects), 2,
			[]string{"runtime.prefill[0].host", "runtime.prefill[0].port", "runtime.capacity", "runtime.policy", "runtime.handoff_timeout", "extra"},
		},
		{"empty pd.json", cluster.Serving, node(file(t, "")), 2, []string{"pd.json", "empty"}},
		{"port above the control range", cluster.Serving, node(file(t, `{"runtime":{"prefill":[{"host":"127.0.0.1","port":55536}],"decode":[{"host":"127.0.0.1","port":1}]}}`)), 2, []string{"runtime.prefill[0].port", "control_port"}},
		{"unknown node id", cluster.Serving, node(good, "--pd-node-id", "elsewhere:1"), 2, []string{"elsewhere:1"}},
		{"node id left out", cluster.Serving, node(several), 2, []string{"--pd-node-id"}},
		{"other port", cluster.Serving, node(good, "--port", "5"), 2, []string{"--port 5", strconv.Itoa(free[0])}},
		{"native provider without its library", cluster.Serving, node(file(t, pair(free[0], free[1], ""))), 2, []string{"mooncake", `"provider": "simulator"`, "libtransfer_engine.so"}},
		{"capacity beyond the slots", cluster.Serving, node(file(t, pair(free[0], free[1], `,"provider":"simulator","capacity":9`))), 2, []string{"runtime.capacity 9"}},
		{"missing faults", cluster.Serving, node(good, "--sim-faults", "/no/faults"), 2, []string{"--sim-faults", "/no/faults"}},
		{"bad faults", cluster.Serving, node(good, "--sim-faults", file(t, `{"faults":[{"kind":"gremlin"}]}`)), 2, []string{"faults[0].kind", "gremlin"}},
		{"taken HTTP port without a role", cluster.Serving, []string{"--port", strconv.Itoa(taken(t))}, 1, []string{"HTTP port", "address already in use"}},
		{"taken HTTP port", cluster.Serving, node(file(t, pair(taken(t), free[1], `,"provider":"simulator"`))), 1, []string{"HTTP port", "address already in use"}},
		{"taken control port", cluster.Serving, node(file(t, pair(free[0], taken(t), `,"provider":"simulator"`))), 1, []string{"control port", "address already in use"}},

		{"router: no config", cluster.Router, nil, 2, []string{"--pd-config"}},
		{"router: unknown flag", cluster.Router, []string{"--pd-config", good, "--nope"}, 2, []string{"unknown flag --nope"}},
		{"router: missing pd.json", cluster.Router, []string{"--pd-config", "/does/not/exist"}, 2, []string{"/does/not/exist"}},
		{"router: pd.json with several defects", cluster.Router, []string{"--pd-config", defects}, 2, []string{"runtime.prefill[0].host", "runtime.capacity", "extra"}},
		{"router: taken port", cluster.Router, []string{"--pd-config", good, "--port", strconv.Itoa(taken(t))}, 1, []string{"address already in use"}},
		{"router: stray argument", cluster.Router, []string{"--pd-config", good, "stray"}, 2, []string{"stray"}},

		{"pdctl: no verb", cluster.Pdctl, nil, 2, []string{"demo", "validate"}},
		{"pdctl: unknown verb", cluster.Pdctl, []string{"dance"}, 2, []string{"dance"}},
		{"pdctl: bad demo", cluster.Pdctl, []string{"demo", "--nodes", "nonsense", "--d-layout", "tp"}, 2, []string{`--nodes "nonsense"`, `--d-layout "tp"`}},
		{"pdctl: defects", cluster.Pdctl, []string{"validate", defects}, 2, []string{"runtime.prefill[0].host", "runtime.capacity", "extra"}},
		{"pdctl: missing file", cluster.Pdctl, []string{"validate", "/does/not/exist"}, 2, []string{"/does/not/exist"}},

		{"fleet: no file", cluster.Fleet, nil, 2, []string{"--replicas"}},
		{"fleet: unknown flag", cluster.Fleet, []string{"--replicas", "/does/not/exist", "--nope"}, 2, []string{"unknown flag --nope"}},
		{"fleet: stray argument", cluster.Fleet, []string{"--replicas", "/does/not/exist", "stray"}, 2, []string{"stray"}},
		{"fleet: flag twice", cluster.Fleet, []string{"--replicas", "x", "--replicas", "y"}, 2, []string{"--replicas is given twice"}},
	} {
		t.Run(m.name, func(t *testing.T) {
			dir := t.TempDir()
			p := cluster.Spawn(t, cluster.Command{Label: m.program, Program: m.program, Args: m.args, Dir: dir})
			assert.Equal(t, m.code, p.Wait(t))
			assert.Empty(t, p.Stdout())
			said := p.Stderr()
			assert.Equal(t, 1, strings.Count(said, "\n"), "%s", said)
			assert.True(t, strings.HasSuffix(said, "\n"), "%q", said)
			assert.True(t, strings.HasPrefix(said, m.program), "%s", said)
			for _, part := range m.says {
				assert.Contains(t, said, part)
			}
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			assert.Empty(t, left, "files were written")
		})
	}
	// Nothing has listened, or listens still.
	for _, port := range free {
		l, err := net.Listen("tcp", cluster.Address(port))
		require.NoError(t, err)
		l.Close()
	}
}

func TestVersionAndHelpExitWithZero(t *testing.T) {
	t.Parallel()
	for _, program := range []string{cluster.Serving, cluster.Router, cluster.Pdctl, cluster.Fleet} {
		for _, flag := range []string{"--version", "--help"} {
			p := cluster.Spawn(t, cluster.Command{Label: program, Program: program, Args: []string{flag}})
			require.Zero(t, p.Wait(t), "%s", p.Tail())
			require.Contains(t, p.Stdout(), program)
			require.Empty(t, p.Stderr())
		}
	}
}

func TestValidateAcceptsTheMinimalFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(cluster.Root(), "examples/pd.json")
	p := cluster.Spawn(t, cluster.Command{Label: "validate", Program: cluster.Pdctl, Args: []string{"validate", path}})
	require.Zero(t, p.Wait(t), "%s", p.Tail())
	require.Empty(t, p.Stderr())
	c, err := config.Load(path)
	require.NoError(t, err)
	for _, part := range []string{"is valid", string(c.Run()), "10.1.0.1:8000", "10.1.0.2:18000"} {
		require.Contains(t, p.Stdout(), part)
	}
}
