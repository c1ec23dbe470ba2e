package demo

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

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

// freePorts finds ports that nobody listens on at the moment. They are held
// together, so that all differ.
func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
