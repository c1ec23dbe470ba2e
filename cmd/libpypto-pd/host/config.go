package host

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/adapter/dsv4"
	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
	"github.com/hw-native-sys/pypto-pd/pd/control"
	"github.com/hw-native-sys/pypto-pd/pd/strictjson"
)

// Config is the JSON text that Open takes. Names and meaning are those of
// pypto-serving's flags.
type Config struct {
	// PDConfig is the path of pd.json.
	PDConfig string `json:"pd_config"`
	// Role is prefill or decode; NodeID picks the entry where a role has several.
	Role   pd.Role   `json:"role"`
	NodeID pd.NodeID `json:"node_id,omitempty"`
	// ServedModel is the model's name in the API, Revision the identity of the
	// weights: 64 hex digits of SHA-256. Both nodes of a pair must agree.
	ServedModel string `json:"served_model"`
	Revision    string `json:"revision"`
	// Geometry is the shape of the cache, full or tiny; RollingPolicy is tail
	// (the default), checkpoint or all.
	Geometry      string `json:"geometry"`
	RollingPolicy string `json:"rolling_policy,omitempty"`
	// Ranks and TP are the layout: TP ranks replicate one partition.
	Ranks int `json:"ranks"`
	TP    int `json:"tp"`
	// PoolTokens is what the cache of one partition holds, StepTokens the most
	// that one step computes of a prompt, Sequences how many requests a partition
	// runs at once.
	PoolTokens int `json:"pool_tokens"`
	StepTokens int `json:"step_tokens"`
	Sequences  int `json:"sequences"`
	// MaxModelTokens bounds prompt plus output.
	MaxModelTokens int `json:"max_model_tokens"`
	// PrefixCaching: the host reuses pages of earlier prompts.
	PrefixCaching bool `json:"prefix_caching,omitempty"`
	// AutoFence ends a quarantine by making the data plane anew.
	AutoFence bool `json:"auto_fence,omitempty"`
	// Owners are the sockets at which the owners of the ranks wait, where the
	// memory is other processes'; then none is given to this one.
	Owners []string `json:"owners,omitempty"`
	// ControlSecretFile names the file with the secret that routers and all nodes
	// have, if the deployment has one.
	ControlSecretFile string `json:"control_secret_file,omitempty"`
	// LogLevel is debug, info, warn (the default) or error; the log goes to stderr.
	LogLevel string `json:"log_level,omitempty"`
}

// settings are a checked Config.
type settings struct {
	Config
	pd       *config.Config
	entry    config.Entry
	adapter  adapter.Adapter
	contract pd.Contract
	layout   adapter.Layout
	level    slog.Level
	secret   *control.Secret // nil without one
}

func (s *settings) logger(w io.Writer) *slog.Logger {
	return slog.New(slog.NewTextHandler(w, &slog.HandlerOptions{Level: s.level}))
}

func invalid(format string, args ...any) error {
	return pd.Errorf(pd.CodeInvalidConfig, "open", format, args...)
}

func readConfig(text []byte) (*settings, error) {
	s := &settings{}
	if err := strictjson.Decode(text, &s.Config, strictjson.Limits{}); err != nil {
		return nil, &pd.Error{Op: "open", Code: pd.CodeInvalidConfig, Err: err}
	}
	var err error
	if s.pd, err = config.Load(s.PDConfig); err != nil {
		return nil, err
	}
	if s.entry, err = s.pd.Select(s.Role, string(s.NodeID)); err != nil {
		return nil, err
	}
	switch s.Geometry {
	case "tiny":
		s.adapter = dsv4.Tiny()
	case "full":
		s.adapter = dsv4.Full()
	default:
		return nil, invalid("geometry %q: want tiny or full", s.Geometry)
	}
	if s.RollingPolicy != "" {
		if s.adapter, err = adapter.WithPolicy(s.adapter, s.RollingPolicy); err != nil {
			return nil, invalid("rolling_policy: %v", err)
		}
	}
	if s.ControlSecretFile != "" {
		if s.secret, err = control.LoadSecret(s.ControlSecretFile); err != nil {
			return nil, invalid("control_secret_file: %v", err)
		}
	}
	if s.LogLevel == "" {
		s.level = slog.LevelWarn
	} else if err := s.level.UnmarshalText([]byte(s.LogLevel)); err != nil {
		return nil, invalid("log_level %q: want debug, info, warn or error", s.LogLevel)
	}
	return s, s.size()
}

