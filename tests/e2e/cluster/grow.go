package cluster

import (
	"encoding/json"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
)

// Rewrite changes the pd.json of all processes. They read it when they are told to
// or start again.
func (c *Cluster) Rewrite(t testing.TB, change func(runtime map[string]any)) {
	t.Helper()
	text, err := os.ReadFile(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	var file map[string]any
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	change(file["runtime"].(map[string]any))
	WriteJSON(t, c.Path, file)
}

// Add adds a node to pd.json, starts it and waits until it is ready. It serves once
// the others have been told to read the file again.
func (c *Cluster) Add(t testing.TB, role pd.Role) *Node {
	t.Helper()
	ports := Ports(t, 2)
	c.Rewrite(t, func(runtime map[string]any) {
		list, _ := runtime[role.String()].([]any)
		runtime[role.String()] = append(list, map[string]any{"host": host(c.options), "port": ports[0], "control_port": ports[1]})
	})
	next, err := config.Load(c.Path)
	if err != nil {
		t.Fatal(err)
	}
	c.Config = next
	entries := next.Entries(role)
	n := &Node{cluster: c, Entry: entries[len(entries)-1], Label: role.String() + " added"}
	n.args = c.nodeArgs(t, n.Entry)
	if role == pd.Prefill {
		c.Prefill = append(c.Prefill, n)
	} else {
		c.Decode = append(c.Decode, n)
	}
	n.Start(t)
	n.Ready(t)
	return n
}

// ReadAgain makes processes read their files again, and waits until each has said
// that it did, with the words that are expected.
func ReadAgain(t testing.TB, words string, processes ...*Process) {
	t.Helper()
	for _, p := range processes {
		before := strings.Count(p.Stderr(), words)
		p.Signal(syscall.SIGHUP)
		Eventually(t, func() error {
			if strings.Count(p.Stderr(), words) > before {
				return nil
			}
			return &unsaid{p, words}
		})
	}
}

type unsaid struct {
	p     *Process
	words string
}

func (u *unsaid) Error() string { return "it has not said " + u.words + ":\n" + u.p.Tail() }
