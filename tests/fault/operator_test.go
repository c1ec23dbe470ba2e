package fault

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// pdctl gives an order to a node as an operator would, and what was printed.
func pdctl(t *testing.T, c *cluster.Cluster, order string, rest ...string) (code int, printed string) {
	t.Helper()
	p := cluster.Spawn(t, cluster.Command{
		Label: "pdctl " + order, Program: cluster.Pdctl, Args: append([]string{order, "--pd-config", c.Path}, rest...),
	})
	code = p.Wait(t)
	return code, p.Stdout() + p.Stderr()
}

// wantGated waits until a node says everywhere that it is gated by a handoff.
func wantGated(t *testing.T, c *cluster.Cluster, n *cluster.Node, id string) {
	t.Helper()
	cluster.Eventually(t, func() error {
		said, err := n.Describe()
		if err == nil && (said.Health != pd.RecoveryRequired || said.Reason == "" || said.Capacity.Quarantined != 1) {
			err = fmt.Errorf("%s is %v %q with %+v", n.Label, said.Health, said.Reason, said.Capacity)
		}
		return err
	})
	h, err := n.Health()
	require.NoError(t, err)
	require.Equal(t, 503, h.Code)
	require.Equal(t, "RECOVERY_REQUIRED", h.State)
	require.NotEmpty(t, h.Reason)
	code, printed := pdctl(t, c, "gates", string(n.Entry.NodeID))
	require.Zero(t, code, "%s", printed)
	require.Contains(t, printed, "1 gates")
	require.Contains(t, printed, "handoff "+id)
}

// fence opens a gated node.
func fence(t *testing.T, c *cluster.Cluster, n *cluster.Node) {
	t.Helper()
	code, printed := pdctl(t, c, "fence", string(n.Entry.NodeID))
	require.Zero(t, code, "%s", printed)
	require.Contains(t, printed, "the fence has ended every earlier write")
	require.False(t, strings.Contains(printed, "(0 pages released"), "%s", printed)
	wantOpen(t, n)
}

// wantOpen waits until a node is ready and holds nothing.
func wantOpen(t *testing.T, n *cluster.Node) {
	t.Helper()
	cluster.Eventually(t, n.Idle)
}

// resolve opens decode after a handoff that failed while nobody could speak to
// prefill or decode. Where prefill knows that its writes have ended, decode
// learns that by itself; where it does not, an operator fences.
func resolve(t *testing.T, c *cluster.Cluster, id string) {
	t.Helper()
	prefill, decode := c.Prefill[0], c.Decode[0]
	await(t, prefill, id, journal.HandoffFailed)
	for _, e := range prefill.EventsOf(t, id) {
		if e.Code == pd.CodeUncertain.String() {
			t.Logf("prefill does not know whether its writes have ended: %s", e.Detail)
			wantGated(t, c, decode, id)
			fence(t, c, decode)
			return
		}
	}
	await(t, decode, id, journal.HandoffFailed)
	wantOpen(t, decode)
	require.Zero(t, decode.Count(t, "FENCED"))
}
