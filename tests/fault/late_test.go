package fault

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/pd/transfer/simulator"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// lateRounds bounds the rounds of one test of late writes, lateTime its time,
// which it uses up unless the machine is fast.
const (
	lateRounds = 120
	lateTime   = 8 * time.Second
)

// A write of request A lands when A has failed already, over a pool in which
// every request gets the pages of one of the two before it. B is refused, or its
// text is exact. Every round is one A, one B that is refused, and three that are
// answered.
func TestLateWriteNeverReachesAnotherRequest(t *testing.T) {
	t.Parallel()
	for _, fault := range []struct {
		kind string
		// delays of the writes: bytes of the paused kind are uncertain only when
		// the sender has given up before, after half a second.
		first, step int64
	}{
		{simulator.LateWriteAfterFailed, 0, 7},
		{simulator.TargetPausedBuffered, 520, 11},
	} {
		for _, fences := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, auto-fence %t", fault.kind, fences), func(t *testing.T) {
				t.Parallel()
				var faults []simulator.Fault
				for i := range lateRounds {
					// One batch of each round is hit: four requests move one each.
					faults = append(faults, simulator.Fault{Kind: fault.kind, Nth: 4*i + 1, DelayMillis: fault.first + int64(i)*fault.step%97})
				}
				o := tight(faults)
				if fences {
					o.DecodeFlags = append(o.DecodeFlags, "--auto-fence")
				}
				c := cluster.Start(t, o)
				refused, rounds := 0, 0
				for began := time.Now(); rounds < lateRounds && time.Since(began) < lateTime; rounds++ {
					refused += lateRound(t, c, rounds, fences)
				}
				t.Logf("%d rounds, %d requests refused while decode was gated", rounds, refused)
				require.Equal(t, rounds, c.Decode[0].Count(t, "FENCED"))
				c.AssertIdle(t)
			})
		}
	}
}

// tight is a pair whose decode pool is as small as a request of the tests
// allows, under faults of the data plane. Writers give up after half a second.
func tight(faults []simulator.Fault) cluster.Options {
	flags := []string{"--no-enable-prefix-caching"}
	return cluster.Options{
		PLayout: "dp1tp1", DLayout: "dp1tp1", Capacity: 1, HandoffSeconds: 1, RequestSeconds: 60, ExpectErrors: true,
		PrefillFlags: flags, DecodeFlags: append([]string{"--sim-pool-tokens", "256"}, flags...),
		PrefillFaults: faults,
	}
}

// lateRound is one round; it gives how many requests were refused.
func lateRound(t *testing.T, c *cluster.Cluster, round int, fences bool) (refused int) {
	t.Helper()
	ask := func(name string) *flight {
		return fly(t, c.URL, cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint(name, " of ", round, " "), 100), Max: 20, Stream: round%2 == 0})
	}
	c.AssertIdle(t) // else A might find its node busy with the request before it
	known := c.Decode[0].Count(t, journal.HandoffCreated)
	ask("a").wantError(t)
	if !fences {
		id := handoff(t, c.Decode[0], known)
		wantGated(t, c, c.Decode[0], id)
		b := ask("b")
		b.wantError(t)
		require.Equal(t, 503, b.answer.Status)
		refused++
		fence(t, c, c.Decode[0])
	}
	for i := range 3 {
		for {
			b := ask(fmt.Sprint("b", i))
			if b.land(t); b.err == nil && b.answer.Status == 503 {
				// Gated, or the router has not heard yet that it is no more.
				require.Contains(t, []any{"node_gated", "no_eligible_pair", "node_busy", "fenced"}, b.answer.Failure.Code, "%s", b.answer.Raw)
				refused++
				continue
			}
			b.wantText(t)
			break
		}
	}
	return refused
}
