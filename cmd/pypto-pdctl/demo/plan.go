package demo

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
)

// process is one child to start.
type process struct {
	label, program, where string
	args                  []string
}

// plan is what will be started, in order, and where it can be found.
type plan struct {
	processes []process
	config    *config.Config
	url       string
	logs      string
}

// newPlan picks free ports and writes pd.json.
func newPlan(f Flags, dir string) (*plan, error) {
	ports, err := freePorts(2*(f.prefills+f.decodes) + 1)
	if err != nil {
		return nil, err
	}
	next := func() int {
		p := ports[0]
		ports = ports[1:]
		return p
	}
	type entry struct {
		Host        string `json:"host"`
		Port        int    `json:"port"`
		ControlPort int    `json:"control_port"`
	}
	lists := map[string][]entry{}
	for role, n := range map[string]int{"prefill": f.prefills, "decode": f.decodes} {
		for range n {
			lists[role] = append(lists[role], entry{"127.0.0.1", next(), next()})
		}
	}
	logs := filepath.Join(dir, "logs")
	text, err := json.MarshalIndent(map[string]any{
		"runtime":       map[string]any{"prefill": lists["prefill"], "decode": lists["decode"], "provider": "simulator", "run_id": "demo"},
		"observability": map[string]any{"root": logs},
	}, "", "  ")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, "pd.json")
	if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
		return nil, fmt.Errorf("write pd.json: %w", err)
	}
	c, err := config.Load(path)
	if err != nil {
		return nil, err
	}
	p := &plan{config: c, logs: logs}
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		t := f.source
		if role == pd.Decode {
			t = f.target
		}
		for i, e := range c.Entries(role) {
			p.processes = append(p.processes, process{
				label: fmt.Sprintf("%s node %d", role, i+1), program: "pypto-serving", where: e.HTTPAddress(),
				args: []string{
					"--pd-role", role.String(), "--pd-config", path, "--pd-node-id", string(e.NodeID), "--served-model-name", modelName,
					"--ep", strconv.Itoa(t.Ranks), "--tp", strconv.Itoa(t.TP), "--lm-head-tp", "1", "--long-prefill-token-threshold", "128",
					"--sim-prefill-rate", fmt.Sprint(f.Prefill), "--sim-decode-rate", fmt.Sprint(f.Decode), "--sim-link-rate", fmt.Sprint(f.Link),
				},
			})
		}
	}
	port := next()
	p.url = "http://127.0.0.1:" + strconv.Itoa(port)
	p.processes = append(p.processes, process{
		label: "router", program: "pypto-pd-router", where: p.url,
		args: []string{"--pd-config", path, "--port", strconv.Itoa(port), "--node-poll-interval", "200ms"},
	})
	return p, nil
}

// freePorts finds ports that nobody listens on at the moment, below those that
// the kernel gives to outgoing connections: one of these could be taken before
// its process binds it. They are held together, so that all differ.
func freePorts(n int) ([]int, error) {
	first, last := 15000, outgoingFrom()-1
	if last-first < 10*n {
		first, last = 1024, 65535 // somebody widened the range; then chance must do
	}
	var ports []int
	for tries := 0; len(ports) < n; tries++ {
		if tries > 100*n {
			return nil, fmt.Errorf("find %d free ports between %d and %d: %d tried", n, first, last, tries)
		}
		port := first + rand.IntN(last-first+1)
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue
		}
		defer l.Close()
		ports = append(ports, port)
	}
	return ports, nil
}

// outgoingFrom is the first port that the kernel picks by itself.
func outgoingFrom() int {
	text, err := os.ReadFile("/proc/sys/net/ipv4/ip_local_port_range")
	if err == nil {
		if fields := strings.Fields(string(text)); len(fields) == 2 {
			if low, err := strconv.Atoi(fields[0]); err == nil {
				return low
			}
		}
	}
	return 32768 // Linux's default
}
