package fault

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// Cases B03, B04 and B10: a crowd of clients that leave under a transfer, in waves over a pool that is
// made for ten, costs nothing: every page is free again soon after each wave,
// and the next request is answered.
func TestCancelStorm(t *testing.T) {
	t.Parallel()
	const waves, crowd = 25, 8
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp2tp1", Capacity: 10,
		PrefillFlags: []string{"--sim-link-rate", "1000000", "--no-enable-prefix-caching"},
		DecodeFlags:  []string{"--sim-pool-tokens", "1280", "--no-enable-prefix-caching"},
	})
	prefill, decode := c.Prefill[0], c.Decode[0]
	atStart := freePages(t, decode)
	require.NotZero(t, atStart)
	// took is what this process sees, which asks again and again. all and own are
	// from the nodes' journals: all until decode has freed the last pages, own
	// without what the last write still took on its link.
	var took, all, own []time.Duration
	inFlight := 0
	for wave := range waves {
		// What is in flight is counted from here on.
		submitted, created := prefill.Count(t, journal.ChunkSubmitted), prefill.Count(t, journal.HandoffCreated)
		var clients []*cluster.Connection
		for i := range crowd {
			clients = append(clients, cluster.Dial(t, c.URL, cluster.Completion{
				Prompt: cluster.Prompt(fmt.Sprintf("leaves %d %d ", wave, i), 100), Max: 20, Stream: i%2 == 0,
			}))
		}
		cluster.Eventually(t, func() error {
			if n := prefill.Count(t, journal.ChunkSubmitted) - submitted; n == 0 {
				return errors.New("nothing is in flight")
			}
			if n := prefill.Count(t, journal.HandoffCreated) - created; n < crowd {
				return fmt.Errorf("prefill knows %d of %d requests", n, crowd)
			}
			return nil
		})
		inFlight += prefill.Count(t, journal.ChunkSubmitted) - submitted
		left := time.Now()
		for i, client := range clients {
			if i%3 == 0 {
				client.Reset()
			} else {
				client.Close()
			}
		}
		cluster.Eventually(t, func() error {
			if n := freePages(t, decode); n != atStart {
				return fmt.Errorf("%d pages are free, want %d", n, atStart)
			}
			return errors.Join(decode.Idle(), prefill.Idle())
		})
		took = append(took, time.Since(left))
		freed, written := left, left
		for _, e := range decode.Events(t) {
			if e.Event == journal.HandoffFailed && e.Time.After(freed) {
				freed = e.Time
			}
		}
		for _, e := range prefill.Events(t) {
			if e.Event == journal.Transfer && e.Time.After(written) {
				written = e.Time
			}
		}
		all, own = append(all, freed.Sub(left)), append(own, max(0, freed.Sub(written)))
	}
	left := time.Now()
	c.AssertIdle(t)
	counters := time.Since(left)
	require.Less(t, counters, soon, "counters of the router")
	require.Less(t, slices.Max(took), soon)
	t.Logf("%d clients left in %d waves, %d transfers had begun by then", waves*crowd, waves, inFlight)
	t.Logf("from their leaving to the last page that is free: %s; of that after the last write had ended: %s; as seen from outside: %s; then all counters zero: %v",
		percentiles(all), percentiles(own), percentiles(took), counters.Round(time.Millisecond))
	q := cluster.Completion{Prompt: cluster.Prompt("stays", 100), Max: 20, Stream: true}
	fly(t, c.URL, q).wantText(t)
	c.AssertIdle(t)
	require.Equal(t, atStart, freePages(t, decode))
	for _, n := range c.Nodes() {
		require.Zero(t, n.Count(t, journal.RecoveryRequired), n.Label)
	}
}

func percentiles(times []time.Duration) string {
	slices.Sort(times)
	return fmt.Sprintf("p50 %v, p99 %v", times[len(times)/2].Round(time.Millisecond), times[len(times)*99/100].Round(time.Millisecond))
}

// freePages counts the free pages of a node.
func freePages(t *testing.T, n *cluster.Node) int {
	t.Helper()
	m, err := cluster.Metrics(n.URL())
	require.NoError(t, err)
	return int(m.Sum("pypto_pd_pages", "state", "free"))
}
