package plan

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/hw-native-sys/pypto-pd/adapter"
	"github.com/hw-native-sys/pypto-pd/pd"
)

// cache is what the memory of one node's ranks holds.
type cache struct {
	Role           string  `json:"role"`
	StepTokens     int     `json:"step_tokens"`
	Partitions     int     `json:"partitions"`
	HistoryTokens  int     `json:"history_tokens"`
	BootstrapSlots int     `json:"bootstrap_slots"`
	BootstrapBytes int64   `json:"bootstrap_bytes"`
	RankBytes      int64   `json:"rank_bytes"`
	Groups         []group `json:"groups"`
}

// group is one cache group's part, pages per layer and bytes of all layers.
type group struct {
	Name        pd.GroupName `json:"name"`
	History     int          `json:"history"`
	Rings       int          `json:"rings"`
	Replacement int          `json:"replacement"`
	Checkpoints int          `json:"checkpoints"`
	Filler      int          `json:"filler"`
	Pages       int          `json:"pages"`
	RingPeriod  int          `json:"ring_period"`
	Bytes       int64        `json:"bytes"`
}

// caches sizes both nodes; nodes of equal steps and ranks are the same.
func caches(f Flags, c *pd.Contract) ([]cache, error) {
	if len(f.memory) == 0 {
		return nil, nil
	}
	var out []cache
	for _, n := range []struct {
		role     string
		topology pd.Topology
		step     int
	}{{pd.Prefill.String(), f.source, f.Chunk}, {pd.Decode.String(), f.target, f.DChunk}} {
		s, err := adapter.SizeWithin(c, adapter.Sizing{
			Topology: n.topology, StepTokens: n.step, Sequences: f.Slots, Checkpoints: f.Checkpoints,
		}, adapter.Budget{RankBytes: f.memory, Utilization: f.Utilization, MaxTokens: f.MaxModelLen})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", n.role, err)
		}
		out = append(out, cacheOf(n.role, c, s))
	}
	return out, nil
}

func cacheOf(role string, c *pd.Contract, s adapter.Sizing) cache {
	l := adapter.LayoutFor(c, s)
	out := cache{
		Role: role, StepTokens: s.StepTokens, Partitions: s.Topology.Partitions(), HistoryTokens: s.PoolTokens,
		BootstrapSlots: l.BootstrapSlots, BootstrapBytes: int64(l.BootstrapSlots) * int64(c.Bootstrap.SlotBytes()), RankBytes: l.RankBytes(c),
	}
	for _, g := range c.Groups {
		p := s.Pages(g)
		row := group{
			Name: g.Name, History: p.History, Rings: p.Rings, Replacement: p.Replacement, Checkpoints: p.Checkpoints, Filler: p.Filler,
			Pages: p.Total(), RingPeriod: l.RingPeriods[g.Name],
		}
		for _, comp := range c.Components {
			if comp.Group == g.Name {
				row.Bytes += c.RegionBytes(comp, p.Total())
			}
		}
		out.Groups = append(out.Groups, row)
	}
	return out
}

// units of memory; the longest spelling first, so that a B is not taken for one.
var units = []struct {
	name  string
	bytes float64
}{
	{"TiB", 1 << 40},
	{"GiB", 1 << 30},
	{"MiB", 1 << 20},
	{"KiB", 1 << 10},
	{"TB", 1e12},
	{"GB", 1e9},
	{"MB", 1e6},
	{"kB", 1e3},
	{"B", 1},
	{"", 1},
}

// sizes reads "32GiB" or "32GiB,30.5GiB".
func sizes(text string) ([]int64, error) {
	if text == "" {
		return nil, nil
	}
	var out []int64
	for _, part := range strings.Split(text, ",") {
		part = strings.TrimSpace(part)
		for _, u := range units {
			digits, ok := strings.CutSuffix(part, u.name)
			if !ok {
				continue
			}
			n, err := strconv.ParseFloat(digits, 64)
			if err != nil || !(n > 0) || n*u.bytes >= math.MaxInt64 {
				return nil, fmt.Errorf("--memory %q: want a size such as 32GiB or 30.5GB", part)
			}
			out = append(out, int64(n*u.bytes))
			break
		}
	}
	return out, nil
}
