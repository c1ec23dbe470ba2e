package pdrouter

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

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
