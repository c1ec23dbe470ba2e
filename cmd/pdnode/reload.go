package pdnode

import (
	"slices"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/config"
)

// Reload takes the next version of pd.json in: nodes of the other role that are new
// in it may be paired with from now on. Those that are gone stay known, so that what
// runs with them goes on. The error says what cannot change without a restart, this
// node's own entry among it; nothing has changed then. A nil configuration with why
// is one that could not be read. It is not called from two goroutines at once.
func (n *Node) Reload(next *config.Config, why error) error {
	if why != nil {
		return why
	}
	change, err := n.pd.ChangeTo(next)
	if err != nil {
		return err
	}
	// An entry whose name, address or port differs was refused by ChangeTo.
	if !slices.Contains(next.Entries(n.cfg.Role), n.cfg.Entry) {
		return pd.Errorf(pd.CodeInvalidConfig, "read pd.json again", "%s node %s, which this is, is no longer in it: drain and stop it", n.cfg.Role, n.Self.Node)
	}
	n.pd = next
	added := map[pd.NodeID]string{}
	for _, e := range change.Added {
		if e.Role == n.cfg.Role.Other() {
			added[e.NodeID] = e.ControlAddress()
		}
	}
	if len(added) > 0 {
		n.Shell.AddPeers(added)
	}
	n.Log.Info("pd.json read again", "change", change.String(), "peers_added", len(added))
	return nil
}
