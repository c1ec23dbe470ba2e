package node_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/node"
)

// A node that pd.json got later is a peer like any other, and the configuration that
// the node was made of stays its caller's.
func TestAddedPeerIsKnown(t *testing.T) {
	known := map[pd.NodeID]struct{}{}
	n := node.New(node.Config{Role: pd.Prefill, Self: pd.Peer{Node: "p", Boot: "b"}, Run: "r", Contract: &pd.Contract{}, Peers: known, Capacity: 1})
	post := func(id node.PostID) error {
		fence := pd.Fence{Handoff: pd.HandoffID("h"), Run: "r", Prefill: pd.Peer{Node: "p", Boot: "b"}, Decode: pd.Peer{Node: "d", Boot: "c"}}
		for _, e := range n.Step(node.PrefillPosted{Post: id, Fence: fence, Continuation: &pd.Continuation{PromptTokens: []pd.Token{1}}}, 0) {
			if end, ok := e.(node.EndPost); ok {
				return end.Err
			}
		}
		return nil
	}
	require.ErrorIs(t, post(1), pd.CodeIdentity)
	n.Step(node.PeersAdded{Nodes: []pd.NodeID{"d"}}, 0)
	require.ErrorIs(t, post(2), pd.CodeContextLength, "it is what the request asks for that is refused now")
	require.Empty(t, known)
}
