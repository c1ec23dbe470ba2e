package pdrouter

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// flags reads "1" as free and "0" as not.
func flags(s string) []bool {
	out := make([]bool, len(s))
	for i := range s {
		out[i] = s[i] == '1'
	}
	return out
}

func TestPickTurnsRoundBothPoolsIndependently(t *testing.T) {
	all := func(int, int) bool { return true }
	for name, c := range map[string]struct {
		prefills, decodes string
		fits              func(p, d int) bool
		picks             int
		want              string
	}{
		"two and three":              {"11", "111", all, 6, "p1d1 p2d2 p1d3 p2d1 p1d2 p2d3"},
		"a full decode is passed":    {"11", "101", all, 4, "p1d1 p2d3 p1d1 p2d3"},
		"a full prefill is passed":   {"01", "11", all, 3, "p2d1 p2d2 p2d1"},
		"odd decode fits nobody":     {"11", "11", func(_, d int) bool { return d != 0 }, 3, "p1d2 p2d2 p1d2"},
		"odd prefill fits nobody":    {"11", "11", func(p, _ int) bool { return p != 0 }, 3, "p2d1 p2d2 p2d1"},
		"two islands":                {"11", "11", func(p, d int) bool { return p == d }, 4, "p1d1 p2d2 p1d1 p2d2"},
		"no prefill":                 {"00", "11", all, 1, "-"},
		"no decode":                  {"11", "00", all, 1, "-"},
		"nobody fits":                {"1", "1", func(int, int) bool { return false }, 1, "-"},
		"no nodes":                   {"", "", all, 1, "-"},
		"free ones do not fit":       {"10", "01", func(p, d int) bool { return p == d }, 1, "-"},
		"second prefill is the only": {"11", "01", func(p, d int) bool { return p == 1 && d == 1 }, 2, "p2d2 p2d2"},
	} {
		t.Run(name, func(t *testing.T) {
			var k cursors
			var got []string
			for range c.picks {
				p, d, ok := k.pick(flags(c.prefills), flags(c.decodes), c.fits)
				if !ok {
					got = append(got, "-")
					continue
				}
				got = append(got, fmt.Sprintf("p%dd%d", p+1, d+1))
			}
			require.Equal(t, c.want, strings.Join(got, " "))
		})
	}
}

func TestSixtyPicksSpreadEvenly(t *testing.T) {
	var k cursors
	var p [2]int
	var d [3]int
	for range 60 {
		i, j, ok := k.pick(flags("11"), flags("111"), func(int, int) bool { return true })
		require.True(t, ok)
		p[i]++
		d[j]++
	}
	require.Equal(t, [2]int{30, 30}, p)
	require.Equal(t, [3]int{20, 20, 20}, d)
}

func describe(role pd.Role) *wire.Node {
	return &wire.Node{
		ProtocolVersion: 2, Role: role, Node: "n", Run: "run", ServedModel: "m", MaxModelTokens: 100,
		Contract: pd.Contract{ProtocolVersion: 2, ModelRevision: "r", AlignmentTokens: 128, Groups: []pd.CacheGroup{
			{Name: "full", Kind: pd.Full, PageTokens: 128},
			{Name: "ori", Kind: pd.Rolling, PageTokens: 32, WindowTokens: 128},
			{Name: "state", Kind: pd.FinalOnly, PageTokens: 8, WindowTokens: 128},
		}},
		RingPeriods: map[pd.GroupName]int{"ori": 8, "state": 17},
	}
}

// Behaviours 15 and 127.
func TestMismatchNamesWhatKeepsNodesApart(t *testing.T) {
	for want, change := range map[string]func(p, d *wire.Node){
		"":               func(p, d *wire.Node) { d.Topology = pd.Topology{Ranks: 16, TP: 1}; d.PrefixCaching = true },
		"model_revision": func(p, d *wire.Node) { d.Contract.ModelRevision = "other" },
		"served_model":   func(p, d *wire.Node) { p.ServedModel = "other" },
		"max_model_tokens": func(p, d *wire.Node) {
			p.MaxModelTokens = 99
		},
		"ring_periods[ori]: decode has 7, a transfer may need 8":      func(p, d *wire.Node) { d.RingPeriods["ori"] = 7 },
		"ring_periods[state]: decode has 16, a transfer may need 17":  func(p, d *wire.Node) { d.RingPeriods["state"] = 16 },
		"ring_periods[state]: decode has 0, a transfer may need 17\t": func(p, d *wire.Node) { delete(d.RingPeriods, "state") },
	} {
		p, d := describe(pd.Prefill), describe(pd.Decode)
		p.RingPeriods = map[pd.GroupName]int{} // local to prefill
		change(p, d)
		require.Equal(t, strings.TrimSpace(want), mismatch(p, d))
	}
}

func TestRefusalNamesWhatIsWrongWithADescriptor(t *testing.T) {
	for want, change := range map[string]func(n *wire.Node){
		"":                                  func(*wire.Node) {},
		"speaks protocol version 3, want 2": func(n *wire.Node) { n.ProtocolVersion = 3 },
		"is a decode node":                  func(n *wire.Node) { n.Role = pd.Decode },
		`calls itself "else"`:               func(n *wire.Node) { n.Node = "else" },
		`is of run "x", the router of "run": they read different pd.json files`: func(n *wire.Node) { n.Run = "x" },
	} {
		n := describe(pd.Prefill)
		change(n)
		require.Equal(t, want, refusal(n, pd.Prefill, "n", "run"))
	}
}
