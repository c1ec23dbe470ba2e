package cluster

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// Node is one serving node of a cluster; Process is its present life.
type Node struct {
	*Process
	Entry config.Entry
	Label string

	cluster *Cluster
	args    []string
	network *Network // nil: the tests' own

	read sync.Mutex
	// guarded by read: what was read of the journal, and how many bytes that was
	events []journal.Event
	seen   int64
}

// Start starts the node's process, for the first time or again.
func (n *Node) Start(t testing.TB) {
	t.Helper()
	command := Command{Label: n.Label, Program: Serving, Args: n.args}
	if n.network != nil {
		inside := append(n.network.inside(), filepath.Join(Bin(t), Serving))
		command.Program, command.Args = inside[0], append(inside[1:], n.args...)
	}
	n.Process = n.cluster.spawn(t, command)
}

// URL is where the node serves HTTP.
func (n *Node) URL() string { return "http://" + n.Entry.HTTPAddress() }

// Describe asks the node what it is and how much it runs.
func (n *Node) Describe() (wire.Node, error) {
	var said wire.Node
	_, err := getJSON("http://"+n.Entry.ControlAddress()+wire.PathNode, &said)
	return said, err
}

// Events reads the node's journal, of all its lives. The events belong to the
// node: they must not be changed.
func (n *Node) Events(t testing.TB) []journal.Event {
	t.Helper()
	c := n.cluster.Config
	file := journal.FilesOf(c.Observability.Root, c.Run(), journal.RoleOf(n.Entry.Role), string(n.Entry.NodeID)).Events
	n.read.Lock()
	defer n.read.Unlock()
	if err := n.readOnLocked(file); err != nil {
		t.Fatal(err)
	}
	return n.events[:len(n.events):len(n.events)]
}

// readOnLocked reads what the journal has more than last time. Tests ask for it
// again and again, and must leave the machine to the nodes.
func (n *Node) readOnLocked(file string) error {
	f, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Seek(n.seen, io.SeekStart); err != nil {
		return err
	}
	more, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	more = more[:bytes.LastIndexByte(more, '\n')+1] // the rest is being written
	err = journal.Read(bytes.NewReader(more), func(e journal.Event) error {
		n.events = append(n.events, e)
		return nil
	})
	if err != nil {
		return fmt.Errorf("read journal %s: %w", file, err)
	}
	n.seen += int64(len(more))
	return nil
}

// EventsOf are the events of one handoff, in order.
func (n *Node) EventsOf(t testing.TB, handoff string) []journal.Event {
	t.Helper()
	var out []journal.Event
	for _, e := range n.Events(t) {
		if e.Handoff == handoff {
			out = append(out, e)
		}
	}
	return out
}

// Count counts the events of a name.
func (n *Node) Count(t testing.TB, event string) int {
	t.Helper()
	count := 0
	for _, e := range n.Events(t) {
		if e.Event == event {
			count++
		}
	}
	return count
}

// Health is the body of a node's /health.
type Health struct {
	Code   int    `json:"-"`
	Status string `json:"status"`
	State  string `json:"state"`
	Reason string `json:"reason"`
	Boot   string `json:"boot_id"`
	Pins   int    `json:"pins"`
	// OwnerPIDs are the node's owner processes, by rank; none if it is its own.
	OwnerPIDs []int `json:"owner_pids"`
}

// Health asks the node how it is.
func (n *Node) Health() (Health, error) {
	var h Health
	var err error
	h.Code, err = getJSON(n.URL()+"/health", &h)
	return h, err
}

// Idle reports what the node still holds, or that it is not ready.
func (n *Node) Idle() error {
	said, err := n.Describe()
	if err != nil {
		return err
	}
	h, err := n.Health()
	if err != nil {
		return err
	}
	held, err := n.heldPages()
	if err != nil {
		return err
	}
	c := said.Capacity
	if said.Health != pd.Ready || h.Code != 200 || c.Active+c.Reservations+c.Quarantined+h.Pins+held > 0 {
		return fmt.Errorf("%s is %s %q (health %d) with %d active requests, %d reservations, %d quarantined, %d pins, %d pages held",
			n.Label, said.Health, said.Reason, h.Code, c.Active, c.Reservations, c.Quarantined, h.Pins, held)
	}
	return nil
}

// heldPages adds up the pages that the node's metrics show as held or
// quarantined.
func (n *Node) heldPages() (int, error) {
	m, err := Metrics(n.URL())
	if err != nil {
		return 0, err
	}
	return int(m.Sum("pypto_pd_pages", "state", "held") + m.Sum("pypto_pd_pages", "state", "quarantined")), nil
}

// AssertIdle waits until every node is ready and holds nothing, and the router
// has no slot taken.
func (c *Cluster) AssertIdle(t testing.TB) {
	t.Helper()
	for _, n := range c.Nodes() {
		Eventually(t, n.Idle)
	}
	Eventually(t, func() error {
		h, err := c.RouterHealth()
		if err != nil {
			return err
		}
		for _, n := range h.Nodes {
			if n.Active+n.Unconfirmed > 0 {
				return fmt.Errorf("the router has %d slots of %s taken, %d unconfirmed", n.Active, n.Node, n.Unconfirmed)
			}
		}
		return nil
	})
}

// RouterHealth is the body of the router's /health.
type RouterHealth struct {
	Code   int    `json:"-"`
	Status string `json:"status"`
	Reason string `json:"reason"`
	Pairs  int    `json:"pairs"`
	Active int    `json:"active"`
	Nodes  []struct {
		Role        string `json:"role"`
		Node        string `json:"node_id"`
		Boot        string `json:"boot_id"`
		State       string `json:"state"`
		Active      int    `json:"active"`
		Unconfirmed int    `json:"unconfirmed"`
		Reason      string `json:"reason"`
	} `json:"nodes"`
}

// RouterHealth asks the router how it is.
func (c *Cluster) RouterHealth() (RouterHealth, error) {
	var h RouterHealth
	var err error
	h.Code, err = getJSON(c.URL+"/health", &h)
	return h, err
}

// WaitPairs waits until the router has that many pairs.
func (c *Cluster) WaitPairs(t testing.TB, pairs int) {
	t.Helper()
	Eventually(t, func() error {
		h, err := c.RouterHealth()
		if err == nil && h.Pairs != pairs {
			err = fmt.Errorf("the router has %d pairs, want %d: %+v", h.Pairs, pairs, h)
		}
		return err
	})
}

// Get asks for a page over a connection of its own.
func Get(url string) (status int, body []byte, err error) {
	r, err := client.Get(url)
	if err != nil {
		return 0, nil, err
	}
	defer r.Body.Close()
	body, err = io.ReadAll(r.Body)
	return r.StatusCode, body, err
}

func getJSON(url string, v any) (status int, err error) {
	status, body, err := Get(url)
	if err != nil {
		return status, err
	}
	if err := json.Unmarshal(body, v); err != nil {
		return status, fmt.Errorf("%s answered %d %.200q: %w", url, status, body, err)
	}
	return status, nil
}

// client keeps no connection, so that what a test does not close cannot keep a
// server from ending, and none is left at the end of the run.
var client = &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
