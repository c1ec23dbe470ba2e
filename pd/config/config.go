package config

import (
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

// Defaults of the optional fields.
const (
	DefaultProvider       = "mooncake"
	DefaultPolicy         = "round_robin"
	DefaultCapacity       = 8
	DefaultHandoffTimeout = 300 * time.Second
	DefaultRequestTimeout = 3600 * time.Second
	// ControlPortOffset is added to the HTTP port when control_port is absent.
	ControlPortOffset = 10000
)

// Providers are the data planes that pd.json may name, and Policies the ways to
// choose a pair.
var (
	Providers = []string{"mooncake", "simulator"}
	Policies  = []string{"round_robin", "least_loaded", "prefix_aware"}
)

// Config is a pd.json without a defect. It does not change after Parse.
type Config struct {
	Prefill []Entry
	Decode  []Entry
	// Provider and Policy are of Providers and Policies.
	Provider string
	Policy   string
	// Capacity is how many requests one node runs at a time.
	Capacity int
	// HandoffTimeout bounds single control, transfer and stop operations;
	// RequestTimeout bounds a request, and the wait for a whole prefill.
	HandoffTimeout time.Duration
	RequestTimeout time.Duration
	Observability  Observability
	// Warnings are things that are allowed and probably not meant.
	Warnings []string

	run pd.RunID
}

// Observability says what is written for people. It never switches off the
// state folder, which is needed for correctness.
type Observability struct {
	Enabled bool
	// Root is the folder that holds one folder per run.
	Root string
}

// Entry is one node.
type Entry struct {
	Role pd.Role
	// NodeID is the node's identity on the wire: its node_id, or host:port.
	NodeID pd.NodeID
	// Host is a name or an IP address, without brackets.
	Host        string
	Port        int
	ControlPort int
	// TransferHostname is the data-plane address; the host unless given.
	TransferHostname string
}

// HTTPAddress is host:port of the OpenAI API, IPv6 hosts in brackets.
func (e Entry) HTTPAddress() string { return net.JoinHostPort(e.Host, strconv.Itoa(e.Port)) }

// ControlAddress is host:port of the control server, IPv6 hosts in brackets.
func (e Entry) ControlAddress() string {
	return net.JoinHostPort(e.Host, strconv.Itoa(e.ControlPort))
}

// Load reads and checks the file at path. Its error names the file and carries
// pd.CodeInvalidConfig.
func Load(path string) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, fmt.Errorf("cannot load PD config %s: %w", path, Defects{{Text: err.Error()}})
	}
	c, err := Parse(data)
	if err != nil {
		return nil, fmt.Errorf("cannot load PD config %s: %w", path, err)
	}
	return c, nil
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	// One byte more than allowed, so that Parse sees that there is too much.
	return io.ReadAll(io.LimitReader(f, pd.MaxConfigBytes+1))
}

// Run is the run id: runtime.run_id, or one derived from the nodes, provider
// and policy, which is the same in every process that reads the same file.
func (c *Config) Run() pd.RunID { return c.run }

// Entries lists the nodes of a role in the order of the file.
func (c *Config) Entries(role pd.Role) []Entry {
	switch role {
	case pd.Prefill:
		return c.Prefill
	case pd.Decode:
		return c.Decode
	}
	return nil
}

// Find gives the node with an identity. A node finds its peers' addresses with
// it; none travels.
func (c *Config) Find(id pd.NodeID) (Entry, bool) {
	for _, e := range slices.Concat(c.Prefill, c.Decode) {
		if e.NodeID == id {
			return e, true
		}
	}
	return Entry{}, false
}

// Select gives the entry that one process is, by --pd-node-id: a node_id, or
// host:port. It may be empty where the role has one entry.
func (c *Config) Select(role pd.Role, nodeID string) (Entry, error) {
	entries := c.Entries(role)
	if nodeID == "" {
		if len(entries) == 1 {
			return entries[0], nil
		}
		return Entry{}, pd.Errorf(pd.CodeInvalidConfig, "select node", "--pd-node-id is required when %s has multiple endpoints; it is one of %s", role, names(entries))
	}
	for _, match := range []func(Entry) bool{
		func(e Entry) bool { return string(e.NodeID) == nodeID },
		func(e Entry) bool { return e.HTTPAddress() == nodeID },
	} {
		if i := slices.IndexFunc(entries, match); i >= 0 {
			return entries[i], nil
		}
	}
	return Entry{}, pd.Errorf(pd.CodeInvalidConfig, "select node", "--pd-node-id %q must select exactly one %s endpoint; it is one of %s", nodeID, role, names(entries))
}

func names(entries []Entry) string {
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = string(e.NodeID)
	}
	return strings.Join(ids, ", ")
}

// defaultRoot is below the working directory of the process.
var defaultRoot = filepath.Join("serving_log", "pd_disag")

// deriveRun is a pure function of what makes two deployments different. Hosts
// and ports stand in the order of the file.
func (c *Config) deriveRun() pd.RunID {
	pairs := func(entries []Entry) []any {
		out := make([]any, len(entries))
		for i, e := range entries {
			out[i] = []any{e.Host, e.Port}
		}
		return out
	}
	digest, err := strictjson.Digest(map[string]any{
		"decode": pairs(c.Decode), "policy": c.Policy, "prefill": pairs(c.Prefill), "provider": c.Provider,
	})
	if err != nil {
		panic(fmt.Sprintf("run id of a checked config: %v", err)) // hosts are valid UTF-8, the rest is integers
	}
	return pd.RunID("pd-" + digest[:16])
}
