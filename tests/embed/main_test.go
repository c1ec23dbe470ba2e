package embed

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

func TestMain(m *testing.M) { cluster.Main(m) }

// built are what this run has made in the folder of the programs.
var built struct {
	sync.Mutex
	done map[string]error
}

// build runs make once for a file in a folder of this run.
func build(t *testing.T, bin, name string, args ...string) string {
	t.Helper()
	built.Lock()
	defer built.Unlock()
	path := filepath.Join(bin, name)
	if _, done := built.done[path]; !done {
		c := exec.Command("make", append([]string{"--no-print-directory", "BIN=" + bin, "OUT=" + bin, "LIB=" + bin}, args...)...)
		c.Dir = cluster.Root()
		out, err := c.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("make %v: %w\n%s", args, err, out)
		}
		if built.done == nil {
			built.done = map[string]error{}
		}
		built.done[path] = err
	}
	require.NoError(t, built.done[path])
	return path
}

// library is libpypto-pd.so, and embedC the host in C over it.
func library(t *testing.T) string { return build(t, cluster.Bin(t), "libpypto-pd.so", "lib") }

func embedC(t *testing.T) string {
	library(t)
	return build(t, cluster.Bin(t), "embed_c", "-C", "examples/embed_c")
}

// plainEmbedC is embedC over a library without code that is made at run time,
// which valgrind could not tell from the host's.
func plainEmbedC(t *testing.T) string {
	bin := filepath.Join(cluster.Bin(t), "plain")
	build(t, bin, "libpypto-pd.so", "lib", "TAGS=stdjson")
	return build(t, bin, "embed_c", "-C", "examples/embed_c")
}

// server is a kind of model server that one side of a pair is.
type server string

const (
	serving server = "pypto-serving"
	python  server = "embed_python"
	// owners is python with the memory of each rank in a process of its own.
	owners server = "embed_python with owners"
	inC    server = "embed_c"
)

// command is the command line of one node.
func (h server) command(t *testing.T, path string, e config.Entry) cluster.Command {
	t.Helper()
	common := []string{"--pd-config", path, "--pd-role", e.Role.String(), "--served-model-name", cluster.Model}
	c := cluster.Command{Label: fmt.Sprint(e.Role, " ", h), Program: string(h)}
	switch h {
	case serving:
		c.Args = append(append(common, cluster.Layout(t, "dp2tp1")...), "--long-prefill-token-threshold", "128", "--sim-pool-tokens", "16384")
	case python, owners:
		script, err := filepath.Abs("../../examples/embed_python/host.py")
		require.NoError(t, err)
		c.Program = cluster.Tool(t, "python3", "python3")
		c.Args = append([]string{script, "--library", library(t), "--host", e.Host, "--port", strconv.Itoa(e.Port)}, common...)
		if h == owners {
			c.Args = append(c.Args, "--owners", t.TempDir())
		}
	case inC:
		c.Program = embedC(t)
		c.Args = []string{path, e.Role.String(), e.Host, "--port", strconv.Itoa(e.Port), cluster.Model}
	}
	return c
}

// pair is a router over one prefill and one decode node.
type pair struct {
	url             string
	prefill, decode *cluster.Process
	router          *cluster.Process
}

// start starts a pair and waits until the router has it.
func start(t *testing.T, p, d server) *pair {
	t.Helper()
	path, c := cluster.WriteConfig(t, cluster.Options{HandoffSeconds: 20})
	return startRouter(t, path, cluster.Spawn(t, p.command(t, path, c.Entries(pd.Prefill)[0])), cluster.Spawn(t, d.command(t, path, c.Entries(pd.Decode)[0])))
}

// startRouter starts the router over two nodes.
func startRouter(t *testing.T, path string, prefill, decode *cluster.Process, flags ...string) *pair {
	t.Helper()
	out := &pair{prefill: prefill, decode: decode}
	prefill.Ready(t)
	decode.Ready(t)
	port := cluster.Ports(t, 1)[0]
	out.router = cluster.Spawn(t, cluster.Command{Label: "router", Program: cluster.Router, Args: append([]string{
		"--pd-config", path, "--port", strconv.Itoa(port), "--node-poll-interval", "100ms",
	}, flags...)})
	out.router.Ready(t)
	out.url = "http://127.0.0.1:" + strconv.Itoa(port)
	cluster.Eventually(t, func() error {
		a, err := cluster.Complete(t.Context(), out.url, cluster.Completion{Prompt: "ready?", Max: 1})
		if err == nil && a.Status != 200 {
			err = fmt.Errorf("%d %s", a.Status, a.Raw)
		}
		return err
	})
	return out
}

// end stops the pair as an operator does: everything drains and exits with 0.
func (p *pair) end(t *testing.T) {
	t.Helper()
	for _, process := range []*cluster.Process{p.router, p.prefill, p.decode} {
		require.Zero(t, process.Stop(t), "%s", process.Tail())
	}
}
