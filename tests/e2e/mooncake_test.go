package e2e

import (
	"fmt"
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/mooncake"
	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
	"github.com/hw-native-sys/pypto-pd/tests/fakelib"
)

// transferEngine is the environment of nodes that load a Transfer Engine: the
// one that PYPTO_MOONCAKE_LIBRARY names, or the one that tests build.
func transferEngine(t *testing.T) []string {
	t.Helper()
	if library := os.Getenv("PYPTO_MOONCAKE_LIBRARY"); library != "" {
		return []string{"PYPTO_MOONCAKE_LIBRARY=" + library}
	}
	l, err := fakelib.Build(t.TempDir())
	require.NoError(t, err)
	return []string{"PYPTO_MOONCAKE_LIBRARY=" + l.TransferEngine, fakelib.EnvKnobs + "=" + l.Knobs}
}

// The texts of the combined node, with the pages moved by the Transfer Engine's
// C API between owner processes, one per rank.
func TestTextThroughTheTransferEngineEqualsTheCombinedText(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	for _, layouts := range [][2]string{{"dp2tp2", "dp4tp1"}, {"dp4tp4", "dp4tp4"}} {
		t.Run(fmt.Sprint(layouts[0], " to ", layouts[1]), func(t *testing.T) {
			c := cluster.Start(t, cluster.Options{PLayout: layouts[0], DLayout: layouts[1], Provider: mooncake.Name, Env: transferEngine(t)})
			for i, size := range promptSizes {
				if size > 1024 {
					continue // what is longer only takes longer
				}
				for _, stream := range []bool{false, true} {
					q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprintf("%c%t", 'a'+rune(i), stream), size), Max: []int{1, 8, 16}[i%3], Stream: stream}
					assert.Equal(t, combined.Text(t, q), cluster.MustComplete(t, c.URL, q).Text, "%d tokens, stream %t", size, stream)
				}
			}
			c.AssertIdle(t)
		})
	}
}

// Without the library a node says what it looked for and what runs without it.
func TestMissingTransferEngineIsAUsageError(t *testing.T) {
	t.Parallel()
	path, config := cluster.WriteConfig(t, cluster.Options{Provider: mooncake.Name})
	for _, owners := range []string{"child", "in-process"} {
		p := cluster.Spawn(t, cluster.Command{
			Label: "prefill", Program: "pypto-serving",
			Args: []string{"--pd-role", "prefill", "--pd-config", path, "--pd-node-id", string(config.Prefill[0].NodeID), "--owners", owners, "--ep", "1", "--tp", "1", "--lm-head-tp", "1", "--max-num-seqs", "8"},
			Env:  []string{"PYPTO_MOONCAKE_LIBRARY=/nowhere/libtransfer_engine.so"},
		})
		require.Equal(t, 2, p.Wait(t), "%s", p.Tail())
		require.Contains(t, p.Stderr(), `"provider": "simulator"`)
	}
}

// The same with the pages in device memory: the owners of both sides have a card
// each, the reference engine copies its rows there.
func TestTextThroughDeviceMemoryEqualsTheCombinedText(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	l, err := fakelib.Build(t.TempDir())
	require.NoError(t, err)
	// A small share of the card: registering pins memory, and the limit on that is
	// low on many machines.
	npu := []string{"--backend", "npu", "--devices", "3,1", "--npu-memory-utilization", "0.02", "--max-model-len", "512", "--no-enable-prefix-caching", "--verify-pages", "2"}
	c := cluster.Start(t, cluster.Options{
		PLayout: "dp2tp1", DLayout: "dp1tp2", Provider: mooncake.Name, PrefillFlags: npu, DecodeFlags: npu,
		Env: []string{
			"PYPTO_MOONCAKE_LIBRARY=" + l.AscendTransferEngine, "PYPTO_ASCENDCL_LIBRARY=" + l.Ascend, fakelib.EnvKnobs + "=" + l.Knobs, "HCCL_INTRA_ROCE_ENABLE=0",
		},
	})
	for i, size := range []int{1, 33, 300} {
		q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprint("npu ", i), size), Max: 8, Stream: i%2 == 0}
		assert.Equal(t, combined.Text(t, q), cluster.MustComplete(t, c.URL, q).Text, "%d tokens", size)
	}
	c.AssertIdle(t)
	require.Equal(t, hashesOf(t, c.Prefill[0]), hashesOf(t, c.Decode[0]), "what left one card has arrived on the other")
}

// hashesOf are the hashes that --verify-pages logs, by handoff.
func hashesOf(t *testing.T, n *cluster.Node) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, m := range regexp.MustCompile(`msg="pages hashed".* handoff=([0-9a-f]{32}) hashes="([^"]+)"`).FindAllStringSubmatch(n.Stderr(), -1) {
		out[m[1]] = m[2]
	}
	require.Len(t, out, 3, "%s", n.Tail())
	return out
}
