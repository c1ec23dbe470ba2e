package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// fleetRun is a fleet router with slots for real replicas.
type fleetRun struct {
	t     *testing.T
	dir   string
	url   string
	args  []string
	env   []string
	p     *cluster.Process
	ports []int
}

// newFleet writes a fleet file with slots on this machine, and starts nothing.
func newFleet(t *testing.T, slots int, rest string, args ...string) *fleetRun {
	t.Helper()
	f := &fleetRun{t: t, dir: t.TempDir()}
	cluster.EndLaunched(t, f.dir)
	var hosts []string
	for i := range slots {
		// A host for each slot, so that its port is free to choose.
		port := cluster.Ports(t, 1)[0]
		f.ports = append(f.ports, port)
		hosts = append(hosts, fmt.Sprintf(`{"name":"h%d","devices":[%d],"port_base":%d,"model":"reference","served_model_name":%q,"program":[%q],
			"serve_args":["--ep","2","--tp","1","--lm-head-tp","1"],"log_dir":%q,"env":{"SLOT_PORT":"{port}"}}`,
			i, i, port-i, cluster.Model, filepath.Join(cluster.Bin(t), cluster.Serving), filepath.Join(f.dir, "logs")))
	}
	text := `{"hosts":[` + strings.Join(hosts, ",") + `]` + rest + `}`
	file := filepath.Join(f.dir, "fleet.json")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
	port := strconv.Itoa(cluster.Ports(t, 1)[0])
	f.url = "http://127.0.0.1:" + port
	f.args = append([]string{
		"--replicas", file, "--host", "127.0.0.1", "--port", port, "--state-file", filepath.Join(f.dir, "state.json"),
		"--health-interval", "0.1", "--replace-after", "0.3", "--replace-backoff", "0.1", "--stop-grace", "10",
	}, args...)
	return f
}

func (f *fleetRun) start() {
	f.t.Helper()
	f.p = cluster.Spawn(f.t, cluster.Command{Label: "fleet router", Program: cluster.Fleet, Args: f.args, Env: f.env, Dir: f.dir})
	f.p.Ready(f.t)
}

// fleetHealth is what /health says.
type fleetHealth struct {
	Status   string
	Ready    int `json:"replicas_ready"`
	Routed   int
	Hits     int `json:"affinity_hits"`
	Replicas []struct {
		Name, URL, Phase string
		Ready            bool
	}
}

func (f *fleetRun) health() (h fleetHealth) {
	f.t.Helper()
	_, body, err := cluster.Get(f.url + "/health")
	require.NoError(f.t, err)
	require.NoError(f.t, json.Unmarshal(body, &h))
	return h
}

func (f *fleetRun) ready(n int) {
	f.t.Helper()
	cluster.Eventually(f.t, func() error {
		if h := f.health(); h.Ready != n {
			return fmt.Errorf("%d replicas are ready, want %d: %+v", h.Ready, n, h)
		}
		return nil
	})
}

func (f *fleetRun) admin(method, path string) (int, string) {
	f.t.Helper()
	q, err := http.NewRequest(method, f.url+path, nil)
	require.NoError(f.t, err)
	status, body, err := cluster.Do(q)
	require.NoError(f.t, err)
	return status, string(body)
}

// Real replicas behind a real router: the text is that of a replica, streams too,
// a conversation finds its cache again, and nothing is left at the end but what was
// there before.
func TestFleetServesAndLeavesNothing(t *testing.T) {
	t.Parallel()
	// Fleet behaviours 113, 114 and 115
	combined := cluster.SharedCombined(t)
	standing := combined.URL[strings.LastIndexByte(combined.URL, ':')+1:]
	f := newFleet(t, 2, `,"replicas":[{"name":"standing","host":"127.0.0.1","port":`+standing+`}]`, "--initial-replicas", "2")
	f.start()
	f.ready(3)
	for _, stream := range []bool{false, true} {
		for _, chat := range []bool{false, true} {
			q := cluster.Completion{Prompt: cluster.Prompt("fleet", 60), Max: 24, Stream: stream, Chat: chat}
			for range 3 {
				require.Equal(t, combined.Text(t, q), cluster.MustComplete(t, f.url, q).Text)
			}
		}
	}
	q := cluster.Completion{Prompt: cluster.Prompt("conversation", 300), Max: 4, Fields: map[string]any{"session_id": "one-conversation"}}
	first := cluster.MustComplete(t, f.url, q)
	assert.Equal(t, "one-conversation", first.Header.Get("X-Session-Id"))
	hits := f.health().Hits
	for range 3 {
		cluster.MustComplete(t, f.url, q)
	}
	assert.Equal(t, hits+3, f.health().Hits)

	pids := cluster.Launched(f.dir)
	require.Len(t, pids, 2)
	status, body := f.admin("DELETE", "/replicas/h0-d0")
	require.Equal(t, 200, status, body)
	require.Len(t, cluster.Launched(f.dir), 1, "it is gone when the answer comes")
	status, _ = f.admin("POST", "/replicas")
	require.Equal(t, 202, status, "its port can be had again at once")
	f.ready(3)
	status, body = f.admin("GET", "/replicas/h0-d0/log")
	assert.Equal(t, 200, status)
	assert.Contains(t, body, "startup: port bound")

	require.Zero(t, f.p.Stop(t), "%s", f.p.Tail())
	require.Empty(t, cluster.Launched(f.dir))
	cluster.MustComplete(t, combined.URL, cluster.Completion{Prompt: "still there", Max: 2})
}

