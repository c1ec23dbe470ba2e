package soak

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
	"github.com/hw-native-sys/pypto-pd/tests/fleet/sshhost"
	"github.com/hw-native-sys/pypto-pd/tests/fleet/stub"
)

func TestMain(m *testing.M) { cluster.Main(m) }

type fields = map[string]any

// rig is a fleet router over stubs. Each slot is a host of its own, so that its
// port is free to choose and its replica says its slot's name.
type rig struct {
	t     *testing.T
	dir   string
	cards string
	url   string
	hosts []fields
	file  fields
	args  []string
	env   []string
	p     *cluster.Process
	slots []slot
}

// slot is one place for a replica.
type slot struct {
	name, url, logs string
	device          int
	host            *sshhost.Host // nil for this machine
}

// newRig makes a rig without a slot. It starts nothing.
func newRig(t *testing.T, args ...string) *rig {
	t.Helper()
	r := &rig{t: t, dir: t.TempDir(), cards: t.TempDir(), file: fields{}}
	port := strconv.Itoa(cluster.Ports(t, 1)[0])
	r.url = "http://" + "127.0.0.1:" + port
	r.args = append([]string{
		"--replicas", filepath.Join(r.dir, "fleet.json"), "--host", "127.0.0.1", "--port", port, "--state-file", filepath.Join(r.dir, "state.json"), "--log-format", "json",
	}, args...)
	t.Cleanup(func() {
		stub.Bury(r.dir)
		assert.Empty(t, stub.Violations(t, r.cards), "two processes on one group of cards")
	})
	return r
}

// add declares a slot: on this machine, or on a host of a lab.
func (r *rig) add(l *sshhost.Lab, h *sshhost.Host, env map[string]string) {
	r.t.Helper()
	i := len(r.slots)
	port := cluster.Ports(r.t, 1)[0]
	name := fmt.Sprintf("h%d", i)
	logs := filepath.Join(r.dir, name)
	s := slot{name: fmt.Sprintf("%s-d%d", name, i), device: i, host: h, logs: logs}
	all := map[string]string{stub.CardsVariable: r.cards, stub.NameVariable: s.name}
	for k, v := range env {
		all[k] = v
	}
	f := fields{
		"name": name, "model": "/weights/m", "devices": []int{i}, "port_base": port - i, "program": []string{stub.Program(r.t)}, "log_dir": logs, "env": all,
	}
	address := "127.0.0.1"
	if h != nil {
		address = h.Address
		f["ssh"], f["identity_file"] = h.SSH, l.Key
		r.env = l.Env()
	}
	s.url = fmt.Sprintf("http://%s:%d", address, port)
	r.hosts, r.slots = append(r.hosts, f), append(r.slots, s)
}

// start starts the router, again if it was killed.
func (r *rig) start() {
	r.t.Helper()
	r.file["hosts"] = r.hosts
	text, err := json.Marshal(r.file)
	require.NoError(r.t, err)
	require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, "fleet.json"), text, 0o600))
	r.p = cluster.Spawn(r.t, cluster.Command{Label: "fleet router", Program: cluster.Fleet, Args: r.args, Env: r.env, Dir: r.dir})
	r.p.Ready(r.t)
}

// member is one replica of /replicas.
type member struct {
	Name, Phase string
	Ready       bool
	Outstanding int
}

// fleetView is what /replicas says.
type fleetView struct {
	Replicas []member
	Capacity struct {
		Owned, Ceiling int
		FreeSlots      []string `json:"free_slots"`
		Unconfirmed    map[string]string
		Abandoned      []string
	}
}

func (r *rig) view() (v fleetView, err error) {
	_, body, err := cluster.Get(r.url + "/replicas")
	if err == nil {
		err = json.Unmarshal(body, &v)
	}
	return v, err
}

// full is nil when every declared replica serves.
func (r *rig) full() error {
	v, err := r.view()
	if err != nil {
		return err
	}
	ready := 0
	for _, m := range v.Replicas {
		if m.Ready {
			ready++
		}
	}
	statics, _ := r.file["replicas"].([]fields)
	if ready != len(r.slots)+len(statics) {
		return fmt.Errorf("%d replicas are ready: %+v", ready, v)
	}
	return nil
}

func (r *rig) admin(method, path string) (int, string) {
	q, err := http.NewRequest(method, r.url+path, nil)
	if err != nil {
		return 0, err.Error()
	}
	status, body, err := cluster.Do(q)
	if err != nil {
		return 0, err.Error()
	}
	return status, string(body)
}

// process is the group that was launched for a slot, if it lives; 0 if not.
func (r *rig) process(s slot) int {
	if pids := cluster.Launched(s.logs); len(pids) > 0 {
		return pids[0]
	}
	return 0
}
