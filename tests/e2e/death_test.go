package e2e

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// dying is a pair of which one node will be killed under a request. Chunks take
// half a second to compute and more to move.
func dying(t *testing.T, prefillRate, linkRate string) *cluster.Cluster {
	t.Helper()
	return cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1", HandoffSeconds: 10, ExpectErrors: true,
		PrefillFlags: []string{"--sim-prefill-rate", prefillRate, "--sim-link-rate", linkRate},
		DecodeFlags:  []string{"--sim-decode-rate", "40"},
	})
}

// explicitError reads a stream to its end, which must be one error event.
func explicitError(t *testing.T, client *cluster.Connection) {
	t.Helper()
	client.Line(t, `data: {"object":"error"`)
	client.Line(t, "data: [DONE]")
}

// restart starts a node that was killed and waits until it serves.
func restart(t *testing.T, c *cluster.Cluster, n *cluster.Node) {
	t.Helper()
	n.Start(t)
	n.Ready(t)
	c.WaitPairs(t, 1)
	c.AssertIdle(t)
	q := cluster.Completion{Prompt: cluster.Prompt("afterwards", 40), Max: 8}
	require.Equal(t, cluster.SharedCombined(t).Text(t, q), cluster.MustComplete(t, c.URL, q).Text)
	c.AssertIdle(t)
}

func TestDecodeNodeThatDiesWhileItStreamsIsAnExplicitError(t *testing.T) {
	t.Parallel()
	c := dying(t, "0", "0")
	client := cluster.Dial(t, c.URL, cluster.Completion{Prompt: cluster.Prompt("doomed", 60), Max: 400, Stream: true})
	client.Line(t, "data: ")
	c.Decode[0].Kill()
	explicitError(t, client)
	restart(t, c, c.Decode[0])
}

func TestDecodeNodeThatDiesUnderATransferLeavesPrefillServing(t *testing.T) {
	t.Parallel()
	c := dying(t, "0", "20000")
	client := cluster.Dial(t, c.URL, cluster.Completion{Prompt: cluster.Prompt("doomed", 128), Max: 8, Stream: true})
	await(t, c.Prefill[0], handoff(t, c.Prefill[0], 0), journal.ChunkSubmitted)
	c.Decode[0].Kill()
	explicitError(t, client)
	restart(t, c, c.Decode[0])
}

func TestPrefillNodeThatDiesWhileNothingMovesGatesNobody(t *testing.T) {
	t.Parallel()
	c := dying(t, "100", "0")
	client := cluster.Dial(t, c.URL, cluster.Completion{Prompt: cluster.Prompt("doomed", 128), Max: 8, Stream: true})
	await(t, c.Prefill[0], handoff(t, c.Prefill[0], 0), journal.HandoffReserved)
	c.Prefill[0].Kill()
	explicitError(t, client)
	cluster.Eventually(t, func() error {
		said, err := c.Decode[0].Describe()
		if err == nil && (said.Health != pd.Ready || said.Capacity.Active+said.Capacity.Reservations > 0) {
			err = fmt.Errorf("decode is %v %q with %+v", said.Health, said.Reason, said.Capacity)
		}
		return err
	})
	restart(t, c, c.Prefill[0])
	require.Zero(t, c.Decode[0].Count(t, journal.RecoveryRequired))
}

// Behaviour 154: writes of a node that was killed may still land, so decode
// holds their memory and takes nothing new. Its own restart ends that.
func TestPrefillNodeThatDiesUnderATransferGatesDecode(t *testing.T) {
	t.Parallel()
	c := dying(t, "0", "20000")
	client := cluster.Dial(t, c.URL, cluster.Completion{Prompt: cluster.Prompt("doomed", 128), Max: 8, Stream: true})
	await(t, c.Prefill[0], handoff(t, c.Prefill[0], 0), journal.ChunkSubmitted)
	c.Prefill[0].Kill()
	explicitError(t, client)
	decode := c.Decode[0]
	cluster.Eventually(t, func() error {
		said, err := decode.Describe()
		if err == nil && (said.Health != pd.RecoveryRequired || said.Reason == "" || said.Capacity.Quarantined != 1) {
			err = fmt.Errorf("decode is %v %q with %+v", said.Health, said.Reason, said.Capacity)
		}
		return err
	})
	cluster.Eventually(t, func() error {
		state, reason, _, h := nodeState(t, c, decode)
		if state != "RECOVERY_REQUIRED" || reason == "" || h.Code != 503 {
			return fmt.Errorf("/health is %+v", h)
		}
		return nil
	})
	require.Equal(t, 1, decode.Count(t, journal.RecoveryRequired))
	// Prefill's new life knows nothing of the writes of the old one.
	c.Prefill[0].Start(t)
	c.Prefill[0].Ready(t)
	cluster.Eventually(t, func() error {
		state, _, _, h := nodeState(t, c, c.Prefill[0])
		if state != "READY" || h.Pairs != 0 {
			return fmt.Errorf("/health is %+v", h)
		}
		return nil
	})
	a, err := cluster.Complete(t.Context(), c.URL, cluster.Completion{Prompt: "nobody", Max: 4})
	require.NoError(t, err)
	require.Equal(t, 503, a.Status)
	decode.Kill()
	restart(t, c, decode)
}

// Behaviour 177: a node that is gated leaves the others serving, with what they
// have cached.
func TestGatedNodeLeavesTheOthersServing(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	c := cluster.Start(t, cluster.Options{
		Prefills: 2, Decodes: 2, PLayout: "dp1tp1", DLayout: "dp1tp1", HandoffSeconds: 10, ExpectErrors: true,
		PrefillFlags: []string{"--sim-link-rate", "20000"},
	})
	client := cluster.Dial(t, c.URL, cluster.Completion{Prompt: cluster.Prompt("doomed", 128), Max: 8, Stream: true})
	var victim, gated *cluster.Node
	cluster.Eventually(t, func() error {
		for _, n := range c.Prefill {
			if n.Count(t, journal.ChunkSubmitted) > 0 {
				victim = n
			}
		}
		for _, n := range c.Decode {
			if n.Count(t, journal.HandoffReserved) > 0 {
				gated = n
			}
		}
		if victim == nil || gated == nil {
			return errors.New("nothing moves")
		}
		return nil
	})
	victim.Kill()
	explicitError(t, client)
	cluster.Eventually(t, func() error {
		state, _, _, h := nodeState(t, c, gated)
		if state != "RECOVERY_REQUIRED" || h.Pairs != 1 || h.Code != 200 {
			return fmt.Errorf("/health is %+v", h)
		}
		return nil
	})
	for i := range 4 {
		q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("others ", i), 40), Max: 8, Stream: i%2 == 0}
		require.Equal(t, combined.Text(t, q), cluster.MustComplete(t, c.URL, q).Text)
	}
	// Prefixes that were cached before are still hit.
	for i := range 2 {
		q := cluster.Completion{Prompt: cluster.Prompt("shared by others ", 300), Max: 8}
		a := cluster.MustComplete(t, c.URL, q)
		require.Equal(t, combined.Text(t, q), a.Text)
		require.Equal(t, i > 0, a.CachedTokens >= 128, "%d cached tokens, request %d", a.CachedTokens, i)
	}
	gated.Kill() // it would wait for the writes until its drain time is over
}
