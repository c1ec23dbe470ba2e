package cluster

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
)

// Model is the name that every cluster serves. The text of the reference engine
// depends on it, so all replicas share it.
const Model = "dsv4"

// Options say what a cluster is made of. The zero value is one prefill and one
// decode node, DP4TP4 both, as fast as the machine.
type Options struct {
	// Prefills and Decodes count nodes; 0 means 1.
	Prefills, Decodes int
	// PLayout and DLayout are layouts such as "dp4tp4"; "" means that.
	PLayout, DLayout string
	// Capacity is runtime.capacity; 0 leaves it out.
	Capacity int
	// HandoffSeconds and RequestSeconds are the timeouts of pd.json; 0 means 60
	// and 600.
	HandoffSeconds, RequestSeconds int
	// PrefillFlags, DecodeFlags and RouterFlags are added to the command lines.
	PrefillFlags, DecodeFlags, RouterFlags []string
	// OddFlags are added to the command line of the last decode node, which then
	// fits no prefill node: its pairs are not waited for.
	OddFlags []string
	// PrefillFaults are the faults of the data plane, on the side that writes.
	PrefillFaults []simulator.Fault
	// Host is where everything listens; "" is 127.0.0.1.
	Host string
	// Networks, if any, are the nodes' own, prefill first.
	Networks []*Network
	// Provider is the data plane; "" is the simulator. With another one the
	// programs can load C libraries. Env is added to the nodes' environment.
	Provider string
	Env      []string
	// Race: the programs have the race detector, if the tests have it.
	Race bool
	// ExpectErrors: log lines of level ERROR and exit codes other than 0 are
	// what the test is about.
	ExpectErrors bool
}

// Cluster is a router with its nodes. They end with the test: router, then
// prefill, then decode, each with exit code 0 and without an error in its log.
type Cluster struct {
	// URL is the router's.
	URL    string
	Router *Process
	// Prefill and Decode are in the order of pd.json.
	Prefill, Decode []*Node
	// Config is the pd.json that all of them read, Path where it is.
	Config *config.Config
	Path   string

	options Options
	// lives are all processes that were ever started.
	lives []*Process
}

// Start starts a cluster and waits until its router has every pair.
func Start(t testing.TB, o Options) *Cluster {
	t.Helper()
	o.Prefills, o.Decodes = max(o.Prefills, 1), max(o.Decodes, 1)
	c := &Cluster{options: o}
	c.Path, c.Config = WriteConfig(t, o)
	t.Cleanup(func() { c.end(t) })
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		for i, e := range c.Config.Entries(role) {
			n := &Node{cluster: c, Entry: e, Label: fmt.Sprintf("%s %d", role, i)}
			n.args = c.nodeArgs(t, e)
			if role == pd.Prefill {
				c.Prefill = append(c.Prefill, n)
			} else {
				c.Decode = append(c.Decode, n)
			}
		}
	}
	for i, n := range c.Nodes() {
		if len(o.Networks) > 0 {
			n.network = o.Networks[i]
		}
		n.Start(t)
	}
	for _, n := range c.Nodes() {
		n.Ready(t)
	}
	port := Ports(t, 1)[0]
	args := []string{"--pd-config", c.Path, "--host", host(o), "--port", strconv.Itoa(port)}
	if !gives(o.RouterFlags, "--node-poll-interval") {
		args = append(args, "--node-poll-interval", "100ms")
	}
	if !gives(o.RouterFlags, "--drain-timeout") {
		args = append(args, "--drain-timeout", "60s")
	}
	c.Router = c.spawn(t, Command{Label: "router", Program: Router, Args: append(args, o.RouterFlags...)})
	c.Router.Ready(t)
	c.URL = "http://" + net.JoinHostPort(host(o), strconv.Itoa(port))
	pairs := o.Prefills * o.Decodes
	if len(o.OddFlags) > 0 {
		pairs -= o.Prefills
	}
	c.WaitPairs(t, pairs)
	return c
}

// spawn is Spawn for a process that ends with the cluster.
func (c *Cluster) spawn(t testing.TB, command Command) *Process {
	t.Helper()
	bin := Bin(t)
	switch {
	case c.options.Provider != "":
		bin = NativeBin(t)
	case c.options.Race:
		bin = RaceBin(t)
	}
	command.Env = append(command.Env, c.options.Env...)
	p, err := spawn(bin, t.TempDir(), command)
	if err != nil {
		t.Fatal(err)
	}
	c.lives = append(c.lives, p)
	return p
}

// end stops the cluster and sees to it that nothing of it is left.
func (c *Cluster) end(t testing.TB) {
	defer func() {
		for _, p := range c.lives {
			bury(t, p)
		}
	}()
	if !t.Failed() {
		c.stop(t)
	}
}

