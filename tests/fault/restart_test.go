package fault

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// boots are the lives that the nodes are in.
func boots(t *testing.T, nodes []*cluster.Node) []string {
	t.Helper()
	var out []string
	for _, n := range nodes {
		said, err := n.Describe()
		require.NoError(t, err, n.Label)
		out = append(out, string(said.Boot))
	}
	return out
}

// Case B11: a peer restarts at the same address. What was in flight fails with a
// clear error; from when the node is there again ten of ten requests are
// answered, and nobody else was restarted or is gated. A write under way into
// decode is ended by a fence, which decode does by itself here.
func TestPeerThatRestartsAtItsAddressIsAnotherPeer(t *testing.T) {
	t.Parallel()
	s := transfers
	s.decode = []string{"--auto-fence"}
	c := s.start(t, hasty)
	tenOfTen(t, c, "before")
	prefill, decode := c.Prefill, c.Decode
	for _, row := range []struct {
		name        string
		killed      []*cluster.Node
		left        []*cluster.Node
		transferred bool
	}{
		{"prefill at rest", prefill, decode, false},
		{"decode at rest", decode, prefill, false},
		{"both at rest", c.Nodes(), nil, false},
		{"prefill under a transfer", prefill, decode, true},
		{"decode under a transfer", decode, prefill, true},
	} {
		t.Log(row.name)
		left, gone := boots(t, row.left), boots(t, row.killed)
		var f *flight
		if row.transferred {
			f, _ = s.fly(t, c, row.name, true)
		}
		for _, n := range row.killed {
			n.Kill()
		}
		for _, n := range row.killed {
			n.Start(t)
		}
		for _, n := range row.killed {
			n.Ready(t)
		}
		if f != nil {
			f.wantError(t)
		}
		for i, boot := range boots(t, row.killed) {
			require.NotEqual(t, gone[i], boot)
		}
		c.AssertIdle(t)
		c.WaitPairs(t, 1)
		tenOfTen(t, c, row.name)
		require.Equal(t, left, boots(t, row.left), "somebody else was restarted")
		require.Zero(t, c.Prefill[0].Count(t, journal.RecoveryRequired), "prefill was gated, whose memory nobody writes")
	}
}

// One of three decode nodes dies with transfers of both prefill nodes under way
// to it: its requests fail, those of the others are answered, no prefill node is
// gated, and the others serve on. Its next life serves with everybody.
func TestOneOfThreeDecodeNodesDies(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{
		Prefills: 2, Decodes: 3, PLayout: "dp2tp1", DLayout: "dp2tp1", Capacity: 8, HandoffSeconds: patient, ExpectErrors: true,
		PrefillFlags: []string{"--sim-link-rate", "30000", "--no-enable-prefix-caching"}, DecodeFlags: []string{"--no-enable-prefix-caching"},
	})
	others := append(append([]*cluster.Node{}, c.Prefill...), c.Decode[1:]...)
	before := boots(t, others)
	var all []*flight
	for i := range 12 {
		q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("one of three ", i, " "), 128), Max: 16, Stream: i%2 == 0}
		cluster.SharedCombined(t).Text(t, q)
		all = append(all, fly(t, c.URL, q))
	}
	doomed := c.Decode[0]
	underWay := func(p *cluster.Node, id string) bool {
		return has(t, p, id, journal.ChunkSubmitted) && !has(t, p, id, journal.Transfer)
	}
	cluster.Eventually(t, func() error {
		for _, e := range doomed.Events(t) {
			if e.Event != journal.HandoffReserved {
				continue
			}
			for _, p := range c.Prefill {
				if underWay(p, e.Handoff) {
					return nil
				}
			}
		}
		return errors.New("nothing moves to the decode node that will die")
	})
	doomed.Kill()
	failed := 0
	for _, f := range all {
		f.land(t)
		require.NoError(t, f.err)
		if f.answer.Failure == nil {
			f.wantText(t)
			continue
		}
		f.wantError(t)
		failed++
	}
	t.Logf("%d of %d requests failed", failed, len(all))
	require.Positive(t, failed)
	// Two pairs of three are left, and a third of the requests was on the third.
	require.LessOrEqual(t, failed, len(all)/3)
	for _, n := range others {
		wantOpen(t, n)
		require.Zero(t, n.Count(t, journal.RecoveryRequired), "%s was gated", n.Label)
	}
	c.WaitPairs(t, 4)
	for i := range 6 {
		fly(t, c.URL, cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("two of three ", i, " "), 16), Max: 6, Stream: i%2 == 0}).wantText(t)
	}
	admitted := doomed.Count(t, journal.DecodeAdmitted)
	doomed.Start(t)
	doomed.Ready(t)
	c.WaitPairs(t, 6)
	tenOfTen(t, c, "after")
	require.Greater(t, doomed.Count(t, journal.DecodeAdmitted), admitted, "its next life was never asked")
	require.Equal(t, before, boots(t, others), "somebody else was restarted")
}
