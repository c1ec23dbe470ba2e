package fault

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// soon bounds the wait of a client for its error where no timeout is meant: it is
// less than any, so somebody has seen the failure itself, and far more than a
// busy machine needs. How long it took is printed.
const soon = 8 * time.Second

// Behaviours 154, 174: a process that is killed costs the request that it works
// for, which its client is told at once. Who lives gives everything back, but
// for memory into which the dead may still have written; that an operator opens
// with one order. The process's next life serves without another restart.
func TestKilledProcess(t *testing.T) {
	t.Parallel()
	for _, s := range stages {
		t.Run("prefill "+s.name, func(t *testing.T) {
			t.Parallel()
			c := s.start(t, patience(s))
			for _, stream := range []bool{true, false} {
				f, id := s.fly(t, c, fmt.Sprint("doomed ", stream), stream)
				killed := time.Now()
				c.Prefill[0].Kill()
				if s.name == streams.name {
					f.wantText(t) // decode owns the request
				} else {
					f.wantError(t)
					inTime(t, f, killed)
				}
				if s.name == transfers.name {
					wantGated(t, c, c.Decode[0], id)
					t.Logf("decode was gated %v after prefill's death", time.Since(killed).Round(time.Millisecond))
					fence(t, c, c.Decode[0])
				}
				wantOpen(t, c.Decode[0])
				require.Equal(t, s.name == transfers.name, has(t, c.Decode[0], id, journal.RecoveryRequired))
				again(t, c, c.Prefill[0])
			}
			tenOfTen(t, c, "after")
		})
		t.Run("decode "+s.name, func(t *testing.T) {
			t.Parallel()
			c := s.start(t, patient)
			for _, stream := range []bool{true, false} {
				f, _ := s.fly(t, c, fmt.Sprint("doomed ", stream), stream)
				killed := time.Now()
				c.Decode[0].Kill()
				f.wantError(t)
				inTime(t, f, killed)
				wantOpen(t, c.Prefill[0])
				require.Zero(t, c.Prefill[0].Count(t, journal.RecoveryRequired), "prefill is gated, whose memory nobody writes")
				again(t, c, c.Decode[0])
			}
			tenOfTen(t, c, "after")
		})
		t.Run("router "+s.name, func(t *testing.T) {
			t.Parallel()
			c := s.start(t, patient)
			for _, stream := range []bool{true, false} {
				f, id := s.fly(t, c, fmt.Sprint("doomed ", stream), stream)
				c.Router.Kill()
				f.wantCut(t)
				for _, n := range c.Nodes() {
					wantOpen(t, n)
					require.Zero(t, n.Count(t, journal.RecoveryRequired), n.Label)
				}
				// Nobody waits for the answer, so nobody works on it any more.
				require.False(t, has(t, c.Decode[0], id, journal.HandoffCompleted), "decode went on to the end for nobody")
				c.StartRouter(t)
				c.WaitPairs(t, 1)
			}
			tenOfTen(t, c, "after")
		})
	}
}

// patience is hasty where a writer is killed: only then does decode stop to hope
// for its word.
func patience(s stage) int {
	if s.name == transfers.name {
		return hasty
	}
	return patient
}

// inTime checks and prints how long the client waited for its error: less than
// any timeout takes.
func inTime(t *testing.T, f *flight, killed time.Time) {
	t.Helper()
	took := f.landed.Sub(killed)
	t.Logf("stream %t: the error came %v after the death: %d %v", f.q.Stream, took.Round(time.Millisecond), f.answer.Status, f.answer.Failure)
	require.Less(t, took, soon)
}

// again starts a node that was killed and waits for its pair.
func again(t *testing.T, c *cluster.Cluster, n *cluster.Node) {
	t.Helper()
	n.Start(t)
	n.Ready(t)
	c.WaitPairs(t, 1)
}