// stop ends what runs, in order, and looks at how all of it has ended.
func (c *Cluster) stop(t testing.TB) {
	running := []*Process{c.Router}
	for _, n := range c.Nodes() {
		running = append(running, n.Process)
	}
	for _, p := range running {
		if !p.Alive() {
			continue // the test's own doing
		}
		if code := p.Stop(t); code != 0 && !c.options.ExpectErrors {
			t.Errorf("%s ended with exit code %d", p.Label, code)
		}
	}
	for _, p := range c.lives {
		if bad := errorLine.FindString(p.Stderr()); bad != "" && !c.options.ExpectErrors {
			t.Errorf("%s logged: %s", p.Label, bad)
		}
	}
}

// errorLine finds what no log of a healthy run holds.
var errorLine = regexp.MustCompile(`(?m)^.*(level=ERROR|panic: |fatal error: |DATA RACE).*$`)

// Nodes are all nodes, prefill first.
func (c *Cluster) Nodes() []*Node {
	return append(append([]*Node{}, c.Prefill...), c.Decode...)
}

// WriteConfig writes a pd.json for nodes on free ports of loopback.
func WriteConfig(t testing.TB, o Options) (string, *config.Config) {
	t.Helper()
	o.Prefills, o.Decodes = max(o.Prefills, 1), max(o.Decodes, 1)
	ports := Ports(t, 2*(o.Prefills+o.Decodes))
	networks := o.Networks
	entries := func(n int) []map[string]any {
		var out []map[string]any
		for range n {
			e := map[string]any{"host": host(o), "port": ports[0], "control_port": ports[1]}
			ports = ports[2:]
			if len(networks) > 0 {
				e["host"], e["transfer_hostname"] = networks[0].Host, networks[0].Transfer
				networks = networks[1:]
			}
			out = append(out, e)
		}
		return out
	}
	dir := t.TempDir()
	runtime := map[string]any{
		"prefill": entries(o.Prefills), "decode": entries(o.Decodes), "provider": cmp.Or(o.Provider, simulator.Name), "run_id": "e2e",
		"handoff_timeout": cmp.Or(o.HandoffSeconds, 60), "request_timeout": cmp.Or(o.RequestSeconds, 600),
	}
	if o.Capacity > 0 {
		runtime["capacity"] = o.Capacity
	}
	path := WriteJSON(t, filepath.Join(dir, "pd.json"), map[string]any{
		"runtime": runtime, "observability": map[string]any{"root": filepath.Join(dir, "logs")},
	})
	c, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	return path, c
}

// WriteJSON writes a value to a file and gives the path back.
func WriteJSON(t testing.TB, path string, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(b, '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func host(o Options) string { return cmp.Or(o.Host, "127.0.0.1") }

// nodeArgs is the command line of one node. A flag that the test gives replaces
// the cluster's own.
func (c *Cluster) nodeArgs(t testing.TB, e config.Entry) []string {
	o := c.options
	layout, further := o.PLayout, o.PrefillFlags
	if e.Role == pd.Decode {
		layout, further = o.DLayout, o.DecodeFlags
		if last := c.Config.Entries(pd.Decode)[o.Decodes-1]; e.NodeID == last.NodeID {
			further = append(slices.Clone(further), o.OddFlags...)
		}
	}
	args := []string{
		"--pd-role", e.Role.String(), "--pd-config", c.Path, "--pd-node-id", string(e.NodeID), "--served-model-name", Model,
		"--drain-timeout", "60s",
	}
	own := append(Layout(t, layout),
		"--long-prefill-token-threshold", "128", "--sim-pool-tokens", "16384", "--max-num-seqs", strconv.Itoa(max(8, o.Capacity)))
	for i := 0; i < len(own); i += 2 {
		if !gives(further, own[i]) {
			args = append(args, own[i], own[i+1])
		}
	}
	if e.Role == pd.Prefill && len(o.PrefillFaults) > 0 {
		path := filepath.Join(t.TempDir(), "faults.json")
		args = append(args, "--sim-faults", WriteJSON(t, path, map[string]any{"faults": o.PrefillFaults}))
	}
	return append(args, further...)
}

func gives(flags []string, name string) bool {
	for _, f := range flags {
		if f == name || strings.HasPrefix(f, name+"=") {
			return true
		}
	}
	return false
}

var layoutForm = regexp.MustCompile(`^dp([0-9]+)tp([0-9]+)$`)

// Layout turns a layout such as "dp16tp1" into flags; "" is DP4TP4.
func Layout(t testing.TB, layout string) []string {
	t.Helper()
	if layout == "" {
		layout = "dp4tp4"
	}
	m := layoutForm.FindStringSubmatch(layout)
	if m == nil {
		t.Fatalf("layout %q: want a form such as dp4tp4", layout)
	}
	dp, _ := strconv.Atoi(m[1])
	tp, _ := strconv.Atoi(m[2])
	return []string{"--dp", m[1], "--ep", strconv.Itoa(dp * tp), "--tp", m[2], "--lm-head-tp", "1"}
}
