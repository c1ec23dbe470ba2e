package fault

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd"
	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// apart is a pair whose nodes have networks of their own. A request of three
// chunks takes a second to compute and more to move.
func apart(t *testing.T, handoffSeconds, requestSeconds int) (c *cluster.Cluster, prefill, decode *cluster.Network) {
	t.Helper()
	networks := cluster.Networks(t, 2)
	c = cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1", HandoffSeconds: handoffSeconds, RequestSeconds: requestSeconds, ExpectErrors: true,
		Networks:     networks,
		PrefillFlags: []string{"--sim-prefill-rate", "400", "--sim-link-rate", "40000"},
		DecodeFlags:  []string{"--sim-decode-rate", "40"},
	})
	return c, networks[0], networks[1]
}

// chunkMoves is a request of which a chunk is on its way.
func chunkMoves(t *testing.T, c *cluster.Cluster, seed string, stream bool) (*flight, string) {
	t.Helper()
	s := stage{name: "while a chunk moves", prompt: 384, max: 16, reached: func(t *testing.T, c *cluster.Cluster, id string) (passed bool) {
		cluster.Eventually(t, func() error {
			submitted, moved := 0, 0
			for _, e := range c.Prefill[0].EventsOf(t, id) {
				switch e.Event {
				case journal.ChunkSubmitted:
					submitted++
				case journal.Transfer:
					moved++
				case journal.HandoffCompleted:
					passed = true
					return nil
				}
			}
			if submitted == moved {
				return fmt.Errorf("%d chunks are submitted and have moved", moved)
			}
			return nil
		})
		return passed
	}}
	return s.fly(t, c, seed, stream)
}

// Control calls are lost while the data plane works: a chunk has moved and
// nobody can say so.
func TestControlCallsThatAreLost(t *testing.T) {
	t.Parallel()
	t.Run("for a while", func(t *testing.T) {
		t.Parallel()
		c, prefill, decode := apart(t, patient, 60)
		for i, stream := range []bool{true, false} {
			f, id := chunkMoves(t, c, fmt.Sprint("a while ", i, " "), stream)
			prefill.LoseControl(t, decode)
			await(t, c.Prefill[0], id, journal.Transfer)
			decode.Heal(t)
			f.wantText(t)
			c.AssertIdle(t)
			for _, n := range c.Nodes() {
				require.Zero(t, n.Count(t, journal.RecoveryRequired), n.Label)
			}
		}
	})
	// Prefill knows that its writes have ended and tells decode when it can.
	t.Run("for too long", func(t *testing.T) {
		t.Parallel()
		c, prefill, decode := apart(t, hasty, 60)
		f, id := chunkMoves(t, c, "too long", true)
		prefill.LoseControl(t, decode)
		lost := time.Now()
		f.wantError(t)
		t.Logf("the error came after %v: %d %v", time.Since(lost).Round(time.Millisecond), f.answer.Status, f.answer.Failure)
		wantGated(t, c, c.Decode[0], id)
		wantOpen(t, c.Prefill[0])
		decode.Heal(t)
		healed := time.Now()
		wantOpen(t, c.Decode[0])
		t.Logf("decode was open %v after the network had healed", time.Since(healed).Round(time.Millisecond))
		require.Zero(t, c.Decode[0].Count(t, "FENCED"))
		c.WaitPairs(t, 1)
		tenOfTen(t, c, "after")
	})
}

// A node is cut off from everybody and comes back.
func TestNodeThatIsCutOff(t *testing.T) {
	t.Parallel()
	for _, role := range []pd.Role{pd.Prefill, pd.Decode} {
		// side is the node that is cut off, and its network.
		side := func(c *cluster.Cluster, prefill, decode *cluster.Network) (*cluster.Node, *cluster.Network) {
			if role == pd.Prefill {
				return c.Prefill[0], prefill
			}
			return c.Decode[0], decode
		}
		t.Run(role.String()+" for a while", func(t *testing.T) {
			t.Parallel()
			c, p, d := apart(t, patient, 60)
			n, network := side(c, p, d)
			for i, stream := range []bool{true, false} {
				f, _ := chunkMoves(t, c, fmt.Sprint("a while ", i, " "), stream)
				network.CutOff(t)
				silent(t, n.URL())
				network.Heal(t)
				f.wantText(t)
				c.AssertIdle(t)
			}
			f, _ := streams.fly(t, c, "streams", true)
			network.CutOff(t)
			silent(t, n.URL())
			network.Heal(t)
			f.wantText(t)
			c.AssertIdle(t)
			require.Zero(t, c.Decode[0].Count(t, journal.RecoveryRequired))
		})
		// The bytes under way may have arrived or not: that nobody can know.
		t.Run(role.String()+" for too long under a transfer", func(t *testing.T) {
			t.Parallel()
			c, p, d := apart(t, hasty, 60)
			_, network := side(c, p, d)
			f, id := chunkMoves(t, c, "too long", true)
			network.CutOff(t)
			lost := time.Now()
			f.wantError(t)
			t.Logf("the error came after %v: %d %v", time.Since(lost).Round(time.Millisecond), f.answer.Status, f.answer.Failure)
			if role == pd.Decode {
				wantOpen(t, c.Prefill[0])
			}
			network.Heal(t)
			resolve(t, c, id)
			c.WaitPairs(t, 1)
			tenOfTen(t, c, "after")
		})
	}
	t.Run("decode for too long while it streams", func(t *testing.T) {
		t.Parallel()
		c, _, decode := apart(t, hasty, 8)
		f, _ := streams.fly(t, c, "too long", true)
		decode.CutOff(t)
		lost := time.Now()
		f.wantError(t)
		t.Logf("the error came after %v: %d %v", time.Since(lost).Round(time.Millisecond), f.answer.Status, f.answer.Failure)
		wantOpen(t, c.Prefill[0])
		decode.Heal(t)
		wantOpen(t, c.Decode[0])
		c.WaitPairs(t, 1)
		require.Zero(t, c.Decode[0].Count(t, journal.RecoveryRequired))
		tenOfTen(t, c, "after")
	})
	// Decode has all that it needs.
	t.Run("prefill for too long while decode streams", func(t *testing.T) {
		t.Parallel()
		c, prefill, _ := apart(t, hasty, 60)
		f, _ := streams.fly(t, c, "streams", true)
		prefill.CutOff(t)
		f.wantText(t)
		prefill.Heal(t)
		c.WaitPairs(t, 1)
		tenOfTen(t, c, "after")
	})
}
