package e2e

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/pd/journal"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// moved is how many bytes of the cache a handoff moved; the hidden states move
// always.
func moved(t *testing.T, n *cluster.Node, id string) int64 {
	t.Helper()
	await(t, n, id, journal.HandoffCompleted)
	sum := int64(0)
	for _, e := range n.EventsOf(t, id) {
		if e.Event == journal.Transfer {
			sum += e.Bytes
		}
	}
	return sum
}

// Behaviour 54, 157, 158, 168: whatever either side keeps of earlier prompts,
// the text is the same; prefill's hits save computation, decode's save bytes.
func TestReusedPrefixesChangeNoText(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name            string
		prefill, decode bool
	}{{"both", true, true}, {"prefill only", true, false}, {"decode only", false, true}, {"neither", false, false}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			flags := func(on bool) []string {
				if on {
					return []string{"--enable-prefix-caching"}
				}
				return []string{"--no-enable-prefix-caching"}
			}
			combined := cluster.SharedCombined(t)
			// One partition each, so that the second request meets what the first left.
			pair := cluster.Start(t, cluster.Options{
				PLayout: "dp1tp2", DLayout: "dp1tp2", PrefillFlags: flags(c.prefill), DecodeFlags: flags(c.decode),
			})
			ask := func(what, prompt string) (cached int, bytes int64) {
				t.Helper()
				q := cluster.Completion{Prompt: prompt, Max: 24, Stream: true}
				known := pair.Prefill[0].Count(t, journal.HandoffCreated)
				a := cluster.MustComplete(t, pair.URL, q)
				require.Equal(t, combined.Text(t, q), a.Text, what)
				pair.AssertIdle(t)
				return a.CachedTokens, moved(t, pair.Prefill[0], handoff(t, pair.Prefill[0], known))
			}
			long := cluster.Prompt("prefix ", 700)
			cold, coldBytes := ask("cold", long)
			require.Zero(t, cold)
			for what, prompt := range map[string]string{
				"the same":              long,
				"the same and more":     long + cluster.Prompt("more ", 200),
				"the same, then others": long[:600] + cluster.Prompt("others ", 100),
			} {
				for again := range 2 {
					cached, bytes := ask(fmt.Sprint(what, again), prompt)
					if c.prefill {
						require.GreaterOrEqual(t, cached, 128, what)
					} else {
						require.Zero(t, cached, what)
					}
					require.Positive(t, bytes)
					if what == "the same" {
						require.Equal(t, c.decode, bytes < coldBytes, "%d bytes moved, %d of the cold prompt", bytes, coldBytes)
					}
				}
			}
			// A shorter one uses what the longer ones left, a whole hit included.
			for _, n := range []int{127, 128, 129, 256, 257, 640} {
				ask(fmt.Sprint(n), long[:n])
				ask(fmt.Sprint(n, " again"), long[:n])
			}
			// What nobody has said before has no hit.
			cached, _ := ask("another", cluster.Prompt("another ", 400))
			require.Zero(t, cached)
		})
	}
}

// Small caches, shared prefixes, clients that leave: pages are reused and given
// away all the time, and every text that is answered is exact.
func TestTextsStayExactWhilePrefixesAreEvicted(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	pair := cluster.Start(t, cluster.Options{
		Prefills: 2, Decodes: 2, PLayout: "dp2tp2", DLayout: "dp4tp1",
		PrefillFlags: []string{"--sim-pool-tokens", "4096"}, DecodeFlags: []string{"--sim-pool-tokens", "3072"},
	})
	const workers, each = 6, 30
	var all sync.WaitGroup
	var answered, tokens atomic.Int64
	for w := range workers {
		rng := rand.New(rand.NewPCG(1, uint64(w)))
		type job struct {
			q    cluster.Completion
			want string
			stay bool
		}
		var jobs []job
		for range each {
			// Four trunks that branch at a few places.
			prompt := cluster.Prompt(fmt.Sprint("trunk ", rng.IntN(4), " "), 128*(1+rng.IntN(8))+rng.IntN(3))
			prompt += cluster.Prompt(fmt.Sprint("branch ", rng.IntN(5), " "), rng.IntN(300))
			q := cluster.Completion{Prompt: prompt, Max: 1 + rng.IntN(40), Stream: rng.IntN(2) == 0}
			jobs = append(jobs, job{q, combined.Text(t, q), rng.IntN(4) > 0})
		}
		all.Go(func() {
			for _, j := range jobs {
				if !j.stay {
					leave(pair.URL, j.q, rng.IntN(12))
					continue
				}
				a, err := cluster.Complete(t.Context(), pair.URL, j.q)
				switch {
				case !assert.NoError(t, err):
					return
				case a.Status == 503:
					// Full for the moment is an answer.
				case assert.NoError(t, a.Check(j.q)) && assert.Equal(t, j.want, a.Text, "%d tokens", len(j.q.Prompt)):
					answered.Add(1)
					tokens.Add(int64(len(j.q.Prompt)))
				}
			}
		})
	}
	all.Wait()
	require.Greater(t, answered.Load(), int64(workers*each/3))
	pair.AssertIdle(t)
	computed := 0.0
	for _, n := range pair.Prefill {
		m, err := cluster.Metrics(n.URL())
		require.NoError(t, err)
		computed += m.Sum("pypto_pd_computed_prompt_tokens_total", "", "")
	}
	require.Less(t, computed, float64(tokens.Load()), "no prefix was used")
}

// leave sends a request and leaves after some lines of its answer.
func leave(url string, q cluster.Completion, lines int) {
	c, err := cluster.Connect(url, q)
	if err != nil {
		return
	}
	c.Wait(lines)
	c.Reset()
}
