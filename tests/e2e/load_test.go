package e2e

import (
	"fmt"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// paused stops the prefill nodes while f runs, so that no request can end
// meanwhile, however slow this machine is.
func paused(c *cluster.Cluster, f func()) {
	for _, n := range c.Prefill {
		n.Signal(syscall.SIGSTOP)
	}
	defer func() {
		for _, n := range c.Prefill {
			n.Signal(syscall.SIGCONT)
		}
	}()
	f()
}

// burst is what came of many requests at once.
type burst struct {
	mu               sync.Mutex
	answered         int
	refused, strange []cluster.Answer
	running          sync.WaitGroup
}

// send sends n requests at once. Every answer is checked for its text.
func (b *burst) send(t *testing.T, c *cluster.Cluster, n int) {
	t.Helper()
	combined := cluster.SharedCombined(t)
	var requests []cluster.Completion
	var texts []string
	for i := range n {
		q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprintf("burst %d ", i), 20+5*i), Max: 12, Stream: i%2 == 0}
		requests, texts = append(requests, q), append(texts, combined.Text(t, q))
	}
	for i, q := range requests {
		b.running.Go(func() {
			a, err := cluster.Complete(t.Context(), c.URL, q)
			if !assert.NoError(t, err) {
				return
			}
			b.mu.Lock()
			defer b.mu.Unlock()
			switch {
			case a.Check(q) == nil && a.Text == texts[i]:
				b.answered++
			case a.Status == 503:
				b.refused = append(b.refused, a)
			default:
				b.strange = append(b.strange, a)
			}
		})
	}
}

// wantRefused waits until so many were refused.
func (b *burst) wantRefused(t *testing.T, n int) {
	t.Helper()
	cluster.Eventually(t, func() error {
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.refused) < n {
			return fmt.Errorf("%d requests are refused, %d answered, want %d refused", len(b.refused), b.answered, n)
		}
		return nil
	})
}

func created(t *testing.T, nodes []*cluster.Node) []int {
	t.Helper()
	var out []int
	for _, n := range nodes {
		out = append(out, n.Count(t, journal.HandoffCreated))
	}
	return out
}

// Behaviour 128: sixty requests at once over two prefill and three decode nodes
// are shared out evenly on either side.
func TestRequestsAreSharedOutEvenly(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{
		Prefills: 2, Decodes: 3, PLayout: "dp4tp1", DLayout: "dp4tp1", Capacity: 32,
		// The router keeps nodes that are stopped for a while.
		RouterFlags: []string{"--node-poll-timeout", "60s"},
	})
	var b burst
	paused(c, func() {
		b.send(t, c, 60)
		cluster.Eventually(t, func() error {
			h, err := c.RouterHealth()
			if err == nil && h.Active != 60 {
				err = fmt.Errorf("%d requests run, want 60", h.Active)
			}
			return err
		})
	})
	b.running.Wait()
	require.Equal(t, 60, b.answered, "refused: %+v, strange: %+v", b.refused, b.strange)
	c.AssertIdle(t)
	require.Equal(t, []int{30, 30}, created(t, c.Prefill))
	require.Equal(t, []int{20, 20, 20}, created(t, c.Decode))
}

// Behaviour 155: what is beyond the capacity is refused at once and nothing is
// lost: sixteen places of two prefill nodes, sixty requests.
func TestWhatIsBeyondTheCapacityIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{
		Prefills: 2, Decodes: 3, PLayout: "dp4tp1", DLayout: "dp4tp1", Capacity: 8,
		DecodeFlags: []string{"--sim-decode-rate", "20"},
		RouterFlags: []string{"--node-poll-timeout", "60s"},
	})
	var b burst
	paused(c, func() {
		b.send(t, c, 60)
		b.wantRefused(t, 44)
	})
	b.running.Wait()
	require.Equal(t, 16, b.answered, "strange: %+v", b.strange)
	require.Len(t, b.refused, 44)
	for _, a := range b.refused {
		assert.Equal(t, "1", a.Header.Get("Retry-After"))
		assert.Equal(t, "node_busy", a.Failure.Code)
		assert.Equal(t, "service_unavailable_error", a.Failure.Type)
	}
	c.AssertIdle(t)
	require.Equal(t, []int{8, 8}, created(t, c.Prefill))
}

// The programs with the race detector under everything at once: streams, whole
// answers, clients that leave, refusals, two prefill and two decode nodes.
func TestNothingRacesUnderLoad(t *testing.T) {
	t.Parallel()
	c := cluster.Start(t, cluster.Options{
		Prefills: 2, Decodes: 2, PLayout: "dp2tp2", DLayout: "dp4tp1", Capacity: 8, Race: true,
		PrefillFlags: []string{"--sim-link-rate", "1000000"},
	})
	for round := range 3 {
		var leaving sync.WaitGroup
		for i := range 8 {
			q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprintf("leaves %d %d", round, i), 60*i+1), Max: 64, Stream: i%2 == 0}
			client := cluster.Dial(t, c.URL, q)
			leaving.Go(func() {
				client.Wait(i % 4)
				client.Reset()
			})
		}
		var b burst
		b.send(t, c, 24)
		b.running.Wait()
		leaving.Wait()
		require.Empty(t, b.strange)
		c.AssertIdle(t)
	}
	var b burst
	b.send(t, c, 8)
	b.running.Wait()
	require.Equal(t, 8, b.answered)
	c.AssertIdle(t)
}
