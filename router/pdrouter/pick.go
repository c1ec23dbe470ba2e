package pdrouter

import (
	"fmt"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/wire"
)

// mismatch names what keeps two nodes from being a pair, "" if nothing does.
func mismatch(p, d *wire.Node) string {
	if field := p.Contract.Diff(&d.Contract); field != "" {
		return field
	}
	if p.ServedModel != d.ServedModel {
		return "served_model"
	}
	if p.MaxModelTokens != d.MaxModelTokens {
		return "max_model_tokens"
	}
	for _, g := range d.Contract.Groups {
		if need := ringPages(g, d.Contract.AlignmentTokens); d.RingPeriods[g.Name] < need {
			return fmt.Sprintf("ring_periods[%s]: decode has %d, a transfer may need %d", g.Name, d.RingPeriods[g.Name], need)
		}
	}
	return ""
}

// ringPages is how many pages of one group a transfer puts into decode's ring
// at worst; 0 for groups without a ring.
func ringPages(g pd.CacheGroup, alignment int) int {
	switch g.Kind {
	case pd.Rolling:
		// From one alignment step before the last boundary to the prompt's end.
		return pd.CeilDiv(2*alignment-1, g.PageTokens)
	case pd.FinalOnly:
		return pd.CeilDiv(g.WindowTokens-1, g.PageTokens) + 1
	}
	return 0
}

// refusal names what makes a node's descriptor unfit for a place in the
// configuration, "" if nothing does.
func refusal(n *wire.Node, role pd.Role, id pd.NodeID, run pd.RunID) string {
	switch {
	case n.ProtocolVersion != pd.ProtocolVersion:
		return fmt.Sprintf("speaks protocol version %d, want %d", n.ProtocolVersion, pd.ProtocolVersion)
	case n.Role != role:
		return fmt.Sprintf("is a %s node", n.Role)
	case n.Node != id:
		return fmt.Sprintf("calls itself %q", n.Node)
	case n.Run != run:
		return fmt.Sprintf("is of run %q, the router of %q: they read different pd.json files", n.Run, run)
	}
	return ""
}
