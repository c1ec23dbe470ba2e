package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/hw-native-sys/pypto-pd/tests/e2e/cluster"
)

// The same texts when every rank's memory is held and moved by a process of its
// own, and none of these processes is left when their nodes have ended.
func TestTextThroughOwnerProcessesEqualsTheCombinedText(t *testing.T) {
	t.Parallel()
	combined := cluster.SharedCombined(t)
	child := []string{"--owners", "child"}
	c := cluster.Start(t, cluster.Options{PLayout: "dp2tp2", DLayout: "dp4tp1", PrefillFlags: child, DecodeFlags: child, Race: true})
	var owners []int
	for _, n := range c.Nodes() {
		h, err := n.Health()
		require.NoError(t, err)
		require.Len(t, h.OwnerPIDs, 4)
		for rank, pid := range h.OwnerPIDs {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			require.NoError(t, err)
			require.Contains(t, strings.Split(string(b), "\x00"), "owner", "rank %d", rank)
		}
		owners = append(owners, h.OwnerPIDs...)
	}
	for i, size := range promptSizes {
		if size > 1024 {
			continue // what is longer only takes longer
		}
		for _, stream := range []bool{false, true} {
			q := cluster.Completion{Prompt: cluster.Prompt(fmt.Sprintf("%c%t", 'a'+rune(i), stream), size), Max: []int{1, 8, 16}[i%3], Stream: stream}
			assert.Equal(t, combined.Text(t, q), cluster.MustComplete(t, c.URL, q).Text, "%d tokens, stream %t", size, stream)
		}
	}
	// What decode hits was written by another process.
	q := cluster.Completion{Prompt: cluster.Prompt("hit", 400), Max: 8}
	require.Zero(t, cluster.MustComplete(t, c.URL, q).CachedTokens)
	again := cluster.MustComplete(t, c.URL, q)
	require.NotZero(t, again.CachedTokens)
	require.Equal(t, combined.Text(t, q), again.Text)
	c.AssertIdle(t)
	for _, p := range []*cluster.Process{c.Router, c.Prefill[0].Process, c.Decode[0].Process} {
		require.Zero(t, p.Stop(t), p.Label)
	}
	for _, pid := range owners {
		_, err := os.Stat(fmt.Sprintf("/proc/%d", pid))
		require.ErrorIs(t, err, os.ErrNotExist, "owner process %d is left", pid)
	}
}
