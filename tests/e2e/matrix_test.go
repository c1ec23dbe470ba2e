package e2e

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// matrixPrompts are a hundred prompts of 1 to 4,096 tokens: the boundaries, and
// a spread between them.
func matrixPrompts() []cluster.Completion {
	sizes := append([]int{}, promptSizes...)
	rng := rand.New(rand.NewPCG(7, 7))
	for len(sizes) < 100 {
		sizes = append(sizes, 1+rng.IntN(1<<(5+len(sizes)%8)))
	}
	out := make([]cluster.Completion, len(sizes))
	for i, n := range sizes {
		out[i] = cluster.Completion{Prompt: cluster.Prompt(fmt.Sprintf("%d matrix ", i), n), Max: 1 + i%24, Stream: i%2 == 0}
	}
	return out
}

// Behaviours 150, 158 and 168: every prompt, cold, warm on both nodes and warm
// on prefill only, with all four combinations of prefix caching and three pairs
// of layouts, has the text of one process. What was cached is neither computed
// (prefill) nor moved (decode).
func TestMatrixOfPromptsCachesAndLayouts(t *testing.T) {
	t.Parallel()
	prompts := matrixPrompts()
	combined := cluster.SharedCombined(t)
	for _, layouts := range [][2]string{{"dp4tp4", "dp4tp4"}, {"dp4tp4", "dp16tp1"}, {"dp4tp1", "dp1tp4"}} {
		for caching := range 4 {
			prefill, decode := caching&1 == 0, caching&2 == 0
			t.Run(fmt.Sprintf("%s to %s, caches %t %t", layouts[0], layouts[1], prefill, decode), func(t *testing.T) {
				flags := func(on bool) []string {
					return []string{"--sim-pool-tokens", "131072", map[bool]string{true: "--enable-prefix-caching", false: "--no-enable-prefix-caching"}[on]}
				}
				// Prefill's slot of an answered request may outlive its answer, so four
				// clients in a row may hold more than eight for a moment.
				c := cluster.Start(t, cluster.Options{PLayout: layouts[0], DLayout: layouts[1], Capacity: 16, PrefillFlags: flags(prefill), DecodeFlags: flags(decode)})
				// Counters begin anew with a boot, so decode's are taken within one.
				passes := map[string]passCounts{}
				for _, pass := range []string{"cold", "warm on both", "warm on prefill"} {
					if pass == "warm on prefill" {
						c.Decode[0].Signal(syscall.SIGTERM)
						c.Decode[0].Wait(t)
						c.Decode[0].Start(t)
						c.Decode[0].Ready(t)
						c.WaitPairs(t, 1)
					}
					before := countsOf(t, c)
					runAll(t, c, combined, prompts, pass)
					c.AssertIdle(t)
					passes[pass] = countsOf(t, c).minus(before)
				}
				cold, both, source := passes["cold"], passes["warm on both"], passes["warm on prefill"]
				require.Zero(t, cold.computedFromCache+cold.hitTokens)
				t.Logf("computed, from cache, bytes moved, not moved: %+v", passes)
				for _, warm := range []passCounts{both, source} {
					require.Equal(t, prefill, warm.computed < cold.computed)
				}
				require.Equal(t, decode, both.bytes < cold.bytes, "%v bytes moved, %v cold", both.bytes, cold.bytes)
				require.Equal(t, decode, both.hitTokens > 0)
				require.Equal(t, cold.bytes, source.bytes, "a cold decode node gets everything")
			})
		}
	}
}

// runAll sends every prompt, a few at a time, and compares the texts.
func runAll(t *testing.T, c *cluster.Cluster, combined *cluster.Combined, prompts []cluster.Completion, pass string) {
	t.Helper()
	work := make(chan cluster.Completion)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for q := range work {
				a, err := cluster.Complete(t.Context(), c.URL, q)
				if assert.NoError(t, err) && assert.NoError(t, a.Check(q)) {
					assert.Equal(t, combined.Text(t, q), a.Text, "%s, %d tokens", pass, len(q.Prompt))
				}
			}
		})
	}
	for _, q := range prompts {
		work <- q
	}
	close(work)
	all.Wait()
}

// passCounts are what the nodes counted.
type passCounts struct {
	computed, computedFromCache, bytes, hitTokens float64
}

func (a passCounts) minus(b passCounts) passCounts {
	return passCounts{a.computed - b.computed, a.computedFromCache - b.computedFromCache, a.bytes - b.bytes, a.hitTokens - b.hitTokens}
}

func countsOf(t *testing.T, c *cluster.Cluster) passCounts {
	t.Helper()
	p, err := cluster.Metrics(c.Prefill[0].URL())
	require.NoError(t, err)
	d, err := cluster.Metrics(c.Decode[0].URL())
	require.NoError(t, err)
	return passCounts{
		computed: p.Sum("pypto_pd_computed_prompt_tokens_total", "", ""), computedFromCache: p.Sum("pypto_pd_cached_prompt_tokens_total", "", ""),
		bytes: p.Sum("pypto_transfer_written_bytes_total", "", ""), hitTokens: d.Sum("pypto_pd_reserved_hit_tokens_total", "", ""),
	}
}

// Behaviours 127 and 162: nodes that do not fit each other are never paired, and
// the router says why.
func TestNodesThatDoNotFitAreNeverPaired(t *testing.T) {
	t.Parallel()
	for want, flags := range map[string][]string{
		"model_revision":    {"--model", "other"},
		"rolling_policy":    {"--rolling-policy", "all"},
		"ring_periods[ori]": {"--long-prefill-token-threshold", "1", "--max-num-batched-tokens", "1"},
	} {
		t.Run(want, func(t *testing.T) {
			t.Parallel()
			c := cluster.Start(t, cluster.Options{Decodes: 2, PLayout: "dp1tp1", DLayout: "dp1tp1", OddFlags: flags})
			odd := c.Decode[1]
			cluster.Eventually(t, func() error {
				h, err := c.RouterHealth()
				if err != nil {
					return err
				}
				for _, n := range h.Nodes {
					if n.Node == string(odd.Entry.NodeID) && strings.Contains(n.Reason, want) {
						return nil
					}
				}
				return fmt.Errorf("/health is %+v", h)
			})
			for i := range 6 {
				q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint(want, i), 40), Max: 2}
				require.NotEmpty(t, cluster.MustComplete(t, c.URL, q).Text)
			}
			d, err := odd.Describe()
			require.NoError(t, err)
			require.Zero(t, d.Capacity.Sequence, "the odd node was never asked for anything")
		})
	}
}