// Kill -9 of the router leaves its replicas; the next one takes them over.
func TestFleetRouterThatCrashedFindsItsReplicas(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, "", "--initial-replicas", "2")
	f.start()
	f.ready(2)
	before := cluster.Launched(f.dir)
	require.Len(t, before, 2)
	f.p.Kill()
	require.Equal(t, before, cluster.Launched(f.dir))
	f.start()
	f.ready(2)
	require.Equal(t, before, cluster.Launched(f.dir), "nothing was launched")
	assert.NotContains(t, f.p.Stderr(), "launching replica")
	cluster.MustComplete(t, f.url, cluster.Completion{Prompt: "hello", Max: 2})
	status, body := f.admin("DELETE", "/replicas/h1-d1")
	assert.Equal(t, 200, status, body)
	require.Zero(t, f.p.Stop(t), "%s", f.p.Tail())
	require.Empty(t, cluster.Launched(f.dir))
}

// A replica that dies under load is out at once and replaced on its devices; no turn
// fails but those that it was answering.
func TestFleetReplacesAReplicaThatDies(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 2, "", "--initial-replicas", "2")
	f.start()
	f.ready(2)
	before := cluster.Launched(f.dir)
	require.Len(t, before, 2)
	require.NoError(t, syscall.Kill(-before[0], syscall.SIGKILL))
	// Until it is gone it may still be given a request, which then is one that it was
	// answering.
	cluster.Eventually(t, func() error {
		if slices.Contains(cluster.Launched(f.dir), before[0]) {
			return fmt.Errorf("process %d is still there", before[0])
		}
		return nil
	})
	for i := range 40 {
		cluster.MustComplete(t, f.url, cluster.Completion{Prompt: cluster.Prompt(strconv.Itoa(i), 20), Max: 2})
	}
	cluster.Eventually(t, func() error {
		now := cluster.Launched(f.dir)
		if len(now) != 2 || slices.Equal(now, before) || f.health().Ready != 2 {
			return fmt.Errorf("processes %v, %+v", now, f.health())
		}
		return nil
	})
	require.Contains(t, cluster.Launched(f.dir), before[1], "the other one is left alone")
	require.Zero(t, f.p.Stop(t), "%s", f.p.Tail())
	require.Empty(t, cluster.Launched(f.dir))
}

// The second signal leaves at once, and with it replicas and state file.
func TestFleetRouterLeavesAtTheSecondSignal(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, "")
	f.start()
	f.ready(1)
	// A request that never ends keeps the drain waiting.
	q := cluster.Completion{Prompt: "endless", Max: 16000, Stream: true}
	r, err := cluster.Send(t.Context(), f.url, q)
	require.NoError(t, err)
	defer r.Body.Close()
	require.Equal(t, 200, r.StatusCode)
	require.NoError(t, syscall.Kill(firstOf(cluster.Launched(f.dir)), syscall.SIGSTOP))
	defer syscall.Kill(firstOf(cluster.Launched(f.dir)), syscall.SIGCONT)
	f.p.Signal(syscall.SIGTERM)
	cluster.Eventually(t, func() error { return contains(f.p.Stderr(), "draining replica") })
	f.p.Signal(syscall.SIGTERM)
	assert.Equal(t, 1, f.p.Wait(t))
	assert.Len(t, cluster.Launched(f.dir), 1)
	state, err := os.ReadFile(filepath.Join(f.dir, "state.json"))
	require.NoError(t, err)
	assert.Contains(t, string(state), "h0-d0")
}

func firstOf(pids []int) int {
	if len(pids) == 0 {
		return -1 << 30 // no process
	}
	return pids[0]
}

// Case B54: a token of the environment is in no command line, and no child has it.
func TestAdminTokenOfTheEnvironmentIsNowhereElse(t *testing.T) {
	t.Parallel()
	f := newFleet(t, 1, "")
	f.env = []string{"PYPTO_ROUTER_ADMIN_TOKEN=xyzzy-token"}
	f.start()
	f.ready(1)
	status, _ := f.admin("GET", "/replicas")
	assert.Equal(t, 401, status)
	pids := append(cluster.Launched(f.dir), f.p.PID())
	require.Len(t, pids, 2)
	for _, pid := range pids {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		require.NoError(t, err)
		assert.NotContains(t, string(line), "xyzzy")
	}
	environ, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pids[0]))
	require.NoError(t, err)
	assert.NotContains(t, string(environ), "xyzzy")
	assert.NotContains(t, string(environ), "PYPTO_ROUTER_ADMIN_TOKEN")
	assert.Contains(t, string(environ), "SLOT_PORT="+strconv.Itoa(f.ports[0]))
	assert.NotContains(t, f.p.Stderr()+f.p.Stdout(), "xyzzy")
	require.Zero(t, f.p.Stop(t), "%s", f.p.Tail())
}