// size checks the numbers and computes the layout from them.
func (s *settings) size() error {
	topology := pd.Topology{Ranks: s.Ranks, TP: s.TP}
	if err := topology.Check(); err != nil {
		return invalid("%v", err)
	}
	for _, n := range []struct {
		name    string
		v, most int
	}{
		{"pool_tokens", s.PoolTokens, 1 << 24},
		{"step_tokens", s.StepTokens, pd.MaxModelTokens},
		{"sequences", s.Sequences, 4096},
		{"max_model_tokens", s.MaxModelTokens, pd.MaxModelTokens},
	} {
		if n.v < 1 || n.v > n.most {
			return invalid("%s %d: want 1..%d", n.name, n.v, n.most)
		}
	}
	if slots := s.Sequences * topology.Partitions(); slots < s.pd.Capacity {
		return invalid("runtime.capacity %d of pd.json: want at most the %d sequences of %d partitions", s.pd.Capacity, slots, topology.Partitions())
	}
	if n := len(s.Owners); n > 0 && n != topology.Ranks {
		return invalid("owners: %d sockets for %d ranks", n, topology.Ranks)
	}
	if len(s.Revision) != 64 {
		return invalid("revision: want 64 hex digits, got %d bytes", len(s.Revision))
	}
	if err := pd.CheckID("served_model", s.ServedModel); err != nil {
		return invalid("%v", err)
	}
	s.contract = s.adapter.Contract(s.Revision, s.pd.Provider)
	s.layout = adapter.LayoutFor(&s.contract, adapter.Sizing{Topology: topology, PoolTokens: s.PoolTokens, StepTokens: s.StepTokens, Sequences: s.Sequences})
	return nil
}

// Region describes one arena that the host must give for every rank. The bytes
// are layer-major: page p of layer l (counted in the component's own layers)
// begins at (l * PagesPerLayer + p) * PageBytes; in the bootstrap arena slot s
// begins at s * PageBytes.
type Region struct {
	Component pd.ComponentID
	// Group is the index of the page table in every list of runs, -1 for the
	// bootstrap arena.
	Group int
	Bytes int64
	// Layers, PagesPerLayer, PageBytes, RowBytes, RowsPerPage and RowTokens are
	// the shape: a row holds RowTokens positions.
	Layers, PagesPerLayer, PageBytes, RowBytes, RowsPerPage, RowTokens int
	// PoolPages is how many of PagesPerLayer the host may grant; the rest are
	// filler. For the bootstrap arena both count slots.
	PoolPages int
	// PageTokens is how many positions a page of the group covers, RingPeriod its
	// ring in pages (0: the group keeps its whole history), WindowTokens what
	// decode reads of it (0: everything).
	PageTokens, RingPeriod, WindowTokens int
}

// regions lists the arenas of a rank in the order of the contract, the
// bootstrap arena last.
func (s *settings) regions() []Region {
	var out []Region
	c := &s.contract
	for _, comp := range c.Components {
		r := Region{
			Component: comp.ID, Bytes: c.RegionBytes(comp, s.layout.PagesPerLayer[comp.Group]),
			Layers: len(comp.Layers), PagesPerLayer: s.layout.PagesPerLayer[comp.Group], PageBytes: comp.PageBytes(),
			RowBytes: comp.RowBytes(), RowsPerPage: comp.RowsPerPage, RowTokens: comp.RowTokens, PoolPages: s.layout.PoolPages(comp.Group),
		}
		for i, g := range c.Groups {
			if g.Name == comp.Group {
				r.Group, r.PageTokens, r.RingPeriod, r.WindowTokens = i, g.PageTokens, s.layout.RingPeriods[g.Name], g.WindowTokens
			}
		}
		out = append(out, r)
	}
	b := c.Bootstrap
	return append(out, Region{
		Component: b.Component, Group: -1, Bytes: int64(s.layout.BootstrapSlots) * int64(b.SlotBytes()),
		Layers: 1, PagesPerLayer: s.layout.BootstrapSlots, PageBytes: b.SlotBytes(), RowBytes: b.RowBytes(), RowsPerPage: b.Rows, RowTokens: 1,
		PoolPages: s.layout.BootstrapSlots,
	})
}

// pages is how many pages the table of a group has for tokens positions.
func (s *settings) pages(group, tokens int) int {
	g := s.contract.Groups[group]
	n := g.Pages(tokens)
	if period := s.layout.RingPeriods[g.Name]; g.Kind != pd.Full {
		n = min(n, period)
	}
	return n
}

// Run is one run of pages of a group: Group counts the contract's groups, the
// runs of a group in order make its table.
type Run struct{ Group, First, Count int }

// tables reads runs into page tables and checks them against the arenas.
func (s *settings) tables(runs []Run) (adapter.Tables, error) {
	lists := make([][]pd.PageRun, len(s.contract.Groups))
	for i, r := range runs {
		if r.Group < 0 || r.Group >= len(lists) {
			return nil, fmt.Errorf("run %d: group %d of %d", i, r.Group, len(lists))
		}
		pool := s.layout.PoolPages(s.contract.Groups[r.Group].Name)
		if r.First < 0 || r.Count < 1 || r.First > pool-r.Count {
			return nil, fmt.Errorf("run %d: pages [%d,+%d) of group %s, which has %d", i, r.First, r.Count, s.contract.Groups[r.Group].Name, pool)
		}
		lists[r.Group] = append(lists[r.Group], pd.PageRun{First: pd.Page(r.First), Count: r.Count})
	}
	out := adapter.Tables{}
	for i, g := range s.contract.Groups {
		t, err := pd.TableOf(lists[i], pd.MaxTablePages)
		if err != nil {
			return nil, fmt.Errorf("group %s: %w", g.Name, err)
		}
		out[g.Name] = t
	}
	return out, nil
}
